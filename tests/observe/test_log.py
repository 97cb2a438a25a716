from __future__ import annotations

import logging
import math
from decimal import Decimal
from typing import Any

import pytest
import trio
from trio.testing import MockClock

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
from trio_orchestrator.observe.log import LogInstrument
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


class HTTPStatusError(Exception):
    pass


def scheduled(
    attempt: int = 2, delay: float = 0.84, *, attempts: float = 4, error: BaseException | None
) -> RetryScheduled:
    return RetryScheduled(name="push", attempt=attempt, attempts=attempts, delay=delay, elapsed=1.5, error=error)


def gave_up(error: BaseException) -> GaveUp:
    return GaveUp(name="push", attempt=4, attempts=4, elapsed=3.1, reason="attempts", error=error)


def finished(state: str, error: BaseException | None = None, name: str = "push") -> JobFinished:
    return JobFinished(name=name, tags=(), state=state, attempts=4, error=error)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "trio_orchestrator")
    return caplog


ERROR = HTTPStatusError("429")


@pytest.mark.parametrize(
    ("hook", "event", "level", "line"),
    [
        (
            "retry_scheduled",
            scheduled(error=ERROR),
            "WARNING",
            "attempt 2/4 of 'push' failed, next in 0.84 s: HTTPStatusError('429')",
        ),
        (
            "retry_scheduled",
            scheduled(error=ERROR, attempts=math.inf),
            "WARNING",
            "attempt 2 of 'push' failed, next in 0.84 s: HTTPStatusError('429')",
        ),
        (
            "retry_scheduled",
            scheduled(error=None),
            "WARNING",
            "attempt 2/4 of 'push' returned a refused result, next in 0.84 s",
        ),
        (
            "gave_up",
            gave_up(ERROR),
            "ERROR",
            "gave up on 'push' after attempt 4/4 (reason: attempts) in 3.10 s: HTTPStatusError('429')",
        ),
        ("job_finished", finished("succeeded"), "DEBUG", "job 'push' succeeded after 4 attempts"),
        ("job_finished", finished("cancelled"), "DEBUG", "job 'push' cancelled after 4 attempts"),
        (
            "job_finished",
            finished("failed", ERROR),
            "WARNING",
            "job 'push' failed after 4 attempts: HTTPStatusError('429')",
        ),
        (
            "queue_dropped",
            QueueDropped(reason="drop_oldest", count=1),
            "WARNING",
            "dropped 1 waiting job (drop_oldest)",
        ),
        (
            "queue_dropped",
            QueueDropped(reason="cleared by operator", count=7),
            "WARNING",
            "dropped 7 waiting jobs (cleared by operator)",
        ),
        (
            "gate_shut",
            GateShut(seconds=12, known=True, error=ERROR),
            "WARNING",
            "gate shut, for 12.00 s: HTTPStatusError('429')",
        ),
        (
            "gate_shut",
            GateShut(seconds=1, known=False, error=None),
            "WARNING",
            "gate shut, then one job tries, for 1.00 s",
        ),
        ("gate_opened", GateOpened(probing=True), "INFO", "gate half open: one job tries"),
        ("gate_opened", GateOpened(probing=False), "INFO", "gate open"),
        ("limit_changed", LimitChanged(old=3, new=math.inf), "INFO", "limit changed from 3 to inf"),
        (
            "limit_changed",
            LimitChanged(old=20, new=20.5, name="search", reason="grows"),
            "INFO",
            "limit of 'search' changed from 20 to 20.5 (grows)",
        ),
        (
            "circuit_opened",
            CircuitOpened(name="search", cooldown=30, openings=1, error=ERROR),
            "WARNING",
            "circuit 'search' opened, for 30.00 s: HTTPStatusError('429')",
        ),
        (
            "circuit_opened",
            CircuitOpened(name="search", cooldown=60, openings=2, error=None),
            "WARNING",
            "circuit 'search' opened again (2 times in a row), for 60.00 s",
        ),
        (
            "circuit_half_opened",
            CircuitHalfOpened(name="search", open_for=30),
            "INFO",
            "circuit 'search' half open: a call tries, after 30.00 s",
        ),
        (
            "circuit_closed",
            CircuitClosed(name="search", open_for=31.5, reset=False),
            "INFO",
            "circuit 'search' closed, after 31.50 s",
        ),
        (
            "circuit_closed",
            CircuitClosed(name="search", open_for=3, reset=True),
            "INFO",
            "circuit 'search' reset, after 3.00 s",
        ),
        (
            "circuit_isolated",
            CircuitIsolated(name="search", isolated=True, holds=1),
            "WARNING",
            "circuit 'search' isolated (held once)",
        ),
        (
            "circuit_isolated",
            CircuitIsolated(name="search", isolated=True, holds=2),
            "WARNING",
            "circuit 'search' isolated (held 2 times)",
        ),
        (
            "circuit_isolated",
            CircuitIsolated(name="search", isolated=False, holds=0),
            "INFO",
            "circuit 'search' no longer isolated",
        ),
        (
            "hedge_started",
            HedgeStarted(name="search", copy=1, after=0.25),
            "DEBUG",
            "copy 1 of 'search' started, after 0.25 s",
        ),
        (
            "fallback_used",
            FallbackUsed(name="search", error=ERROR),
            "WARNING",
            "fallback used for 'search': HTTPStatusError('429')",
        ),
        (
            "storm_started",
            StormStarted(key=("search", 3), reason="calls", value=6000, bound=1000),
            "WARNING",
            "storm of ('search', 3) (calls): 6000, bound 1000",
        ),
        (
            "storm_ended",
            StormEnded(key="search", seconds=90, calls=9000),
            "INFO",
            "storm of 'search' is over: 9000 calls in 90.00 s",
        ),
        (
            "spend_warned",
            SpendWarned("search", 0.5, Decimal("5.01"), Decimal("12.30"), Decimal(10), "fraction"),
            "WARNING",
            "spending of 'search': 50% spent: 5.01 of 10, 12.30 projected",
        ),
        (
            "spend_warned",
            SpendWarned("search", 2, Decimal("1.01"), Decimal("4.00"), Decimal(10), "times_usual"),
            "WARNING",
            "spending of 'search': 2 times the usual: 1.01 of 10, 4.00 projected",
        ),
        (
            "spend_stopped",
            SpendStopped("search", Decimal("10.00"), Decimal(10), 3600),
            "ERROR",
            "spending of 'search' stopped: 10.00 of 10, for 3600.00 s",
        ),
    ],
)
async def test_each_event_is_one_line(
    lines: pytest.LogCaptureFixture, hook: str, event: object, level: str, line: str
) -> None:
    getattr(LogInstrument(), hook)(event)
    assert [(record.levelname, record.getMessage()) for record in lines.records] == [(level, line)]


