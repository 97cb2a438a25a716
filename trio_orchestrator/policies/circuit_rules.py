"""What a circuit breaker goes by, checked."""

from __future__ import annotations

import math

from trio_orchestrator.abc import Backoff, RandomSource
from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.algorithms.circuit import Rules
from trio_orchestrator.algorithms.trip import Ratio, Trip


def circuit_rules(
    *,
    trip: Trip | None,
    cooldown: float | Backoff,
    probes: int,
    probe_lease: float | None,
    close_after: float,
    slow_call: float,
    ramp: float,
    rng: RandomSource | None,
) -> Rules:
    """Return the rules, or raise a `TypeError` or `ValueError` that names the parameter."""
    probes = whole("probes", probes)
    needed, tolerated = _closing(close_after, probes)
    return Rules(
        trip=_checked_trip(trip, slow_call),
        cooldown=cooldown if isinstance(cooldown, Backoff) else above("cooldown", cooldown, 0, finite=True),
        probes=probes,
        probe_lease=None if probe_lease is None else above("probe_lease", probe_lease, 0),
        needed=needed,
        tolerated=tolerated,
        ramp=at_least("ramp", ramp, 0, finite=True),
        rng=CHANCE if rng is None else rng,
    )


def _checked_trip(trip: Trip | None, slow_call: float) -> Trip:
    if trip is None:
        trip = Ratio(0.5)
    if not isinstance(trip, Trip):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"trip must be a Trip rule such as Ratio(0.5), got {trip!r}")
    if trip.sees_slow is not (slow_call < math.inf):
        raise TypeError("slow_call must be given together with a SlowRatio in trip, and only then")
    return trip


def _closing(close_after: float, probes: int) -> tuple[int, int]:
    """Return how many probes must succeed, and how many may fail."""
    if 0 < above("close_after", close_after, 0, finite=True) < 1:
        needed = math.ceil(close_after * probes)
        if (needed - 1) / probes >= close_after:  # 0.07 * 100 is more than 7
            needed -= 1
        return needed, probes - needed
    return whole("close_after", close_after), 0


def whole(name: str, value: object) -> int:
    """Return a finite whole number >= 1, or raise."""
    number = count(name, value, 1)
    if number == math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return int(number)
