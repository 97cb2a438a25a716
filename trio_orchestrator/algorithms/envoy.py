"""Envoy's gradient: the latency of now against that measured with next to nothing in flight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from trio_orchestrator.abc import Control, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.algorithms.round_trip import (
    DROPPED,
    GROWING,
    IDLE,
    OLD,
    QUEUEING,
    STEADY,
    TICK,
    Bounded,
    Epoch,
    between,
    end_of,
    started_behind,
)

_MEASURING: Final = "measuring"
_PINNED: Final = 5  # so many windows in a row at the minimum: the measured latency is out of date


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyGradient(Bounded, Limit):
    """Follow `limit * gradient + sqrt(limit * gradient)`; `gradient = (1 + buffer) * least / rtt`, from 0.5 to 2.

    `least` is measured: the limit is pinned to its minimum until `requests` attempts were answered that started behind
    that; at the start, every `every` seconds, and after five windows in a row at the minimum. Knows the latency without
    a queue better than any rule that only watches, and pays for it with those pauses: mind `every` and `minimum`.

    The rule and the defaults are those of Envoy's adaptive concurrency filter, `every` that of its documentation; the
    limit is a whole number throughout. New here: only attempts count that started behind the last step, not just those
    behind the last measurement (envoyproxy/envoy#11579); a drop multiplies the limit by `shrink`, once a round trip;
    and the limit does not grow while fewer than half of it are in flight.

    Args:
        minimum: The least limit, at least 1; also the one at the start, and while it measures.
        maximum: The greatest limit; `math.inf` for none.
        interval: For how many seconds latencies are gathered for a step, from the first that counts; 0: one is enough.
        every: Seconds between two measurements; `math.inf`: only when the limit is stuck at its minimum.
        jitter: By how much of `every` a measurement may be late, drawn anew each time; 0..1.
        requests: How many attempts are measured.
        quantile: Which latency of a window counts, between 0 and 1: 0.5 is the median.
        buffer: By what share of `least` the latency may vary without being taken for a queue.
        shrink: What a drop multiplies the limit by; between 0 and 1.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of its range, or NaN.
    """

    minimum: float = 3.0
    maximum: float = 1000.0
    interval: float = 0.1
    every: float = 60.0
    jitter: float = 0.15
    requests: int = 50
    quantile: float = 0.5
    buffer: float = 0.25
    shrink: float = 0.9

    def __post_init__(self) -> None:
        self._check_bounds()
        self._keep("interval", at_least("interval", self.interval, 0, finite=True))
        self._keep("every", above("every", self.every, 0))
        self._keep("jitter", at_least("jitter", self.jitter, 0, finite=True))
        self._keep("requests", count("requests", self.requests, 1))
        self._keep("quantile", between("quantile", self.quantile, 0, 1))
        self._keep("buffer", at_least("buffer", self.buffer, 0, finite=True))

    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state, which begins with a measurement. `rng` spreads the later ones."""
        return _Control(self, rng)


@final
class _Control(Control):
    __slots__ = (
        "_epoch",
        "_held",
        "_least",
        "_measure_at",
        "_measuring",
        "_opened_at",
        "_peak",
        "_pinned",
        "_rng",
        "_rtts",
        "_rule",
        "_until",
        "limit",
    )

    def __init__(self, rule: EnvoyGradient, rng: RandomSource) -> None:
        self._rule = rule
        self._rng = rng
        self._least = 0.0
        self._epoch = Epoch()
        self._opened_at = -math.inf
        self._measure_at = math.inf
        self._until = 0.0
        self._pinned = self._peak = 0
        self._rtts: list[float] = []
        self.limit: float = math.floor(rule.minimum)
        self._held: float = self.limit
        self._measuring = True

    def update(self, sample: Sample) -> tuple[float, str]:
        if sample.dropped:
            return self._drop(sample)
        self._epoch.take(sample)
        if not started_behind(sample, self._opened_at):
            return self.limit, OLD
        self._take(sample)
        now = end_of(sample)
        if self._measuring:
            return self._measure(now)
        return self._step(now) if now >= self._until - TICK else (self.limit, OLD)

    def _take(self, sample: Sample) -> None:
        if not self._rtts:
            self._until = end_of(sample) + self._rule.interval
        self._rtts.append(sample.rtt)
        self._peak = max(self._peak, sample.in_flight)

    def _measure(self, now: float) -> tuple[float, str]:
        if len(self._rtts) < self._rule.requests:
            return self.limit, _MEASURING
        self._least = self._typical()
        self._measuring = False
        self._measure_at = now + self._rule.every * (1 + self._rule.jitter * self._rng.random())
        return self._move(now, self._held, _MEASURING)

    def _typical(self) -> float:
        return sorted(self._rtts)[math.ceil(self._rule.quantile * len(self._rtts)) - 1]

    def _step(self, now: float) -> tuple[float, str]:
        wanted = self._wish(self._typical())
        idle = wanted > self.limit and self._peak * 2 < self.limit
        limit = self.limit
        self._move(now, limit if idle else wanted, GROWING)
        self._pinned = self._pinned + 1 if self.limit <= self._rule.minimum else 0
        if self._pinned >= _PINNED or now >= self._measure_at:
            return self._pin(now)
        reason = STEADY if self.limit == limit else GROWING if self.limit > limit else QUEUEING
        return self.limit, IDLE if idle else reason

    def _wish(self, rtt: float) -> float:
        rule = self._rule
        gradient = (1 + rule.buffer) * self._least / rtt if rtt > 0 else 2.0
        base = self.limit * min(max(gradient, 0.5), 2.0)
        return base + math.sqrt(base)

    def _pin(self, now: float) -> tuple[float, str]:
        self._held = self.limit
        self._pinned = 0
        self._measuring = True
        return self._move(now, self._rule.minimum, _MEASURING)

    def _drop(self, sample: Sample) -> tuple[float, str]:
        if not self._epoch.is_over(sample):
            return self.limit, OLD
        self._epoch.lower(end_of(sample))
        if self._measuring:
            self._held = self._whole(self._held * self._rule.shrink)
            return self.limit, DROPPED
        return self._move(end_of(sample), self.limit * self._rule.shrink, DROPPED)

    def _whole(self, limit: float) -> float:
        return math.floor(self._rule.clamp(limit))

    def _move(self, now: float, wanted: float, reason: str) -> tuple[float, str]:
        self.limit = self._whole(wanted)
        self._opened_at = now
        self._rtts.clear()
        self._peak = 0
        return self.limit, reason
