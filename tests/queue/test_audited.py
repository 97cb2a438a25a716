"""Promises that no other test held: what is told, to whom, and that nobody is starved, misled or forgotten."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints

from tests.queue.bodies import assert_over
from tests.queue.timeline import Flop, virtual
from trio_orchestrator import (
    Failures,
    Gate,
    JobCancelledError,
    JobDroppedError,
    JobError,
    JobHandle,
    Overflow,
    QueueFullError,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import GateOpened
from trio_orchestrator.queue.overflow import Door
from trio_orchestrator.testing import run_virtual


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def fails(error: Exception) -> None:
    raise error


async def seen(jobs: list[JobHandle[None]]) -> None:
    for job in jobs:
        with pytest.raises(Flop):
            await job.wait()


# ------------------------------------------------------------------------------------------------ failures


@virtual
@pytest.mark.parametrize("first", [99, 100, 130])
async def test_failures_beyond_those_that_are_kept_come_out_though_the_kept_ones_were_seen(first: int) -> None:
    async def block() -> None:
        async with open_task_queue(concurrency=5) as queue:
            jobs = [queue.submit_nowait(fails, error) for error in errors]
            await queue.wait_idle()
            await seen(jobs[:first])

    errors = [Flop(number) for number in range(150)]
    with pytest.raises(ExceptionGroup) as caught:
        await block()
    unseen = set(errors[first:])
    assert str(caught.value).startswith(f"{len(unseen)} jobs of 'queue' failed, and nobody waited for them")
    assert set(caught.value.exceptions) == unseen


@virtual
async def test_something_comes_out_even_when_all_that_was_kept_has_been_seen() -> None:
    with pytest.raises(ExceptionGroup, match=r"^200 jobs of 'queue' failed, and nobody waited for them") as caught:
        async with open_task_queue(concurrency=5) as queue:
            jobs = [queue.submit_nowait(fails, Flop()) for _ in range(400)]
            await queue.wait_idle()
            await seen(jobs[:100] + jobs[300:])
    assert [type(error) for error in caught.value.exceptions] == [JobError]


@virtual
async def test_a_note_names_a_failure_beyond_those_that_were_kept() -> None:
    with pytest.raises(KeyError) as caught:
        async with open_task_queue(concurrency=5) as queue:
            jobs = [queue.submit_nowait(fails, Flop(number)) for number in range(101)]
            await queue.wait_idle()
            await seen(jobs[:100])
            raise KeyError
    assert caught.value.__notes__ == ["(1 jobs failed, and nobody waited for them; the first: Flop(100))"]


# --------------------------------------------------------------------------------------------------- names


@virtual
async def test_the_name_of_a_job_is_in_its_cancel_reason() -> None:
    reasons: list[str | None] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            reasons.append(getattr(error, "reason", None))
            raise

    async with open_task_queue() as queue:
        jobs = [queue.submit_nowait(body, name="mail 7"), queue.submit_nowait(body, name="mail 8")]
        await trio.sleep(1)
        jobs[0].cancel("the address is gone")
        jobs[1].cancel()
    assert sorted(map(str, reasons)) == [
        "job 'mail 7' was cancelled: the address is gone",
        "job 'mail 8' was cancelled",
    ]
    with pytest.raises(JobCancelledError) as caught:
        jobs[0].result_nowait()
    assert caught.value.reason == "the address is gone"


@virtual
async def test_the_name_and_the_tags_of_a_job_are_noted_on_its_failure() -> None:
    async with open_task_queue(failures=Failures.RECORD) as queue:
        jobs: list[JobHandle[Any]] = [
            queue.submit_nowait(fails, Flop(), name="mail 7", tags=["mail", "slow"]),
            queue.submit_nowait(fails, Flop(), tags=["mail"]),
            queue.submit_nowait(fails, Flop()),
            queue.submit_nowait(trio.sleep, 9, name="slow", timeout=1),
        ]
    notes: list[list[str]] = []
    for job in jobs:
        with pytest.raises((Flop, trio.TooSlowError)) as caught:
            job.result_nowait()
        notes.append(getattr(caught.value, "__notes__", []))
    assert notes == [["(job 'mail 7' #mail #slow)"], ["(job #mail)"], [], ["(job 'slow')"]]


# ---------------------------------------------------------------------------------------------- starvation


async def refused(call: Callable[..., Awaitable[object]], *args: Any, error: type[Exception]) -> None:
    """A call that raises has been a checkpoint all the same."""
    with assert_checkpoints(), pytest.raises(error):
        await call(*args)


@virtual
async def test_what_refuses_is_a_checkpoint_too() -> None:
    async with open_task_queue(concurrency=1, max_waiting=1, overflow=Overflow.REJECT) as queue:
        queue.pause()
        waiting = queue.submit_nowait(nothing)
        async with queue.group() as group:
            for submit in (queue.submit, queue.run, group.submit):
                await refused(submit, nothing, error=QueueFullError)
        await refused(queue.submit, 3, error=TypeError)
        await refused(group.submit, nothing, error=trio.ClosedResourceError)
        queue.clear()
        await refused(waiting.wait, error=JobDroppedError)

        async def inside() -> None:
            await refused(queue.wait_idle, error=RuntimeError)
            await refused(queue.wait_below, 1, error=RuntimeError)
            await refused(queue.close, error=RuntimeError)

        queue.resume()
        await queue.run(inside)
        await queue.close()
        for submit in (queue.submit, queue.run, group.submit):
            await refused(submit, nothing, error=trio.ClosedResourceError)


@virtual
async def test_whoever_submits_again_and_again_to_a_full_queue_lets_its_jobs_end() -> None:
    async with open_task_queue(concurrency=1, max_waiting=1, overflow=Overflow.REJECT) as queue:
        ended = 0
        while ended < 5:
            try:
                await queue.submit(nothing)
            except QueueFullError:
                ended = queue.statistics().succeeded


# ----------------------------------------------------------------------------------------------- deadlocks


@virtual
async def test_a_job_that_was_woken_waits_no_longer() -> None:
    ended: list[str] = []

    async def waits() -> None:
        with pytest.raises(JobCancelledError):
            await jobs["third"].wait()
        ended.append("first")

    async def cancels_and_waits() -> None:
        await trio.sleep(2)
        jobs["third"].cancel()  # wakes the first, which has no step before the next line
        await jobs["fourth"].wait()
        ended.append("second")

    jobs: dict[str, JobHandle[None]] = {}
    async with open_task_queue(concurrency=2) as queue:
        jobs["first"], jobs["second"] = queue.submit_nowait(waits), queue.submit_nowait(cancels_and_waits)
        jobs["third"], jobs["fourth"] = queue.submit_nowait(nothing), queue.submit_nowait(nothing)
    assert ended == ["first", "second"]
    assert_over(queue, jobs.values())


# ------------------------------------------------------------------------------------------ Ctrl-C, memory


class _CtrlCAt:
    """Sends SIGINT at the n-th line that `Door.wait` executes."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code is _DOOR else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._line