async def test_the_fields_are_extra_attributes_of_the_record(lines: pytest.LogCaptureFixture) -> None:
    LogInstrument().retry_scheduled(scheduled(error=ERROR))
    extra = {key: value for key, value in vars(lines.records[0]).items() if key.startswith("orchestrator_")}
    assert extra == {
        "orchestrator_event": "retry_scheduled",
        "orchestrator_name": "push",
        "orchestrator_attempt": 2,
        "orchestrator_attempts": 4,
        "orchestrator_delay": 0.84,
        "orchestrator_elapsed": 1.5,
        "orchestrator_error": ERROR,
    }
    assert lines.records[0].name == "trio_orchestrator"  # not the job's name


def test_every_hook_is_heard() -> None:
    for name in (name for name in vars(Instrument) if not name.startswith("_")):
        assert getattr(LogInstrument, name) is not getattr(Instrument, name), name


async def test_equal_lines_are_thinned_whatever_their_pauses(
    lines: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    log = LogInstrument()
    for n in range(25):
        log.retry_scheduled(scheduled(delay=n / 10, error=HTTPStatusError("429")))
        await trio.sleep(0.5)
    log.flush()
    assert lines.messages == [
        "attempt 2/4 of 'push' failed, next in 0.00 s: HTTPStatusError('429')",
        "attempt 2/4 of 'push' failed: HTTPStatusError('429') (19 more in 9.5 s)",
        "attempt 2/4 of 'push' failed: HTTPStatusError('429') (5 more in 2.0 s)",
    ]
    counts = [vars(record).get("orchestrator_count") for record in lines.records]
    assert counts == [None, 19, 5]


async def test_another_error_is_another_line(lines: pytest.LogCaptureFixture) -> None:
    log = LogInstrument()
    for text in ("429", "500", "429"):
        log.retry_scheduled(scheduled(error=HTTPStatusError(text)))
    assert [message[-22:] for message in lines.messages] == ["HTTPStatusError('429')", "HTTPStatusError('500')"]


async def test_any_later_event_writes_the_count(lines: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    log = LogInstrument()
    log.gate_opened(GateOpened(probing=False))
    log.gate_opened(GateOpened(probing=False))
    await trio.sleep(3600)
    log.limit_changed(LimitChanged(old=1, new=2))
    assert lines.messages == ["gate open", "gate open (1 more in 0.0 s)", "limit changed from 1 to 2"]


async def test_a_failure_that_was_given_up_is_not_said_twice(lines: pytest.LogCaptureFixture) -> None:
    log = LogInstrument()
    log.gave_up(gave_up(ERROR))
    log.job_finished(finished("failed", ERROR))
    log.job_finished(finished("failed", HTTPStatusError("500")))
    assert [record.levelname for record in lines.records] == ["ERROR", "DEBUG", "WARNING"]


async def test_a_failure_of_another_job_is_not_taken_for_the_one_given_up(lines: pytest.LogCaptureFixture) -> None:
    log = LogInstrument()
    log.gave_up(gave_up(ERROR))
    log.job_finished(finished("failed", ERROR, name="pull"))
    assert [record.levelname for record in lines.records] == ["ERROR", "WARNING"]


async def test_a_level_and_a_logger_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for logger in ("mine", logging.getLogger("mine")):
        LogInstrument(logger, logging.INFO).gave_up(gave_up(ERROR))
        LogInstrument(logger, logging.DEBUG).gave_up(gave_up(ERROR))
    assert [(record.name, record.levelname) for record in caplog.records] == [("mine", "INFO")] * 2
    assert repr(LogInstrument("mine")) == "LogInstrument('mine')"


async def test_a_line_that_nobody_wants_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trio_orchestrator")
    log = LogInstrument()
    log.gate_opened(GateOpened(probing=False))
    caplog.set_level(logging.INFO, "trio_orchestrator")
    log.gate_opened(GateOpened(probing=False))
    assert caplog.messages == ["gate open"]


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Talkative(Exception):
    def __repr__(self) -> str:
        return "Talkative(\n" + 1000 * "x" + ")"


async def test_errors_that_cannot_show_themselves_or_talk_too_much(lines: pytest.LogCaptureFixture) -> None:
    log = LogInstrument()
    log.job_finished(finished("failed", Unspeakable()))
    log.job_finished(finished("failed", Talkative()))
    first, second = lines.messages
    assert "<Unspeakable instance at" in first
    assert ": Talkative( xxx" in second
    assert "\n" not in second
    assert len(second) < 350


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logger": 3}, "logger must be a logging.Logger, a name or None, got 3"),
        ({"level": "INFO"}, "level must be an int such as logging.INFO, or None, got 'INFO'"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        LogInstrument(**arguments)
