"""Two rate limits and both together, against a small model: exact times, exact refusals, nobody lost."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.policies.rate_model import Bucket, Limit, Model, Window
from trio_orchestrator.errors import RateLimitedError
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.rate_limit import RateLimit
from trio_orchestrator.testing import Call, Stepper

LIMITS = st.sampled_from([1, 2, 4, 8])
TIMES = st.integers(0, 32).map(lambda sixteenths: sixteenths / 16)  # exact in binary, as are the rates
UNBOUNDED = st.just(float("inf"))
REPLY = -(10**9)  # the number of nobody who asked


@st.composite
def pairs(draw: st.DrawFn) -> tuple[RateLimit, Limit]:
    """A limit of ours and the model's."""
    limit, per = draw(LIMITS), draw(st.sampled_from([0.5, 1.0, 2.0]))
    options: dict[str, Any] = {
        "max_waiting": draw(UNBOUNDED | st.integers(0, 4)),
        "max_wait": draw(UNBOUNDED | TIMES),
    }
    if draw(st.booleans()):
        return SlidingWindow(limit, per, **options), Limit(Window(limit, per), **options)
    burst = draw(st.integers(1, 4))
    return RateLimiter(limit, per, burst=burst, **options), Limit(Bucket(limit, per, burst), **options)


class RateMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32 - 1), first=pairs(), second=pairs())
    def begin(self, seed: int, first: tuple[RateLimit, Limit], second: tuple[RateLimit, Limit]) -> None:
        self.stepper = Stepper(seed)
        self.limiters = (first[0], second[0])
        self.both = RateLimits(*self.limiters)
        self.model = Model(first[1], second[1])
        self.calls: list[Call[float]] = []
        self.asked = [0, 0]

    def _costs(self, which: int, costs: tuple[int, int]) -> dict[int, float]:
        """Make the costs possible; `which` is 0, 1, or 2 for both."""
        keys = (0, 1) if which == 2 else (which,)
        for key in keys:
            self.asked[key] += 1
        return {key: min(costs[key], int(self.model.limits[key].rule.most)) for key in keys}

    async def _acquire(self, costs: dict[int, float]) -> float:
        if len(costs) == 2:
            await self.both.acquire(tuple(costs.values()))
        else:
            (key, cost), *_ = costs.items()
            await self.limiters[key].acquire(cost)
        return self.stepper.now

    @rule(which=st.integers(0, 2), costs=st.tuples(st.integers(1, 4), st.integers(1, 4)), times=st.integers(1, 3))
    def acquire(self, which: int, costs: tuple[int, int], times: int) -> None:
        for _ in range(times):
            priced = self._costs(which, costs)
            self.model.ask(len(self.calls), priced, wait=True)
            self.calls.append(self.stepper.start(self._acquire, priced))

    @rule(which=st.integers(0, 2), costs=st.tuples(st.integers(1, 4), st.integers(1, 4)))
    def acquire_nowait(self, which: int, costs: tuple[int, int]) -> None:
        priced = self._costs(which, costs)
        number = -sum(self.asked)
        self.model.ask(number, priced, wait=False)
        try:
            if which == 2:
                self.both.acquire_nowait(tuple(priced.values()))
            else:
                self.limiters[which].acquire_nowait(priced[which])
        except RateLimitedError as error:
            assert error.retry_after == self.model.refused[number]
        else:
            assert number in self.model.granted

    @precondition(lambda self: self.model.line)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([waiter.number for waiter in self.model.line]))
        self.model.cancel(number)
        self.calls[number].cancel()
        self.stepper.settle()
        assert self.calls[number].state == "cancelled"

    @rule(dt=TIMES)
    def advance(self, dt: float) -> None:
        self.model.advance(self.stepper.now + dt)
        self.stepper.advance(dt)

    @rule(which=st.integers(0, 1), limit=LIMITS, burst=st.integers(1, 4))
    def change(self, which: int, limit: int, burst: int) -> None:
        limiter = self.limiters[which]
        self.model.limits[which].rule.change(self.stepper.now, limit, burst)
        self.model.changed()
        if isinstance(limiter, RateLimiter):
            limiter.change(limit=limit, burst=burst)
        else:
            assert isinstance(limiter, SlidingWindow)
            limiter.change(limit=limit)
        self.stepper.settle()

    @rule(which=st.integers(0, 1), seconds=TIMES)
    def hold(self, which: int, seconds: float) -> None:
        server = self.model.limits[which].server
        server.held_until = max(server.held_until, self.stepper.now + seconds)
        self.model.changed()
        self.limiters[which].hold(seconds)
        self.stepper.settle()

    @rule(which=st.integers(0, 1), remaining=st.integers(0, 5), seconds=TIMES)
    def observe(self, which: int, remaining: int, seconds: float) -> None:
        server = self.model.limits[which].server
        server.left, server.reset_at = remaining, self.stepper.now + seconds
        self.model.changed()
        self.limiters[which].observe(remaining, seconds)
        self.stepper.settle()

    @rule(which=st.integers(0, 1), cost=st.integers(1, 4))
    def reply(self, which: int, cost: int) -> None:
        limit = self.model.limits[which]
        cost = min(cost, int(limit.rule.most))
        reply = self.limiters[which].reply(cost)
        assert reply.retry_after == self.model.foresee(REPLY, {which: cost}) - self.stepper.now
        assert reply.allowed == (reply.retry_after == 0)
        assert reply.limit == limit.rule.most
        now, server = self.stepper.now, limit.server
        possible = [
            units
            for units in range(1, int(limit.rule.most) + 1)
            if max(limit.rule.due(now, units), server.due(now, units)) == now
        ]
        assert reply.remaining == (0 if self.model.waiting(which) else max(possible, default=0))

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "stepper"):
            return
        waiting = {waiter.number for waiter in self.model.line}
        for number, call in enumerate(self.calls):
            if call.state == "ok":
                assert call.value == self.model.granted[number]
            elif call.state == "raised":
                assert isinstance(call.error, RateLimitedError)
                assert call.error.retry_after == self.model.refused[number]
            else:
                assert (call.state == "blocked") == (number in waiting)
        for key, (limiter, limit) in enumerate(zip(self.limiters, self.model.limits, strict=True)):
            now = limiter.statistics()
            assert (now.granted, now.refused, now.cancelled) == (limit.granted, limit.refused, limit.cancelled)
            assert now.waiting == self.model.waiting(key)
            assert now.granted + now.refused + now.cancelled + now.waiting == self.asked[key]

    def teardown(self) -> None:
        if not hasattr(self, "stepper"):
            return
        try:
            longest = 2 + 2 * len(self.calls) * 4  # every line moves at one unit in two seconds, or faster
            self.advance(float(longest))
            self.agrees()
            assert not self.model.line, "somebody starves"
            assert all(call.done for call in self.calls)
            self.advance(10.0)
            assert all(limiter.reply().remaining == limiter.burst for limiter in self.limiters)
        finally:
            self.stepper.close()


RateMachine.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestRateMachine = RateMachine.TestCase
