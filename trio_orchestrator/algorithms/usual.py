"""What is usual: a slow average that is right from its first value on."""

from __future__ import annotations

from math import expm1
from typing import final


@final
class Usual:
    """An exponentially weighted mean over time: a value that held `over` units ago weighs 1/e of the present one.

    It starts without a guess: the weights of what was learned add up to one at any time (the bias correction of Adam;
    Kingma, Ba, 2015), so a constant is its own mean at once. How long a value held is given with it, in the unit of
    `over`; nothing is remembered but two numbers.

    Args:
        over: The time constant, > 0 and finite.
        value: What it knows from before.
        learned: For how long that held; 0 knows nothing.
    """

    __slots__ = ("_over", "learned", "value")

    def __init__(self, over: float, value: float = 0.0, learned: float = 0.0) -> None:
        self._over = over
        self.value: float = value
        """The mean; 0.0 if nothing was learned."""
        self.learned: float = learned
        """How long what it has learned held, all together."""

    def learn(self, value: float, held: float) -> None:
        """Learn that `value` held for so long, > 0, after all that was learned before."""
        self.learned += held
        known = -expm1(-self.learned / self._over)
        share = -expm1(-held / self._over) / known
        self.value += (value - self.value) * share