_DOOR = Door.wait.__code__


@pytest.mark.parametrize("line", range(1, 6))
def test_ctrl_c_at_any_line_of_the_door_leaves_no_guest_behind(line: int) -> None:
    async def main() -> None:
        interrupter = _CtrlCAt(line)
        async with open_task_queue(concurrency=1, max_waiting=1) as queue:
            queue.submit_nowait(trio.sleep, 1)
            await trio.lowlevel.checkpoint()
            queue.submit_nowait(trio.sleep, 1)
            try:
                sys.settrace(interrupter)
                try:
                    await queue.submit(trio.sleep, 1)
                finally:
                    sys.settrace(None)
                    assert interrupter.left <= 0
                    assert queue.statistics().at_the_door == 0
                await trio.sleep(1)
            except KeyboardInterrupt:
                await trio.sleep(5)  # somebody else goes on
            else:
                raise AssertionError("Ctrl-C was lost")
        assert queue.statistics().idle

    run_virtual(main)


@virtual
async def test_priorities_changed_in_a_queue_that_drops_the_oldest_leave_nothing_behind() -> None:
    async with open_task_queue(concurrency=1, max_waiting=3, overflow=Overflow.DROP_OLDEST) as queue:
        queue.pause()
        jobs = [queue.submit_nowait(nothing) for _ in range(3)]
        for number in range(3000):
            jobs[number % 3].priority = number % 7
        assert len(queue._engine.victims._jobs) < 200  # type: ignore[union-attr]
        newest = queue.submit_nowait(nothing)
        with pytest.raises(JobDroppedError):
            jobs[0].result_nowait()
        queue.resume()
    assert_over(queue, [*jobs, newest])


# ---------------------------------------------------------------------------------------------------- gates


@virtual
async def test_a_hook_may_shut_the_gate_whose_opening_it_hears_of() -> None:
    class Shuts(Instrument):
        def __init__(self) -> None:
            self.times: list[float] = []

        def gate_opened(self, event: GateOpened, /) -> None:
            self.times.append(trio.current_time())
            if len(self.times) == 1:
                gate.shut(5)

    gate, shuts = Gate(), Shuts()
    queue: TaskQueue
    async with open_task_queue(instruments=[shuts]) as queue:
        gate.shut(3)
        await queue.run(nothing, gate=gate)
        assert trio.current_time() == 8
    assert shuts.times == [3, 8]
