"""What each budget grants, to the retry, and what it says of itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.service import AT_ONCE, Form, Service, outcome, three_forms
from trio_orchestrator.abc import Budget
from trio_orchestrator.policies.budget import GrpcThrottle, RetryBudget, TokenQuota
from trio_orchestrator.policies.failure import mark_timeout
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.queue.opening import open_task_queue
from trio_orchestrator.testing import run_virtual


class Throttled(Exception):
    pass


def granted(budget: Budget, times: int, error: BaseException | None = None) -> int:
    return sum(budget.withdraw(error) for _ in range(times))


# ---------------------------------------------------------------------------------------------------------- RetryBudget


def test_tower_857_a_ratio_of_0_6_is_not_1() -> None:
    async def main() -> None:
        for ratio in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0):
            budget = RetryBudget(ratio, minimum_per_second=0)
            for calls in range(1, 101):
                budget.begin()
                assert budget.statistics().retries == calls * round(10 * ratio) // 10
            assert granted(budget, 1000) == round(100 * ratio)

    run_virtual(main)


@given(calls=st.integers(0, 300), share=st.fractions(0, 3, max_denominator=1000))
def test_each_retry_takes_one_over_ratio_calls_exactly(calls: int, share: Fraction) -> None:
    async def main() -> None:
        budget = RetryBudget(float(share), minimum_per_second=0)
        retries = 0
        for call in range(1, calls + 1):
            budget.begin()
            retries += granted(budget, 10)
            assert retries == math.floor(call * share)

    run_virtual(main)


def test_a_client_with_little_to_do_may_retry() -> None:
    async def main() -> None:
        assert granted(RetryBudget(), 1000) == 100
        assert granted(RetryBudget(minimum_per_second=0.35, window=10), 1000) == 3  # no part of a retry
        assert granted(RetryBudget(2, minimum_per_second=0.35, window=10), 1000) == 3
        assert granted(RetryBudget(1, minimum_per_second=0.29, window=100), 1000) == 29  # not 28.99...
        assert granted(RetryBudget(minimum_per_second=0), 1000) == 0
        assert granted(RetryBudget(ratio=0, minimum_per_second=2, window=3), 1000) == 6

    run_virtual(main)


def test_failsafe_go_139_the_first_call_may_be_retried() -> None:
    async def main() -> None:
        service = Service(OSError(), OSError(), OSError(), "fine")
        retry = Retry(on=OSError, backoff=AT_ONCE, budget=RetryBudget(0.2, minimum_per_second=0.3, window=10))
        assert await retry.call(service) == "fine"

    run_virtual(main)


def test_calls_and_retries_are_forgotten_after_the_window() -> None:
    async def main() -> None:
        budget = RetryBudget(0.5, minimum_per_second=1, window=10)
        for _ in range(20):
            budget.begin()
        assert granted(budget, 99) == 20
        await trio.sleep(9.5)
        assert granted(budget, 99) == 0
        budget.begin()
        budget.begin()
        assert granted(budget, 99) == 1
        await trio.sleep(0.5)  # what was put in and taken out at 0 is forgotten, what was so at 9.5 is not
        assert granted(budget, 99) == 10
        await trio.sleep(10)
        assert budget.is_idle
        assert budget.statistics().retries == 10

    run_virtual(main)


def test_calls_forgotten_before_their_retries_leave_a_debt_and_no_negative_number() -> None:
    async def main() -> None:
        budget = RetryBudget(1, minimum_per_second=1, window=10)
        for _ in range(30):
            budget.begin()
        await trio.sleep(5)
        assert granted(budget, 99) == 40
        await trio.sleep(5)
        assert budget.statistics().retries == 0
        assert not budget.is_idle
        await trio.sleep(5)
        assert budget.statistics().retries == 10

    run_virtual(main)


def test_a_budget_may_be_used_in_one_run_after_another() -> None:
    budget = RetryBudget(minimum_per_second=1)

    async def late() -> None:
        await trio.sleep(1e4)
        assert granted(budget, 99) == 10

    async def early() -> None:
        assert budget.is_idle
        assert granted(budget, 99) == 10

    run_virtual(late)
    run_virtual(early)


# ----------------------------------------------------------------------------------------------------------- TokenQuota


def level(quota: TokenQuota | GrpcThrottle) -> float:
    return quota.statistics().level


def test_each_kind_of_error_has_its_cost() -> None:
    quota = TokenQuota(500, 5, timeout_cost=10, throttling_cost=7, throttled=Throttled)
    errors: tuple[tuple[BaseException | None, float], ...] = (
        (OSError(), 5),
        (None, 5),
        (trio.TooSlowError(), 10),
        (TimeoutError(), 10),
        (mark_timeout(KeyError()), 10),
        (Throttled(), 7),
        (ExceptionGroup("", [Throttled(), Throttled()]), 7),
        (ExceptionGroup("", [Throttled(), OSError()]), 5),
        (ExceptionGroup("", [trio.TooSlowError(), ExceptionGroup("", [TimeoutError()])]), 10),
    )
    for error, cost in errors:
        before = level(quota)
        assert quota.withdraw(error)
        assert level(quota) == before - cost
        quota.refund(error)
        quota.deposit(2)
        assert level(quota) == before


def test_throttling_costs_what_an_error_costs_unless_told() -> None:
    quota = TokenQuota(throttled=lambda error: isinstance(error, TimeoutError))
    assert quota.withdraw(TimeoutError())
    assert level(quota) == 495


def test_a_purse_that_holds_less_than_the_cost_grants_nothing() -> None:
    quota = TokenQuota(12, 5)
    assert granted(quota, 9) == 2
    assert level(quota) == 2
    assert (quota.statistics().granted, quota.statistics().refused) == (2, 7)
    assert not quota.withdraw(TimeoutError())


@three_forms
def test_a_success_gives_back_what_the_last_retry_took(form: Form) -> None:
    quota = TokenQuota(500, 5, timeout_cost=10)
    retry = Retry(on=Exception, backoff=AT_ONCE, budget=quota)
    assert outcome(form, retry, Service(OSError(), TimeoutError(), "fine"))[0] == "fine"
    assert level(quota) == 500 - 5 - 10 + 10
    assert outcome(form, retry, Service(TimeoutError(), OSError(), "fine"))[0] == "fine"
    assert level(quota) == 495 - 10 - 5 + 5
    assert outcome(form, retry, Service("fine"))[0] == "fine"
    assert level(quota) == 486
    assert not quota.is_idle


@three_forms
def test_a_call_that_fails_gives_nothing_back(form: Form) -> None:
    quota = TokenQuota()
    outcome(form, Retry(on=Exception, attempts=3, backoff=AT_ONCE, budget=quota), Service(OSError()))
    assert level(quota) == 490


def test_a_time_out_of_the_retry_costs_as_one() -> None:
    quota = TokenQuota()

    async def main() -> None:
        service = Service("fine", seconds=5)
        retry = Retry(on=OSError, attempts=2, attempt_timeout=1, backoff=AT_ONCE, budget=quota)
        with pytest.raises(trio.TooSlowError):
            await retry.call(service)
        assert level(quota) == 490
        with pytest.raises(trio.TooSlowError):
            await Retry(on=trio.TooSlowError, attempts=2, backoff=AT_ONCE, budget=quota).call(Timeout(1).call, service)
        assert level(quota) == 480

    run_virtual(main)


def test_a_refused_result_is_refunded_too() -> None:
    quota = TokenQuota()

    async def main() -> None:
        retry = Retry(on=(), on_result=lambda result: result == "bad", backoff=AT_ONCE, budget=quota)
        assert await retry.call(Service("bad", "fine")) == "fine"

    run_virtual(main)
    assert quota.is_idle
    assert (quota.statistics().taken, quota.statistics().given) == (5, 5)


def test_calls_at_once_each_get_back_their_own() -> None:
    """One shared note of the last amount, as botocore's, would give the slow call the cost of the other's error."""
    quota = TokenQuota(500, 5, timeout_cost=100)

    async def main() -> None:
        async def call(error: Exception, seconds: float) -> None:
            service = Service(error, "fine", seconds=seconds)
            await Retry(on=Exception, backoff=AT_ONCE, budget=quota).call(service)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, TimeoutError(), 1)
            nursery.start_soon(call, OSError(), 1.5)
            await trio.sleep(1.6)
            assert level(quota) == 395
            await trio.sleep(1)
            assert level(quota) == 495

    run_virtual(main)
    assert quota.is_idle


def test_in_a_queue_a_success_gives_back_what_the_last_retry_of_its_job_took() -> None:
    quota = TokenQuota(500, 5, timeout_cost=100)

    async def main() -> None:
        retry = Retry(on=Exception, backoff=AT_ONCE, budget=quota)
        async with open_task_queue(concurrency=2, retry=retry) as queue:
            jobs = [
                await queue.submit(Service(TimeoutError(), "fine", seconds=1)),
                await queue.submit(Service(OSError(), TimeoutError(), OSError(), "fine", seconds=1)),
                await queue.submit(Service("fine")),
            ]
            assert [await job.wait() for job in jobs] == ["fine"] * 3

    run_virtual(main)
    assert (quota.statistics().taken, quota.statistics().given) == (100 + 5 + 100 + 5, 100 + 5 + 1)


def test_aws_sdk_go_v2_3550_successes_fill_an_empty_quota() -> None:
    quota = TokenQuota()

    async def main() -> None:
        retry = Retry(on=OSError, backoff=AT_ONCE, budget=quota)
        down = Service(OSError())
        for _ in range(200):
            with pytest.raises(OSError):
                await retry.call(down)
        assert level(quota) == 0
        assert len(down.starts) == 300
        for _ in range(10):
            await retry.call(Service("fine"))
        assert await retry.call(Service(OSError(), OSError(), "fine")) == "fine"
        assert level(quota) == 5

    run_virtual(main)


def test_aws_sdk_go_base_915_a_quota_is_of_those_who_share_it() -> None:
    async def main() -> None:
        quotas = {service: TokenQuota(10) for service in ("dynamodb", "s3")}
        retries = {service: Retry(on=OSError, backoff=AT_ONCE, budget=quota) for service, quota in quotas.items()}
        down = Service(OSError())
        with pytest.raises(OSError):
            await retries["s3"].call(down)
        assert len(down.starts) == 3
        assert await retries["dynamodb"].call(Service(OSError(), OSError(), "fine")) == "fine"
        assert {service: quota.is_idle for service, quota in quotas.items()} == {"dynamodb": False, "s3": False}
        quotas["dynamodb"].deposit(1)
        assert level(quotas["dynamodb"]) == 6

    run_virtual(main)


# --------------------------------------------------------------------------------------------------------- GrpcThrottle


def test_only_more_than_half_of_the_tokens_grants_a_retry() -> None:
    throttle = GrpcThrottle(9.999, 0.5)
    for tokens, retries in ((9.999, True), (8.999, True), (7.999, True), (6.999, True), (5.999, True), (4.999, False)):
        assert (level(throttle), throttle.withdraw(None)) == (tokens, retries)
        throttle.failed(None)
    throttle.deposit(1)
    throttle.deposit(1)
    assert (level(throttle), throttle.withdraw(OSError())) == (4.999, False)
    throttle.deposit(1)
    assert (level(throttle), throttle.withdraw(OSError())) == (5.499, True)


def test_an_attempt_that_is_not_worth_a_retry_takes_no_token() -> None:
    throttle = GrpcThrottle()

    async def main() -> None:
        with pytest.raises(KeyError):
            await Retry(on=OSError, backoff=AT_ONCE, budget=throttle).call(Service(KeyError()))

    run_virtual(main)
    assert throttle.is_idle


def test_in_a_queue_the_throttle_sees_each_failure_once() -> None:
    throttle = GrpcThrottle(10, 0.125)

    async def main() -> None:
        async with open_task_queue(concurrency=1, retry=Retry(on=OSError, backoff=AT_ONCE, budget=throttle)) as queue:
            assert await queue.run(Service(OSError(), OSError(), "fine")) == "fine"

    run_virtual(main)
    statistics = throttle.statistics()
    assert (statistics.level, statistics.taken, statistics.given, statistics.granted) == (8.125, 2, 0.125, 2)


# ------------------------------------------------------------------------------------------------------------------ all

BUDGETS: tuple[Callable[[], RetryBudget | TokenQuota | GrpcThrottle], ...] = (RetryBudget, TokenQuota, GrpcThrottle)
each_budget = pytest.mark.parametrize("make", BUDGETS, ids=lambda make: make.__name__)


@each_budget
def test_a_new_one_is_idle_and_one_in_use_is_not(make: Callable[[], RetryBudget | TokenQuota | GrpcThrottle]) -> None:
    async def main() -> None:
        budget = make()
        assert budget.is_idle
        with pytest.raises(OSError):
            await Retry(on=OSError, attempts=2, backoff=AT_ONCE, budget=budget).call(Service(OSError()))
        assert not budget.is_idle

    run_virtual(main)


@each_budget
def test_a_cancelled_call_puts_nothing_in(make: Callable[[], RetryBudget | TokenQuota | GrpcThrottle]) -> None:
    async def main() -> None:
        cancelled, idle = make(), make()
        with trio.move_on_after(1):
            await Retry(on=OSError, budget=cancelled).call(Service("fine", seconds=5))
        idle.begin()
        assert cancelled.statistics() == idle.statistics()

    run_virtual(main)


def test_repr() -> None:
    outside = RetryBudget(0.1)
    assert repr(outside) == "RetryBudget(0.1, minimum_per_second=10, window=10)"

    async def main() -> None:
        outside.withdraw(None)
        assert repr(outside) == "RetryBudget(0.1, minimum_per_second=10, window=10, retries=99)"

    run_virtual(main)
    quota = TokenQuota(7.5, refund=0.25)
    quota.withdraw(None)
    assert repr(quota) == "TokenQuota(7.5, cost=5, timeout_cost=10, throttling_cost=5, level=2.5)"
    throttle = GrpcThrottle()
    throttle.failed(None)
    assert repr(throttle) == "GrpcThrottle(10, 0.1, level=9)"


async def asynchronous(error: Exception) -> bool:
    return True


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (RetryBudget, {"ratio": -0.1}, ValueError, "ratio must be >= 0 and finite, got -0.1"),
        (RetryBudget, {"ratio": math.inf}, ValueError, "ratio must be >= 0 and finite, got inf"),
        (RetryBudget, {"ratio": math.nan}, ValueError, "ratio must be >= 0 and finite, got nan"),
        (RetryBudget, {"ratio": True}, TypeError, "ratio must be a number, got True"),
        (RetryBudget, {"minimum_per_second": -1}, ValueError, "minimum_per_second must be >= 0 and finite, got -1"),
        (RetryBudget, {"window": 0}, ValueError, "window must be > 0 and finite, got 0"),
        (RetryBudget, {"window": math.inf}, ValueError, "window must be > 0 and finite, got inf"),
        (TokenQuota, {"capacity": -1}, ValueError, "capacity must be >= 0 and finite, got -1"),
        (TokenQuota, {"cost": 0}, ValueError, "cost must be > 0 and finite, got 0"),
        (TokenQuota, {"cost": 0.0001}, ValueError, "cost must be 0 or >= 0.001, got 0.0001"),
        (TokenQuota, {"timeout_cost": math.inf}, ValueError, "timeout_cost must be > 0 and finite, got inf"),
        (TokenQuota, {"throttling_cost": "5"}, TypeError, "throttling_cost must be a number, got '5'"),
        (TokenQuota, {"refund": -1}, ValueError, "refund must be >= 0 and finite, got -1"),
        (
            TokenQuota,
            {"throttled": 503},
            TypeError,
            "throttled must be an Exception type, a tuple of them or a predicate, got 503",
        ),
        (
            TokenQuota,
            {"timeouts": asynchronous},
            TypeError,
            f"timeouts must be a plain function, got the async function {asynchronous!r}",
        ),
        (GrpcThrottle, {"max_tokens": 0}, ValueError, "max_tokens must be > 0 and finite, got 0"),
        (GrpcThrottle, {"token_ratio": 0.0001}, ValueError, "token_ratio must be 0 or >= 0.001, got 0.0001"),
        (GrpcThrottle, {"token_ratio": math.nan}, ValueError, "token_ratio must be > 0 and finite, got nan"),
    ],
)
def test_bad_arguments(make: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make(**options)
    assert str(caught.value) == message
