"""The budgets against small models: exact conservation, in any order of calls and waits."""

from __future__ import annotations

from fractions import Fraction

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trio_orchestrator.policies.budget import GrpcThrottle, RetryBudget, TokenQuota
from trio_orchestrator.testing import Stepper

seeds = st.integers(0, 2**32 - 1)
WINDOW = 10
WIDTH = 1
RETRY = 30  # parts of a retry, so that every ratio below is whole
RATIOS = [3 * tenths for tenths in range(1, 10)] + [0, RETRY // 3, 2 * RETRY]


class RetryBudgetMachine(RuleBasedStateMachine):
    """The model keeps every booking for ever, by the part of the window to which it belongs."""

    @initialize(
        seed=seeds,
        ratio=st.sampled_from(RATIOS),
        minimum=st.sampled_from([0, 0.3, 0.5, 2]),
    )
    def make(self, seed: int, ratio: int, minimum: float) -> None:
        self.stepper = Stepper(seed)
        self.ratio, self.reserve = ratio, int(minimum * WINDOW) * RETRY
        self.budget = RetryBudget(ratio / RETRY, minimum, WINDOW)
        self.parts: list[list[float]] = []  # since when, what was put in, what was taken out
        self.begun: list[float] = []
        self.retried: list[float] = []
        self.refused = 0

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()

    def book(self, put_in: int, taken_out: int) -> None:
        now = self.stepper.now
        if not self.parts or now - self.parts[-1][0] >= WIDTH:
            self.parts.append([now, 0, 0])
        self.parts[-1][1] += put_in
        self.parts[-1][2] += taken_out

    @property
    def left(self) -> float:
        young = [part for part in self.parts if self.stepper.now - part[0] < WINDOW]
        return self.reserve + sum(put_in - taken_out for _, put_in, taken_out in young)

    @rule(eighths=st.integers(1, 100))
    def wait(self, eighths: int) -> None:
        self.stepper.advance(eighths / 8)

    @rule(times=st.integers(1, 20))
    def begin(self, times: int) -> None:
        for _ in range(times):
            self.budget.begin()
            if self.ratio:
                self.book(self.ratio, 0)
            self.begun.append(self.stepper.now)

    @rule(times=st.integers(1, 20))
    def withdraw(self, times: int) -> None:
        for _ in range(times):
            enough = self.left >= RETRY
            assert self.budget.withdraw(OSError()) is enough
            self.book(0, RETRY if enough else 0)
            if enough:
                self.retried.append(self.stepper.now)
            else:
                self.refused += 1

    @rule()
    def call_that_succeeds(self) -> None:
        self.budget.refund(None)
        self.budget.deposit(2)

    @invariant()
    def agrees(self) -> None:
        statistics = self.budget.statistics()
        assert statistics.retries == max(0, self.left) // RETRY
        assert statistics.calls == len(self.begun)
        assert (statistics.granted, statistics.refused) == (len(self.retried), self.refused)
        booked = [part for part in self.parts if part[1] or part[2]]
        assert self.budget.is_idle is all(self.stepper.now - part[0] >= WINDOW for part in booked)

    @invariant()
    def keeps_what_it_promises(self) -> None:
        if self.retried:
            last = self.retried[-1]
            late = sum(last - at < 0.9 * WINDOW for at in self.retried)
            calls = sum(last - WINDOW < at <= last for at in self.begun)
            assert RETRY * late <= self.reserve + self.ratio * calls


TestRetryBudget = RetryBudgetMachine.TestCase
TestRetryBudget.settings = settings(stateful_step_count=25)

ERRORS: tuple[tuple[BaseException | None, int], ...] = (
    (None, 14),
    (OSError(), 14),
    (trio.TooSlowError(), 20),
    (ConnectionError(), 5),
)


class TokenQuotaMachine(RuleBasedStateMachine):
    """Calls in flight, each with the cost of its last retry."""

    @initialize(capacity=st.integers(0, 100))
    def make(self, capacity: int) -> None:
        self.quota = TokenQuota(capacity, 14, timeout_cost=20, throttling_cost=5, refund=2, throttled=ConnectionError)
        self.capacity = self.left = capacity
        self.taken = self.given = self.granted = self.refused = 0
        self.calls: list[tuple[BaseException | None, int]] = []

    def give(self, amount: int) -> None:
        given = min(amount, self.capacity - self.left)
        self.left += given
        self.given += given

    @rule(failure=st.sampled_from(ERRORS))
    def retry(self, failure: tuple[BaseException | None, int]) -> None:
        error, cost = failure
        self.quota.failed(error)
        enough = cost <= self.left
        assert self.quota.withdraw(error) is enough
        if enough:
            self.left -= cost
            self.taken += cost
            self.granted += 1
            self.calls.append(failure)
        else:
            self.refused += 1

    @rule()
    def succeed_at_once(self) -> None:
        self.quota.begin()
        self.quota.deposit(1)
        self.give(2)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), attempts=st.integers(2, 9), good=st.booleans())
    def end(self, data: st.DataObject, attempts: int, good: bool) -> None:
        error, cost = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        if good:
            self.quota.refund(error)
            self.quota.deposit(attempts)
            self.give(cost)

    @invariant()
    def conserves(self) -> None:
        statistics = self.quota.statistics()
        assert statistics.level == statistics.capacity - statistics.taken + statistics.given == self.left
        assert 0 <= statistics.level <= statistics.capacity == self.capacity
        assert (statistics.taken, statistics.given) == (self.taken, self.given)
        assert (statistics.granted, statistics.refused) == (self.granted, self.refused)
        assert self.quota.is_idle is (self.left == self.capacity)


TestTokenQuota = TokenQuotaMachine.TestCase
TestTokenQuota.settings = settings(stateful_step_count=25)


class GrpcThrottleMachine(RuleBasedStateMachine):
    @initialize(most=st.integers(1, 20_000), ratio=st.integers(1, 3_000))
    def make(self, most: int, ratio: int) -> None:
        self.throttle = GrpcThrottle(most / 1000, ratio / 1000)
        self.most, self.ratio = most, ratio
        self.left = most  # in thousandths
        self.granted = self.refused = 0

    @rule(times=st.integers(1, 30), error=st.sampled_from([None, OSError()]))
    def fail(self, times: int, error: BaseException | None) -> None:
        for _ in range(times):
            self.throttle.failed(error)
            self.left = max(0, self.left - 1000)

    @rule(times=st.integers(1, 30), attempts=st.integers(1, 4))
    def succeed(self, times: int, attempts: int) -> None:
        for _ in range(times):
            if attempts > 1:
                self.throttle.refund(None)
            self.throttle.deposit(attempts)
            self.left = min(self.most, self.left + self.ratio)

    @rule()
    def ask(self) -> None:
        allowed = Fraction(self.left) > Fraction(self.most, 2)
        assert self.throttle.withdraw(None) is allowed
        self.granted += allowed
        self.refused += not allowed

    @invariant()
    def conserves(self) -> None:
        statistics = self.throttle.statistics()
        assert statistics.level == self.left / 1000
        assert 0 <= statistics.level <= statistics.capacity == self.most / 1000
        assert round(1000 * (statistics.capacity - statistics.taken + statistics.given)) == self.left
        assert (statistics.granted, statistics.refused) == (self.granted, self.refused)
        assert self.throttle.is_idle is (self.left == self.most)


TestGrpcThrottle = GrpcThrottleMachine.TestCase
TestGrpcThrottle.settings = settings(stateful_step_count=25)
