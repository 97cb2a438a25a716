"""Queues with policies under drawn schedules and cancellation: nothing is lost, doubled, or left behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from decimal import Decimal

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.queue.timeline import Flop, pauses
from trio_orchestrator import (
    AIMD,
    AdaptiveLimiter,
    Bulkhead,
    CallMeter,
    CircuitBreaker,
    Consecutive,
    Failures,
    Gradient2,
    JobHandle,
    JobState,
    RateLimiter,
    Retry,
    RetryBudget,
    SlidingWindow,
    SpendGuard,
    SreThrottle,
    Stack,
    TaskQueue,
    Timeout,
    open_task_queue,
)
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.DROPPED)


def check_counts(*queues: TaskQueue) -> None:
    """Whatever was submitted has ended, once."""
    for queue in queues:
        now = queue.statistics()
        assert (now.waiting, now.running, now.retry_scheduled) == (0, 0, 0)
        assert now.submitted == now.succeeded + now.failed + now.cancelled + now.dropped


def check_left(*policies: Policy) -> None:
    """No permit, slot or place in line is held."""
    for policy in policies:
        match policy:
            case CircuitBreaker():
                seen = policy.statistics()
                assert seen.in_flight == seen.probes == 0
                assert seen.admitted == seen.successes + seen.failures + seen.neutral + seen.late
            case SreThrottle():
                assert policy.statistics().in_flight == 0
            case AdaptiveLimiter() | Bulkhead():
                assert policy.is_idle
            case RateLimiter() | SlidingWindow():
                assert policy.statistics().waiting == 0
            case _:
                pass


# ------------------------------------------------------------------------------------------------- cancellation


@dataclass
class Bodies:
    """Bodies that fail now and then, and know how often they were called and have left."""

    calls: Counter[int] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)

    async def body(self, number: int) -> int:
        self.calls[number] += 1
        try:
            await trio.sleep(0.5)
            if self.calls[number] <= number % 3:
                raise Flop
        finally:
            self.ended[number] += 1
        return number


PARTS: dict[str, Callable[[], tuple[Policy, ...]]] = {
    "breaker, rate": lambda: (CircuitBreaker(trip=Consecutive(2), cooldown=1), RateLimiter(4, per=1)),
    "breaker, refusing rate": lambda: (
        CircuitBreaker(trip=Consecutive(2), cooldown=1),
        RateLimiter(4, per=1, max_wait=0),
    ),
    "breaker, adaptive": lambda: (
        CircuitBreaker(trip=Consecutive(2), cooldown=1),
        AdaptiveLimiter(limit=AIMD(initial=1)),
    ),
    "breaker, bulkhead": lambda: (CircuitBreaker(trip=Consecutive(2), cooldown=1), Bulkhead(1, max_waiting=1)),
}


@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive slots", "fixed slots"])
@pytest.mark.parametrize("parts", PARTS)
def test_a_queue_inside_a_stack_gives_everything_back_wherever_it_is_cancelled(parts: str, adaptive: bool) -> None:
    async def scenario(injector: CancelAt) -> None:
        policies, bodies = PARTS[parts](), Bodies()
        limiter = AdaptiveLimiter(limit=AIMD(initial=2)) if adaptive else trio.CapacityLimiter(2)
        handles: list[JobHandle[int]] = []
        queues: list[TaskQueue] = []
        with injector.watch():
            retry = pauses(0.25, attempts=4)
            async with open_task_queue(
                limiter=limiter, protect=Stack(*policies), retry=retry, failures=Failures.RECORD
            ) as queue:
                queues.append(queue)
                handles += [queue.submit_nowait(bodies.body, number) for number in range(4)]
                assert await queue.run(bodies.body, 0) == 0
                handles.append(await queue.submit(bodies.body, 9, attempt_timeout=0.25))
        assert bodies.calls == bodies.ended
        assert all(handle.state in ENDED for handle in handles)
        if not injector.fired:
            assert [handle.state for handle in handles[:4]] == [JobState.SUCCEEDED] * 4
            assert [handle.attempts for handle in handles] == [1, 2, 3, 1, 4]
        check_counts(*queues)
        check_left(*policies)
        tokens = limiter.tokens if isinstance(limiter, AdaptiveLimiter) else limiter
        assert tokens.borrowed_tokens == 0
        assert tokens.statistics().tasks_waiting == 0

    assert cancelled_everywhere(scenario, seeds=range(2), want=lambda task: True) > 2 * 30  # of the workers too


# ----------------------------------------------------------------------------------------------- drawn schedules


@dataclass(frozen=True)
class Plan:
    """What a job does, and what is done to it."""

    seconds: float
    failures: int
    delay: float
    priority: int
    timeout: float
    attempt_timeout: float
    cancel_after: float

    @property
    def alone(self) -> bool:
        """Whether nothing ends it from outside: it says itself how it ends."""
        return math.inf == self.timeout == self.attempt_timeout == self.cancel_after


SECONDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])
OFTEN_NEVER = st.one_of(st.just(math.inf), st.just(math.inf), st.sampled_from([0.25, 1.0, 2.5, 8.0]))
PLANS = st.builds(
    Plan,
    seconds=SECONDS,
    failures=st.sampled_from([0, 0, 1, 2, 9]),
    delay=st.sampled_from([0.0, 0.0, 1.0, 4.0]),
    priority=st.integers(0, 2),
    timeout=OFTEN_NEVER,
    attempt_timeout=OFTEN_NEVER,
    cancel_after=OFTEN_NEVER,
)
POLICIES: dict[str, Callable[[], Policy]] = {
    "breaker": lambda: CircuitBreaker(trip=Consecutive(2), cooldown=2),
    "ramping breaker": lambda: CircuitBreaker(trip=Consecutive(3), cooldown=1, probes=2, close_after=2, ramp=3),
    "rate": lambda: RateLimiter(2, per=1, burst=2),
    "refusing rate": lambda: RateLimiter(2, per=1, max_wait=0),
    "window": lambda: SlidingWindow(3, per=2, max_wait=0.5),
    "bulkhead": lambda: Bulkhead(2, max_waiting=1),
    "hasty bulkhead": lambda: Bulkhead(2, max_wait=0.5),
    "adaptive": lambda: AdaptiveLimiter(limit=AIMD(initial=2, maximum=4), max_waiting=1),
    "throttle": lambda: SreThrottle(2, 10, minimum=3),
    "spend": lambda: SpendGuard(Decimal(1), Decimal(9), per="hour", wall=trio.current_time),
    "meter": lambda: CallMeter(),
    "time-out": lambda: Timeout(2),
}
WAITING = frozenset(("rate", "window", "bulkhead", "hasty bulkhead", "adaptive"))
SLOTS: dict[str, Callable[[], AdaptiveLimiter | trio.CapacityLimiter]] = {
    "fixed": lambda: trio.CapacityLimiter(3),
    "aimd": lambda: AdaptiveLimiter(limit=AIMD(initial=2, maximum=5, shrink=0.5)),
    "gradient2": lambda: AdaptiveLimiter(limit=Gradient2(initial=3, minimum=1, queue=1)),
}


class World:
    """Two queues on the same slots and policies, and what their bodies saw."""

    def __init__(self, names: list[str], slots: str, *, budget: bool) -> None:
        self.policies = [POLICIES[name]() for name in names]
        self.slots = SLOTS[slots]()
        self.hasty = "time-out" in names  # an attempt may end before its body begins, or in its first step
        self.waits = not WAITING.isdisjoint(names)
        self.retry = Retry(
            on=(Flop, trio.TooSlowError),
            attempts=4,
            backoff=Constant(0.5),
            budget=RetryBudget(0.5, minimum_per_second=0) if budget else None,
        )
        self.running = 0
        self.calls: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.handles: list[JobHandle[int]] = []

    async def body(self, number: int, plan: Plan) -> int:
        self.calls[number] += 1
        self.running += 1
        limit = self.slots.limit if isinstance(self.slots, AdaptiveLimiter) else self.slots.total_tokens
        assert self.waits or self.running <= limit
        try:
            await trio.sleep(plan.seconds)
            if self.calls[number] <= plan.failures:
                raise Flop
            self.done[number] += 1
            return number
        finally:
            self.running -= 1

    def open(self) -> AbstractAsyncContextManager[TaskQueue]:
        return open_task_queue(
            limiter=self.slots, protect=Stack(*self.policies), retry=self.retry, failures=Failures.RECORD, max_waiting=6
        )

    async def run(self, plans: list[Plan]) -> None:
        async with self.open() as one, self.open() as other, trio.open_nursery() as nursery:
            for number, plan in enumerate(plans):
                queue = (one, other)[number % 2]
                handle = await queue.submit(
                    self.body,
                    number,
                    plan,
                    delay=plan.delay,
                    priority=plan.priority,
                    timeout=plan.timeout,
                    attempt_timeout=plan.attempt_timeout,
                )
                self.handles.append(handle)
                if plan.cancel_after < math.inf:
                    nursery.start_soon(cancel_later, handle, plan.cancel_after)
                self.check_sum(one, other)
        self.check(plans, one, other)

    def check_sum(self, *queues: TaskQueue) -> None:
        for queue in queues:
            now = queue.statistics()
            under_way = now.waiting + now.running + now.retry_scheduled
            assert now.submitted == under_way + now.succeeded + now.failed + now.cancelled + now.dropped

    def check(self, plans: list[Plan], *queues: TaskQueue) -> None:
        check_counts(*queues)
        check_left(*self.policies)
        tokens = self.slots.tokens if isinstance(self.slots, AdaptiveLimiter) else self.slots
        assert (tokens.borrowed_tokens, self.running) == (0, 0)
        for number, (handle, plan) in enumerate(zip(self.handles, plans, strict=True)):
            assert self.done[number] == (handle.state is JobState.SUCCEEDED)
            assert self.calls[number] <= handle.attempts <= 4
            assert self.calls[number] == handle.attempts or not plan.alone or self.hasty
            if handle.state is JobState.SUCCEEDED:
                assert handle.result_nowait() == number
                assert self.calls[number] == plan.failures + 1 or not plan.alone or self.hasty
        retries = sum(queue.statistics().retries for queue in queues)
        assert retries >= sum(max(0, handle.attempts - 1) for handle in self.handles)
        if isinstance(self.slots, AdaptiveLimiter):
            seen = self.slots.statistics()
            assert seen.ok + seen.dropped + seen.ignored == sum(self.calls.values())


async def cancel_later(handle: JobHandle[int], seconds: float) -> None:
    await trio.sleep(seconds)
    handle.cancel()


@given(
    plans=st.lists(PLANS, min_size=1, max_size=14),
    names=st.lists(st.sampled_from(sorted(POLICIES)), max_size=4, unique=True),
    slots=st.sampled_from(sorted(SLOTS)),
    budget=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_nothing_is_lost_and_nothing_doubled(
    plans: list[Plan], names: list[str], slots: str, budget: bool, seed: int
) -> None:
    async def main() -> None:
        await World(names, slots, budget=budget).run(plans)

    run_virtual(main, seed=seed)
