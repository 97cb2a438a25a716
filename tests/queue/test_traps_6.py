"""Traps 19 to 21: idle with a successor, FAIL_FAST at bad moments, and the user's exception, bare."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    Failures,
    JobGroup,
    JobHandle,
    JobState,
    Retry,
    Timeout,
    map_all,
    open_map,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(8))


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


# ------------------------------------------------------------------------------------- T21: the bare exception


Opened = Callable[[], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def _group() -> AsyncGenerator[JobGroup, None]:
    async with open_task_queue() as queue, queue.group() as mine:
        await mine.submit(trio.sleep, 5)
        yield mine


async def _busy(_: int = 0) -> None:
    try:
        await trio.sleep(5)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)


BLOCKS: dict[str, Opened] = {
    "queue": open_task_queue,
    "fail-fast queue": lambda: open_task_queue(failures=Failures.FAIL_FAST),
    "shared queue": lambda: open_task_queue(limiter=trio.CapacityLimiter(2)),
    "group": _group,
    "map": lambda: open_map(_busy, range(9)),
    "unordered map": lambda: open_map(_busy, range(9), ordered=False, buffer=3),
}
ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("own"),
    "ExceptionGroup": lambda: ExceptionGroup("own", [ValueError(), OSError()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("own", [KeyboardInterrupt(), OSError()]),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "RuntimeError": lambda: RuntimeError("own"),
    "TooSlowError": trio.TooSlowError,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("moment", ["at once", "while jobs run", "under a context"])
def test_t21_what_the_block_raises_comes_out_as_it_is(
    block: Opened, make: Callable[[], BaseException], moment: str
) -> None:
    error, context = make(), OSError("its context")

    async def main() -> BaseException | None:
        try:
            async with block() as opened:
                if moment != "at once":
                    if hasattr(opened, "submit"):
                        await opened.submit(_busy)
                    await trio.sleep(1)
                if moment == "under a context":
                    try:
                        raise context
                    except OSError:
                        raise error
                raise error
        except BaseException as caught:
            return caught
        return None

    assert run_virtual(main) is error
    assert error.__context__ is (context if moment == "under a context" else None)
    assert error.__cause__ is None
    assert not getattr(error, "__notes__", [])


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("seed", range(4))
def test_t21_ctrl_c_that_arrives_in_the_block_comes_out_bare(block: Opened, seed: int) -> None:
    async def main() -> BaseException | None:
        try:
            async with block() as opened:
                if hasattr(opened, "submit"):
                    await opened.submit(_busy)
                await trio.sleep(1)
                trio.lowlevel.spawn_system_task(_interrupt)  # Trio gives it to the main task, which sleeps in the block
                await trio.sleep(100)
        except BaseException as caught:
            return caught
        return None

    error = run_virtual(main, seed=seed)
    assert type(error) is KeyboardInterrupt
    assert error.__context__ is None


async def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("seed", range(4))
def test_t21_a_cancellation_from_outside_stays_one(block: Opened, seed: int) -> None:
    async def main() -> None:
        came_out: list[BaseException] = []
        with trio.move_on_after(1) as scope:
            try:
                async with block() as opened:
                    if hasattr(opened, "submit"):
                        await opened.submit(_busy)
                    await trio.sleep(100)
            except BaseException as error:
                came_out.append(error)
                raise
        assert scope.cancelled_caught
        assert [type(error) for error in came_out] == [trio.Cancelled]

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lambda: ValueError("own"), lambda: ExceptionGroup("", [ValueError(), OSError()])])
def test_t21_what_a_body_raises_comes_out_of_every_wait_as_it_is(make: Callable[[], Exception], seed: int) -> None:
    async def main() -> None:
        error = make()
        context = OSError("its context")

        async def body(_: int = 0) -> None:
            await trio.sleep(1)
            try:
                raise context
            except OSError:
                raise error

        async def caught(fn: Callable[..., Any], *args: Any) -> None:
            with pytest.raises(type(error)) as info:
                await fn(*args)
            assert info.value is error
            assert error.__context__ is context
            assert error.__cause__ is None

        async with open_task_queue(failures=Failures.RECORD) as queue:
            await caught(queue.run, body)
            handle = await queue.submit(body)
            for _ in range(3):
                await caught(handle.wait)
            for failures in Failures:
                async with queue.group(failures=failures) as mine:
                    await caught((await mine.submit(body)).wait) if failures is not Failures.FAIL_FAST else None
            with pytest.raises(type(error)) as info:
                async with queue.group(failures=Failures.FAIL_FAST) as mine:
                    await mine.submit(body)
                    await trio.sleep(100)
            assert info.value is error
        await caught(map_all, body, [1, 2, 3])
        await caught(Retry(on=(), attempts=3).call, body)
        await caught(Timeout(5).call, body)
        assert error.__context__ is context

    run_virtual(main, seed=seed)
