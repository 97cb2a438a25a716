"""Circuit breakers in a known state, what is called through them, and the two forms of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.policies.service import Service
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.breaker import CircuitBreaker

CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState


def once(watched: bool = False, **options: Any) -> CircuitBreaker:
    """Return a breaker that opens on the first failure; `watched` takes the longer way through it."""
    return CircuitBreaker(trip=Consecutive(1), classify=(lambda result: False) if watched else None, **options)


async def fine() -> str:
    return "fine"


async def down() -> None:
    raise OSError("down")


async def fail(breaker: CircuitBreaker, error: BaseException | None = None) -> None:
    with pytest.raises(OSError if error is None else type(error)):
        await breaker.call(Service(OSError("down") if error is None else error))


async def half_open(**options: Any) -> CircuitBreaker:
    """Return a breaker that opened on one failure, 30 s ago."""
    breaker = CircuitBreaker(**{"trip": Consecutive(1)} | options)
    await fail(breaker)
    await trio.sleep(30)
    assert breaker.state is HALF_OPEN
    return breaker


def refusal(breaker: CircuitBreaker) -> CircuitOpenError:
    with pytest.raises(CircuitOpenError) as caught:
        breaker.guard().__enter__()
    return caught.value


async def by_call(breaker: CircuitBreaker, fn: Callable[[], Awaitable[Any]]) -> Any:
    return await breaker.call(fn)


async def by_guard(breaker: CircuitBreaker, fn: Callable[[], Awaitable[Any]]) -> Any:
    with breaker.guard():
        return await fn()


both_forms = pytest.mark.parametrize("form", [by_call, by_guard], ids=lambda form: form.__name__)
