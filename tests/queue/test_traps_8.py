"""Traps 19 and 20: idle with a successor, and FAIL_FAST at bad moments."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    Failures,
    JobHandle,
    JobState,
    Retry,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


# ----------------------------------------------------------------------------------------- T19: a chain of jobs


@schedules
@pytest.mark.parametrize("how", ["submit_nowait", "submit", "run in a child", "retry"])
def test_t19_idle_is_not_between_a_job_and_its_successor(seed: int, how: str) -> None:
    async def main() -> None:
        bodies = Bodies()
        idle_at: list[tuple[float, int]] = []
        retry = Retry(on=OSError, attempts=9, backoff=Constant(0))

        async def link(left: int) -> None:
            with bodies.inside(left):
                await trio.sleep(1)
                if not left:
                    return
                if how == "retry" and bodies.started <= 9 - left:
                    raise OSError
                if how == "submit":
                    await queue.submit(link, left - 1)
                else:
                    queue.submit_nowait(link, left - 1)

        async def wait() -> None:
            await queue.wait_idle()
            idle_at.append((trio.current_time(), bodies.returned))
            assert queue.statistics().idle

        async with trio.open_nursery() as nursery, open_task_queue(concurrency=2, retry=retry) as queue:
            await queue.submit(link, 5)
            await trio.lowlevel.checkpoint()
            for _ in range(3):
                nursery.start_soon(wait)
        assert idle_at == [(bodies.started, bodies.returned)] * 3
        assert bodies.returned == 6
        assert_law(queue.statistics())

    run_virtual(main, seed=seed)


@schedules
def test_t19_leaving_the_block_waits_for_successors_too(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()

        async def link(left: int) -> None:
            with bodies.inside(left):
                if left:
                    await queue.submit(link, left - 1, delay=1)

        async with open_task_queue(concurrency=1, max_waiting=1) as queue:
            await queue.submit(link, 10)
        assert trio.current_time() == 10
        assert bodies.returned == 11
        with pytest.raises(trio.ClosedResourceError):
            await queue.submit(link, 0)

    run_virtual(main, seed=seed)


# ------------------------------------------------------------------------------------------- T20: FAIL_FAST


class _Error(Exception):
    pass


@schedules
def test_t20_two_failures_of_one_instant_the_first_to_end_comes_out(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        ended: list[_Error] = []
        errors = [_Error(n) for n in range(3)]

        async def fail(error: _Error) -> None:
            with bodies.inside():
                await trio.sleep(1)
                ended.append(error)
                raise error

        handles: list[JobHandle[Any]] = []
        with pytest.raises(_Error) as caught:
            async with open_task_queue(concurrency=5, failures=Failures.FAIL_FAST) as queue:
                handles += [await queue.submit(fail, error) for error in errors]
                handles += [await queue.submit(bodies.sleep, 100) for _ in range(4)]
                await trio.sleep(100)
        assert trio.current_time() == 1
        assert caught.value is ended[0]
        assert caught.value.__context__ is None
        assert [handle.state for handle in handles[3:]] == [JobState.CANCELLED] * 4
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t20_a_failure_while_the_block_raises_is_named_in_a_note(seed: int) -> None:
    async def main() -> None:
        own, failure = ValueError("the block's own"), _Error("a job's")

        async def fail() -> None:
            await trio.sleep(1)
            raise failure

        handles = []
        with pytest.raises(ValueError, match="the block's own") as caught:
            async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
                handles.append(await queue.submit(fail))
                try:
                    await trio.sleep(100)
                finally:
                    raise own
        assert caught.value is own
        assert any('_Error("a job\'s")' in note for note in own.__notes__), own.__notes__
        assert_over(queue, handles)

    run_virtual(main, seed=seed)


@schedules
def test_t20_a_failure_while_the_queue_is_paused_ends_it_all_the_same(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        error = _Error()
        handles: list[JobHandle[Any]] = []
        with pytest.raises(_Error) as caught:
            async with open_task_queue(concurrency=1, failures=Failures.FAIL_FAST) as queue:
                handles.append(await queue.submit(bodies.fail, 1, error))
                handles.append(await queue.submit(bodies.sleep, 1))
                await trio.sleep(0.5)
                queue.pause()
        assert caught.value is error
        assert trio.current_time() == 1
        assert handles[1].state is JobState.CANCELLED
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t20_what_fails_in_its_clean_up_after_the_first_failure_is_not_the_first(seed: int) -> None:
    async def main() -> None:
        first = _Error("first")

        async def clean_up_badly() -> None:
            try:
                await trio.sleep(100)
            finally:
                raise _Error("in the clean-up")

        async def fail() -> None:
            await trio.sleep(1)
            raise first

        handles: list[JobHandle[Any]] = []
        with pytest.raises(_Error) as caught:
            async with open_task_queue(concurrency=5, failures=Failures.FAIL_FAST) as queue:
                handles += [await queue.submit(clean_up_badly) for _ in range(2)]
                handles.append(await queue.submit(fail))
                handles += [await queue.submit(clean_up_badly) for _ in range(2)]
        assert caught.value is first
        assert {handle.state for handle in handles} == {JobState.FAILED}
        assert_over(queue, handles)

    run_virtual(main, seed=seed)


@schedules
def test_t20_retries_come_before_the_end(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        error = _Error()
        retry = Retry(on=_Error, attempts=3, backoff=Constant(10))
        with pytest.raises(_Error) as caught:
            async with open_task_queue(failures=Failures.FAIL_FAST, retry=retry) as queue:
                handle = await queue.submit(bodies.fail, 0, error)
        assert caught.value is error
        assert bodies.times == [0, 10, 20]
        assert_over(queue, [handle], bodies)

    run_virtual(main, seed=seed)
