"""Vegas: how many attempts queue at the other side, by how much slower it is than at its best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from trio_orchestrator.abc import Control, Limit, RandomSource
from trio_orchestrator.algorithms.argument import above, at_least
from trio_orchestrator.algorithms.round_trip import GROWING, QUEUEING, STEADY, Bounded, Probing, Round, fraction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Vegas(Bounded, Limit):
    """Keep a few attempts queueing at the other side: between `alpha` and `beta`, times the logarithm of the limit.

    The queue is estimated as `limit * (1 - shortest / rtt)`: were the other side as fast as at its best, so many fewer
    would be in flight. With `unit = max(1, floor(log10(limit)))`, a round trip moves the limit by

    * `+ beta * unit` if at most `unit` queue, `+ unit` if fewer than `alpha * unit` do,
    * `- unit` if more than `beta * unit` do,
    * `* shrink` if an attempt is dropped.

    Reacts before anything fails, which suits a service that slows down under load; jitter looks to it like a queue.
    The rule is TCP Vegas's (Brakmo and Peterson, 1995) as in Netflix's `VegasLimit`, with two changes: a drop there
    costs `unit` an attempt, and the shortest latency is forgotten without making room first, see `Probing`.

    Args:
        initial: The limit at the start.
        minimum: The least limit, at least 1.
        maximum: The greatest limit; `math.inf` for none.
        alpha: How many should queue at least.
        beta: How many may queue at most; not below `alpha`.
        smoothing: How much of each step is made, above 0 and at most 1.
        shrink: What a drop multiplies the limit by; between 0 and 1.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of its range, or NaN.
    """

    initial: float = 20.0
    minimum: float = 1.0
    maximum: float = 1000.0
    alpha: float = 3.0
    beta: float = 6.0
    smoothing: float = 1.0
    shrink: float = 0.9

    def __post_init__(self) -> None:
        self._check_bounds()
        self._check_initial(self.initial)
        self._keep("alpha", above("alpha", self.alpha, 0, finite=True))
        self._keep("beta", at_least("beta", self.beta, self.alpha, finite=True))
        self._keep("smoothing", fraction("smoothing", self.smoothing))

    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state. `rng` spreads the probes of many limiters."""
        return _Control(self, rng)


@final
class _Control(Probing):
    __slots__ = ("_shortest", "_vegas")

    def __init__(self, rule: Vegas, rng: RandomSource) -> None:
        super().__init__(rule, rule.initial, rng)
        self._vegas = rule
        self._shortest = math.inf

    def _unit(self) -> int:
        return max(1, math.floor(math.log10(self.limit)))

    def _room(self) -> float:
        return (self.limit - self._vegas.beta * self._unit()) / 2

    def _measured(self, seen: Round) -> None:
        self._shortest = seen.least

    def _aim(self, seen: Round) -> tuple[float, str]:
        first = self._shortest == math.inf
        self._shortest = min(self._shortest, seen.least)
        step = 0.0 if first else self._vegas.smoothing * self._wish(seen.rtt)
        return self.limit + step, GROWING if step > 0 else QUEUEING if step < 0 else STEADY

    def _wish(self, rtt: float) -> float:
        alpha, beta, unit = self._vegas.alpha, self._vegas.beta, self._unit()
        queue = math.ceil(self.limit * (1 - self._shortest / rtt)) if rtt > 0 else 0
        if queue <= unit:
            return beta * unit
        if queue < alpha * unit:
            return unit
        return -unit if queue > beta * unit else 0.0
