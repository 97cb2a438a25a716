"""Stacks: the order, the shared budget, what `explain` says, and that a stack is itself a policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio

from tests.policies.service import AT_ONCE, Ear, Purse, Service
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget, TokenQuota
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.rate import RateLimiter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Down(OSError):
    pass


class Layer(Policy):
    """Notes when a call comes in and goes out."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        self.log.append(f"{self.name} in")
        result = await fn(*args)
        self.log.append(f"{self.name} out")
        return result


def retry(**options: Any) -> Retry:
    return Retry(on=OSError, backoff=AT_ONCE, **options)


def test_the_first_is_outermost_and_nested_stacks_are_their_members() -> None:
    log: list[str] = []
    a, b, c, d = (Layer(name, log) for name in "abcd")

    async def main() -> None:
        stack = Stack(a, Stack(b, Stack(c)), Stack(), d)
        assert stack.policies == (a, b, c, d)
        assert await stack.call(Service("answer")) == "answer"

    run_virtual(main)
    assert log == ["a in", "b in", "c in", "d in", "d out", "c out", "b out", "a out"]


def test_a_stack_is_a_policy_with_arguments_and_a_decorator() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    async def main() -> None:
        stack = Stack(retry(), CircuitBreaker(), Timeout(3))
        assert await stack.call(add, 2, 3) == 5
        assert await stack.wrap(add)(2, b=3) == 5
        assert await Stack().call(add, 2, 3) == 5
        assert stack.wrap(add).__name__ == "add"

    run_virtual(main)


@pytest.mark.parametrize(("order", "calls"), [("retry breaker", 5), ("breaker retry", 20), ("retry", 40)])
def test_what_the_order_does_to_the_number_of_calls(order: str, calls: int) -> None:
    async def main() -> None:
        parts = {"retry": retry(attempts=4), "breaker": CircuitBreaker(trip=Consecutive(5), cooldown=1000)}
        stack, service = Stack(*(parts[name] for name in order.split())), Service(Down())
        for _ in range(10):
            with pytest.raises((Down, CircuitOpenError)):
                await stack.call(service)
        assert len(service.starts) == calls

    run_virtual(main)


# ------------------------------------------------------------------------------------------------- the budget


def test_a_budget_is_asked_by_the_retry_beside_it() -> None:
    async def main() -> None:
        purse, mine = Purse(2), retry(attempts=9)
        stack, service = Stack(mine, purse, CircuitBreaker(trip=Consecutive(99))), Service(Down())
        with pytest.raises(Down):
            await stack.call(service)
        assert len(service.starts) == 3
        assert mine.budget is None  # it may be used elsewhere, without
        assert stack.policies[:2] == (mine, purse)

    run_virtual(main)


def test_a_retry_keeps_a_budget_of_its_own() -> None:
    own, other = Purse(1), Purse(9)

    async def main() -> None:
        stack, service = Stack(retry(attempts=9, budget=own), Hedge(after=99), other), Service(Down())
        with pytest.raises(Down):
            await stack.call(service)
        assert len(service.starts) == 2

    run_virtual(main)
    assert len(other.asked) == 0


def test_a_call_is_counted_once_though_two_layers_ask() -> None:
    async def main() -> None:
        budget = RetryBudget(ratio=1, minimum_per_second=0)
        stack = Stack(retry(attempts=9), budget, Hedge(after=1))
        assert await stack.call(Service(Down(), "answer", seconds=0.25)) == "answer"
        statistics = budget.statistics()
        assert (statistics.calls, statistics.granted) == (1, 1)

    run_virtual(main)


def test_what_a_second_layer_repeated_is_paid_back_too() -> None:
    async def main() -> None:
        quota = TokenQuota(100, cost=5)
        assert await Stack(retry(attempts=2), quota, retry(attempts=2)).call(Service(Down(), "answer")) == "answer"
        statistics = quota.statistics()
        assert (statistics.granted, statistics.taken, statistics.level) == (1, 5, 100)

    run_virtual(main)


