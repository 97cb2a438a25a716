"""What a call leaves behind: nothing, so that nothing waits for the garbage collector, and no error is kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, Final

import pytest
import trio

from tests.policies.contract import Subject
from tests.policies.subjects import SUBJECTS
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.spend import SpendGuard
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

ROUNDS: Final = 5
STRICT: Final = (
    Subject("a circuit that opens", lambda: CircuitBreaker(trip=Consecutive(1))),
    Subject("a full bulkhead", lambda: Bulkhead(1, max_waiting=0)),
    Subject("an impatient bulkhead", lambda: Bulkhead(1, max_wait=0.25)),
    Subject("a rate that refuses", lambda: RateLimiter(1, 100, max_wait=0)),
    Subject("rates that refuse", lambda: RateLimits(RateLimiter(1), SlidingWindow(2, 100, max_waiting=1))),
    Subject("a throttle that refuses", lambda: SreThrottle(minimum=1)),
    Subject("an allowance that is spent", lambda: SpendGuard(Decimal(1), Decimal(2), wall=trio.current_time)),
    Subject("a retry", lambda: Retry(on=Exception, backoff=Constant(1))),
    Subject("a retry of results", lambda: Retry(on=Exception, backoff=Constant(1), on_result=lambda fine: not fine)),
    Subject("a retry in a hurry", lambda: Retry(on=Exception, backoff=Constant(1), attempt_timeout=1, timeout=3)),
    Subject("a retry that asks", lambda: Retry(on=Exception, backoff=Constant(1), budget=RetryBudget())),
    Subject("copies", lambda: Hedge(after=0, copies=2)),
    Subject("a substitute", lambda: Fallback(value=None)),
    Subject("a stack", lambda: Stack(Timeout(5), Retry(on=Exception, attempts=2, backoff=Constant(0)), Bulkhead(1))),
)
subjects = pytest.mark.parametrize("subject", [*SUBJECTS, *STRICT], ids=str)


class Boom(Exception):
    """The service's own error."""


class Service:
    """Fails so often, then takes some time and returns. Remembers its errors weakly."""

    def __init__(self, failures: float = 0, seconds: float = 0) -> None:
        self.failures = failures
        self.seconds = seconds
        self.errors = weakref.WeakSet[Exception]()

    async def __call__(self) -> bool:
        await trio.lowlevel.checkpoint()
        self.failures -= 1
        if self.failures >= 0:
            error = Boom()
            self.errors.add(error)
            try:
                raise error
            finally:
                del error
        await trio.sleep(self.seconds)
        return True


# ------------------------------------------------------------------------------------------------ ways to use one


async def _works(policy: Policy, service: Service) -> None:
    await policy.call(service)


async def _fails(policy: Policy, service: Service) -> None:
    service.failures = 100
    await policy.call(service)


async def _fails_once(policy: Policy, service: Service) -> None:
    service.failures = 1
    await policy.call(service)


async def _is_cancelled(policy: Policy, service: Service) -> None:
    service.seconds = 10
    await _cancelled_after(0.25, policy.call, service)


async def _is_cancelled_in_a_pause(policy: Policy, service: Service) -> None:
    service.failures = 1
    await _cancelled_after(0.5, policy.call, service)


async def _is_cancelled_after_a_failure(policy: Policy, service: Service) -> None:
    service.failures, service.seconds = 1, 10
    await _cancelled_after(1.5, policy.call, service)


async def _times_out(policy: Policy, service: Service) -> None:
    service.failures, service.seconds = 1, 10
    await Timeout(1.5).call(policy.call, service)


async def _one_of_many(policy: Policy, service: Service) -> None:
    async def call() -> None:
        with suppress(Exception):
            await policy.call(service)

    service.failures, service.seconds = 2, 0.5
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call)


async def _in_blocks(policy: Policy, service: Service) -> None:
    """A guard, a slot or the loop, and what waits or refuses without a block."""
    anything: Any = policy
    service.failures = 1
    if hasattr(policy, "guard"):
        with anything.guard():
            await service()
    if hasattr(policy, "slot"):
        async with anything.slot():
            await service()
    if isinstance(policy, Retry):
        async for attempt in policy:
            with attempt:
                await service()
    if hasattr(policy, "acquire"):
        await _cancelled_after(0.25, anything.acquire)
        anything.acquire_nowait()
        await anything.acquire()


async def _cancelled_after(seconds: float, fn: Callable[..., Awaitable[object]], *args: object) -> None:
    """Cancel without a deadline, which a policy would see coming."""

    async def cancel() -> None:
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with suppress(Exception):
            await fn(*args)
        nursery.cancel_scope.cancel()


WAYS: Final = (
    _works,
    _fails,
    _fails_once,
    _is_cancelled,
    _is_cancelled_in_a_pause,
    _is_cancelled_after_a_failure,
    _times_out,
    _one_of_many,
    _in_blocks,
)


@contextmanager
def collector_off() -> Generator[None, None, None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _circuits(policy: Policy) -> int:
    """Each keeps the failure that opened it, for the errors of its refusals."""
    members = policy.policies if isinstance(policy, Stack) else (policy,)
    return sum(isinstance(member, CircuitBreaker) for member in members)


@subjects
def test_nothing_is_left_to_the_garbage_collector(subject: Subject) -> None:
    async def main() -> None:
        for way in WAYS:
            policy, services = subject.make(), [Service() for _ in range(ROUNDS)]
            with suppress(Exception):
                await way(policy, Service())  # whatever is made but once
            with collector_off():
                for service in services:
                    with suppress(Exception):
                        await way(policy, service)
                kept = sum(len(service.errors) for service in services)
                assert gc.collect() == 0, way.__name__
            assert kept <= _circuits(policy), way.__name__

    run_virtual(main)
