"""An instrument that remembers."""

from __future__ import annotations

from typing import NamedTuple, TypeVar, final

import trio

from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import (
    GateOpened,
    GateShut,
    GaveUp,
    JobFinished,
    LimitChanged,
    QueueDropped,
    RetryScheduled,
)
from trio_orchestrator.policy_event import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitIsolated,
    CircuitOpened,
    FallbackUsed,
    HedgeStarted,
    SpendStopped,
    SpendWarned,
    StormEnded,
    StormStarted,
)
from trio_orchestrator.redis_event import RedisConnected, RedisFailover, RedisLost, RedisReady, RedisReconnecting

Event = (
    RetryScheduled
    | GaveUp
    | JobFinished
    | QueueDropped
    | GateShut
    | GateOpened
    | LimitChanged
    | CircuitOpened
    | CircuitHalfOpened
    | CircuitClosed
    | CircuitIsolated
    | HedgeStarted
    | FallbackUsed
    | StormStarted
    | StormEnded
    | SpendWarned
    | SpendStopped
    | RedisConnected
    | RedisReady
    | RedisLost
    | RedisReconnecting
    | RedisFailover
)
"""Whatever an `Instrument` may hear."""

E = TypeVar("E", bound=Event)


class Recorded(NamedTuple):
    """An event and when it was heard."""

    at: float
    """In seconds of Trio's clock."""
    event: Event


@final
class Recorder(Instrument):
    """Keep every event, for tests: `recorder.events`, `recorder.of(RetryScheduled)`, `recorder.times(RetryScheduled)`.

    It keeps the events' exceptions alive and is never emptied unless you do it: not for production.
    """

    events: list[Recorded]
    """All events with their times, in the order in which they were heard."""

    def __init__(self) -> None:
        self.events = []

    def __repr__(self) -> str:
        return f"Recorder({len(self.events)} events)"

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in order."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def times(self, kind: type[Event]) -> list[float]:
        """Return when the events of one kind were heard, in seconds of Trio's clock."""
        return [at for at, event in self.events if isinstance(event, kind)]

    def clear(self) -> None:
        """Forget all events."""
        self.events.clear()

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        """Keep the event."""
        self._keep(event)

    def gave_up(self, event: GaveUp, /) -> None:
        """Keep the event."""
        self._keep(event)

    def job_finished(self, event: JobFinished, /) -> None:
        """Keep the event."""
        self._keep(event)

    def queue_dropped(self, event: QueueDropped, /) -> None:
        """Keep the event."""
        self._keep(event)

    def gate_shut(self, event: GateShut, /) -> None:
        """Keep the event."""
        self._keep(event)

    def gate_opened(self, event: GateOpened, /) -> None:
        """Keep the event."""
        self._keep(event)

    def limit_changed(self, event: LimitChanged, /) -> None:
        """Keep the event."""
        self._keep(event)

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        """Keep the event."""
        self._keep(event)

    def circuit_half_opened(self, event: CircuitHalfOpened, /) -> None:
        """Keep the event."""
        self._keep(event)

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        """Keep the event."""
        self._keep(event)

    def circuit_isolated(self, event: CircuitIsolated, /) -> None:
        """Keep the event."""
        self._keep(event)

    def hedge_started(self, event: HedgeStarted, /) -> None:
        """Keep the event."""
        self._keep(event)

    def fallback_used(self, event: FallbackUsed, /) -> None:
        """Keep the event."""
        self._keep(event)

    def storm_started(self, event: StormStarted, /) -> None:
        """Keep the event."""
        self._keep(event)

    def storm_ended(self, event: StormEnded, /) -> None:
        """Keep the event."""
        self._keep(event)

    def spend_warned(self, event: SpendWarned, /) -> None:
        """Keep the event."""
        self._keep(event)

    def spend_stopped(self, event: SpendStopped, /) -> None:
        """Keep the event."""
        self._keep(event)

    def redis_connected(self, event: RedisConnected, /) -> None:
        """Keep the event."""
        self._keep(event)

    def redis_ready(self, event: RedisReady, /) -> None:
        """Keep the event."""
        self._keep(event)

    def redis_lost(self, event: RedisLost, /) -> None:
        """Keep the event."""
        self._keep(event)

    def redis_reconnecting(self, event: RedisReconnecting, /) -> None:
        """Keep the event."""
        self._keep(event)

    def redis_failover(self, event: RedisFailover, /) -> None:
        """Keep the event."""
        self._keep(event)

    def _keep(self, event: Event) -> None:
        self.events.append(Recorded(trio.current_time(), event))
