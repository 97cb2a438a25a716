"""A quantile of the recent past: old durations are forgotten, by time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.algorithms.sketch import Sketch

_UPPER_EDGE = 1.051
"""From the middle of a sketch's bucket to just above its upper edge."""


@final
@dataclass(frozen=True, slots=True, init=False)
class Quantile:
    """After how long a call is slow: the `q`-quantile of the latencies of the last `window` seconds. Immutable.

    `Quantile(0.95)` is the deferred hedge of Dean and Barroso ("The Tail at Scale", 2013): about one call in twenty
    gets a copy. All latencies of the last `window / 2` seconds are remembered, and none that is `window` seconds old.
    The quantile is never too low and at most 11 % too high: too low, it would call half of the calls slow where all
    take nearly the same time.

    Args:
        q: The fraction of calls that are not slow, above 0 and at most 1 (the slowest call of the window).
        window: Seconds after which a latency is forgotten; `math.inf` for never.
        minimum: How many latencies must be remembered before the quantile counts.
        initial: The seconds to use until then; `math.inf`: no call is slow.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is out of range or NaN.
    """

    q: float = 0.95
    window: float = 60.0
    minimum: float = 20
    initial: float = math.inf

    def __init__(self, q: float = 0.95, *, window: float = 60, minimum: float = 20, initial: float = math.inf) -> None:
        if above("q", q, 0) > 1:
            raise ValueError(f"q must be <= 1, got {q!r}")
        object.__setattr__(self, "q", float(q))
        object.__setattr__(self, "window", above("window", window, 0))
        object.__setattr__(self, "minimum", count("minimum", minimum, 1))
        object.__setattr__(self, "initial", at_least("initial", initial, 0))

    def recent(self) -> RecentQuantile:
        """Return a fresh run state that remembers nothing."""
        return RecentQuantile(self)


@final
class RecentQuantile:
    """The run state of a `Quantile`: not shared, without a clock. A `now` that goes back is of another run: all is new.

    Two sketches take turns every half window: both are fed, the elder is read. So a reading needs no merging, costs
    O(buckets), and expires what is old even if nothing was added since.
    """

    __slots__ = ("_elder", "_half", "_rule", "_turn", "_younger")

    def __init__(self, rule: Quantile) -> None:
        self._rule = rule
        self._half = rule.window / 2
        self._turn: float = -math.inf
        self._elder = Sketch()
        self._younger = Sketch()

    def add(self, seconds: float, now: float) -> None:
        """Remember one duration, >= 0, that ended now."""
        self._expire(now)
        self._elder.add(seconds)
        self._younger.add(seconds)

    def count(self, now: float) -> int:
        """Return how many durations are remembered."""
        self._expire(now)
        return self._elder.count

    def at(self, now: float) -> float:
        """Return the quantile in seconds; the rule's `initial` while fewer than `minimum` durations are remembered."""
        if self.count(now) < self._rule.minimum:
            return self._rule.initial
        return self._elder.quantile(self._rule.q) * _UPPER_EDGE

    def _expire(self, now: float) -> None:
        turn = now // self._half
        if turn == self._turn:
            return
        self._elder = self._younger if turn == self._turn + 1 else Sketch()
        self._younger = Sketch()
        self._turn = turn
