"""Logging, recording and progress where they belong: in a queue."""

from __future__ import annotations

import io
import logging

import pytest
import trio
from rich.console import Console
from rich.progress import Progress
from trio.testing import MockClock

from trio_orchestrator import Constant, Failures, LogInstrument, Recorder, Retry, map_all, open_map, open_task_queue
from trio_orchestrator.event import GaveUp, JobFinished, RetryScheduled


async def push(number: int) -> int:
    await trio.sleep(1)
    if number == 3:
        raise ConnectionError("refused")
    return number


def retry(*instruments: LogInstrument | Recorder) -> Retry:
    return Retry(on=ConnectionError, attempts=2, backoff=Constant(0.5), instruments=instruments)


async def test_one_instrument_hears_the_queue_and_its_retry(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "trio_orchestrator")
    log = LogInstrument()
    async with open_task_queue(retry=retry(log), instruments=[log], failures=Failures.RECORD) as queue:
        for number in (1, 2, 3):
            queue.submit_nowait(push, number)
    assert caplog.messages == [
        "attempt 1/2 of 'push' failed, next in 0.50 s: ConnectionError('refused')",
        "gave up on 'push' after attempt 2/2 (reason: attempts) in 2.50 s: ConnectionError('refused')",
    ]


async def test_a_failure_without_a_retry_is_a_warning(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "trio_orchestrator")
    async with open_task_queue(instruments=[LogInstrument()], failures=Failures.RECORD) as queue:
        queue.submit_nowait(push, 3, name="the third")
    assert caplog.messages == ["job 'the third' failed after 1 attempt: ConnectionError('refused')"]


async def test_a_recorder_has_the_times(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    async with open_task_queue(retry=retry(recorder), instruments=[recorder], failures=Failures.RECORD) as queue:
        for number in (1, 2, 3):
            queue.submit_nowait(push, number)
    assert recorder.times(RetryScheduled) == [1]
    assert recorder.times(GaveUp) == [2.5]
    assert recorder.times(JobFinished) == [1, 1, 2.5]
    assert [event.state for event in recorder.of(JobFinished)] == ["succeeded", "succeeded", "failed"]


async def test_the_progress_of_a_queue(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    caplog.set_level(logging.INFO, "trio_orchestrator")
    async with open_task_queue(
        concurrency=1, retry=retry(), failures=Failures.RECORD, progress=True, name="mail"
    ) as queue:
        await trio.sleep(0.4)
        for number in range(1, 9):
            queue.submit_nowait(push, number)
    assert caplog.messages == [
        "mail: 3/8, 0.6/s, 0 failed, 1 retries, ETA 0:08",
        "mail: 8/8, 0.9/s, 1 failed, 1 retries, took 0:09",
    ]


async def test_the_progress_of_a_queue_that_is_left_by_an_exception(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "trio_orchestrator")
    error = KeyError("mine")

    async def tidy(number: int) -> None:
        try:
            await trio.sleep(number)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.2)

    with pytest.raises(KeyError) as caught:
        async with open_task_queue(progress=True, name="mail") as queue:
            for number in (1, 1, 60):
                queue.submit_nowait(tidy, number)
            await trio.sleep(2)
            raise error
    assert caught.value is error
    assert trio.current_time() == pytest.approx(2.2)
    assert caplog.messages == ["mail: 2/3, 1.0/s, 0 failed, 0 retries, took 0:02"]  # the third was still cleaning up


async def test_the_progress_of_maps(autojump_clock: MockClock) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Progress(console=console, auto_refresh=False) as progress:
        assert await map_all(push, [1, 2], progress=progress) == [1, 2]
        async with open_map(push, [1, 2], progress=progress) as outcomes:
            assert [outcome.result() async for outcome in outcomes] == [1, 2]
    assert [(task.completed, task.total, task.description.split(":")[1]) for task in progress.tasks] == [
        (2, 2, " 2.0/s, 0 failed, 0 retries, took 0"),
        (2, 2, " 2.0/s, 0 failed, 0 retries, took 0"),
    ]


async def test_something_else_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(TypeError, match=r"^progress must be a bool or a rich.progress.Progress, got 3$"):
        async with open_task_queue(progress=3):  # type: ignore[arg-type]
            pass
