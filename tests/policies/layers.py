"""Policies with tight limits, each with a gauge right inside it that counts in the body what the policy promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, Final, TypeVar, TypeVarTuple, final

import trio
from hypothesis import strategies as st

from trio_orchestrator.abc import Budget, Limit, Policy
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.arc import ARC
from trio_orchestrator.algorithms.backoff import Constant, FullJitter
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.gradient2 import Gradient2
from trio_orchestrator.algorithms.quantile import Quantile
from trio_orchestrator.algorithms.trip import Consecutive, Ratio, SlowRatio, Trip
from trio_orchestrator.algorithms.vegas import Vegas
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import GrpcThrottle, RetryBudget, TokenQuota, TokenStatistics
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

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LONG: Final = 100_000.0
"""Seconds after which every window has expired."""
SUBSTITUTE: Final = "a substitute"
_LATE: Final = 1e-9
"""What may be lost in the last bits of a time."""
_CALLER: ContextVar[int] = ContextVar("caller", default=-1)


@final
class Boom(Exception):
    """The service's own error."""


@final
class Gauge(Policy):
    """Stands right inside a policy, or outside of all, and counts what passes."""

    def __init__(self, on_start: Callable[[Gauge], Callable[[], object] | None] = lambda gauge: None) -> None:
        self.starts: list[float] = []
        self.in_flight = 0
        self.rejected = 0
        self.by_caller = Counter[int]()
        self._on_start = on_start

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        self.starts.append(trio.current_time())
        self.in_flight += 1
        self.by_caller[_CALLER.get()] += 1
        on_end = self._on_start(self)
        try:
            return await fn(*args)
        except RejectedError:
            self.rejected += 1
            raise
        finally:
            self.in_flight -= 1
            if on_end is not None:
                on_end()


