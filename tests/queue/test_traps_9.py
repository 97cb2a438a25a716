"""Trap 21: the user's exception comes out bare, whatever block it passes."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from trio_orchestrator import Failures, JobGroup, Retry, Timeout, map_all, open_map, open_task_queue
from trio_orchestrator.testing import run_virtual


class _Error(Exception):
    pass


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
@pytest.mark.parametrize("seed", range(3))
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
@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["queue", "group", "time-out", "retry"])
def test_t21_a_group_raised_under_a_cancelled_scope_of_ours_is_not_made_anew(kind: str, seed: int) -> None:
    """A cancel scope that was cancelled makes another group of every group that passes it."""

    async def main() -> None:
        error = ExceptionGroup("own", [ValueError(), OSError()])

        async def stubborn() -> None:
            try:
                await trio.sleep(100)
            finally:
                raise error

        async def fail() -> None:
            raise _Error

        with pytest.raises(ExceptionGroup) as caught:
            match kind:
                case "queue":
                    async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
                        await queue.submit(fail)
                        await stubborn()
                case "group":
                    async with open_task_queue() as queue, queue.group(failures=Failures.FAIL_FAST) as mine:
                        await mine.submit(fail)
                        await stubborn()
                case "time-out":
                    await Timeout(1).call(stubborn)
                case _:
                    await Retry(on=(), attempt_timeout=1).call(stubborn)
        assert caught.value is error
        assert error.__context__ is None or isinstance(error.__context__, trio.Cancelled)  # that is what it came from
        assert trio.current_time() <= 1

    run_virtual(main, seed=seed)
