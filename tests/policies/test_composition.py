"""Blocks of policies in each other, in a queue's job and in a child of the user's nursery: cancelled and raising."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, final

import pytest
import trio
from trio.lowlevel import Task

from tests.policies.contract import Fatal, assert_whole
from trio_orchestrator import Failures, open_task_queue
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

LEVELS: Final = ("outermost", "middle", "innermost")


class Own(Exception):
    """What the user raises."""


class Hiccup(Exception):
    """A failure worth repeating."""


@final
class Stage:
    """The policies of a nest, and what happens at one level of it: nothing, an error, or a cancellation further out."""

    def __init__(self, *, at: str = "", error: BaseException | None = None, cancel: str = "") -> None:
        self.retry = Retry(on=Hiccup, attempts=3, backoff=Constant(0.5))
        self.timed = Retry(on=Hiccup, attempts=3, backoff=Constant(0.5), attempt_timeout=50, budget=RetryBudget())
        self.breaker = CircuitBreaker(trip=Consecutive(100))
        self.limiter = AdaptiveLimiter(limit=AIMD(initial=1))
        self.bulkhead = Bulkhead(1)
        self.throttle = SreThrottle()
        self.rates = RateLimits(RateLimiter(2), SlidingWindow(5))
        self.hedge = Hedge(after=20)
        self.policies: tuple[Policy, ...] = (
            *(self.retry, self.timed, self.breaker, self.limiter, self.bulkhead, self.throttle, self.rates, self.hedge),
        )
        self.hiccups = 1
        self.inside = 0
        self.reached: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}
        self._at, self._error, self._cancel = at, error, cancel

    @asynccontextmanager
    async def level(self, name: str) -> AsyncGenerator[None, None]:
        with trio.CancelScope() as self.scopes[name]:
            yield

    @contextmanager
    def body(self) -> Generator[None, None, None]:
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def reach(self, name: str) -> None:
        """Be at a level, in which something may happen; innermost there is a failure first."""
        with self.body():
            await trio.sleep(0.25)
            if name == "innermost" and self.hiccups:
                self.hiccups -= 1
                raise Hiccup
            self.reached.append(name)
            if name == self._at:
                if self._error is not None:
                    raise self._error
                self.scopes[self._cancel].cancel(reason=f"from {name}")
                await trio.sleep(100)
            await trio.sleep(0.25)

    async def rival(self) -> None:
        """Hold for a while what others then wait for."""
        async with self.bulkhead.slot(), self.limiter.slot() as slot:
            slot.ignore()
            await trio.sleep(1)

    async def check(self) -> None:
        """Nothing is left: nobody inside, no slot held, nobody waiting; and all as new after a while."""
        assert self.inside == 0
        for tokens in (self.bulkhead.tokens, self.limiter.tokens):
            assert tokens.borrowed_tokens == tokens.statistics().tasks_waiting == 0
        for policy in self.policies:
            await assert_whole(policy)


Nest = Callable[[Stage], Awaitable[None]]


# ---------------------------------------------------------------------------------------------------- the nests


async def blocks_in_a_child(stage: Stage) -> None:
    """The blocks of each policy in a service that a nursery of the user's started, next to somebody who holds slots."""

    async def service(task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        with stage.body():
            task_status.started()
            await stage.reach("outermost")
            async for attempt in stage.retry:
                with attempt, stage.breaker.guard(), stage.throttle.guard():
                    async with stage.limiter.slot():
                        if not stage.reached[1:]:
                            await stage.reach("middle")
                        async with stage.bulkhead.slot():
                            await stage.reach("innermost")

    async with stage.level("outermost"), trio.open_nursery() as nursery:
        nursery.start_soon(stage.rival)
        await nursery.start(service)
        await trio.sleep(0.25)


async def a_loop_in_a_stack_in_a_slot(stage: Stage) -> None:
    """A retry loop in what a stack calls, in a slot."""

    async def call() -> None:
        with stage.body():
            await stage.reach("middle")
            async for attempt in stage.timed:
                with attempt, stage.throttle.guard():
                    async with stage.limiter.slot():
                        await stage.rates.acquire()
                        await stage.reach("innermost")

    stack = Stack(Timeout(90), Fallback(on=Hiccup, value=None), stage.retry, stage.breaker, stage.hedge)
    async with stage.level("outermost"), stage.bulkhead.slot():
        await stage.reach("outermost")
        await stack.call(call)


async def a_job_in_a_stack_in_a_stack(stage: Stage) -> None:
    """A queue whose job enters the blocks, in what a stack in a stack calls."""

    async def job() -> None:
        with stage.body(), stage.breaker.guard():
            async with stage.bulkhead.slot():
                await stage.reach("innermost")

    async def call() -> None:
        async with open_task_queue(
            concurrency=1, retry=stage.timed, protect=stage.throttle, failures=Failures.FAIL_FAST
        ) as queue:
            await stage.reach("middle")
            await (await queue.submit(job)).wait()

    async with stage.level("outermost"):
        await stage.reach("outermost")
        await Stack(Stack(Timeout(80), stage.retry), stage.rates, stage.limiter).call(call)


async def a_stack_in_a_job_in_a_child(stage: Stage) -> None:
    """A stack in a job that `run` waits for in an attempt, in a child of the user's nursery."""

    async def job() -> None:
        with stage.body():
            await stage.reach("middle")
            stack = Stack(stage.timed, stage.hedge, stage.breaker, stage.rates, stage.bulkhead, stage.limiter)
            await stack.call(stage.reach, "innermost")

    async def service(task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        async with open_task_queue(concurrency=1) as queue:
            task_status.started()
            await stage.reach("outermost")
            async for attempt in stage.retry:
                with attempt, stage.throttle.guard():
                    await queue.run(job)

    async with stage.level("outermost"), trio.open_nursery() as nursery:
        nursery.start_soon(stage.rival)
        await nursery.start(service)


NESTS: Final[list[tuple[Nest, bool]]] = [  # whether there is a nursery of the user's, which makes a group
    (blocks_in_a_child, True),
    (a_loop_in_a_stack_in_a_slot, False),
    (a_job_in_a_stack_in_a_stack, False),
    (a_stack_in_a_job_in_a_child, True),
]
nests = pytest.mark.parametrize(("nest", "grouped"), NESTS, ids=[nest.__name__ for nest, _ in NESTS])


# ---------------------------------------------------------------------------------------------------- the tests


@nests
def test_a_nest_works(nest: Nest, grouped: bool) -> None:
    async def main() -> None:
        stage = Stage()
        await nest(stage)
        assert stage.reached == list(LEVELS)
        await stage.check()

    for seed in range(5):
        run_virtual(main, seed=seed)


def _everybody(task: Task) -> bool:
    return True


@nests
@pytest.mark.parametrize("want", [None, _everybody], ids=["own steps", "steps of all"])
def test_a_nest_is_cancelled_from_outside_at_every_checkpoint(nest: Nest, grouped: bool, want: Any) -> None:
    async def scenario(injector: CancelAt) -> None:
        stage = Stage()
        with injector.watch():
            await nest(stage)
        assert stage.breaker.statistics().failures <= 1  # the hiccup; whoever was cancelled says nothing
        await stage.check()

    assert cancelled_everywhere(scenario, seeds=range(2), want=want) >= (4 if want is None else 20)


@nests
@pytest.mark.parametrize("at", LEVELS)
def test_a_nest_is_cancelled_from_inside_at_every_level(nest: Nest, grouped: bool, at: str) -> None:
    async def main() -> None:
        stage = Stage(at=at, cancel="outermost")
        with trio.fail_after(20):
            await nest(stage)
        assert stage.scopes["outermost"].cancelled_caught
        assert stage.reached[-1] == at
        assert stage.limiter.statistics().dropped <= 1
        await stage.check()

    for seed in range(3):
        run_virtual(main, seed=seed)


ERRORS: list[Callable[[], BaseException]] = [Own, lambda: ExceptionGroup("own", [Own(), OSError()]), Fatal]


@nests
@pytest.mark.parametrize("at", LEVELS)
@pytest.mark.parametrize("make", ERRORS, ids=["exception", "group", "fatal"])
def test_what_a_level_of_a_nest_raises_comes_out_bare(
    nest: Nest, grouped: bool, at: str, make: Callable[[], BaseException]
) -> None:
    async def main() -> None:
        error = make()
        stage = Stage(at=at, error=error)
        try:
            await nest(stage)
        except BaseException as caught:
            came_out: BaseException = caught
            if grouped:  # by the nursery, which is the user's own
                assert isinstance(caught, BaseExceptionGroup)
                (came_out,) = caught.exceptions
            if grouped and isinstance(error, ExceptionGroup):  # and it regroups what it cancels
                assert came_out.exceptions == error.exceptions  # type: ignore[attr-defined]
            else:
                assert came_out is error
            assert error.__context__ is error.__cause__ is None
        else:
            raise AssertionError("nothing came out")
        assert stage.reached[-1] == at
        await stage.check()

    for seed in range(3):
        run_virtual(main, seed=seed)


@nests
@pytest.mark.parametrize("at", LEVELS)
def test_a_nest_whose_level_raises_is_cancelled_at_every_checkpoint(nest: Nest, grouped: bool, at: str) -> None:
    async def scenario(injector: CancelAt) -> None:
        error = Own()
        stage = Stage(at=at, error=error)
        came_out: list[BaseException] = []
        with injector.watch():
            try:
                await nest(stage)
            except Own as caught:
                came_out.append(caught)
            except BaseExceptionGroup as group:  # of the nursery, which is the user's own
                rest = group.split(trio.Cancelled)[1]
                if rest is None:
                    raise
                came_out += rest.exceptions
        assert came_out in ([error], []) if injector.scope.cancel_called else came_out == [error]
        assert error.__context__ is None
        await stage.check()

    assert cancelled_everywhere(scenario, seeds=range(1), want=_everybody) >= 1
