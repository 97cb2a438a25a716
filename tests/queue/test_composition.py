"""Blocks in blocks in blocks: cancelled at every checkpoint and from every level, raising at every level."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio
from trio.lowlevel import Task

from tests.queue.stage import Flaky, Hiccup, Stage
from trio_orchestrator import Failures, Retry, Timeout, map_all, open_map
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

RETRY: Final = Retry(on=Hiccup, attempts=3, backoff=Constant(0.5))
LEVELS: Final = ("outermost", "middle", "innermost")


class Own(Exception):
    """What the user raises."""


class Levels:
    """Does something at one level of a nest of blocks: nothing, raise, or cancel a level further out."""

    def __init__(self, *, at: str = "", error: BaseException | None = None, cancel: str = "") -> None:
        self.at = at
        self.error = error
        self.cancel = cancel
        self.scopes: dict[str, trio.CancelScope] = {}
        self.reached: list[str] = []

    @asynccontextmanager
    async def level(self, name: str) -> AsyncGenerator[None, None]:
        with trio.CancelScope() as self.scopes[name]:
            yield

    async def reach(self, name: str) -> None:
        self.reached.append(name)
        await trio.sleep(0.25)
        if name == self.at:
            if self.error is not None:
                raise self.error
            self.scopes[self.cancel].cancel(reason=f"from {name}")
            await trio.sleep(100)
        await trio.sleep(0.25)


Nest = Callable[[Stage, Levels], Awaitable[None]]


# ---------------------------------------------------------------------------------------------------- the nests


async def a_queue_in_a_job_of_a_queue_in_a_child(stage: Stage, levels: Levels) -> None:
    """A queue in a job of a queue in a service that a nursery of the user's started."""

    async def inner_job(n: int) -> int:
        await stage.bodies.sleep(0.5, n)
        if n == 2:
            await levels.reach("innermost")
        return n

    async def outer_job() -> None:
        with stage.bodies.inside("outer"):
            async with stage.queue(concurrency=1, retry=RETRY, max_waiting=1, failures=Failures.FAIL_FAST) as inner:
                await levels.reach("middle")
                for n in range(4):
                    await inner.submit(inner_job, n)

    async def service(task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        async with stage.queue(concurrency=2) as outer:
            task_status.started(outer)
            await levels.reach("outermost")
            await outer.run(outer_job)

    async with levels.level("outermost"), trio.open_nursery() as nursery:
        await nursery.start(service)
        await trio.sleep(0.25)


async def a_group_in_a_queue_in_a_job(stage: Stage, levels: Levels) -> None:
    async def job() -> None:
        with stage.bodies.inside("job"):
            async with stage.queue(concurrency=2) as inner, inner.group() as mine:
                await levels.reach("middle")
                for n in range(3):
                    await mine.submit(Flaky(stage.bodies, n, 0.25), n, retry=RETRY)
                await levels.reach("innermost")
                assert await mine.results() == [0, 1, 2]

    async with levels.level("outermost"), stage.queue(concurrency=1) as outer:
        await levels.reach("outermost")
        await outer.run(job)


async def a_map_in_a_job_of_a_group(stage: Stage, levels: Levels) -> None:
    async def double(n: int) -> int:
        await stage.bodies.sleep(0.5, n)
        return 2 * n

    async def job() -> None:
        with stage.bodies.inside("job"):
            async with open_map(double, range(5), concurrency=2, ordered=False) as outcomes:
                await levels.reach("middle")
                async for one in outcomes:
                    one.result()
                    if one.index == 1:
                        await levels.reach("innermost")
            assert sorted(await map_all(double, [1, 2])) == [2, 4]

    async with levels.level("outermost"), stage.queue() as queue, queue.group(failures=Failures.FAIL_FAST) as mine:
        await levels.reach("outermost")
        await (await mine.submit(job)).wait()


async def a_retry_around_run_and_a_time_out_around_that(stage: Stage, levels: Levels) -> None:
    flaky = Flaky(stage.bodies, 4, 0.25)

    async def job() -> None:
        await flaky()
        with stage.bodies.inside("job"):
            await levels.reach("innermost")

    async def call() -> None:
        async with stage.queue(concurrency=1, retry=RETRY, attempt_timeout=20) as queue:
            await levels.reach("middle")
            await Retry(on=Hiccup, attempts=3, backoff=Constant(0.25), retry_exhausted=True).call(queue.run, job)

    async with levels.level("outermost"):
        await levels.reach("outermost")
        try:
            await Timeout(30).call(call)
        except Hiccup:  # it failed in the tick of the cancellation: nobody pauses into that
            assert trio.current_effective_deadline() == -math.inf


NESTS: list[tuple[Nest, bool]] = [  # whether every body is a job's own, once an attempt
    (a_queue_in_a_job_of_a_queue_in_a_child, False),
    (a_group_in_a_queue_in_a_job, True),
    (a_map_in_a_job_of_a_group, False),
    (a_retry_around_run_and_a_time_out_around_that, False),
]
nests = pytest.mark.parametrize(("nest", "exact"), NESTS, ids=[nest.__name__ for nest, _ in NESTS])


# ---------------------------------------------------------------------------------------------------- the tests


@nests
@pytest.mark.parametrize("seed", range(5))
def test_a_nest_works(nest: Nest, exact: bool, seed: int) -> None:
    async def main() -> None:
        stage, levels = Stage(), Levels()
        await nest(stage, levels)
        stage.check(all_bodies=exact)
        assert levels.reached == list(LEVELS)

    run_virtual(main, seed=seed)


def _everybody(task: Task) -> bool:
    return True


@nests
@pytest.mark.parametrize("want", [None, _everybody], ids=["own steps", "steps of all"])
def test_a_nest_is_cancelled_from_outside_at_every_checkpoint(nest: Nest, exact: bool, want: Any) -> None:
    async def scenario(injector: CancelAt) -> None:
        stage, levels = Stage(), Levels()
        with injector.watch():
            await nest(stage, levels)
        stage.check(all_bodies=exact)

    cases = cancelled_everywhere(scenario, seeds=range(5 if want is None else 2), want=want)
    print(f"{cases} cancellations")
    assert cases >= 10


@nests
@pytest.mark.parametrize("at", LEVELS)
def test_a_nest_is_cancelled_from_inside_at_every_level(nest: Nest, exact: bool, at: str) -> None:
    async def main() -> None:
        stage, levels = Stage(), Levels(at=at, cancel="outermost")
        with trio.fail_after(20):
            await nest(stage, levels)
        assert levels.scopes["outermost"].cancelled_caught
        assert levels.reached[-1] == at
        stage.check(all_bodies=exact)

    for seed in range(5):
        run_virtual(main, seed=seed)


ERRORS: list[Callable[[], BaseException]] = [Own, lambda: ExceptionGroup("own", [Own(), OSError()]), KeyboardInterrupt]


@nests
@pytest.mark.parametrize("at", LEVELS)
@pytest.mark.parametrize("make", ERRORS, ids=["exception", "group", "KeyboardInterrupt"])
def test_what_a_level_of_a_nest_raises_comes_out_bare(
    nest: Nest, exact: bool, at: str, make: Callable[[], BaseException]
) -> None:
    async def main() -> BaseException | None:
        error = make()
        stage, levels = Stage(), Levels(at=at, error=error)
        try:
            await nest(stage, levels)
        except BaseException as caught:
            came_out: BaseException = caught
            if nest is a_queue_in_a_job_of_a_queue_in_a_child:  # the nursery is the user's own: one group of its own
                assert isinstance(caught, BaseExceptionGroup)
                (came_out,) = caught.exceptions
            if isinstance(error, ExceptionGroup) and came_out is not caught:  # and it regroups what it cancels
                assert came_out.exceptions == error.exceptions  # type: ignore[attr-defined]
                came_out = error
            assert came_out is error
            assert came_out.__context__ is None
            assert came_out.__cause__ is None
        else:
            raise AssertionError("nothing came out")
        assert levels.reached[-1] == at
        stage.check(all_bodies=exact)
        return None

    for seed in range(5):
        run_virtual(main, seed=seed)


@nests
@pytest.mark.parametrize("at", LEVELS)
def test_a_nest_whose_level_raises_is_cancelled_at_every_checkpoint(nest: Nest, exact: bool, at: str) -> None:
    async def scenario(injector: CancelAt) -> None:
        error = Own()
        stage, levels = Stage(), Levels(at=at, error=error)
        came_out: list[BaseException] = []
        with injector.watch():
            try:
                await nest(stage, levels)
            except Own as caught:
                came_out.append(caught)
            except BaseExceptionGroup as group:  # of the nursery, which is the user's own
                rest = group.split(trio.Cancelled)[1]
                if rest is None:
                    raise
                came_out += rest.exceptions
        assert came_out in ([error], []) if injector.scope.cancel_called else came_out == [error]
        stage.check(all_bodies=exact)

    assert cancelled_everywhere(scenario, seeds=range(2), want=_everybody) >= 2
