from __future__ import annotations

import re
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import trio

from trio_orchestrator.testing import run_virtual

KEPT: list[object] = []


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


async def leave_a_task() -> None:
    trio.lowlevel.spawn_system_task(trio.sleep_forever, name="the straggler")


async def leave_a_coroutine() -> None:
    trio.sleep(1)  # type: ignore[unused-coroutine]  # noqa: ASYNC105


async def leave_a_coroutine_in_a_cycle() -> None:
    cycle: list[object] = [trio.sleep(1)]  # noqa: ASYNC105
    cycle.append(cycle)


async def leave_a_generator() -> None:
    generator = numbers()
    KEPT.append(generator)
    await anext(generator)


async def drop_a_generator() -> None:
    async for _ in numbers():
        break


async def warn() -> None:
    warnings.warn("look out", DeprecationWarning)


LEAKS = [
    (leave_a_task, "task the straggler outlived the scenario"),
    (leave_a_coroutine, "RuntimeWarning: coroutine 'sleep' was never awaited"),
    (leave_a_coroutine_in_a_cycle, "RuntimeWarning: coroutine 'sleep' was never awaited"),
    (leave_a_generator, "async generator numbers was left unfinished"),
    (drop_a_generator, "ResourceWarning: Async generator '.*numbers' was garbage collected"),
    (warn, "DeprecationWarning: look out"),
]


@pytest.mark.parametrize(("scenario", "complaint"), LEAKS, ids=[scenario.__name__ for scenario, _ in LEAKS])
def test_what_is_left_behind_fails_the_run(scenario: Callable[[], Awaitable[None]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_virtual(scenario)


@pytest.mark.parametrize(("scenario", "complaint"), LEAKS, ids=[scenario.__name__ for scenario, _ in LEAKS])
def test_complaints_do_not_mask_an_exception(scenario: Callable[[], Awaitable[None]], complaint: str) -> None:
    async def main() -> None:
        await scenario()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        run_virtual(main)
    assert any(re.search(complaint, note) for note in caught.value.__notes__)


def test_a_finished_generator_and_a_finished_system_task_are_no_leak() -> None:
    async def main() -> list[int]:
        trio.lowlevel.spawn_system_task(trio.sleep, 1)
        await trio.sleep(2)
        return [n async for n in numbers()]

    assert run_virtual(main) == [1, 2]
