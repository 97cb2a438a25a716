"""The policy around every attempt, and what else decides about another one: results, budgets, orders to give up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, Unpack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, pauses, virtual
from trio_orchestrator import Custom, Failures, GiveUp, JobTimeoutError, Retry, open_task_queue
from trio_orchestrator.abc import Budget, Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.block import settle_later

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Guard(Policy):
    """Learns from every call, as a circuit breaker does; a cancelled one is judged by whoever cancelled it."""

    def __init__(self) -> None:
        self.verdicts: list[bool] = []

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        try:
            result = await fn(*args)
        except Exception:
            self.verdicts.append(False)
            raise
        except BaseException:
            settle_later(lambda failed: self.verdicts.append(not failed))
            raise
        self.verdicts.append(True)
        return result


@virtual
@pytest.mark.parametrize("option", ["attempt_timeout", "timeout"])
@pytest.mark.parametrize("whose", ["queue", "job", "retry"])
async def test_a_time_out_of_ours_is_a_failure_for_the_policy_inside(option: str, whose: str) -> None:
    guard = Guard()
    limits = {option: 2.0}
    retry = Retry(on=Flop, attempts=1, **limits) if whose == "retry" else None  # type: ignore[arg-type]
    of_queue, of_job = (limits if whose == "queue" else {}), (limits if whose == "job" else {})
    async with open_task_queue(protect=guard, retry=retry, failures=Failures.RECORD, **of_queue) as queue:  # type: ignore[arg-type]
        with pytest.raises(JobTimeoutError):
            await queue.run(trio.sleep_forever, **of_job)  # type: ignore[arg-type]
        assert guard.verdicts == [False]
        await queue.run(trio.sleep, 1)
    assert guard.verdicts == [False, True]


@virtual
@pytest.mark.parametrize("how", ["handle", "queue", "outside"])
async def test_somebody_elses_cancellation_is_neutral(how: str) -> None:
    guard = Guard()
    with trio.CancelScope() as scope:
        async with open_task_queue(protect=guard, timeout=50, attempt_timeout=40) as queue:
            job = queue.submit_nowait(trio.sleep_forever)
            await wait_all_tasks_blocked()
            if how == "handle":
                job.cancel()
            elif how == "queue":
                await queue.close()
            else:
                scope.cancel()
    assert guard.verdicts == [True]  # not a failure


@virtual
async def test_every_attempt_goes_through_the_policy() -> None:
    guard, line = Guard(), Timeline()
    async with open_task_queue(protect=guard, retry=pauses(1, attempts=5)) as queue:
        assert await queue.run(line.flaky("x", failures=2)) == "x"
    assert guard.verdicts == [False, False, True]


@virtual
async def test_what_the_policy_itself_raises_is_a_failure_of_the_attempt() -> None:
    class Broken(Policy):
        async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
            starts.append(trio.current_time())
            raise Flop

    starts: list[float] = []
    async with open_task_queue(protect=Broken(), retry=pauses(5)) as queue:
        with pytest.raises(Flop):
            await queue.run(trio.sleep, 1)
    assert starts == [0, 5]


@virtual
@pytest.mark.parametrize("protect", [Guard(), pauses(1, on=TypeError)])
async def test_a_plain_function_inside_a_policy_is_not_repeated_either(protect: Policy) -> None:
    calls = 0

    def plain() -> None:
        nonlocal calls
        calls += 1

    async with open_task_queue(protect=protect, retry=Retry(on=Exception, backoff=Constant(1))) as queue:
        with pytest.raises(TypeError, match="plain returned no awaitable: pass an async function"):
            await queue.run(plain)  # type: ignore[arg-type]
    assert calls == 1


@virtual
async def test_a_type_error_of_the_body_is_repeated_like_any_other() -> None:
    starts: list[float] = []

    async def body() -> None:
        starts.append(trio.current_time())
        if len(starts) < 3:
            raise TypeError

    async with open_task_queue(protect=Guard(), retry=pauses(1, attempts=3, on=TypeError)) as queue:
        await queue.run(body)
    assert starts == [0, 1, 2]


# ------------------------------------------------------------------------------------------ another attempt?


@virtual
async def test_bad_results_are_repeated_and_the_last_one_is_returned() -> None:
    results = [1, 2, 3, 4, 5]

    async def body() -> int:
        return results.pop(0)

    retry = Retry(on=(), on_result=lambda result: result != 2, attempts=2, backoff=Constant(10))
    async with open_task_queue(retry=retry) as queue:
        first = queue.submit_nowait(body)
        assert await first.wait() == 2
        second = queue.submit_nowait(body)
        assert await second.wait() == 4
        assert (first.attempts, second.attempts) == (2, 2)
        assert queue.statistics().succeeded == 2
    assert trio.current_time() == 20


@virtual
async def test_give_up_ends_a_job_with_the_error_inside() -> None:
    error = Flop("no hope")
    starts = []

    async def body() -> None:
        starts.append(trio.current_time())
        raise GiveUp(error)

    async with open_task_queue(retry=pauses(1)) as queue:
        with pytest.raises(Flop) as caught:
            await queue.run(body)
        assert caught.value is error
        with pytest.raises(Flop) as caught:
            await queue.run(body, retry=None)
        assert caught.value is error
    assert starts == [0, 0]


class Purse(Budget):
    """A budget of so many retries."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.deposits: list[int] = []

    def withdraw(self, error: BaseException | None) -> bool:
        self.left -= 1
        return self.left >= 0

    def deposit(self, attempts: int) -> None:
        self.deposits.append(attempts)


