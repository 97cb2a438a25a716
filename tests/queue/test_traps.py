"""Traps 1 to 3: Ctrl-C, and what a body may leave open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

import pytest
import trio

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import (
    Failures,
    JobHandle,
    JobState,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.event import JobFinished
from trio_orchestrator.queue.leaks import is_clean
from trio_orchestrator.testing import run_virtual

SEEDS: Final = range(5)
QUEUE: Final = Path(sys.modules[TaskQueue.__module__].__file__ or "").parent
OPEN: Final = {"task_queue.py", "group.py", "mapping.py"}  # `async with` is contextlib's, which is not protected
OPEN_ON_PURPOSE: Final = {"body.py"}
ENGINE: Final = {str(path) for path in QUEUE.glob("*.py") if path.name not in OPEN | OPEN_ON_PURPOSE}
schedules = pytest.mark.parametrize("seed", SEEDS)


# ----------------------------------------------------------------------------------------------- T1: Ctrl-C


@schedules
def test_t01_ctrl_c_interrupts_a_busy_body_there_and_comes_out_bare(seed: int) -> None:
    went_on: list[str] = []
    bodies = Bodies()

    async def busy() -> None:
        with bodies.inside():
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
                went_on.append("behind the signal")

    async def main() -> BaseException:
        with pytest.raises(KeyboardInterrupt) as caught:
            async with open_task_queue(concurrency=2) as queue:
                handles: list[JobHandle[Any]] = [await queue.submit(bodies.sleep, 100) for _ in range(4)]
                handles.append(await queue.submit(busy, priority=1))
                handles[0].cancel()
                await trio.sleep(1000)
        assert trio.current_time() < 1
        assert_over(queue, handles, bodies)
        return caught.value

    interrupt = run_virtual(main, seed=seed)
    assert went_on == []
    assert type(interrupt) is KeyboardInterrupt
    assert interrupt.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_t01_what_must_end_everything_comes_before_an_exception_of_the_block(error: BaseException) -> None:
    async def fatal() -> None:
        raise error

    async def main() -> None:
        async with open_task_queue() as queue:
            await queue.submit(fatal)
            try:
                await trio.sleep(1)
            finally:
                raise ValueError("the block's own")

    with pytest.raises(type(error)) as caught:
        run_virtual(main)
    assert caught.value is error


class _CtrlCAt:
    """Raises SIGINT before the n-th line of the engine that runs; with n = None it only counts them."""

    def __init__(self, n: int | None) -> None:
        self.n = n
        self.count = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        return self._line if frame.f_code.co_filename in ENGINE else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        if event == "line":
            self.count += 1
            if self.count == self.n:
                signal.raise_signal(signal.SIGINT)
        return self._line


async def _busy_life(trace: _CtrlCAt) -> None:
    """Jobs of many fates; whatever the moment of the interrupt, none is lost and nothing is left."""
    bodies = Bodies()
    handles: list[JobHandle[Any]] = []
    retry = Retry(on=OSError, attempts=2, backoff=Constant(1))
    queue: TaskQueue | None = None
    before = sys.gettrace()
    try:
        async with open_task_queue(
            concurrency=2, retry=retry, per_key=1, failures=Failures.RECORD, max_waiting=20
        ) as queue:
            sys.settrace(trace)  # type: ignore[arg-type]
            for n in range(3):
                handles.append(queue.submit_nowait(bodies.sleep, 1, n, key=n % 2))
                handles.append(queue.submit_nowait(bodies.fail, 1, OSError(), priority=n))
                handles.append(queue.submit_nowait(bodies.clean_up, 9, 1, timeout=2))
            handles[-1].cancel("no longer wanted")
            handles[3].priority = 7
            await trio.sleep(1.5)
            handles[2].cancel("no longer wanted")
            queue.concurrency = 1
            queue.pause()
            await trio.sleep(1)
            queue.resume()
            queue.clear()
            queue.concurrency = 5
    finally:
        sys.settrace(before)
        if queue is not None:
            submitted = queue.statistics().submitted
            assert submitted - len(handles) in (0, 1), "a handle that was about to be returned may be missing"
            assert queue.statistics().idle
            if submitted == len(handles):
                assert_over(queue, handles, bodies)


def test_t01_ctrl_c_at_any_line_of_the_engine_loses_no_job() -> None:
    counting = _CtrlCAt(None)
    run_virtual(_busy_life, counting)
    lines = counting.count
    assert lines > 500
    for n in sorted(Random(1).sample(range(1, lines), 50)):
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                run_virtual(_busy_life, _CtrlCAt(n))
            assert type(caught.value) is KeyboardInterrupt
            assert caught.value.__context__ is None
        except BaseException as error:
            error.add_note(f"(Ctrl-C at line event {n} of {lines})")
            raise


@pytest.mark.parametrize("act", ["cancel", "clear", "priority", "concurrency", "close"])
def test_t01_ctrl_c_inside_a_mutator_waits_until_it_is_done(act: str) -> None:
    class Interrupter(Instrument):
        def job_finished(self, event: JobFinished, /) -> None:
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with open_task_queue(concurrency=1, instruments=[Interrupter()], failures=Failures.RECORD) as queue:
            handles = [queue.submit_nowait(trio.sleep, 10, priority=-n) for n in range(4)]
            await trio.sleep(1)
            try:
                match act:
                    case "cancel":
                        handles[3].cancel()
                    case "clear":
                        queue.clear()
                    case "priority":
                        handles[2].cancel()
                        handles[3].priority = 5
                    case "concurrency":
                        handles[2].cancel()
                        queue.concurrency = 3
                    case _:
                        await queue.close()
                await trio.sleep(1)
            finally:
                s = queue.statistics()
                assert s.submitted == 4 == s.running + s.waiting + s.cancelled + s.dropped + s.succeeded
        assert_over(queue, handles)

    with pytest.raises(KeyboardInterrupt):
        run_virtual(main)


_SCRIPT = """
import trio, trio_orchestrator as to

