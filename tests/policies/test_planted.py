"""What no other test noticed when it was broken on purpose; see tests/mutants."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.policies.service import Service
from trio_orchestrator import open_task_queue
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.rate import RateLimiter


async def test_what_changes_behind_an_isolation_is_told_when_that_is_over(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Consecutive(1))
    with pytest.raises(OSError, match="down"):
        await breaker.call(Service(OSError("down")))
    changes = breaker.changes()
    with breaker.isolate():
        breaker.reset()
        with trio.move_on_after(1) as scope:
            await breaker.wait_closed()
        assert scope.cancelled_caught
    await breaker.wait_closed()
    assert [await anext(changes) for _ in range(2)] == [CircuitState.ISOLATED, CircuitState.CLOSED]


async def test_a_queue_on_an_adaptive_limiter_measures_no_wait_of_its_policies(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter()
    async with open_task_queue(limiter=limiter, protect=RateLimiter(1, per=10)) as queue:
        for _ in range(3):
            queue.submit_nowait(trio.sleep, 0.5)
    assert trio.current_time() == 20.5
    assert (limiter.statistics().ok, limiter.statistics().rtt) == (3, 0.5)