@virtual
async def test_a_budget_is_asked_by_all_jobs_together() -> None:
    purse, line = Purse(3), Timeline()
    retry = Retry(on=Flop, attempts=9, backoff=Constant(1), budget=purse)
    async with open_task_queue(concurrency=1, retry=retry, failures=Failures.RECORD) as queue:
        assert await queue.run(line.flaky("x", failures=2)) == "x"
        with pytest.raises(Flop) as caught:
            await queue.run(line.flaky("y", failures=2))
        assert caught.value.__notes__[0].endswith(": budget")
        await queue.run(line.work, "z")
    assert purse.deposits == [3, 1]


@virtual
@pytest.mark.parametrize("broken", ["on", "on_result", "backoff", "retry_after", "on_retry", "budget"])
async def test_what_a_part_of_the_users_raises_ends_the_job_with_it(broken: str) -> None:
    error = LookupError(broken)

    def raises(*_: object) -> bool:
        raise error

    class Torn(Purse):
        def withdraw(self, error: BaseException | None) -> bool:
            return raises()

    parts: dict[str, object] = {"on": Flop, "attempts": 3, "backoff": Constant(1)}
    parts[broken] = {"backoff": Custom(raises), "budget": Torn(1)}.get(broken, raises)

    async def body() -> None:
        if broken != "on_result":
            raise Flop

    async with open_task_queue(concurrency=1, retry=Retry(**parts)) as queue:  # type: ignore[arg-type]
        with pytest.raises(LookupError) as caught:
            await queue.run(body)
        assert caught.value is error
        await queue.run(trio.sleep, 1, retry=None)


@virtual
async def test_a_retry_of_its_own_or_none() -> None:
    line = Timeline()
    async with open_task_queue(retry=pauses(1), failures=Failures.RECORD) as queue:
        with pytest.raises(Flop):
            await queue.run(line.flaky("none"), retry=None)
        assert await queue.run(line.flaky("more", failures=3), retry=pauses(2, attempts=4)) == "more"
    assert len(line.times("none")) == 1
    assert line.times("more") == [1, 4, 7, 10]


@virtual
async def test_an_inner_retry_that_has_tried_in_vain_is_not_repeated() -> None:
    line, inner = Timeline(), pauses(1, attempts=2)
    body = line.flaky("x", failures=9)
    async with open_task_queue(retry=pauses(10, attempts=3)) as queue:
        with pytest.raises(Flop):
            await queue.run(inner.call, body)
    assert line.times("x") == [0, 2]
