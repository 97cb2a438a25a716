"""What an `Instrument` is told by policies. Apart from `event`, so that a queue need not import it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import final


@final
@dataclass(frozen=True, slots=True)
class CircuitOpened:
    """A circuit breaker refuses calls from now on."""

    name: str
    cooldown: float
    """Seconds until it lets a probe through."""
    openings: int
    """How often it has opened since it was last closed: 1, or more if probes failed."""
    error: BaseException | None
    """The failure that opened it; None if that was a result, or a call that a time-out around it ended."""


@final
@dataclass(frozen=True, slots=True)
class CircuitHalfOpened:
    """A circuit breaker lets its first probe through."""

    name: str
    open_for: float
    """Seconds since it opened."""


@final
@dataclass(frozen=True, slots=True)
class CircuitClosed:
    """A circuit breaker lets all calls through again."""

    name: str
    open_for: float
    """Seconds since it first opened."""
    reset: bool
    """Whether it was closed by `reset()` or `restore()`, not by a probe."""


@final
@dataclass(frozen=True, slots=True)
class CircuitIsolated:
    """A circuit breaker is held open by an operator, or no longer is."""

    name: str
    isolated: bool
    holds: int
    """How many handles hold it open now."""


@final
@dataclass(frozen=True, slots=True)
class HedgeStarted:
    """A call took long, and another copy of it was started."""

    name: str
    copy: int
    """The number of the copy: 1 is the first beside the original."""
    after: float
    """Seconds since the call began."""


@final
@dataclass(frozen=True, slots=True)
class FallbackUsed:
    """A call failed, and a substitute was returned in place of its result."""

    name: str
    error: Exception


@final
@dataclass(frozen=True, slots=True)
class StormStarted:
    """Something is called far too often. One event an episode."""

    key: object
    """What is called."""
    reason: str
    """`"calls"`, `"retries"`, `"spacing"` or `"times_usual"`: the rule that was broken."""
    value: float
    """What was measured: calls a period, a share, seconds, or a multiple."""
    bound: float
    """What it was measured against."""


@final
@dataclass(frozen=True, slots=True)
class StormEnded:
    """The storm is over."""

    key: object
    seconds: float
    """How long it lasted."""
    calls: int
    """How many calls were made in it."""


@final
@dataclass(frozen=True, slots=True)
class SpendWarned:
    """A part of what may be spent in a period is spent, or will be at the present rate."""

    name: str
    fraction: float
    """The fraction of the limit that was passed; the multiple of the usual if `reason` says so."""
    spent: Decimal
    projected: Decimal
    """What will be spent by the end of the period if calls go on at the present rate."""
    limit: Decimal
    reason: str
    """`"fraction"` or `"times_usual"`."""


@final
@dataclass(frozen=True, slots=True)
class SpendStopped:
    """What may be spent in this period is spent: calls are refused until the next one."""

    name: str
    spent: Decimal
    limit: Decimal
    seconds: float
    """Until the next period."""
