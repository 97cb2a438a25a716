"""Across tasks, nurseries, contexts and queues: a call that a time-out of ours ended is a failure, and no other."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final

import pytest
import trio

from trio_orchestrator import Failures, TaskQueue, open_task_queue
from trio_orchestrator.algorithms.circuit import Permit
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.block import NeutralScope, Verdict
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

Call = Callable[[], Awaitable[None]]
Seam = Callable[[Call], Awaitable[None]]

FAILURE: Final = (1, 0)
NEUTRAL: Final = (0, 1)
_seams: list[tuple[Seam, tuple[int, int]]] = []


def seam(verdict: tuple[int, int]) -> Callable[[Seam], Seam]:
    """Have a scenario run, with a call through a breaker that hangs, and see whether it has learned `verdict`."""

    def add(scenario: Seam) -> Seam:
        _seams.append((scenario, verdict))
        return scenario

    return add


async def unwind(seconds: float, fn: Callable[[], Awaitable[object]] = trio.sleep_forever) -> None:
    """Run `fn`, and take so long to clean up."""
    try:
        await fn()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)


# ------------------------------------------------------------------------------------------- tasks and nurseries


@seam(FAILURE)
async def a_child_inside(call: Call) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)

    await Timeout(3).call(body)


@seam(FAILURE)
async def a_child_inside_with_an_empty_context(call: Call) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            Context().run(nursery.start_soon, call)

    await Timeout(3).call(body)


@seam(NEUTRAL)
async def a_child_outside_that_is_cancelled_while_we_unwind(call: Call) -> None:
    async def child() -> None:
        with trio.move_on_after(3.5):
            await call()

    async def body(nursery: trio.Nursery) -> None:
        nursery.start_soon(child)
        await unwind(5)

    async with trio.open_nursery() as nursery:
        await Timeout(3).call(body, nursery)


@seam(NEUTRAL)
async def a_service_outside_that_is_cancelled_while_we_unwind(call: Call) -> None:
    async def service(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        with trio.move_on_after(3.5):
            await call()

    async def body(nursery: trio.Nursery) -> None:
        await nursery.start(service)
        await unwind(5)

    async with trio.open_nursery() as nursery:
        await Timeout(3).call(body, nursery)


@seam(FAILURE)
async def a_service_that_has_not_started(call: Call) -> None:
    async def service(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await call()
        task_status.started()

    async def start(nursery: trio.Nursery) -> None:
        await nursery.start(service)

    async with trio.open_nursery() as nursery:
        await Timeout(3).call(start, nursery)


@seam(NEUTRAL)
async def a_child_outside_that_outlives_us(call: Call) -> None:
    async def body(nursery: trio.Nursery) -> None:
        nursery.start_soon(call)

    async with trio.open_nursery() as nursery:
        await Timeout(3).call(body, nursery)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("stays", [False, True])
def test_started_from_inside_a_time_out_further_in(stays: bool) -> None:
    async def further_in(nursery: trio.Nursery, call: Call) -> None:
        async def start() -> None:
            nursery.start_soon(call)
            if stays:
                await trio.sleep_forever()

        await Timeout(50).call(start)

    async def scenario(call: Call) -> None:
        async def body() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(further_in, nursery, call)

        await Timeout(3).call(body)

    learned(scenario, FAILURE)


# ---------------------------------------------------------------------------------------------------- queues


@seam(FAILURE)
async def a_queue_inside_whose_job_comes_from_outside(call: Call) -> None:
    async def service(task_status: trio.TaskStatus[TaskQueue] = trio.TASK_STATUS_IGNORED) -> None:
        async def body() -> None:
            async with open_task_queue() as queue:
                task_status.started(queue)
                await trio.sleep_forever()

        await Timeout(3).call(body)

    async with trio.open_nursery() as nursery:
        queue: TaskQueue = await nursery.start(service)
        await queue.submit(call)


@seam(NEUTRAL)
async def a_job_that_is_cancelled_while_its_submitter_unwinds(call: Call) -> None:
    async with open_task_queue(failures=Failures.RECORD) as queue:

        async def body() -> None:
            handle = await queue.submit(call)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                    handle.cancel("no longer needed")
                    await trio.sleep(2)

        await Timeout(3).call(body)


@seam(NEUTRAL)
async def a_job_whose_own_scope_ends_it_while_its_submitter_unwinds(call: Call) -> None:
    async def job() -> None:
        with trio.move_on_after(3.5):
            await call()

    async with open_task_queue() as queue:

        async def body() -> None:
            await queue.submit(job)
            await unwind(5)

        await Timeout(3).call(body)


@seam(FAILURE)
async def run_inside(call: Call) -> None:
    async with open_task_queue(attempt_timeout=30) as queue:
        await Timeout(3).call(queue.run, call)


@seam(FAILURE)
async def run_in_a_child_inside(call: Call) -> None:
    async with open_task_queue() as queue:

        async def body() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queue.run, call)

        await Timeout(3).call(body)


@seam(NEUTRAL)
async def run_in_a_scope_of_the_users_inside(call: Call) -> None:
    async with open_task_queue() as queue:

        async def body() -> None:
            with trio.move_on_after(1):
                await queue.run(call)
            await trio.sleep_forever()

        await Timeout(3).call(body)


# ------------------------------------------------------------------------------------------- deadlines and groups


@seam(FAILURE)
async def the_users_scope_inside_has_the_same_deadline(call: Call) -> None:  # Trio lets the outer one have it
    async def body() -> None:
        with trio.move_on_after(3):
            await call()

    await Retry(on=(), attempt_timeout=3, attempts=1).call(body)


@seam(NEUTRAL)
async def the_users_scope_outside_has_the_same_deadline(call: Call) -> None:
    with trio.move_on_after(3):
        await Retry(on=(), attempt_timeout=3).call(call)


@seam(NEUTRAL)
async def the_user_brings_a_deadline_forward(call: Call) -> None:
    async def body() -> None:
        with trio.move_on_after(100) as scope:
            scope.deadline = trio.current_time() + 1
            await call()
        await trio.sleep_forever()

    await Timeout(3).call(body)


@seam(FAILURE)
async def the_user_puts_a_deadline_off(call: Call) -> None:
    async def body() -> None:
        with trio.move_on_after(1) as scope:
            scope.deadline += 100
            await call()

    await Timeout(3).call(body)


@seam(FAILURE)
async def the_next_time_out_passes_while_the_call_unwinds(call: Call) -> None:
    await Timeout(5).call(Timeout(3).call, unwind, 10, call)


@seam(FAILURE)
async def an_error_beside_the_cancellation(call: Call) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            try:
                await trio.sleep_forever()
            finally:
                raise OSError

    await Timeout(3).call(body)


@seam(NEUTRAL)
async def superfluous_before_the_time_out_passes(call: Call) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            with NeutralScope() as scope:
                nursery.start_soon(cancel, scope)
                await unwind(5, call)
        await trio.sleep_forever()

    async def cancel(scope: NeutralScope) -> None:
        await trio.sleep(1)
        scope.cancel("no longer needed")

    await Timeout(3).call(body)


@seam(FAILURE)
async def in_a_hedge_inside(call: Call) -> None:
    await Timeout(3).call(Hedge(after=10).call, call)


# ---------------------------------------------------------------------------------------------------- the tests


def learned(scenario: Seam, verdict: tuple[int, int]) -> None:
    async def main() -> None:
        breaker = CircuitBreaker(trip=Consecutive(100))

        async def call() -> None:
            await breaker.call(trio.sleep_forever)

        try:
            await scenario(call)
        except* (trio.TooSlowError, OSError):
            pass
        s = breaker.statistics()
        assert (s.failures, s.neutral) == verdict
        assert s.in_flight == s.successes == 0

    for seed in range(4):
        run_virtual(main, seed=seed)


@pytest.mark.parametrize(("scenario", "verdict"), _seams, ids=[scenario.__name__ for scenario, _ in _seams])
def test_seam(scenario: Seam, verdict: tuple[int, int]) -> None:
    learned(scenario, verdict)


def _living(kind: type[Any]) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_neutral_calls_leave_nothing_in_the_time_out_around_them() -> None:
    async def main() -> None:
        breaker = CircuitBreaker(trip=Consecutive(100))

        async def body() -> None:
            for _ in range(2_000):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await breaker.call(trio.sleep_forever)
            assert _living(Permit) < before + 10

        await Timeout(3600).call(body)
        assert breaker.statistics().neutral == 2_000

    before = _living(Permit)
    run_virtual(main)


def test_a_time_out_does_not_hold_on_to_those_in_which_its_task_was_started() -> None:
    async def again(nursery: trio.Nursery, left: int) -> None:
        async def start() -> None:
            if left:
                nursery.start_soon(again, nursery, left - 1)
            else:
                assert _living(Verdict) < before + 10

        await Timeout(10).call(start)

    async def job(queue: TaskQueue, left: int) -> None:
        async def submit() -> None:
            if left:
                queue.submit_nowait(job, queue, left - 1)
            else:
                assert _living(Verdict) < before + 10

        await Timeout(10).call(submit)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again, nursery, 100)
        async with open_task_queue(concurrency=1) as queue:
            queue.submit_nowait(job, queue, 100)

    before = _living(Verdict)
    run_virtual(main)
