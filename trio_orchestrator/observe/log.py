"""Events as lines of the standard `logging`."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, fields
from reprlib import Repr
from typing import Any, final

import trio

from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.thinning import Repeats, Thinning
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

_short = Repr()  # also copes with an error that cannot show itself
_short.maxother = _short.maxstring = 300


@final
@dataclass(frozen=True, slots=True)
class _Line:
    """What makes two lines equal: all but the times and amounts in them."""

    level: int
    what: str
    error: str


@final
class LogInstrument(Instrument):
    """Turn every event into one line of `logging`, with the event's fields as `extra`.

    Lines look like `attempt 2/4 of 'push' failed, next in 0.84 s: HTTPStatusError('429')`. The fields of the event are
    attributes of the log record, prefixed: `orchestrator_event` ("retry_scheduled"), `orchestrator_name`,
    `orchestrator_attempt`, `orchestrator_error` (the exception itself) and so on.

    Levels: a scheduled retry, a shut gate, dropped jobs, a circuit that opens or is isolated, a fallback, a storm, much
    spending, a lost connection to Redis, an attempt to connect that failed and a failover are warnings; giving up and
    spending that is stopped are errors; a gate or circuit that lets calls through, a changed limit, the end of a storm
    and a server that is ready are infos; a hedge and a new connection are debug lines; so is the end of a job, or a
    warning if it failed and no "gave up" line was just written for it.

    Equal lines (pauses, elapsed times and amounts aside) are thinned: the first is written, then every 10 seconds how
    many more there were. That is decided when an event arrives, by Trio's clock; what has not occurred for 10 seconds
    is written in full again. `flush()` writes the counts that are still open. Memory is bounded: 500 different lines
    are remembered, the texts of errors and keys are cut at 300 characters, and no exception is kept.

    One instrument may serve many queues and policies of one `trio.run`. Writing is sync, and blocks as long as the
    handlers of the logger do.

    Args:
        logger: A logger or its name; by default the logger `trio_orchestrator`.
        level: One `logging` level for all lines, in place of those above.
    """

    def __init__(self, logger: logging.Logger | str | None = None, level: int | None = None) -> None:
        self._logger = _logger(logger)
        self._level = _level(level)
        self._thinning: Thinning[_Line] = Thinning(every=10.0)
        self._given_up: tuple[str, int] | None = None  # the id, not the error: it must not be kept alive

    def __repr__(self) -> str:
        return f"LogInstrument({self._logger.name!r})"

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        """Write a warning: an attempt failed, and when the next one starts."""
        what = f"attempt {_of(event.attempt, event.attempts)} of {event.name!r} {_failed(event.error)}"
        self._write("retry_scheduled", event, logging.WARNING, what, event.error, f", next in {event.delay:.2f} s")

    def gave_up(self, event: GaveUp, /) -> None:
        """Write an error: the last attempt failed."""
        what = f"gave up on {event.name!r} after attempt {_of(event.attempt, event.attempts)} (reason: {event.reason})"
        self._write("gave_up", event, logging.ERROR, what, event.error, f" in {event.elapsed:.2f} s")
        self._given_up = (event.name, id(event.error))

    def job_finished(self, event: JobFinished, /) -> None:
        """Write a debug line; a warning if the job failed and `gave_up` has not just said so."""
        news = event.state == "failed" and self._given_up != (event.name, id(event.error))
        what = f"job {event.name!r} {event.state} after {event.attempts} attempt{'' if event.attempts == 1 else 's'}"
        self._write("job_finished", event, logging.WARNING if news else logging.DEBUG, what, event.error)

    def queue_dropped(self, event: QueueDropped, /) -> None:
        """Write a warning: jobs were dropped."""
        what = f"dropped {event.count} waiting job{'' if event.count == 1 else 's'} ({event.reason})"
        self._write("queue_dropped", event, logging.WARNING, what)

    def gate_shut(self, event: GateShut, /) -> None:
        """Write a warning: a gate holds its jobs back."""
        what = "gate shut" if event.known else "gate shut, then one job tries"
        self._write("gate_shut", event, logging.WARNING, what, event.error, f", for {event.seconds:.2f} s")

    def gate_opened(self, event: GateOpened, /) -> None:
        """Write an info: a gate lets its jobs through."""
        what = "gate half open: one job tries" if event.probing else "gate open"
        self._write("gate_opened", event, logging.INFO, what)

    def limit_changed(self, event: LimitChanged, /) -> None:
        """Write an info: the concurrency was changed."""
        whose = f"limit of {event.name!r}" if event.name else "limit"
        why = f" ({event.reason})" if event.reason else ""
        self._write("limit_changed", event, logging.INFO, f"{whose} changed from {event.old:g} to {event.new:g}{why}")

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        """Write a warning: a circuit breaker refuses calls."""
        again = f" again ({event.openings} times in a row)" if event.openings > 1 else ""
        what = f"circuit {event.name!r} opened{again}"
        self._write("circuit_opened", event, logging.WARNING, what, event.error, f", for {event.cooldown:.2f} s")

    def circuit_half_opened(self, event: CircuitHalfOpened, /) -> None:
        """Write an info: a circuit breaker probes."""
        what = f"circuit {event.name!r} half open: a call tries"
        self._write("circuit_half_opened", event, logging.INFO, what, None, f", after {event.open_for:.2f} s")

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        """Write an info: a circuit breaker lets calls through."""
        what = f"circuit {event.name!r} {'reset' if event.reset else 'closed'}"
        self._write("circuit_closed", event, logging.INFO, what, None, f", after {event.open_for:.2f} s")

    def circuit_isolated(self, event: CircuitIsolated, /) -> None:
        """Write a warning: an operator holds a circuit breaker open; an info when nobody does any more."""
        state = f"isolated (held {_times(event.holds)})" if event.isolated else "no longer isolated"
        level = logging.WARNING if event.isolated else logging.INFO
        self._write("circuit_isolated", event, level, f"circuit {event.name!r} {state}")

    def hedge_started(self, event: HedgeStarted, /) -> None:
        """Write a debug line: a slow call got another copy."""
        what = f"copy {event.copy} of {event.name!r} started"
        self._write("hedge_started", event, logging.DEBUG, what, None, f", after {event.after:.2f} s")

    def fallback_used(self, event: FallbackUsed, /) -> None:
        """Write a warning: a substitute took the place of a result."""
        what = f"fallback used for {event.name!r}"
        self._write("fallback_used", event, logging.WARNING, what, event.error)

    def storm_started(self, event: StormStarted, /) -> None:
        """Write a warning: something is called far too often."""
        moment = f": {event.value:g}, bound {event.bound:g}"
        self._write(
            "storm_started", event, logging.WARNING, f"storm of {_short.repr(event.key)} ({event.reason})", None, moment
        )

    def storm_ended(self, event: StormEnded, /) -> None:
        """Write an info: it no longer is."""
        what = f"storm of {_short.repr(event.key)} is over"
        moment = f": {event.calls} calls in {event.seconds:.2f} s"
        self._write("storm_ended", event, logging.INFO, what, None, moment)

    def spend_warned(self, event: SpendWarned, /) -> None:
        """Write a warning: much of what may be spent is spent, or will be."""
        part = f"{event.fraction:g} times the usual" if event.reason == "times_usual" else f"{event.fraction:.0%} spent"
        moment = f": {event.spent} of {event.limit}, {event.projected} projected"
        self._write("spend_warned", event, logging.WARNING, f"spending of {event.name!r}: {part}", None, moment)

    def spend_stopped(self, event: SpendStopped, /) -> None:
        """Write an error: all of it is spent, and calls are refused."""
        moment = f": {event.spent} of {event.limit}, for {event.seconds:.2f} s"
        self._write("spend_stopped", event, logging.ERROR, f"spending of {event.name!r} stopped", None, moment)

    def redis_connected(self, event: RedisConnected, /) -> None:
        """Write a debug line: a connection was made."""
        self._write("redis_connected", event, logging.DEBUG, f"{event.link}: connected to {event.address}")

    def redis_ready(self, event: RedisReady, /) -> None:
        """Write an info: the server answers."""
        what, after = f"{event.link}: {event.address} is ready", f", after {event.after:.2f} s"
        self._write("redis_ready", event, logging.INFO, what, None, after)

    def redis_lost(self, event: RedisLost, /) -> None:
        """Write a warning: a connection was lost."""
        what = f"{event.link}: connection to {event.address} lost"
        moment = f", with {event.in_flight} calls in flight and {event.unsent} unsent"
        self._write("redis_lost", event, logging.WARNING, what, event.cause, moment)

    def redis_reconnecting(self, event: RedisReconnecting, /) -> None:
        """Write a warning: an attempt to connect failed."""
        what = f"{event.link}: cannot connect to {event.address}"
        self._write("redis_reconnecting", event, logging.WARNING, what, event.cause, f", next in {event.delay:.2f} s")

    def redis_failover(self, event: RedisFailover, /) -> None:
        """Write a warning: another server is spoken with."""
        what = f"{event.link}: failed over from {event.old} to {event.new}"
        self._write("redis_failover", event, logging.WARNING, what)

    def flush(self) -> None:
        """Write how many equal lines were held back since the last count. Sync; needs no running Trio."""
        self._write_repeats(self._thinning.flush())

    def _write(
        self,
        kind: str,
        event: object,
        level: int,
        what: str,
        error: BaseException | None = None,
        moment: str = "",
    ) -> None:
        self._given_up = None
        if self._level is not None:
            level = self._level
        if not self._logger.isEnabledFor(level):
            return
        now = trio.current_time()
        self._write_repeats(self._thinning.due(now))
        line = _Line(level, what, _shown(error))
        if self._thinning.offer(line, now):
            self._logger.log(level, "%s%s%s", what, moment, line.error, extra=_extra(kind, event))

    def _write_repeats(self, repeats: list[Repeats[_Line]]) -> None:
        for each in repeats:
            line = each.key
            extra = {"orchestrator_event": "repeats", "orchestrator_count": each.count}
            text = "%s%s (%d more in %.1f s)"
            self._logger.log(line.level, text, line.what, line.error, each.count, each.seconds, extra=extra)


def _logger(logger: object) -> logging.Logger:
    if isinstance(logger, logging.Logger):
        return logger
    if logger is None or isinstance(logger, str):
        return logging.getLogger("trio_orchestrator" if logger is None else logger)
    raise TypeError(f"logger must be a logging.Logger, a name or None, got {logger!r}")


def _level(level: object) -> int | None:
    if level is None or isinstance(level, int):
        return level
    raise TypeError(f"level must be an int such as logging.INFO, or None, got {level!r}")


def _of(attempt: int, attempts: float) -> str:
    return f"{attempt}" if attempts == math.inf else f"{attempt}/{attempts:g}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _failed(error: BaseException | None) -> str:
    return "returned a refused result" if error is None else "failed"


def _shown(error: BaseException | None) -> str:
    if error is None:
        return ""
    return f": {' '.join(_short.repr(error).split())}"


def _extra(kind: str, event: Any) -> dict[str, Any]:
    extra = {f"orchestrator_{each.name}": getattr(event, each.name) for each in fields(event)}
    return {"orchestrator_event": kind, **extra}
