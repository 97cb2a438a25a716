"""ARC: Vector's adaptive request concurrency. Grow while the latency is at its mean, shrink when it leaves its band."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from trio_orchestrator.abc import Control, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.argument import at_least
from trio_orchestrator.algorithms.average import Spread
from trio_orchestrator.algorithms.round_trip import (
    DROPPED,
    GROWING,
    OLD,
    QUEUEING,
    STEADY,
    TICK,
    Bounded,
    Epoch,
    Round,
    end_of,
    fraction,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ARC(Bounded, Limit):
    """Once a round trip, grow by 1 if the limit was reached and the latency is not above its mean.

    And shrink to `shrink` times the limit, rounded down, if an attempt was dropped, or if the mean latency of the round
    trip is more than `deviations` standard deviations above the average of the round trips before. Starts at 1 and
    needs no knowledge of the service: the careful one among the rules, for a sender that always has something to send.

    The rule and the defaults are those of Vector's adaptive concurrency, with two repairs. The latency is that of one
    attempt (theirs holds all retries and the pauses between them, vectordotdev/vector#26123). And a tie is a tie: with
    a latency that never varies, theirs takes "equal to the mean" for "above the band", and lets the limit decay
    whenever it is not reached. Latencies are rounded to a microsecond, as in Vector's own tests.

    Args:
        initial: The limit at the start.
        minimum: The least limit, at least 1.
        maximum: The greatest limit; `math.inf` for none.
        alpha: The weight of each round trip in the average, above 0 and at most 1.
        deviations: How many standard deviations are no sign of a queue yet.
        shrink: What the limit is multiplied by when it falls; between 0 and 1.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of its range, or NaN.
    """

    initial: float = 1.0
    minimum: float = 1.0
    maximum: float = 200.0
    alpha: float = 0.4
    deviations: float = 2.5
    shrink: float = 0.9

    def __post_init__(self) -> None:
        self._check_bounds()
        self._check_initial(self.initial)
        self._keep("alpha", fraction("alpha", self.alpha))
        self._keep("deviations", at_least("deviations", self.deviations, 0, finite=True))

    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state. Nothing is drawn from `rng`."""
        return _Control(self)


@final
class _Control(Control):
    __slots__ = ("_dropped", "_epoch", "_overloaded", "_past", "_reached", "_round", "_rule", "_until", "limit")

    def __init__(self, rule: ARC) -> None:
        self._rule = rule
        self._past = Spread(rule.alpha)
        self._round = Round()
        self._epoch = Epoch()
        self._until = -math.inf
        self._dropped = self._overloaded = self._reached = False
        self.limit: float = rule.initial

    def update(self, sample: Sample) -> tuple[float, str]:
        now = end_of(sample)
        self._take(sample)
        if now < self._until - TICK:
            return self.limit, OLD
        before = self.limit
        reason = self._manage(self._epoch.is_over(sample))
        if self.limit < before:
            self._epoch.lower(now)
        self._close(now)
        return self.limit, reason

    def _take(self, sample: Sample) -> None:
        self._reached |= sample.in_flight >= math.floor(self.limit)
        if sample.dropped:
            self._dropped = True
            self._overloaded |= self._epoch.is_over(sample)
        else:
            self._epoch.take(sample)
            self._round.add(sample)

    def _manage(self, may_shrink: bool) -> str:
        if self._overloaded:
            return self._shrink(DROPPED)
        if not self._round.count or not self._past.count:
            return STEADY
        rtt, past = self._rtt(), self._past
        if self._reached and not self._dropped and rtt <= past.mean:
            self.limit = self._rule.clamp(self.limit + 1)
            return GROWING
        if may_shrink and rtt > past.mean + self._rule.deviations * past.deviation + TICK:
            return self._shrink(QUEUEING)
        return STEADY

    def _rtt(self) -> float:
        return round(self._round.rtt, 6)  # a mean of equals is not their equal, to the last bit

    def _shrink(self, reason: str) -> str:
        self.limit = self._rule.clamp(math.floor(self.limit * self._rule.shrink))
        return reason

    def _close(self, now: float) -> None:
        if self._round.count:
            self._past.add(self._rtt())
        self._until = now + self._past.mean
        self._round.open(now)
        self._dropped = self._overloaded = self._reached = False
