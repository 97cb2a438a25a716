"""Money: exact for every price, never above the limit, every fraction told once."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.ledger import Ledger, amount

money = st.decimals(min_value=Decimal("1e-30"), max_value=Decimal("1e30"), allow_nan=False, allow_infinity=False)
prices = st.one_of(money, st.sampled_from([Decimal("0.40") / 1_000_000, Decimal("3.5e-6"), Decimal(1) / 3]))
orders = st.lists(st.integers(0, 1000), max_size=50)
parts = st.lists(st.floats(0, 1, exclude_min=True), max_size=4, unique=True)


@given(price=prices, limit=prices, carried=money | st.just(Decimal(0)), units=orders)
def test_what_is_spent_is_exact_and_never_above_the_limit(
    price: Decimal, limit: Decimal, carried: Decimal, units: list[int]
) -> None:
    ledger = Ledger(price, limit, (), carried)
    with localcontext() as context:
        context.prec = 3  # what the caller rounds to is no matter
        for number in units:
            fits = ledger.fits(number)
            exact = Fraction(carried) + Fraction(price) * (ledger.units + number)
            assert fits is (exact <= Fraction(limit)) or (number == 0 and carried > limit)
            if fits:
                ledger.charge(number)
            assert Fraction(ledger.spent) == Fraction(carried) + Fraction(price) * ledger.units
    assert ledger.spent <= max(limit, carried)


@given(price=prices, limit=prices, fractions=parts, units=orders)
def test_every_fraction_is_told_once_when_it_is_spent(
    price: Decimal, limit: Decimal, fractions: list[float], units: list[int]
) -> None:
    ledger, told = Ledger(price, limit, fractions), list[float]()
    for number in units:
        told += ledger.charge(number)
        due = [part for part in sorted(fractions) if Fraction(repr(part)) * Fraction(limit) <= Fraction(ledger.spent)]
        assert told == due


@given(price=prices, limit=prices, units=orders)
def test_refunds_give_everything_back(price: Decimal, limit: Decimal, units: list[int]) -> None:
    ledger = Ledger(price, limit, (0.5,))
    for number in units:
        ledger.charge(number)
    for number in units:
        ledger.refund(number)
    assert ledger.spent == ledger.units == 0


def test_a_million_calls_at_forty_cents_are_forty_cents() -> None:
    ledger = Ledger(Decimal("0.40") / 1_000_000, Decimal(1), ())
    ledger.charge(1_000_000)
    assert ledger.spent == Decimal("0.40")
    assert ledger.most == 2_500_000
    assert ledger.projected(63_000_000 - 1_000_000) == Decimal("25.20")


def test_a_refunded_fraction_is_not_told_again() -> None:
    ledger = Ledger(Decimal(1), Decimal(10), (0.5,))
    assert ledger.charge(5) == [0.5]
    ledger.refund(5)
    assert ledger.charge(6) == []


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (0.4, TypeError, "price must be a Decimal, got 0.4"),
        ("0.4", TypeError, "price must be a Decimal, got '0.4'"),
        (True, TypeError, "price must be a Decimal, got True"),
        (Decimal(0), ValueError, r"price must be > 0 and finite, got Decimal\('0'\)"),
        (Decimal(-1), ValueError, r"price must be > 0 and finite, got Decimal\('-1'\)"),
        (Decimal("nan"), ValueError, r"price must be > 0 and finite, got Decimal\('NaN'\)"),
        (Decimal("snan"), ValueError, r"price must be > 0 and finite, got Decimal\('sNaN'\)"),
        (Decimal("inf"), ValueError, r"price must be > 0 and finite, got Decimal\('Infinity'\)"),
        (Decimal("1e60"), ValueError, r"price must have at most 60 digits on each side of the point, .*"),
        (Decimal("1e-61"), ValueError, r"price must have at most 60 digits on each side of the point, .*"),
    ],
)
def test_what_is_no_amount(value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        amount("price", value)


def test_amounts() -> None:
    assert amount("limit", 25) == Decimal(25)
    assert amount("spent", Decimal(0), zero=True) == 0
    with pytest.raises(ValueError, match=r"^spent must be >= 0 and finite, got"):
        amount("spent", Decimal(-1), zero=True)