class Layer:
    """A policy, and its promises: `started` at each body inside it, `ended` when all callers are gone."""

    most = 1.0
    """Bodies inside for each call outside."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.gauge = Gauge(self.started)

    def started(self, gauge: Gauge) -> Callable[[], object] | None:
        return None

    async def operate(self, number: int) -> None:
        """Do one of the things that an operator or a server may do to it at any time."""

    def ended(self, outside: Gauge) -> None:
        """Check the totals, without a wait."""
        assert self.gauge.in_flight == 0
        for caller, times in self.gauge.by_caller.items():
            assert times <= self.most * outside.by_caller[caller], self
        statistics = getattr(self.policy, "statistics", None)
        for each in () if statistics is None else _flat(statistics()):
            for count in ("in_flight", "waiting", "probes", "running"):
                assert getattr(each, count, 0) == 0, f"{count} in {each}"

    def rested(self) -> None:
        """Check that it is as good as new, a long time after."""
        assert getattr(self.policy, "is_idle", True), self.policy

    def __repr__(self) -> str:
        return f"{self.policy!r} {getattr(self.policy, 'parameters')()}"


def _flat(statistics: Any) -> tuple[Any, ...]:
    return statistics if isinstance(statistics, tuple) else (statistics,)


@final
class Slots(Layer):
    """At most `limit` bodies at once."""

    def __init__(self, policy: Bulkhead | AdaptiveLimiter, limit: float) -> None:
        super().__init__(policy)
        self._limit = self._made_with = limit
        self._tokens = policy.tokens

    async def operate(self, number: int) -> None:
        if isinstance(self.policy, Bulkhead):
            self.policy.limit = 1 + number % 3
            self._limit = max(self._limit, self.policy.limit)

    def rested(self) -> None:
        if isinstance(self.policy, Bulkhead):  # with another limit it is not as it was made
            self.policy.limit = self._made_with
        super().rested()

    def started(self, gauge: Gauge) -> None:
        assert gauge.in_flight <= self._limit, self
        assert gauge.in_flight <= self._tokens.borrowed_tokens, self

    def ended(self, outside: Gauge) -> None:
        super().ended(outside)
        assert self._tokens.borrowed_tokens == self._tokens.statistics().tasks_waiting == 0


@final
class Starts(Layer):
    """So many starts in each window; `smooth` or exact."""

    def __init__(self, policy: RateLimiter | SlidingWindow | RateLimits) -> None:
        super().__init__(policy)
        self._members = policy.limiters if isinstance(policy, RateLimits) else (policy,)

    async def operate(self, number: int) -> None:
        member = self._members[number % len(self._members)]
        if number % 3:
            member.hold(number / 4)
        else:
            member.observe(number % 2, number / 4)

    def ended(self, outside: Gauge) -> None:
        super().ended(outside)
        for member in self._members:
            told = member.statistics()
            smooth = isinstance(member, RateLimiter)
            assert told.granted == len(self.gauge.starts), told
            _in_windows(self.gauge.starts, told.burst, told.limit / told.per if smooth else 0.0, told.per)


def _in_windows(starts: list[float], burst: float, rate: float, per: float) -> None:
    """Every window: at most `burst + rate * t` starts in any time `t`; or, without a rate, `burst` in any `per`."""
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            elapsed, number = starts[last] - begin, last - first + 1
            if rate:
                assert number <= burst + rate * elapsed + 1e-6, starts
            elif elapsed < per - _LATE:
                assert number <= burst, starts


@final
class Circuits(Layer):
    """Nothing passes an open circuit, and `probes` at once a half-open one."""

    def __init__(self, policy: CircuitBreaker, probes: int) -> None:
        super().__init__(policy)
        self._breaker, self._probes = policy, probes
        self._out = Counter[int]()
        self._forgets = "seconds" in repr(getattr(policy, "parameters")()["trip"])  # the last calls are kept for ever

    async def operate(self, number: int) -> None:
        if number % 3:
            with self._breaker.isolate():
                await trio.sleep(number / 4)
        else:
            self._breaker.reset()

    def started(self, gauge: Gauge) -> Callable[[], object] | None:
        state = self._breaker.state
        if state is CircuitState.CLOSED:
            return None
        assert state is CircuitState.HALF_OPEN, state
        epoch = self._breaker._circuit.epoch
        self._out[epoch] += 1
        assert self._out[epoch] <= self._probes, self
        return lambda: self._out.subtract([epoch])

    def ended(self, outside: Gauge) -> None:
        super().ended(outside)
        s = self._breaker.statistics()
        assert s.admitted == len(self.gauge.starts) == s.successes + s.failures + s.neutral + s.late, s
        assert s.refused == len(outside.starts) - s.admitted, s

    def rested(self) -> None:
        closed = self._breaker.state is CircuitState.CLOSED
        assert closed or self._breaker.state is CircuitState.HALF_OPEN
        if self._forgets:
            assert self._breaker.is_idle is closed


@final
class Throttles(Layer):
    """Every call is accounted for."""

    def ended(self, outside: Gauge) -> None:
        super().ended(outside)
        assert isinstance(self.policy, SreThrottle)
        s = self.policy.statistics()
        assert s.admitted == len(self.gauge.starts) == s.successes + s.failures + s.neutral, s
        assert s.refused == len(outside.starts) - s.admitted, s
        assert 0 <= s.accepts <= s.successes
        assert 0 <= s.requests <= s.admitted - s.neutral + s.refused


@final
class Spends(Layer):
    """At most `calls` in an hour, those not counted that were refused further in."""

    def __init__(self, policy: SpendGuard, calls: int) -> None:
        super().__init__(policy)
        self._calls = calls

    def started(self, gauge: Gauge) -> None:
        hour = trio.current_time() // 3600
        assert sum(start // 3600 == hour for start in gauge.starts) - gauge.rejected <= self._calls, self


@final
class Repeats(Layer):
    """A retry: so many attempts a call, and what its budget grants."""

    def __init__(self, policy: Retry, attempts: int) -> None:
        super().__init__(policy)
        self.most = attempts


@final
class Copies(Layer):
    """A hedge: so many copies a call."""

    def __init__(self, policy: Hedge) -> None:
        super().__init__(policy)
        self.most = 1 + policy.copies

    def ended(self, outside: Gauge) -> None:
        super().ended(outside)
        assert isinstance(self.policy, Hedge)
        s = self.policy.statistics()
        assert s.calls == len(outside.starts), s
        assert s.calls >= len(self.gauge.starts) - s.copies, s
        assert s.won_by_copy <= s.hedged <= s.copies, s


def check_budget(budget: Budget | None, spent: int) -> None:
    """Conservation: nothing is granted that was not put in; `spent` retries and copies were really started."""
    if budget is None:
        return
    s = budget.statistics()  # type: ignore[attr-defined]
    assert spent <= s.granted, (s, spent)
    if isinstance(s, TokenStatistics):
        assert 0 <= s.level <= s.capacity
        assert math.isclose(s.level, s.capacity - s.taken + s.given), s


# -------------------------------------------------------------------------------------------------- drawing

SECONDS: Final = st.integers(1, 24).map(lambda quarters: quarters / 4)
SMALL: Final = st.integers(1, 3)
_WAITING: Final = st.sampled_from([math.inf, math.inf, 0, 1, 3])
_WAIT: Final = st.sampled_from([math.inf, math.inf, 0.0, 0.5, 2.0])
_ON: Final[Any] = st.sampled_from([Exception, Boom, (Boom, trio.TooSlowError), (), RejectedError])
_RULES: Final = st.sampled_from([rule(initial=2, minimum=1, maximum=4) for rule in (AIMD, Vegas, Gradient2, ARC)])
_TRIPS: Final = st.sampled_from([Consecutive(1), Consecutive(3), Ratio(0.5, seconds=5, minimum=2), Ratio(0.4, calls=5)])


@st.composite
def _retries(draw: st.DrawFn) -> Layer:
    attempts = draw(SMALL)
    policy = Retry(
        on=draw(_ON),
        attempts=attempts,
        backoff=draw(st.sampled_from([Constant(0), Constant(0.5), FullJitter(base=1, cap=2)])),
        attempt_timeout=draw(st.just(math.inf) | SECONDS),
        timeout=draw(st.just(math.inf) | SECONDS),
        retry_exhausted=draw(st.booleans()),
        on_result=draw(st.sampled_from([None, lambda result: result == SUBSTITUTE])),
    )
    return Repeats(policy, attempts)


@st.composite
def _circuits(draw: st.DrawFn) -> Layer:
    probes, close_after, slow = draw(SMALL), draw(SMALL), draw(st.booleans())
    trip: Trip = SlowRatio(0.5, calls=4) if slow else draw(_TRIPS)
    breaker = CircuitBreaker(
        trip=trip,
        cooldown=draw(SECONDS),
        probes=max(probes, close_after),
        probe_lease=math.inf,
        close_after=close_after,
        slow_call=draw(SECONDS) if slow else math.inf,
        on=draw(st.sampled_from([Exception, Boom])),
        ramp=draw(st.sampled_from([0, 0, 2])),
    )
    return Circuits(breaker, max(probes, close_after))


@st.composite
def _slots(draw: st.DrawFn) -> Layer:
    options: Any = {"max_waiting": draw(_WAITING), "max_wait": draw(_WAIT)}
    if draw(st.booleans()):
        limit = draw(SMALL)
        return Slots(Bulkhead(limit, **options), limit)
    rule: Limit = draw(_RULES)
    return Slots(AdaptiveLimiter(limit=rule, **options), 4)


@st.composite
def _rates(draw: st.DrawFn) -> Layer:
    options: Any = {"max_waiting": draw(_WAITING), "max_wait": draw(_WAIT)}
    smooth = RateLimiter(draw(SMALL), draw(st.sampled_from([0.5, 1.0, 3.0])), burst=draw(SMALL), **options)
    exact = SlidingWindow(draw(SMALL), draw(st.sampled_from([0.5, 1.0, 2.0])), **options)
    which = draw(st.integers(0, 2))
    return Starts(RateLimits(smooth, exact) if which == 2 else smooth if which else exact)


@st.composite
def _hedges(draw: st.DrawFn) -> Layer:
    after: Any = draw(SECONDS | st.just(0.0) | st.just(math.inf) | st.just(Quantile(0.5, minimum=1, initial=1.0)))
    return Copies(Hedge(after=after, copies=draw(st.integers(1, 2))))


@st.composite
def _fallbacks(draw: st.DrawFn) -> Layer:
    seconds, on = draw(SECONDS), draw(_ON)

    async def substitute(error: Exception) -> str:
        await trio.sleep(seconds)
        return SUBSTITUTE

    return Layer(Fallback(on=on, fn=substitute) if draw(st.booleans()) else Fallback(on=on, value=SUBSTITUTE))


@st.composite
def _spends(draw: st.DrawFn) -> Layer:
    calls = draw(st.integers(1, 20))
    guard = SpendGuard(Decimal("0.5"), Decimal("0.5") * calls, per="hour", wall=trio.current_time)
    return Spends(guard, calls)


LAYERS: Final = st.one_of(
    _retries(),
    SECONDS.map(lambda seconds: Layer(Timeout(seconds))),
    _circuits(),
    _slots(),
    _rates(),
    _hedges(),
    _fallbacks(),
    _spends(),
    st.builds(
        lambda k, most: Throttles(SreThrottle(k, 5, minimum=2, most=most)), st.sampled_from([1, 2]), st.just(0.9)
    ),
    st.builds(lambda: Layer(CallMeter(window=5))),
    st.builds(lambda: Layer(StormAlarm(calls=3, per=5))),
)
BUDGETS: Final = st.sampled_from(
    [lambda: RetryBudget(0.5, 1, 2), lambda: TokenQuota(10, 5), lambda: GrpcThrottle(2, 0.5), lambda: None]
)
"""What makes a budget."""


def as_caller(number: int) -> None:
    """Say who calls in this task and those inside."""
    _CALLER.set(number)
