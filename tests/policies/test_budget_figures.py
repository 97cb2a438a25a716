"""The published figures of retry budgets, from real retries in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, Service
from tests.simulations import EXPECTED
from trio_orchestrator.abc import Budget
from trio_orchestrator.algorithms.backoff import FullJitter
from trio_orchestrator.event import RetryScheduled
from trio_orchestrator.policies.budget import GrpcThrottle, RetryBudget, TokenQuota
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.testing import run_virtual

AWS, FINAGLE, GRPC, LAYERS = (EXPECTED[name] for name in ("aws_quota", "finagle", "grpc", "layers"))


class One(Random):
    """Draws 1, the bound that a real one never reaches."""

    def random(self) -> float:
        return 1.0


async def call_all(retry: Retry, calls: int, fn: Callable[[], Awaitable[Any]]) -> int:
    """Make so many calls one after another; return how many succeeded."""
    good = 0
    for _ in range(calls):
        try:
            await retry.call(fn)
            good += 1
        except (OSError, trio.TooSlowError):
            pass
    return good


def attempts_of(budget: Budget | None, error: Exception, calls: int = AWS["all_fail_calls"]) -> int:
    """Return how many attempts so many calls make that all fail."""
    down = Service(error)
    retry = Retry(on=Exception, attempts=AWS["attempts"], backoff=AT_ONCE, budget=budget)
    assert run_virtual(call_all, retry, calls, down) == 0
    return len(down.starts)


# ------------------------------------------------------------------------------------------------------------------ AWS


def test_aws_sdk_rust_1234_a_thousand_calls_that_all_fail() -> None:
    made = {
        "standard": attempts_of(TokenQuota.standard(), OSError()),
        "timeouts": attempts_of(TokenQuota.standard(), trio.TooSlowError()),
        "2026": attempts_of(TokenQuota.aws_2026(), OSError()),
        "none": attempts_of(None, OSError()),
    }
    assert made == AWS["attempts_made"]
    assert attempts_of(TokenQuota.aws_2026(), trio.TooSlowError()) == made["2026"]  # a time-out is as transient


class Throttling(OSError):
    pass


def levels(quota: TokenQuota, *outcomes: object) -> tuple[list[float], list[float]]:
    """Return the level before each retry and at the end, and the pauses, in the mode of 2026 with random = 1."""
    seen: list[float] = [quota.statistics().level]
    pauses: list[float] = []

    def note(event: RetryScheduled) -> None:
        seen.append(quota.statistics().level)
        pauses.append(event.delay)

    backoff = FullJitter(base=0.05, cap=20)
    retry = Retry(on=OSError, attempts=4, backoff=backoff, budget=quota, rng=One(), on_retry=note)
    run_virtual(call_all, retry, 1, Service(*outcomes))
    return [*seen, quota.statistics().level], pauses


def test_the_quota_of_2026_step_by_step() -> None:
    went, pauses = levels(TokenQuota.aws_2026(), OSError())
    assert went == [*AWS["levels_2026"], 458]
    assert pauses == AWS["delays_2026_random_1"][:3]


def test_a_retried_success_fills_it_again() -> None:
    assert levels(TokenQuota.aws_2026(), OSError(), "fine") == ([500, 486, 500], [0.05])
    assert levels(TokenQuota.aws_2026(throttled=Throttling), Throttling(), "fine") == ([500, 495, 500], [0.05])
    assert levels(TokenQuota.standard(throttled=Throttling), Throttling(), "fine")[0] == [500, 495, 500]


@pytest.mark.parametrize(("base", "delays"), [(0.05, "delays_2026_random_1"), (1, "delays_standard_random_1")])
def test_the_pauses_of_the_sdks_are_our_full_jitter(base: float, delays: str) -> None:
    """`rand * min(base * 2**(n - 1), 20)`: the cap before the jitter, in both modes."""
    backoff = FullJitter(base=base, cap=20)
    assert backoff.preview(len(AWS[delays]), One()) == pytest.approx(AWS[delays], rel=1e-12)


# -------------------------------------------------------------------------------------------------------------- Finagle


def test_finagles_reserve() -> None:
    for calls in (10, 1000):  # Finagle: ten retries a second for ten seconds, and a fifth of the calls
        budget = RetryBudget(minimum_per_second=10)
        most = min(2 * calls, FINAGLE["reserve_retries"] + calls // FINAGLE["requests_per_retry"])
        assert attempts_of(budget, OSError(), calls) == calls + most


def test_finagles_ratio_without_a_reserve() -> None:
    assert attempts_of(RetryBudget(FINAGLE["ratio"], minimum_per_second=0), OSError()) == 1200
    assert attempts_of(RetryBudget(0.6, minimum_per_second=0), OSError()) == 1600
    assert attempts_of(RetryBudget(2.0, minimum_per_second=0), OSError()) == 3000


def test_the_reserve_comes_back_ten_seconds_later() -> None:
    budget, down = RetryBudget(), Service(OSError())
    retry = Retry(on=OSError, attempts=2, backoff=AT_ONCE, budget=budget)

    async def main() -> None:
        for second in range(2 * FINAGLE["expires_after"]):
            await call_all(retry, 50, down)
            await trio.sleep(1)
            made.append(len(down.starts) - 50 * (second + 1))

    made: list[int] = []
    run_virtual(main)
    assert made[:5] == [50, 100, 130, 140, 150]  # the reserve, with a fifth of the calls, and then the fifth alone
    assert made[9] == 200
    assert made[10:13] == [250, 300, 330]


# ----------------------------------------------------------------------------------------------------------------- gRPC


def test_the_trace_of_grpc() -> None:
    throttle = GrpcThrottle()
    for tokens in GRPC["trace_failures"]:
        throttle.failed(None)
        assert throttle.statistics().level == tokens
        assert throttle.withdraw(None) is (tokens > GRPC["stops_at"])
    for success in range(1, GRPC["trace_successes"] + 1):
        assert not throttle.withdraw(None)
        throttle.deposit(1)
        assert throttle.statistics().level == pytest.approx(4 + success / 10, abs=0)
    assert throttle.statistics().level == GRPC["trace_recovers_at"]
    assert throttle.withdraw(None)


@pytest.mark.parametrize(("successes", "drift"), [(9, -0.1), (10, 0), (11, 0.1)])
def test_one_failure_in_eleven_can_be_sustained(successes: int, drift: float) -> None:
    assert pytest.approx(1 / 11, abs=5e-5) == GRPC["sustainable_failure_share"]
    throttle = GrpcThrottle(1000)
    for _ in range(500):
        throttle.failed(None)
    for _ in range(100):
        throttle.failed(None)
        for _ in range(successes):
            throttle.deposit(1)
    assert throttle.statistics().level == 500 + 100 * drift


@pytest.mark.parametrize("share", GRPC["attempts_per_call"])
def test_attempts_per_call_under_the_throttle_of_grpc(share: str) -> None:
    rng, made, calls = Random(3), 0, GRPC["tolerance"]["calls"]

    async def flaky() -> None:
        nonlocal made
        made += 1
        if rng.random() < float(share):
            raise OSError

    retry = Retry(on=OSError, attempts=5, backoff=AT_ONCE, budget=GrpcThrottle())
    good = run_virtual(call_all, retry, calls, flaky)
    attempts, success = GRPC["attempts_per_call"][share]
    assert made / calls == pytest.approx(attempts, abs=GRPC["tolerance"]["attempts"])
    assert good / calls == pytest.approx(success, abs=GRPC["tolerance"]["success"])


# --------------------------------------------------------------------------------------------------------------- layers


def in_layers(calls: int, *layers: Retry) -> int:
    """Return how many attempts so many calls make through some retries, one inside the other."""
    down = Service(OSError())
    fn: Callable[[], Awaitable[Any]] = down
    for retry in layers:
        fn = retry.wrap(fn)
    run_virtual(call_all, Retry(on=OSError, attempts=1), calls, fn)
    return len(down.starts)


@pytest.mark.parametrize(("attempts", "calls"), LAYERS["attempts_calls"])
def test_three_layers_multiply_unless_the_mark_of_the_inner_one_is_heeded(attempts: int, calls: int) -> None:
    deaf = [Retry(on=OSError, attempts=attempts, backoff=AT_ONCE, retry_exhausted=True) for _ in range(3)]
    assert in_layers(1, *deaf) == calls
    heeding = [Retry(on=OSError, attempts=attempts, backoff=AT_ONCE) for _ in range(3)]
    assert in_layers(1, *heeding) == attempts


def test_three_layers_with_a_budget_of_ten_percent_each() -> None:
    layers = [
        Retry(
            on=OSError,
            attempts=4,
            backoff=AT_ONCE,
            retry_exhausted=True,
            budget=RetryBudget(LAYERS["budget_ratio"], minimum_per_second=0),
        )
        for _ in range(3)
    ]
    assert in_layers(1000, *layers) == round(1000 * LAYERS["with_budgets"])
