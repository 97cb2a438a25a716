"""The edges of an account: the last unit that fits, nothing left, the finest amount, and what is no number of units."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from trio_orchestrator.algorithms.ledger import Ledger, amount, whole_units


def test_the_last_unit_that_fits_is_let_through() -> None:
    ledger = Ledger(Decimal(2), Decimal(10), ())
    assert ledger.fits(5)
    assert not ledger.fits(6)
    ledger.charge(3)
    assert (ledger.fits(2), ledger.fits(3)) == (True, False)


@pytest.mark.parametrize("carried", [10, 11, Decimal("9.5")])
def test_where_nothing_is_left_nothing_fits(carried: Decimal) -> None:
    ledger = Ledger(Decimal(1), Decimal(10), (), Decimal(carried))
    assert ledger.most == 0
    assert ledger.fits(0)
    assert not ledger.fits(1)


@pytest.mark.parametrize("value", ["1e-60", "0.5e-59", "9e59"])
def test_sixty_digits_on_either_side_are_allowed(value: str) -> None:
    assert amount("price", Decimal(value)) == Decimal(value)


def test_units_are_whole_numbers_from_zero() -> None:
    assert [whole_units(value) for value in (0, 1, 7.0, 10**30)] == [0, 1, 7, 10**30]
    assert type(whole_units(7.0)) is int


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (-1, ValueError, "units must be >= 0 and finite, got -1"),
        (math.inf, ValueError, "units must be >= 0 and finite, got inf"),
        (math.nan, ValueError, "units must be >= 0 and finite, got nan"),
        (1.5, ValueError, "units must be a whole number or math.inf, got 1.5"),
        (True, TypeError, "units must be a number, got True"),
        (Decimal(1), TypeError, "units must be a number, got Decimal('1')"),
    ],
)
def test_what_is_no_number_of_units(value: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        whole_units(value)
    assert str(caught.value) == message
