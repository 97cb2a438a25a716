"""Every public async operation, cancelled at each of its checkpoints under several schedules: nothing is left."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import pytest
import trio
from trio.lowlevel import Task

import trio_orchestrator
from tests.queue.bodies import Bodies
from tests.queue.stage import Flaky, Hiccup, Stage
from trio_orchestrator import (
    Failures,
    Gate,
    JobHandle,
    JobState,
    Retry,
    TaskQueue,
    Timeout,
    map_all,
    open_map,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import CancelAt, cancelled_everywhere

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


# ------------------------------------------------------------------------------------------------ whole queues


@scenario("open_task_queue")
async def a_whole_queue(injector: CancelAt) -> None:
    stage = Stage()
    with injector.watch():
        async with stage.queue(concurrency=2, retry=RETRY, max_waiting=9, failures=Failures.RECORD) as queue:
            for n in range(4):
                await queue.submit(Flaky(stage.bodies, n % 3), priority=n)
            await queue.submit(stage.bodies.clean_up, 9, 1, attempt_timeout=2, retry=None)
            await queue.submit(stage.bodies.sleep, 1, delay=5)
            (await queue.submit(stage.bodies.sleep, 1, timeout=0.5)).cancel()
            with pytest.raises(ExceptionGroup):
                async with queue.group() as mine:
                    await mine.submit(stage.bodies.fail, 1, OSError())
            handle = await queue.submit(stage.bodies.sleep, 99, timeout=3)
            with pytest.raises(trio.TooSlowError):
                await handle.wait()
    stage.check()


@scenario("open_task_queue")
async def a_whole_queue_on_a_shared_limiter(injector: CancelAt) -> None:
    stage = Stage()
    limiter = trio.CapacityLimiter(1)

    async def other() -> None:
        for _ in range(3):
            async with limiter:
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.sleep(0.5)
        with injector.watch():
            async with stage.queue(limiter=limiter, protect=Timeout(50)) as queue:
                for n in range(20):
                    await queue.submit(stage.bodies.sleep, 0, n)
                await queue.run(stage.bodies.sleep, 1)
    stage.check()


@scenario("open_task_queue")
async def a_queue_that_fails_fast(injector: CancelAt) -> None:
    stage = Stage()
    error = ValueError()
    with injector.watch():
        try:
            async with stage.queue(concurrency=2, failures=Failures.FAIL_FAST) as queue:
                await queue.submit(stage.bodies.clean_up, 9, 1)
                await queue.submit(stage.bodies.fail, 1, error)
                await queue.submit(stage.bodies.sleep, 1)
        except ValueError as caught:
            assert caught is error
    stage.check()


# ------------------------------------------------------------------------------------------------------- maps


async def _source(n: int, pulled: list[int]) -> AsyncIterator[int]:
    for i in range(n):
        await trio.sleep(0.5)
        pulled.append(i)
        yield i


async def _map_all(injector: CancelAt, source: Items) -> None:
    bodies = Bodies()

    async def fn(n: int) -> int:
        with bodies.inside(n):
            await trio.sleep(1)
        return -n

    with injector.watch():
        assert await map_all(fn, source, concurrency=2, attempt_timeout=7) == [0, -1, -2, -3, -4]
    assert bodies.running == 0
    assert bodies.peak <= 2


@scenario("map_all")
async def map_all_of_a_range(injector: CancelAt) -> None:
    await _map_all(injector, range(5))


@scenario("map_all")
async def map_all_of_an_async_source(injector: CancelAt) -> None:
    await _map_all(injector, _source(5, []))


@scenario("map_all")
async def map_all_with_a_failure(injector: CancelAt) -> None:
    bodies = Bodies()
    pulled: list[int] = []
    with injector.watch():
        with pytest.raises(OSError):
            await map_all(lambda n: bodies.fail(n, OSError(n)), _source(1000, pulled), concurrency=2)
    assert bodies.running == 0
    assert len(pulled) <= 2


@scenario("map_all")
async def map_all_with_outcomes(injector: CancelAt) -> None:
    bodies = Bodies()
    with injector.watch():
        outcomes = await map_all(lambda n: bodies.fail(1, OSError(n)), range(4), outcomes=True, retry=RETRY)
        assert len(outcomes) == 4
    assert bodies.running == 0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("stop", [3, 1000])
def test_open_map(ordered: bool, stop: int) -> None:
    async def run(injector: CancelAt) -> None:
        bodies = Bodies()
        pulled: list[int] = []
        taken: list[int] = []

        async def fn(n: int) -> int:
            with bodies.inside(n):
                await trio.sleep(1 + n % 2)
                if n == 2:
                    raise OSError(n)
            return -n

        with injector.watch():
            async with open_map(fn, _source(6, pulled), concurrency=2, ordered=ordered, buffer=1) as outcomes:
                async for one in outcomes:
                    taken.append(one.index)
                    assert isinstance(one.error, OSError) if one.item == 2 else one.result() == -one.item
                    await trio.sleep(0.25)
                    if one.index == stop:
                        break
        assert bodies.running == 0
        assert len(pulled) <= len(taken) + 3
        if ordered:
            assert taken == list(range(len(taken)))

    assert cancelled_everywhere(run, seeds=SEEDS) > 50
    assert cancelled_everywhere(run, seeds=range(2), want=anybody) > 100


# ---------------------------------------------------------------------------------------- around a single call


@scenario("Retry.call", "Retry.wrap")
async def a_retried_call(injector: CancelAt) -> None:
    bodies = Bodies()
    retry = Retry(on=Hiccup, attempts=4, backoff=Constant(2), attempt_timeout=3)
    after: list[int] = []
    with injector.watch():
        assert await retry.call(Flaky(bodies, 2), "called") == "called"
        assert await retry.wrap(Flaky(bodies, 1))("wrapped") == "wrapped"
        with pytest.raises(trio.TooSlowError):
            await retry.call(bodies.sleep, 50)
    after.append(bodies.started)
    await trio.sleep(100)
    assert after == [bodies.started]  # no further attempt
    assert bodies.running == 0
    if injector.scope.cancelled_caught:
        assert bodies.started <= 9


@scenario("Retry.async for")
async def a_retried_loop(injector: CancelAt) -> None:
    bodies = Bodies()
    flaky = Flaky(bodies, 2)
    with injector.watch():
        async for attempt in Retry(on=Hiccup, attempts=3, backoff=Constant(0), timeout=50):
            with attempt:
                await flaky()
        assert bodies.started == 3
    assert bodies.running == 0


@scenario("Timeout.call", "Timeout.wrap")
async def a_call_with_a_time_out(injector: CancelAt) -> None:
    bodies = Bodies()
    timeout = Timeout(2)
    with injector.watch():
        assert await timeout.call(bodies.sleep, 1, "label") == "label"
        assert await timeout.wrap(bodies.sleep)(1, "label") == "label"
        with pytest.raises(trio.TooSlowError, match="timeout=2 s"):
            await timeout.call(bodies.clean_up, 9, 1)
    assert bodies.running == 0


@scenario("Gate.wait_open")
async def a_gate(injector: CancelAt) -> None:
    gate = Gate("server", ramp=2)
    gate.shut(1)
    with injector.watch():
        for _ in range(3):
            await gate.wait_open(limit=4)
    assert gate._listeners == []
    with trio.fail_after(10):
        await gate.wait_open()
    assert gate._listeners == []


# ------------------------------------------------------------------------------------------------- the walk


def _is_async(member: object) -> bool:
    if not (inspect.isfunction(member) or inspect.ismethod(member)):
        return False
    returns = str(inspect.signature(member).return_annotation)
    waits = ("AsyncContextManager", "Coroutine[", "Awaitable[", "AsyncIterator[", "AsyncGenerator[")
    return inspect.iscoroutinefunction(member) or any(name in returns for name in waits)


def public_async_operations() -> set[str]:
    """Return the names of all public async functions, methods, context managers and iterators."""
    found: set[str] = set()
    for name in trio_orchestrator.__all__:
        value = getattr(trio_orchestrator, name)
        if inspect.isabstract(value):  # a contract; its implementations are looked at
            continue
        if not inspect.isclass(value):
            found |= {name} if _is_async(value) else set()
            continue
        for attribute, member in inspect.getmembers(value):
            if not attribute.startswith("_") and _is_async(member):
                found.add(f"{name}.{attribute}")
        found |= {f"{name}.async for"} if hasattr(value, "__aiter__") else set()
        found |= {f"{name}.async with"} if hasattr(value, "__aenter__") else set()
    return found


def test_every_public_async_operation_has_a_scenario() -> None:
    assert public_async_operations() == {*SCENARIOS, "open_map"}
    assert len(SCENARIOS) > 15


CASES: Final = sorted({(case, fn) for cases in SCENARIOS.values() for case, fn in cases}, key=lambda case: case[0])
each_case = pytest.mark.parametrize("run", [fn for _, fn in CASES], ids=[case for case, _ in CASES])


def anybody(task: Task) -> bool:
    return True


@each_case
def test_cancelled_at_its_every_checkpoint(run: Scenario) -> None:
    cases = cancelled_everywhere(run, seeds=SEEDS)
    print(f"{cases} cancellations")
    assert cases >= len(SEEDS)


@each_case
def test_cancelled_at_every_checkpoint_of_every_task(run: Scenario) -> None:
    cases = cancelled_everywhere(run, seeds=range(2), want=anybody)
    print(f"{cases} cancellations")
    assert cases >= 2


def test_the_scenarios_make_more_than_a_hundred_cancellations_under_one_schedule() -> None:
    assert sum(cancelled_everywhere(run, seeds=[7]) for _, run in CASES) > 120