def test_a_hedge_alone_counts_calls() -> None:
    async def main() -> None:
        budget = RetryBudget()
        assert await Stack(Hedge(after=1), budget).call(Service("answer", seconds=2)) == "answer"
        statistics = budget.statistics()
        assert (statistics.calls, statistics.granted) == (1, 1)

    run_virtual(main)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Stack(3), TypeError, "^parts must be policies or budgets, got 3$"),  # type: ignore[arg-type]
        (lambda: Stack(Timeout), TypeError, "^parts must be policies or budgets, got <class"),  # type: ignore[arg-type]
        (lambda: Stack(RetryBudget()), ValueError, "^parts must hold a Retry or a Hedge without a budget"),
        (lambda: Stack(retry(budget=Purse(1)), Purse(1)), ValueError, "^parts must hold a Retry or a Hedge without"),
        (lambda: Stack(retry(), Purse(1), Purse(2)), ValueError, "^parts must not hold more than one budget"),
    ],
)
def test_bad_parts_are_named(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# ------------------------------------------------------------------------------------------- names and misfits


def test_events_name_the_function_not_the_policy_in_between() -> None:
    ear = Ear()

    async def push() -> None:
        raise Down

    async def main() -> None:
        for attempt_timeout in (1.0, float("inf")):
            mine = retry(attempts=2, attempt_timeout=attempt_timeout, instruments=[ear])
            with pytest.raises(Down):
                await Stack(mine, CircuitBreaker(), Timeout(3)).call(push)

    run_virtual(main)
    names = {event.name for event in ear.heard}
    assert names == {push.__qualname__}


@pytest.mark.parametrize("attempt_timeout", [1.0, float("inf")])
def test_a_call_with_wrong_arguments_is_not_repeated_through_a_stack(attempt_timeout: float) -> None:
    async def needs_two(a: int, b: int) -> int:
        return a + b

    async def raises_inside() -> None:
        starts.append(trio.current_time())
        raise TypeError("of its own")

    starts: list[float] = []

    async def main() -> None:
        breaker = CircuitBreaker()
        mine = Retry(on=Exception, attempts=3, backoff=AT_ONCE, attempt_timeout=attempt_timeout)
        stack: Any = Stack(mine, breaker, Timeout(3))
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            await stack.call(needs_two, 1)
        assert breaker.statistics().admitted == 1
        with pytest.raises(TypeError, match="of its own"):
            await stack.call(raises_inside)
        assert len(starts) == 3  # that one is the function's own

    run_virtual(main)


# ----------------------------------------------------------------------------------------------------- explain


def test_explain_tells_order_and_parameters() -> None:
    stack = Stack(retry(attempts=3), RetryBudget(), CircuitBreaker(trip=Consecutive(5), name="db"), Timeout(2))
    first, second, third, fourth = stack.explain().splitlines()
    assert first.startswith("1. Retry(on=OSError, attempts=3, backoff=Constant(delay=0.0)")
    assert second.startswith("2. RetryBudget(0.2")
    assert third.startswith("3. CircuitBreaker(trip=Consecutive(5), cooldown=30.0, probes=1")
    assert "name='db'" in third
    assert fourth == "4. Timeout(seconds=2.0)"
    assert stack.warnings == ()
    assert Stack().explain() == "(nothing)"


BAD: list[tuple[Callable[[], tuple[Policy, ...]], str]] = [
    (lambda: (Bulkhead(1), retry()), "Bulkhead outside Retry: a slot is held"),
    (lambda: (AdaptiveLimiter(), retry()), "AdaptiveLimiter outside Retry: pauses between attempts"),
    (lambda: (RateLimiter(1), retry()), "RateLimiter outside Retry: only the first attempt"),
    (lambda: (CircuitBreaker(), retry()), "CircuitBreaker outside Retry: many failed attempts"),
    (lambda: (SreThrottle(), retry()), "SreThrottle outside Retry: many failed attempts"),
    (lambda: (CallMeter(), retry()), "CallMeter outside Retry: attempts are not seen"),
    (lambda: (AdaptiveLimiter(), RateLimiter(1)), "AdaptiveLimiter outside RateLimiter: the wait inside"),
    (lambda: (Timeout(1), Bulkhead(1)), "Timeout outside Bulkhead: the time limit also covers"),
    (lambda: (Bulkhead(1), Hedge(after=1)), "Bulkhead outside Hedge: the copies share one slot"),
    (lambda: (RateLimiter(1), Hedge(after=1)), "RateLimiter outside Hedge: copies are not counted"),
    (lambda: (Hedge(after=1), retry()), "Hedge outside Retry: every copy is retried"),
    (lambda: (CircuitBreaker(), Fallback(value=1)), "CircuitBreaker outside Fallback: failures are replaced"),
    (lambda: (retry(attempts=3), retry(attempts=4)), "Retry outside Retry: a call is made up to 12 times"),
    (lambda: (Timeout(2), retry(attempt_timeout=2)), "Timeout outside Retry: 2 s leave no time"),
    (lambda: (Retry(on=Exception), CircuitBreaker()), "Retry outside CircuitBreaker: calls wait for an open circuit"),
]


@pytest.mark.parametrize(("make", "text"), BAD, ids=[text.partition(":")[0] for _, text in BAD])
def test_a_bad_order_is_warned_of_and_the_other_way_round_is_not(
    make: Callable[[], tuple[Policy, ...]], text: str
) -> None:
    parts = make()
    assert any(warning.startswith(text) for warning in Stack(*parts).warnings), Stack(*parts).warnings
    assert any(line.startswith(f"warning: {text}") for line in Stack(*parts).explain().splitlines())
    turned = Stack(*reversed(parts)).warnings
    assert type(parts[0]) is type(parts[1]) or not any(text.partition(":")[0] in warning for warning in turned)


@pytest.mark.parametrize("ready", [Stack.http, Stack.aws, Stack.redis], ids=lambda ready: ready.__name__)
def test_the_ready_made_ones_are_sound_and_fresh_each_time(ready: Callable[[], Stack]) -> None:
    one, other = ready(), ready()
    assert one.warnings == ()
    assert isinstance(one.policies[0], Retry)
    assert not {id(part) for part in one.policies} & {id(part) for part in other.policies}
    assert "attempts=2" in ready(attempts=2).explain()  # type: ignore[call-arg]