async def spin():
    print("spinning", flush=True)
    while True:
        pass

async def main():
    try:
        async with to.open_task_queue(concurrency=2) as queue:
            other = await queue.submit(trio.sleep_forever)
            await queue.submit(spin)
    finally:
        print("other:", other.state.value, "tokens:", queue.limiter.borrowed_tokens, flush=True)

trio.run(main)
"""


def test_t01_a_real_signal_ends_a_process_that_spins_in_a_body() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spinning\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert out == "other: cancelled tokens: 0\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "ExceptionGroup" not in err


# ----------------------------------------------------------------------- T2, T3: what a body may leave open


async def _leak_a_scope() -> None:
    trio.CancelScope(deadline=trio.current_time() + 5).__enter__()


async def _leak_a_scope_and_raise() -> None:
    trio.CancelScope(deadline=trio.current_time() + 5).__enter__()
    raise OSError("its own")


@schedules
def test_t02_a_leaked_scope_is_the_fault_of_its_job_and_not_of_the_next(seed: int) -> None:
    bodies = Bodies()
    deadlines: list[float] = []

    async def successor() -> None:
        deadlines.append(trio.current_effective_deadline())
        await bodies.sleep(10)

    async def main() -> None:
        retry = Retry(on=Exception, attempts=3, backoff=Constant(0))
        async with open_task_queue(concurrency=1, failures=Failures.RECORD, retry=retry) as queue:
            first = await queue.submit(_leak_a_scope)
            second = await queue.submit(successor)
        assert trio.current_time() == 10
        assert (first.state, first.attempts) == (JobState.FAILED, 1)
        with pytest.raises(RuntimeError, match=r"job '_leak_a_scope' returned while a cancel scope .* still open"):
            first.result_nowait()
        assert second.state is JobState.SUCCEEDED
        assert_over(queue, [first, second])

    run_virtual(main, seed=seed)
    assert deadlines == [float("inf")]


@schedules
def test_t02_a_body_that_raises_over_a_leaked_scope_fails_with_its_own_error(seed: int) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
            first = await queue.submit(_leak_a_scope_and_raise)
            second = await queue.submit(trio.sleep, 10)
        with pytest.raises(OSError, match="its own"):
            first.result_nowait()
        assert second.state is JobState.SUCCEEDED
        assert trio.current_time() == 10
        assert_over(queue, [first, second])

    run_virtual(main, seed=seed)


def test_t02_the_private_names_still_say_what_they_said() -> None:
    async def main() -> None:
        task = trio.lowlevel.current_task()
        with trio.CancelScope() as scope:
            assert is_clean(task, scope)
            with trio.CancelScope():  # noqa: ASYNC100 - it is there to be found
                assert not is_clean(task, scope)
            assert is_clean(task, scope)
            async with trio.open_nursery():
                assert not is_clean(task, scope)
            assert is_clean(task, scope)

    run_virtual(main)


@schedules
def test_t03_a_nursery_left_open_fails_its_job_and_ends_the_queue(seed: int) -> None:
    async def leak() -> None:
        nursery = await trio.open_nursery().__aenter__()
        nursery.start_soon(trio.sleep_forever, name="orphan")

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"job 'leaky' .* a nursery .* still open") as caught:
            async with open_task_queue(concurrency=2) as queue:
                handles: list[JobHandle[Any]] = [await queue.submit(trio.sleep_forever)]
                handles.append(await queue.submit(leak, name="leaky"))
                await trio.sleep_forever()
        assert handles[0].state is JobState.CANCELLED
        assert handles[1].state is JobState.FAILED
        with pytest.raises(RuntimeError) as told:
            handles[1].result_nowait()
        assert told.value is caught.value
        assert_over(queue, handles)

    run_virtual(main, seed=seed)
