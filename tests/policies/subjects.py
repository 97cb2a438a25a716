"""The policies under contract, each so configured that it stands against nothing in the contract's calls."""

from __future__ import annotations

import math
from decimal import Decimal

import trio

from tests.policies.contract import Subject
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.spend import SpendGuard
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.policies.storm import StormAlarm
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.policies.timeout import Timeout

SUBJECTS = (
    Subject("Retry", lambda: Retry(on=OSError, backoff=Constant(1))),
    Subject("Retry with a time-out", lambda: Retry(on=OSError, backoff=Constant(1), attempt_timeout=1000)),
    Subject("Retry with a budget", lambda: Retry(on=OSError, backoff=Constant(1), budget=RetryBudget())),
    Subject("Timeout", lambda: Timeout(1000)),
    Subject("CircuitBreaker", lambda: CircuitBreaker(trip=Consecutive(1000))),
    Subject("CircuitBreaker watching", lambda: CircuitBreaker(trip=Consecutive(1000), classify=lambda result: False)),
    Subject("RateLimiter", lambda: RateLimiter(2, burst=2), waits=True),
    Subject("SlidingWindow", lambda: SlidingWindow(3), waits=True),
    Subject("RateLimits", lambda: RateLimits(RateLimiter(5, burst=2), SlidingWindow(3)), waits=True),
    Subject("SreThrottle", lambda: SreThrottle(minimum=1000)),
    Subject("Bulkhead", lambda: Bulkhead(2), waits=True),
    Subject("AdaptiveLimiter", AdaptiveLimiter, waits=True),
    Subject("Hedge", lambda: Hedge(after=math.inf), waits=True),
    Subject("Fallback", lambda: Fallback(on=OSError, value=None)),
    Subject("CallMeter", CallMeter),
    Subject("StormAlarm", lambda: StormAlarm(calls=10**6)),
    Subject("SpendGuard", lambda: SpendGuard(Decimal("0.01"), Decimal(10**6), wall=trio.current_time)),
    Subject("Stack", lambda: Stack(Retry(on=OSError), CircuitBreaker(), RetryBudget())),
    Subject("empty Stack", Stack),
)
