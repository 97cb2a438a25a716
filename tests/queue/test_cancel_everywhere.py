"""Every public async operation, cancelled at each of its checkpoints under several schedules: nothing is left."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Final

import pytest
import trio
from trio.lowlevel import Task

import tests.policies.scenarios  # noqa: F401 - it registers its own
import trio_orchestrator
from tests.queue.bodies import Bodies
from tests.queue.scenarios import RETRY, SCENARIOS, SEEDS, Items, Scenario, scenario
from tests.queue.stage import Flaky, Hiccup, Stage
from trio_orchestrator import (
    Failures,
    Gate,
    Retry,
    Timeout,
    map_all,
    open_map,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import CancelAt, cancelled_everywhere

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
    module = inspect.getmodule(inspect.unwrap(member))
    entered = hasattr(getattr(module, returns, None), "__aenter__")  # a class of ours: `async with x.slot():`
    return inspect.iscoroutinefunction(member) or entered or any(name in returns for name in waits)


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
