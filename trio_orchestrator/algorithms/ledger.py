"""Money, exactly: what was spent at a price a unit, how much more fits under a limit, which parts of it are gone."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Final, final

from trio_orchestrator.algorithms.argument import at_least, count

PLACES: Final = 60
"""So many digits an amount may have before the point, and after it."""

_EXACT: Final = Context(prec=1000, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
_NOTHING: Final = Decimal(0)


def amount(name: str, value: object, *, zero: bool = False) -> Decimal:
    """Return `value` as a decimal, or raise: it must be a `Decimal` (or an int) above 0, or 0 if that is allowed.

    Raises:
        TypeError: It is a float, which is not the number that was meant, or no number at all.
        ValueError: It is out of range, not finite, or has more than 60 digits on a side of the point.
    """
    if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
        raise TypeError(f"{name} must be a Decimal, got {value!r}")
    money = Decimal(value)
    if not money.is_finite() or money < 0 or (money == 0 and not zero):
        raise ValueError(f"{name} must be {'>= 0' if zero else '> 0'} and finite, got {value!r}")
    exponent = money.as_tuple().exponent
    if money.adjusted() >= PLACES or (isinstance(exponent, int) and exponent < -PLACES):
        raise ValueError(f"{name} must have at most {PLACES} digits on each side of the point, got {value!r}")
    return money


def whole_units(value: object) -> int:
    """Return `value`, or raise: it must be a whole number >= 0, and finite."""
    at_least("units", value, 0, finite=True)
    return int(count("units", value, 0))


@final
class Ledger:
    """The account of one period. Counts whole units, so that a call costs two additions and no rounding ever.

    Args:
        price: What a unit costs, as `amount` allows it.
        limit: What may be spent.
        fractions: Parts of the limit, 0..1, that `charge` tells when they are spent.
        carried: What was spent before, at whatever price.
    """

    __slots__ = ("_marks", "_passed", "carried", "most", "price", "units")

    def __init__(self, price: Decimal, limit: Decimal, fractions: Iterable[float], carried: Decimal = _NOTHING) -> None:
        self.price: Decimal = price
        self.carried: Decimal = carried
        self.units: int = 0
        """How many were charged, less those refunded."""
        self.most: int = max(0, _parts(_EXACT.subtract(limit, carried), price)[0])
        """How many fit under the limit."""
        self._marks = [(self._reached(limit, fraction), fraction) for fraction in sorted(fractions)]
        self._passed = 0

    @property
    def spent(self) -> Decimal:
        """What was spent: exact."""
        return self.projected(0)

    def cost(self, units: int) -> Decimal:
        """Return what so many units cost."""
        return _EXACT.multiply(self.price, Decimal(units))

    def projected(self, units: int) -> Decimal:
        """Return what will be spent when so many units more were charged."""
        return _EXACT.add(self.carried, self.cost(self.units + units))

    def fits(self, units: int) -> bool:
        """Tell whether so many units more can be paid without passing the limit."""
        return self.units + units <= self.most

    def charge(self, units: int) -> list[float]:
        """Count units, whether they fit or not; return the fractions of the limit that are spent now, each once."""
        self.units += units
        passed = self._passed
        while self._passed < len(self._marks) and self._marks[self._passed][0] <= self.units:
            self._passed += 1
        return [fraction for _, fraction in self._marks[passed : self._passed]]

    def refund(self, units: int) -> None:
        """Take units back that were charged here."""
        self.units -= units

    def _reached(self, limit: Decimal, fraction: float) -> int:
        """Return how many units make `fraction` (the decimal that it is written as) of the limit, or more."""
        part = _EXACT.multiply(limit, Decimal(repr(fraction)))
        units, rest = _parts(_EXACT.subtract(part, self.carried), self.price)
        return units + (rest > 0)


def _parts(money: Decimal, price: Decimal) -> tuple[int, Decimal]:
    units, rest = _EXACT.divmod(money, price)
    return int(units), rest
