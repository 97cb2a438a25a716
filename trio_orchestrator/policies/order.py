"""What is known about the order of policies: an account of it, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple, cast

from trio_orchestrator.abc import Budget, Policy
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.spend import SpendGuard
from trio_orchestrator.policies.storm import StormAlarm
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.policies.timeout import Timeout

_Kinds = tuple[type[Policy], ...]

_SLOTS: Final[_Kinds] = (Bulkhead, AdaptiveLimiter)
_RATES: Final[_Kinds] = (RateLimiter, SlidingWindow, RateLimits)
_METERS: Final[_Kinds] = (CallMeter, StormAlarm)
_LEARNERS: Final[_Kinds] = (CircuitBreaker, SreThrottle, AdaptiveLimiter)


_OPEN: Final = CircuitOpenError("", "open")


class _BadOrder(NamedTuple):
    outer: _Kinds
    inner: _Kinds
    because: str


_BAD_ORDERS: Final = (
    _BadOrder(_SLOTS, (Retry,), "a slot is held through the pauses between attempts"),
    _BadOrder(_RATES, (Retry,), "only the first attempt is counted, so that retries go over the rate"),
    _BadOrder((CircuitBreaker, SreThrottle), (Retry,), "many failed attempts count as one failure"),
    _BadOrder((AdaptiveLimiter,), (Retry,), "pauses between attempts are taken for the time the service took"),
    _BadOrder(_METERS, (Retry,), "attempts are not seen, only calls"),
    _BadOrder((SpendGuard,), (Retry,), "retries are not paid for"),
    _BadOrder((AdaptiveLimiter,), (*_RATES, Bulkhead), "the wait inside is taken for the time the service took"),
    _BadOrder((Timeout,), (*_RATES, *_SLOTS), "the time limit also covers the wait for one's turn"),
    _BadOrder(_SLOTS, (Hedge,), "the copies share one slot, so that more calls are made than there are slots"),
    _BadOrder(_RATES, (Hedge,), "copies are not counted, so that they go over the rate"),
    _BadOrder((Hedge,), (Retry,), "every copy is retried, so that the attempts multiply"),
    _BadOrder((Retry, *_LEARNERS), (Fallback,), "failures are replaced before they are seen"),
)


def account(parts: Sequence[Policy | Budget]) -> str:
    """Return the order of `parts`, a line each, outermost first, and the warnings."""
    lines = [f"{number}. {_line(part)}" for number, part in enumerate(parts, 1)]
    return "\n".join([*(lines or ["(nothing)"]), *(f"warning: {text}" for text in warnings(parts))])


def _line(part: Policy | Budget) -> str:
    if isinstance(part, Budget):
        return f"{part!r}: asked before each retry, and before each copy of a hedge"
    told = {name: value for name, value in part.parameters().items() if value is not None and value not in ((), "")}
    return f"{_name(part)}({', '.join(f'{name}={_text(value)}' for name, value in told.items())})"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        texts = [_text(one) for one in cast("tuple[object, ...]", value)]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    return getattr(value, "__qualname__", repr(value))


def warnings(parts: Sequence[Policy | Budget]) -> Iterator[str]:
    """Yield a sentence for each order that is known to be wrong, outermost first."""
    policies = [part for part in parts if isinstance(part, Policy)]
    for outer, inner in combinations(policies, 2):
        for bad in _BAD_ORDERS:
            if isinstance(outer, bad.outer) and isinstance(inner, bad.inner):
                yield f"{_name(outer)} outside {_name(inner)}: {bad.because}"
        yield from _of_values(outer, inner)


def _of_values(outer: Policy, inner: Policy) -> Iterator[str]:
    """Yield what depends on parameters."""
    if isinstance(outer, Retry) and isinstance(inner, Retry):
        most = outer.attempts * inner.attempts
        many = "without end" if most == math.inf else f"up to {most:g} times"
        yield f"Retry outside Retry: a call is made {many}; retry in one layer only"
    if isinstance(outer, Timeout) and isinstance(inner, Retry) and outer.seconds <= inner.attempt_timeout < math.inf:
        yield f"Timeout outside Retry: {outer.seconds:g} s leave no time for a second attempt after attempt_timeout"
    if isinstance(outer, Retry) and isinstance(inner, CircuitBreaker) and outer._matches(_OPEN):
        yield "Retry outside CircuitBreaker: calls wait for an open circuit; leave CircuitOpenError out of `on`"


def _name(policy: Policy) -> str:
    return type(policy).__name__
