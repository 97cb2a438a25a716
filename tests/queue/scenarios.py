"""Scenarios to be cancelled anywhere: the operations of a queue that goes on afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Final

import pytest
import trio

from tests.queue.bodies import Bodies
from tests.queue.stage import Flaky, Hiccup, Stage
from trio_orchestrator import (
    Failures,
    JobHandle,
    JobState,
    Retry,
    TaskQueue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import CancelAt

Scenario = Callable[[CancelAt], Awaitable[None]]
Items = Iterable[int] | AsyncIterable[int]
Act = Callable[[Stage, TaskQueue], Awaitable[object]]

SEEDS: Final = range(5)
RETRY: Final = Retry(on=Hiccup, attempts=3, backoff=Constant(1))
SCENARIOS: dict[str, list[tuple[str, Scenario]]] = {}


def scenario(*operations: str, case: str = "") -> Callable[[Scenario], Scenario]:
    """Register a scenario as a case of these operations."""

    def register(fn: Scenario) -> Scenario:
        for operation in operations:
            SCENARIOS.setdefault(operation, []).append((case or fn.__name__, fn))
        return fn

    return register


def in_a_queue(*operations: str, usable: bool = True, **options: Any) -> Callable[[Act], Act]:
    """Register an act that is cancelled in the block of a queue which goes on: it has to serve others afterwards."""

    def register(act: Act) -> Act:
        @scenario(*operations, case=act.__name__)
        async def run(injector: CancelAt) -> None:
            stage = Stage()
            async with stage.queue(
                **{"concurrency": 2, "retry": RETRY, "failures": Failures.RECORD, **options}
            ) as queue:
                await queue.submit(stage.bodies.sleep, 2, "before")
                with injector.watch():
                    await act(stage, queue)
                if usable:
                    queue.resume()
                    queue.concurrency = 2
                    with trio.fail_after(1000):
                        assert await queue.run(stage.bodies.sleep, 1, "after") == "after"
            stage.check()

        return act

    return register


# ------------------------------------------------------------------------------------------ to submit, to run


@in_a_queue("TaskQueue.submit", max_waiting=2)
async def submit_with_room_and_at_the_door(stage: Stage, queue: TaskQueue) -> None:
    for n in range(6):
        handle = await queue.submit(stage.bodies.sleep, 1, n)
        assert handle.state is not JobState.DROPPED


@in_a_queue("TaskQueue.submit", max_waiting=1, concurrency=1)
async def submit_with_options(stage: Stage, queue: TaskQueue) -> None:
    for n in range(3):
        await queue.submit(Flaky(stage.bodies, n), priority=n, key=n, timeout=50, tags=["x"], name=f"job {n}", delay=1)


@in_a_queue("TaskQueue.submit_sync", max_waiting=1)
async def submit_sync_at_the_door(stage: Stage, queue: TaskQueue) -> None:
    queue.pause()  # a thread would not know of virtual time

    async def make_room() -> None:
        for _ in range(3):
            await trio.sleep(1)
            queue.clear()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_room)
        try:
            for _ in range(3):
                await queue.submit_sync(abs, -1)
        finally:
            assert queue.statistics().at_the_door == 0
            queue.clear()


@in_a_queue("TaskQueue.run")
async def run_and_retry(stage: Stage, queue: TaskQueue) -> None:
    assert await queue.run(Flaky(stage.bodies, 2), "label") == "label"


@in_a_queue("TaskQueue.run", concurrency=1, max_waiting=1)
async def run_behind_others(stage: Stage, queue: TaskQueue) -> None:
    await queue.submit(stage.bodies.sleep, 1)
    await queue.run(stage.bodies.sleep, 1, attempt_timeout=9)


@in_a_queue("TaskQueue.run")
async def run_returns_only_when_the_body_has_left(stage: Stage, queue: TaskQueue) -> None:
    bodies = Bodies()
    try:
        await queue.run(bodies.clean_up, 1, 3)
    finally:
        assert bodies.running == 0
        stage.bodies.started += bodies.started


@in_a_queue("TaskQueue.run")
async def run_a_body_that_fails_in_its_clean_up(stage: Stage, queue: TaskQueue) -> None:
    async def body() -> None:
        with stage.bodies.inside():
            try:
                await trio.sleep(1)
            finally:
                raise ValueError("in the clean-up")

    with pytest.raises(ValueError, match="in the clean-up"):
        await queue.run(body)


# ------------------------------------------------------------------------------------------ to wait, to close


@in_a_queue("TaskQueue.wait_idle")
async def wait_until_idle(stage: Stage, queue: TaskQueue) -> None:
    await queue.submit(Flaky(stage.bodies, 1))
    await queue.wait_idle()
    await queue.wait_idle()


@in_a_queue("TaskQueue.wait_below", concurrency=1)
async def wait_for_a_smaller_backlog(stage: Stage, queue: TaskQueue) -> None:
    for _ in range(4):
        queue.submit_nowait(stage.bodies.sleep, 1)
    await queue.wait_below(3)
    await queue.wait_below(1)
    await queue.wait_below(1)


@in_a_queue("TaskQueue.close", usable=False)
async def close_at_once(stage: Stage, queue: TaskQueue) -> None:
    for _ in range(4):
        queue.submit_nowait(stage.bodies.clean_up, 5, 1)
    try:
        unfinished = await queue.close()
        assert len(unfinished) == 5
    finally:
        with pytest.raises(trio.ClosedResourceError):
            queue.submit_nowait(trio.sleep, 1)
    assert await queue.close() == []


@in_a_queue("TaskQueue.close", usable=False)
async def close_before_the_first_step_of_a_body(stage: Stage, queue: TaskQueue) -> None:
    handles = [queue.submit_nowait(stage.bodies.clean_up, 5, 1) for _ in range(2)]
    unfinished = await queue.close()
    assert set(handles) <= set(unfinished)
    assert {handle.state for handle in handles} == {JobState.CANCELLED}
    assert trio.current_time() <= 1


@in_a_queue("TaskQueue.close", usable=False)
async def close_with_grace(stage: Stage, queue: TaskQueue) -> None:
    for seconds in (1, 2, 9, 9):
        queue.submit_nowait(stage.bodies.sleep, seconds)
    await queue.close(grace=3)


@in_a_queue("JobHandle.wait")
async def wait_for_a_job_that_goes_on_without_us(stage: Stage, queue: TaskQueue) -> None:
    good = queue.submit_nowait(Flaky(stage.bodies, 1), "label")
    bad = queue.submit_nowait(stage.bodies.fail, 1, ValueError())
    try:
        assert await good.wait() == "label"
        assert await good.wait() == "label"
        with pytest.raises(ValueError):
            await bad.wait()
        await bad._ended()
    finally:
        assert JobState.CANCELLED not in (good.state, bad.state)


# ------------------------------------------------------------------------------------------------- groups


@in_a_queue("TaskQueue.group", "JobGroup.submit", "JobGroup.wait", "JobGroup.results", max_waiting=3)
async def a_group_with_results(stage: Stage, queue: TaskQueue) -> None:
    handles: tuple[JobHandle[Any], ...] = ()
    try:
        async with queue.group() as mine:
            for n in range(5):
                await mine.submit(Flaky(stage.bodies, n % 2), n)
                handles = mine.handles
            await mine.wait()
            assert await mine.results() == [0, 1, 2, 3, 4]
            mine.submit_nowait(stage.bodies.sleep, 1)
            handles = mine.handles
    finally:
        assert all(handle.done for handle in handles)


@in_a_queue("TaskQueue.group", max_waiting=3)
async def a_group_that_fails_fast(stage: Stage, queue: TaskQueue) -> None:
    with pytest.raises(ValueError):
        async with queue.group(failures=Failures.FAIL_FAST) as mine:
            for n in range(3):
                await mine.submit(stage.bodies.clean_up, 9, 1)
                await mine.submit(stage.bodies.fail, 1, ValueError(n))
            await trio.sleep(100)


@in_a_queue("TaskQueue.group")
async def a_group_whose_jobs_clean_up(stage: Stage, queue: TaskQueue) -> None:
    async with queue.group() as mine:
        for _ in range(3):
            await mine.submit(stage.bodies.clean_up, 2, 2)
