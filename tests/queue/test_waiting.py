"""Waiting for states of the queue, closing it and leaving it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import Cooldown, Failures, Gate, JobCancelledError, JobState, TaskQueue, open_task_queue

# ----------------------------------------------------------------------------------------------- wait_idle


@virtual
async def test_wait_idle_counts_retries_and_delays() -> None:
    line = Timeline()
    async with open_task_queue(retry=pauses(100)) as queue:
        await queue.wait_idle()
        queue.submit_nowait(line.flaky("x"))
        queue.submit_nowait(line.work, "y", delay=50)
        assert not queue.statistics().idle
        await queue.wait_idle()
        assert trio.current_time() == 102
        assert queue.statistics().idle


@virtual
async def test_wait_idle_never_returns_between_a_job_and_its_successor() -> None:
    left = 20

    async def chain() -> None:
        nonlocal left
        await trio.lowlevel.checkpoint()
        left -= 1
        if left:
            queue.submit_nowait(chain)

    async with open_task_queue(concurrency=1) as queue:
        queue.submit_nowait(chain)
        await queue.wait_idle()
        assert left == 0


@virtual
async def test_many_may_wait_for_idle_and_be_cancelled() -> None:
    ends: list[float] = []

    async def waiter(patience: float) -> None:
        with trio.move_on_after(patience):
            await queue.wait_idle()
        ends.append(trio.current_time())

    async with open_task_queue() as queue, trio.open_nursery() as nursery:
        queue.submit_nowait(trio.sleep, 5)
        for patience in (1, 9, 9):
            nursery.start_soon(waiter, patience)
    assert ends == [1, 5, 5]


@virtual
async def test_wait_below_counts_what_waits_and_what_pauses() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(20)) as queue:
        await queue.wait_below(1)
        for _ in range(6):
            queue.submit_nowait(line.work, "x")
        queue.submit_nowait(line.flaky("y"))
        found = []
        for bound in (4, 2, 1):
            await queue.wait_below(bound)
            found.append(trio.current_time())
        assert found == [3, 5, 6]
        await trio.sleep(1.5)
        await queue.wait_below(1)
        assert trio.current_time() == 27


@virtual
async def test_wait_below_is_told_of_clear_and_cancel_and_can_be_cancelled() -> None:
    async with open_task_queue(concurrency=1) as queue, trio.open_nursery() as nursery:
        queue.pause()
        jobs = [queue.submit_nowait(trio.sleep, 1) for _ in range(4)]
        with trio.move_on_after(1) as scope:
            await queue.wait_below(4)
        assert scope.cancelled_caught
        nursery.start_soon(queue.wait_below, 4)
        nursery.start_soon(queue.wait_below, 1)
        await wait_all_tasks_blocked()
        jobs[0].cancel()
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        queue.clear()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


@virtual
async def test_waiters_settle_when_the_queue_closes() -> None:
    ends: list[str] = []

    async def below() -> None:
        try:
            await queue.wait_below(1)
        except trio.ClosedResourceError as error:
            ends.append(f"below {trio.current_time():g} {error}")

    async def idle() -> None:
        await queue.wait_idle()
        ends.append(f"idle {trio.current_time():g}")

    async with trio.open_nursery() as nursery, open_task_queue(concurrency=1, name="q") as queue:
        for _ in range(3):
            queue.submit_nowait(trio.sleep, 5)
        nursery.start_soon(below)
        nursery.start_soon(idle)
        await trio.sleep(1)
        await queue.close(grace=math.inf)
        with pytest.raises(trio.ClosedResourceError):
            await queue.submit(trio.sleep, 1)
        await queue.wait_below(1)  # holds already
    assert ends == ["below 1 the queue 'q' was closed: it was closed", "idle 5"]


@virtual
async def test_waiting_for_ones_own_end_is_refused() -> None:
    async def body() -> None:
        for call in (queue.wait_idle, lambda: queue.wait_below(5), queue.close):
            with pytest.raises(
                RuntimeError, match="from inside a job of the same queue would wait for that job itself"
            ):
                await call()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.wait_idle)
            nursery.start_soon(other.close)

    async with open_task_queue() as other, open_task_queue() as queue:
        await queue.run(body)


# --------------------------------------------------------------------------------------------------- close


@virtual
async def test_close_ends_what_has_not_started_and_lists_what_was_unfinished() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, retry=pauses(100), failures=Failures.RECORD) as queue:
        pausing = queue.submit_nowait(line.flaky("pausing", seconds=0))
        short = queue.submit_nowait(line.work, "short", 4)
        long = queue.submit_nowait(line.work, "long", 50)
        await wait_all_tasks_blocked()
        failing = queue.submit_nowait(line.flaky("failing", seconds=2))
        waiting = queue.submit_nowait(line.work, "waiting")
        delayed = queue.submit_nowait(line.work, "delayed", delay=1)
        await wait_all_tasks_blocked()
        unfinished = await queue.close(grace=10)
        assert trio.current_time() == 10
        assert set(unfinished) == {pausing, waiting, delayed, long, failing}  # `failing` would have been repeated
        states = [job.state.value for job in (pausing, short, long, failing, waiting, delayed)]
        assert states == ["cancelled", "succeeded", "cancelled", "failed", "cancelled", "cancelled"]
        assert failing.attempts == 1
        assert await queue.close() == []
        with pytest.raises(JobCancelledError, match="it was closed") as caught:
            await pausing.wait()
        assert isinstance(caught.value.__cause__, Flop)


@virtual
async def test_close_refuses_jobs_too_and_waits_for_clean_up() -> None:
    async def body() -> None:
        try:
            await clean_up(5)
        finally:
            with pytest.raises(trio.ClosedResourceError, match=r"^the queue 'queue' is closed: it was closed$"):
                queue.submit_nowait(trio.sleep, 1)

    async with open_task_queue() as queue:
        job = queue.submit_nowait(body)
        await wait_all_tasks_blocked()
        assert await queue.close() == [job]
        assert trio.current_time() == 5
        with pytest.raises(trio.ClosedResourceError):
            queue.submit_nowait(trio.sleep, 1)
        with pytest.raises(trio.ClosedResourceError):
            await queue.run(trio.sleep, 1)


@virtual
async def test_cancelling_close_cancels_no_job_and_leaves_the_queue_closed() -> None:
    line = Timeline()
    async with open_task_queue() as queue:
        job = queue.submit_nowait(line.work, "x", 5)
        with trio.move_on_after(1) as scope:
            await queue.close(grace=99)
        assert scope.cancelled_caught
        with pytest.raises(trio.ClosedResourceError):
            queue.submit_nowait(trio.sleep, 1)
        assert await job.wait() == "x"


@virtual
async def test_close_returns_as_soon_as_the_last_one_has_ended() -> None:
    async with open_task_queue() as queue:
        queue.submit_nowait(trio.sleep, 3)
        await wait_all_tasks_blocked()
        assert await queue.close(grace=math.inf) == []
        assert trio.current_time() == 3


# ------------------------------------------------------------------------------------------------- leaving


@virtual
async def test_leaving_waits_for_everything_and_jobs_may_go_on_submitting() -> None:
    line = Timeline()

    async def parent() -> None:
        await trio.sleep(10)
        await queue.submit(line.work, "child")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(queue.submit, line.work, "child of a child"))

    async with trio.open_nursery() as nursery:

        async def outsider() -> None:
            await trio.sleep(5)
            with pytest.raises(trio.ClosedResourceError, match=r"^the queue 'queue' is closed: its block was left$"):
                await queue.submit(line.work, "outsider")

        nursery.start_soon(outsider)
        async with open_task_queue(retry=pauses(30)) as queue:
            queue.submit_nowait(parent)
            queue.submit_nowait(line.flaky("x"))
        assert trio.current_time() == 32
    assert sorted(line.events) == [(0, "x"), (10, "child"), (10, "child of a child"), (31, "x")]


async def _paused(queue: TaskQueue) -> None:
    queue.pause()
    queue.submit_nowait(trio.sleep, 1)


async def _no_slots(queue: TaskQueue) -> None:
    queue.concurrency = 0
    queue.submit_nowait(trio.sleep, 1)


async def _own_gate(queue: TaskQueue) -> None:
    cooldown.gate().shut(3600)
    queue.submit_nowait(trio.sleep, 1)


async def _named_gate(queue: TaskQueue) -> None:
    gate = Gate("server")
    gate.shut(3600)
    queue.submit_nowait(trio.sleep, 1, gate=gate)


async def _keyed_cooldown(queue: TaskQueue) -> None:
    cooldown.gate("server").shut(3600)
    queue.submit_nowait(trio.sleep, 1, key="server")


cooldown = Cooldown()
STUCK = [
    (_paused, "1 jobs wait, and it is paused"),
    (_no_slots, "1 jobs wait, and its limit is 0"),
    (_own_gate, "1 jobs wait, and its gate is shut for 3.6e+03 s"),
    (_named_gate, "1 jobs wait, and gate 'server' is shut for 3.6e+03 s"),
    (_keyed_cooldown, "1 jobs wait, and gate \"cooldown of 'server'\" is shut for 3.6e+03 s"),
]


@virtual
@pytest.mark.parametrize(("stick", "text"), STUCK)
async def test_leaving_a_stuck_queue_waits_warns_once_and_can_be_cancelled(
    stick: Callable[[TaskQueue], Awaitable[None]], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    global cooldown
    cooldown = Cooldown()
    caplog.clear()
    with trio.move_on_after(100) as scope:
        async with open_task_queue(concurrency=2, name="q", cooldown=cooldown) as queue:
            queue.submit_nowait(trio.sleep, 2)
            await wait_all_tasks_blocked()
            await stick(queue)
    assert scope.cancelled_caught
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].name == "trio_orchestrator"
    assert warnings[0].getMessage().startswith(f"leaving the queue 'q': {text}")


@virtual
async def test_leaving_a_paused_queue_goes_on_when_somebody_resumes_it(caplog: pytest.LogCaptureFixture) -> None:
    line = Timeline()
    async with trio.open_nursery() as nursery:
        async with open_task_queue() as queue:
            queue.pause()
            queue.submit_nowait(line.work, "x")

            async def later() -> None:
                await trio.sleep(50)
                queue.resume()
                queue.pause()
                queue.resume()

            nursery.start_soon(later)
        assert trio.current_time() == 51
    assert line.events == [(50, "x")]


@virtual
async def test_nobody_is_warned_when_nothing_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    async with open_task_queue(concurrency=1) as queue:
        job = queue.submit_nowait(trio.sleep, 5)
        await wait_all_tasks_blocked()
        queue.pause()
        queue.concurrency = 0
    assert job.state is JobState.SUCCEEDED
    assert not caplog.records
