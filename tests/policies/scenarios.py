"""The async operations of the policies, each in a scenario that may be cancelled anywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import trio

from tests.policies.contract import Dependency, assert_whole
from tests.policies.subjects import SUBJECTS
from tests.queue.scenarios import scenario
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.testing import CancelAt
from trio_orchestrator.transport import HttpxTransport


def _called_and_wrapped(make: type[Policy]) -> None:
    name = make.__name__
    subject = next(subject for subject in SUBJECTS if type(subject.make()) is make)

    async def run(injector: CancelAt) -> None:
        policy, dependency = subject.make(), Dependency(seconds=0.5)
        call: Callable[..., Awaitable[object]] = policy.call
        with injector.watch():
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call, dependency)
                await policy.wrap(dependency.__call__)("value")
        assert dependency.entered == dependency.left
        await assert_whole(policy)

    run.__name__ = f"a_call_through_{name}"
    scenario(f"{name}.call", f"{name}.wrap")(run)


for kind in {type(subject.make()) for subject in SUBJECTS}:
    if kind.__name__ not in ("Retry", "Timeout"):  # they have their own
        _called_and_wrapped(kind)


@scenario("RateLimiter.acquire")
async def starts_at_a_rate(injector: CancelAt) -> None:
    limiter = RateLimiter(2, burst=1)
    with injector.watch():
        async with trio.open_nursery() as nursery:
            for cost in (1, 0.5, 1):
                nursery.start_soon(limiter.acquire, cost)
            await limiter.acquire()
    statistics = limiter.statistics()
    assert statistics.waiting == 0
    await trio.sleep(10)
    assert limiter.is_idle
    limiter.acquire_nowait()


@scenario("SlidingWindow.acquire")
async def starts_in_a_window(injector: CancelAt) -> None:
    limiter = SlidingWindow(2, per=1)
    with injector.watch():
        async with trio.open_nursery() as nursery:
            for cost in (1, 2, 1):
                nursery.start_soon(limiter.acquire, cost)
            await limiter.acquire()
    assert limiter.statistics().waiting == 0
    await trio.sleep(10)
    assert limiter.is_idle
    limiter.acquire_nowait(2)


@scenario("RateLimits.acquire")
async def starts_of_two_limits(injector: CancelAt) -> None:
    slow, fast = SlidingWindow(1, per=2), RateLimiter(3)
    both = RateLimits(slow, fast)
    with injector.watch():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both.acquire)
            nursery.start_soon(fast.acquire)
            await both.acquire()
    await trio.sleep(10)
    assert slow.is_idle
    assert fast.is_idle
    both.acquire_nowait()


@scenario("Bulkhead.slot", "AsyncPlace.async with")
async def slots_of_a_bulkhead(injector: CancelAt) -> None:
    bulkhead, inside = Bulkhead(1), []

    async def visit() -> None:
        async with bulkhead.slot():
            inside.append(True)
            assert len(inside) == 1
            try:
                await trio.sleep(1)
            finally:
                inside.pop()

    with injector.watch():
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(visit)
            await visit()
    assert bulkhead.is_idle
    with bulkhead.slot_nowait():
        assert bulkhead.tokens.borrowed_tokens == 1
    assert bulkhead.is_idle


@scenario("AdaptiveLimiter.slot", "Slot.async with")
async def slots_of_an_adaptive_limiter(injector: CancelAt) -> None:
    limiter = AdaptiveLimiter(limit=AIMD(initial=2))

    async def visit() -> None:
        async with limiter.slot() as slot:
            await trio.sleep(1)
            slot.drop()

    with injector.watch():
        async with trio.open_nursery() as nursery:
            for _ in range(5):  # more than the initial limit
                nursery.start_soon(visit)
    assert limiter.statistics().in_flight == limiter.statistics().waiting == 0
    with limiter.slot_nowait():
        pass


@scenario("CircuitBreaker.wait_closed", "Changes.async for")
async def waiting_for_a_circuit(injector: CancelAt) -> None:
    breaker = CircuitBreaker(trip=Consecutive(1), cooldown=2)
    changes, seen = breaker.changes(), list[CircuitState]()

    async def watch() -> None:
        async for state in changes:
            seen.append(state)

    async def probe() -> None:
        retry = Retry(on=Exception, attempts=5, backoff=Constant(1))
        await retry.wrap(breaker.wrap(Dependency().__call__))()

    async with trio.open_nursery() as nursery:
        try:
            await breaker.call(Dependency(error=OSError()))
        except OSError:
            nursery.start_soon(probe)
        with injector.watch():
            async with trio.open_nursery() as inner:
                inner.start_soon(watch)
                await breaker.wait_closed()
                inner.cancel_scope.cancel()
    assert breaker.state is CircuitState.CLOSED
    rest = [CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED][len(seen) :]
    for state in rest:  # a cancelled iterator has lost nothing
        assert await anext(changes) is state


class _Scripted(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self.statuses, self.open = [503, 200], 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.sleep(0.5)
        self.open += 1
        return httpx.Response(self.statuses.pop(0), stream=_Stream(self), request=request)


class _Stream(httpx.AsyncByteStream):
    def __init__(self, transport: _Scripted) -> None:
        self._transport: Any = transport

    async def __aiter__(self) -> Any:
        await trio.sleep(0.25)
        yield b"body"

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.open -= 1
            self._transport = None


@scenario("HttpxTransport.handle_async_request", "HttpxTransport.async with", "HttpxTransport.aclose")
async def a_request(injector: CancelAt) -> None:
    inner = _Scripted()
    with injector.watch():
        transport = HttpxTransport(Retry(on=httpx.HTTPStatusError, backoff=Constant(1)), transport=inner)
        async with transport:
            response = await transport.handle_async_request(httpx.Request("GET", "http://service/"))
            try:
                assert response.status_code == 200
                assert await response.aread() == b"body"
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        await transport.aclose()
    assert inner.open == 0
