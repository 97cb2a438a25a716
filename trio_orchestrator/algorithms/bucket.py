"""A bucket of tokens, counted in whole thousandths: floats drift at the threshold that decides.

gRPC (A6) keeps its tokens so too. A budget of 0.6 kept in whole tokens is one of 1.0, and one kept in floats refuses,
after a while, at 5.000000000000001.
"""

from __future__ import annotations

from typing import Final, final

from trio_orchestrator.algorithms.argument import at_least

UNIT: Final = 1000
"""How many parts a token has."""


def parts(name: str, value: object) -> int:
    """Return a number of tokens in whole thousandths, or raise: it must be finite, >= 0, and not lost to rounding.

    Raises:
        TypeError: `value` is not a number.
        ValueError: It is too small, infinite, NaN, or above 0 and yet less than a thousandth.
    """
    tokens = at_least(name, value, 0, finite=True)
    rounded = round(tokens * UNIT)
    if tokens and not rounded:
        raise ValueError(f"{name} must be 0 or >= {1 / UNIT:g}, got {value!r}")
    return rounded


@final
class Bucket:
    """Between 0 and `capacity` tokens, full at first. All amounts are whole thousandths.

    At every instant `level == capacity - taken + given`.
    """

    __slots__ = ("capacity", "given", "level", "taken")

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity
        self.level: int = capacity
        self.taken: int = 0
        self.given: int = 0

    @property
    def full(self) -> bool:
        """Whether it is as a new one, but for the totals."""
        return self.level == self.capacity

    def take(self, amount: int) -> bool:
        """Take `amount` if there is that much; otherwise nothing, and return False."""
        if amount > self.level:
            return False
        self.drain(amount)
        return True

    def drain(self, amount: int) -> None:
        """Take `amount`, or what there is."""
        amount = min(amount, self.level)
        self.level -= amount
        self.taken += amount

    def give(self, amount: int) -> None:
        """Put `amount` in, or what there is room for."""
        amount = min(amount, self.capacity - self.level)
        self.level += amount
        self.given += amount
