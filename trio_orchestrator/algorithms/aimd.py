"""Additive increase, multiplicative decrease: the limit of TCP's congestion avoidance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from trio_orchestrator.abc import Control, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.argument import above
from trio_orchestrator.algorithms.round_trip import GROWING, Bounded, Round, Stepping


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AIMD(Bounded, Limit):
    """Grow by `grow` each round trip; shrink to `shrink` times the limit when an attempt is dropped, or too slow.

    Looks at failures only, not at how the latency develops, and so finds the limit of a service that *refuses* what it
    cannot do. Several clients of one service converge to equal shares (Chiu and Jain, 1989). It oscillates between the
    point where drops begin and `shrink` times that.

    The limit shrinks once a round trip, however many attempts fail in it, and does not grow while fewer than half of it
    are in flight. Netflix's `AIMDLimit`, whose defaults these are, grows by 1 an *attempt*, and never shrinks below 20.

    Args:
        initial: The limit at the start.
        minimum: The least limit, at least 1.
        maximum: The greatest limit; `math.inf` for none.
        grow: What a round trip without a drop adds; above 0.
        shrink: What a drop multiplies the limit by; between 0 and 1.
        too_slow: An attempt that takes more seconds than this counts as dropped; `math.inf`: none does.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of its range, or NaN.
    """

    initial: float = 20.0
    minimum: float = 1.0
    maximum: float = 200.0
    grow: float = 1.0
    shrink: float = 0.9
    too_slow: float = 5.0

    def __post_init__(self) -> None:
        self._check_bounds()
        self._check_initial(self.initial)
        self._keep("grow", above("grow", self.grow, 0, finite=True))
        self._keep("too_slow", above("too_slow", self.too_slow, 0))

    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state. Nothing is drawn from `rng`."""
        return _Control(self)


@final
class _Control(Stepping):
    __slots__ = ("_aimd",)

    def __init__(self, rule: AIMD) -> None:
        super().__init__(rule, rule.initial)
        self._aimd = rule

    def update(self, sample: Sample) -> tuple[float, str]:
        if sample.rtt > self._aimd.too_slow:
            sample = sample._replace(dropped=True)
        return super().update(sample)

    def _aim(self, seen: Round) -> tuple[float, str]:
        return self.limit + self._aimd.grow, GROWING
