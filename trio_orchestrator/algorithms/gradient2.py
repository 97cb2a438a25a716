"""Gradient2: the latency of now against that of the long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from trio_orchestrator.abc import Control, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.argument import above, at_least
from trio_orchestrator.algorithms.average import Average
from trio_orchestrator.algorithms.round_trip import GROWING, QUEUEING, Bounded, Probing, Round, fraction

_WARMUP = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient2(Bounded, Limit):
    """Follow `limit * gradient + queue`, where `gradient = tolerance * long / rtt`, from 0.5 to 1.

    `long` is the average latency of the long run. So the limit grows by a part of `queue` each round trip until the
    other side is `tolerance` times slower than usual, and comes to rest just above that.

    The rule and the defaults are those of Netflix's `Gradient2Limit`. As published it ignores drops, and it *runs away*
    (Netflix/concurrency-limits#137): the long average takes in the latency that the limiter's own queue makes, which
    allows for a longer queue. So here

    * a drop multiplies the limit by `shrink`, and teaches no latency;
    * the long average learns a *higher* latency only from what cannot be a queue of our own: attempts that started
      when half of what the other side can serve was in flight, or less. It learns a lower one from all;
    * now and then, and whenever the limit should fall but is at its minimum, room is made to measure the long average
      anew (see `Probing`). That is how it follows a service that has become slower for good.

    Args:
        initial: The limit at the start.
        minimum: The least limit, at least 1. Below about `4 * queue` it is hardly ever reached: the limit then rests
            at `queue / (1 - gradient)`, and only the regular probes find a new latency.
        maximum: The greatest limit; `math.inf` for none.
        queue: How many attempts may queue at the other side, and what the limit grows by when nothing does.
        tolerance: How many times the usual latency is not yet too slow; at least 1.
        smoothing: How much of each step is made, above 0 and at most 1.
        window: How many attempts the long average is over.
        shrink: What a drop multiplies the limit by; between 0 and 1.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of its range, or NaN.
    """

    initial: float = 20.0
    minimum: float = 20.0
    maximum: float = 200.0
    queue: float = 4.0
    tolerance: float = 1.5
    smoothing: float = 0.2
    window: int = 600
    shrink: float = 0.9

    def __post_init__(self) -> None:
        self._check_bounds()
        self._check_initial(self.initial)
        self._keep("queue", above("queue", self.queue, 0, finite=True))
        self._keep("tolerance", at_least("tolerance", self.tolerance, 1, finite=True))
        self._keep("smoothing", fraction("smoothing", self.smoothing))
        self._keep("window", at_least("window", self.window, 1, finite=True))

    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state. `rng` spreads the probes of many limiters."""
        return _Control(self, rng)


@final
class _Control(Probing):
    __slots__ = ("_gradient2", "_long")

    def __init__(self, rule: Gradient2, rng: RandomSource) -> None:
        super().__init__(rule, rule.initial, rng)
        self._gradient2 = rule
        self._long = Average(rule.window, _WARMUP)

    def _learn(self, sample: Sample) -> None:
        unqueued = sample.in_flight <= self._room()
        if unqueued or sample.rtt <= self._long.value or not self._long.count:
            self._long.add(sample.rtt)

    def _room(self) -> float:
        rule = self._gradient2
        return (self.limit - rule.queue) / (2 * rule.tolerance)

    def _measured(self, seen: Round) -> None:
        self._long.reset(seen.rtt)

    def _aim(self, seen: Round) -> tuple[float, str]:
        rule = self._gradient2
        if self._long.value > 2 * seen.rtt:  # far too high: come down faster than the average would
            self._long.value *= 0.95
        slower = rule.tolerance * self._long.value / seen.rtt if seen.rtt > 0 else 1.0
        goal = self.limit * min(max(slower, 0.5), 1.0) + rule.queue
        wanted = self.limit + rule.smoothing * (goal - self.limit)
        return wanted, GROWING if wanted >= self.limit else QUEUEING

    def _is_stuck(self, reason: str) -> bool:
        return reason == QUEUEING and self.limit <= self._rule.minimum
