"""The throttle of the SRE book: whom it refuses, what it counts, and what it forgets."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from statistics import fmean
from typing import Any

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from tests.policies.service import AT_ONCE, Service
from tests.simulations import EXPECTED
from tests.simulations.overload import overload
from trio_orchestrator.errors import BudgetExhaustedError, RejectedError
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.throttle import SreThrottle, ThrottleGuard
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, Stepper, cancelled_everywhere, run_virtual

SRE = EXPECTED["sre"]
OFFERED, CAPACITY, TOLERANCE = SRE["offered"], SRE["capacity"], SRE["tolerance"]


class Never(Random):
    """Refuses nobody: draws what is above every share."""

    def random(self) -> float:
        return 1.0


class Always(Random):
    """Refuses whenever there is a share to refuse."""

    def random(self) -> float:
        return 0.0


def counts(throttle: SreThrottle) -> tuple[int, int]:
    statistics = throttle.statistics()
    return statistics.requests, statistics.accepts


def feed(throttle: SreThrottle, requests: int, accepts: int) -> None:
    for number in range(requests):
        with throttle.guard() as guard:
            if number >= accepts:
                guard.fail()


# -------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(("requests", "accepts", "k", "share"), SRE["points_requests_accepts_k_share"])
def test_the_published_points(requests: int, accepts: int, k: float, share: float) -> None:
    async def main() -> None:
        throttle = SreThrottle(k, rng=Never())
        feed(throttle, requests, accepts)
        assert counts(throttle) == (requests, accepts)
        assert throttle.statistics().share == pytest.approx(share, abs=5e-6)

    run_virtual(main)


@pytest.mark.parametrize(("k", "forwarded", "accepted"), SRE["k_forwarded_accepted"])
def test_what_is_forwarded_to_an_overloaded_service(k: float, forwarded: float, accepted: float) -> None:
    throttle = SreThrottle(k, window=30, rng=Random(1))
    settled = overload(throttle, seconds=120, offered=OFFERED, capacity=lambda _: CAPACITY)[60:]
    assert fmean(second.forwarded for second in settled) == pytest.approx(forwarded, rel=TOLERANCE)
    assert fmean(second.accepted for second in settled) == pytest.approx(accepted, rel=TOLERANCE)
    assert fmean(second.forwarded for second in settled) == pytest.approx(k * CAPACITY, rel=TOLERANCE)


def forwarded_after(throttle: SreThrottle, *, window: int, fault: int, left: int, offered: int) -> list[int]:
    """Let the service answer `left` calls a second for `fault` seconds; return what passes from then on."""
    start = 2 * window

    def capacity(second: int) -> int:
        return left if start <= second < start + fault else offered

    line = overload(throttle, seconds=start + fault + 2 * window, offered=offered, capacity=capacity)
    return [second.forwarded for second in line[start + fault :]]


def test_one_window_after_an_overload_all_pass_again() -> None:
    """At five times the capacity. At ten times nine in ten do, and all after 1.1 windows."""
    after = forwarded_after(SreThrottle(window=20, rng=Random(1)), window=20, fault=40, left=100, offered=500)
    assert 180 < after[0] < 250
    assert set(after[20:]) == {500}
    after = forwarded_after(SreThrottle(window=20, rng=Random(1)), window=20, fault=40, left=100, offered=1000)
    assert 180 < after[0] < 250
    assert after[20] > 880
    assert set(after[22:]) == {1000}


def test_an_outage_of_less_than_half_a_window_refuses_nobody() -> None:
    after = forwarded_after(SreThrottle(window=20, rng=Always()), window=20, fault=8, left=0, offered=100)
    assert set(after) == {100}


def test_after_an_outage_most_bounds_the_recovery() -> None:
    def windows(most: float) -> float:
        line = overload(
            SreThrottle(window=12, most=most, rng=Random(2)),
            seconds=15 * 12,
            offered=300,
            capacity=lambda second: 0 if second < 13 else 300,
        )
        return (max(second for second, counted in enumerate(line) if counted.forwarded < 300) - 12) / 12

    assert 1.5 < windows(0.9) < 2
    assert 3 < windows(1) < 8


# ------------------------------------------------------------------------------------------------------ what is counted


def test_go_zero_5011_calls_that_hang_are_requests_already() -> None:
    async def main() -> None:
        throttle = SreThrottle(minimum=0, rng=Always())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(throttle.call, trio.sleep_forever)
            await wait_all_tasks_blocked()
            assert counts(throttle) == (1, 0)
            with pytest.raises(BudgetExhaustedError):
                await throttle.call(Service("fine"))
            assert counts(throttle) == (2, 0)
            assert throttle.statistics().in_flight == 1
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_a_refusal_is_a_request_that_never_ran() -> None:
    async def main() -> None:
        throttle = SreThrottle(minimum=0, rng=Always(), name="search")
        feed(throttle, 1, 0)
        service = Service("fine")
        with pytest.raises(BudgetExhaustedError, match=r"^search refuses 50% of the calls: too few") as caught:
            await throttle.call(service)
        assert caught.value.retry_after == math.inf
        assert service.starts == []
        assert counts(throttle) == (2, 0)
        assert (throttle.statistics().admitted, throttle.statistics().refused) == (1, 1)

    run_virtual(main)


def test_what_ends_how() -> None:
    class Boring(Exception):
        pass

    async def main() -> None:
        throttle = SreThrottle(
            on=(OSError, LookupError), neutral=KeyError, classify=lambda result: result == "bad", rng=Never()
        )
        expected = {"successes": 0, "failures": 0, "neutral": 0}
        ends: list[tuple[object, str]] = [
            ("fine", "successes"),
            ("bad", "failures"),
            (OSError(), "failures"),
            (Boring(), "successes"),
            (KeyError(), "neutral"),
            (LookupError(), "failures"),
            (RejectedError(), "neutral"),
            (ExceptionGroup("", [OSError(), OSError()]), "failures"),
        ]
        for end, verdict in ends:
            context = getattr(end, "__context__", None)
            try:
                assert await throttle.call(Service(end)) is end
            except Exception as error:
                assert error is end
                assert error.__context__ is context
            expected[verdict] += 1
            statistics = throttle.statistics()
            assert {name: getattr(statistics, name) for name in expected} == expected
            assert counts(throttle) == (expected["successes"] + expected["failures"], expected["successes"])
            assert statistics.in_flight == 0

    run_virtual(main)


def test_a_time_out_of_ours_outside_is_a_failure_and_somebodys_cancellation_nothing() -> None:
    async def main() -> None:
        throttle = SreThrottle(on=(), rng=Never())
        with pytest.raises(trio.TooSlowError):
            await Timeout(1).call(throttle.call, trio.sleep_forever)
        assert counts(throttle) == (1, 0)
        with trio.move_on_after(1):
            await throttle.call(trio.sleep_forever)
        assert counts(throttle) == (1, 0)
        with pytest.raises(trio.TooSlowError):
            await throttle.call(Timeout(1).call, trio.sleep_forever)
        statistics = throttle.statistics()
        assert (statistics.failures, statistics.neutral, statistics.in_flight) == (2, 1, 0)

    run_virtual(main)


def test_a_predicate_that_raises_is_neutral() -> None:
    error = ZeroDivisionError()

    def raises(_: object) -> bool:
        raise error

    async def main() -> None:
        throttle = SreThrottle(on=raises, classify=raises)
        for end in ("fine", OSError()):
            with pytest.raises(ZeroDivisionError) as caught:
                await throttle.call(Service(end))
            assert caught.value is error
        assert counts(throttle) == (0, 0)
        assert throttle.is_idle

    run_virtual(main)


def test_the_window_expires_when_it_is_read() -> None:
    async def main() -> None:
        throttle = SreThrottle(window=10, rng=Never())
        feed(throttle, 9, 2)
        await trio.sleep(9)
        feed(throttle, 1, 1)
        assert counts(throttle) == (10, 3)
        await trio.sleep(1)
        assert counts(throttle) == (1, 1)
        assert not throttle.is_idle
        await trio.sleep(9)
        assert throttle.is_idle
        assert counts(throttle) == (0, 0)

    run_virtual(main)


def test_a_call_longer_than_the_window_says_nothing() -> None:
    async def main() -> None:
        throttle = SreThrottle(window=10)
        assert await throttle.call(Service("fine", seconds=20)) == "fine"
        assert counts(throttle) == (0, 0)
        assert throttle.statistics().successes == 1
        assert throttle.is_idle

    run_virtual(main)


def test_a_refusal_may_be_repeated_by_a_retry() -> None:
    async def main() -> None:
        class Coin(Random):
            draws = deque([0.0, 1.0])

            def random(self) -> float:
                return self.draws.popleft()

        throttle = SreThrottle(rng=Coin())
        feed(throttle, 1, 0)
        retry = Retry(on=BudgetExhaustedError, attempts=2, backoff=AT_ONCE)
        assert await retry.call(throttle.call, Service("fine")) == "fine"

    run_virtual(main)


# ----------------------------------------------------------------------------------------------------------- the guard


def test_a_guard_judges_its_block() -> None:
    async def main() -> None:
        throttle = SreThrottle(classify=lambda result: result == "bad", rng=Never())
        with throttle.guard() as guard:
            assert guard.judge("fine") == "fine"
        with throttle.guard() as guard:
            assert guard.judge("bad") == "bad"
        with throttle.guard() as guard:
            guard.ignore()
        with pytest.raises(OSError), throttle.guard():
            raise OSError
        statistics = throttle.statistics()
        assert (statistics.successes, statistics.failures, statistics.neutral) == (1, 2, 1)

    run_virtual(main)


def test_a_guard_is_used_once() -> None:
    async def main() -> None:
        throttle = SreThrottle()
        guard = throttle.guard()
        with guard:
            pass
        with pytest.raises(RuntimeError, match=r"^this guard was entered before: take another by throttle\.guard\(\)$"):
            guard.__enter__()
        assert counts(throttle) == (1, 1)

    run_virtual(main)


# -------------------------------------------------------------------------------------------------------- cancellation


def test_cancelled_at_every_checkpoint() -> None:
    async def scenario(injector: CancelAt) -> None:
        throttle = SreThrottle(rng=Never())

        async def body() -> str:
            await trio.sleep(1)
            await trio.lowlevel.checkpoint()
            return "fine"

        with injector.watch():
            await throttle.call(body)
            with throttle.guard():
                await body()
        statistics = throttle.statistics()
        assert statistics.in_flight == statistics.failures == 0
        assert statistics.requests == statistics.accepts == statistics.successes
        assert statistics.neutral == injector.fired
        assert throttle.is_idle is (statistics.successes == 0)

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 4


def test_a_hundred_callers_at_once() -> None:
    async def main() -> None:
        throttle = SreThrottle(rng=Never())
        services = [Service("fine" if number % 4 else OSError(), seconds=number / 8) for number in range(100)]

        async def call(service: Service) -> None:
            try:
                await throttle.call(service)
            except OSError:
                pass

        async with trio.open_nursery() as nursery:
            for service in services:
                nursery.start_soon(call, service)
        statistics = throttle.statistics()
        assert (statistics.admitted, statistics.successes, statistics.failures) == (100, 75, 25)
        assert statistics.in_flight == 0
        await trio.sleep(120)
        assert throttle.is_idle

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------- the machine


class Call:
    def __init__(self, guard: ThrottleGuard, since: float) -> None:
        self.guard = guard
        self.since = since
        self.counts = True
        self.accepted = False


class ThrottleMachine(RuleBasedStateMachine):
    """The model keeps every call for ever, and counts those whose part of the window is not yet over."""

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        k=st.sampled_from([1, 1.1, 2, 5]),
        most=st.sampled_from([0.5, 1]),
        minimum=st.sampled_from([0, 3]),
    )
    def make(self, seed: int, k: float, most: float, minimum: int) -> None:
        self.stepper = Stepper(seed)
        self.k, self.most, self.minimum, self.draw = k, most, minimum, 0.0
        self.throttle = SreThrottle(k, window=10, minimum=minimum, most=most, neutral=KeyError, rng=self)
        self.since = -math.inf
        self.calls: list[Call] = []
        self.open: list[Call] = []
        self.refused = 0

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()

    def random(self) -> float:
        return self.draw

    def uniform(self, a: float, b: float) -> float:
        raise AssertionError("not drawn")

    def model(self) -> tuple[int, int]:
        young = [call for call in self.calls if call.counts and self.stepper.now - call.since < 10]
        return len(young), sum(call.accepted for call in young)

    def share(self, requests: int, accepts: int) -> float:
        if requests < self.minimum:
            return 0
        return min(self.most, max(0, (requests - self.k * accepts) / (requests + 1)))

    @rule(eighths=st.integers(1, 100))
    def wait(self, eighths: int) -> None:
        self.stepper.advance(eighths / 8)

    @rule(draw=st.floats(0, 1, exclude_max=True))
    def begin(self, draw: float) -> None:
        self.draw = draw
        requests, accepts = self.model()
        refuse = draw < self.share(requests, accepts)
        if self.stepper.now - self.since >= 1:
            self.since = self.stepper.now
        call = Call(self.throttle.guard(), self.since)
        self.calls.append(call)
        if refuse:
            self.refused += 1
            with pytest.raises(BudgetExhaustedError):
                call.guard.__enter__()
        else:
            call.guard.__enter__()
            self.open.append(call)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), error=st.sampled_from([None, OSError(), KeyError(), RejectedError()]))
    def end(self, data: st.DataObject, error: Exception | None) -> None:
        call = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        call.guard.__exit__(None if error is None else type(error), error, None)
        call.accepted = error is None
        call.counts = not isinstance(error, (KeyError, RejectedError))

    @invariant()
    def agrees(self) -> None:
        statistics = self.throttle.statistics()
        requests, accepts = self.model()
        assert (statistics.requests, statistics.accepts) == (requests, accepts)
        assert statistics.share == pytest.approx(self.share(requests, accepts))
        assert statistics.in_flight == len(self.open)
        ended = statistics.successes + statistics.failures + statistics.neutral
        assert statistics.admitted == ended + statistics.in_flight == len(self.calls) - self.refused
        assert statistics.refused == self.refused
        assert self.throttle.is_idle is (not self.open and not requests)


TestThrottle = ThrottleMachine.TestCase
TestThrottle.settings = settings(stateful_step_count=25)


# ------------------------------------------------------------------------------------------------------------- the rest


def test_repr() -> None:
    throttle = SreThrottle(name="search", rng=Never())
    assert repr(throttle) == "<SreThrottle 'search', k=2, window=120>"

    async def main() -> None:
        feed(throttle, 100, 10)
        assert repr(throttle) == "<SreThrottle 'search', k=2, window=120, refuses 79%>"

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0.9}, ValueError, "k must be >= 1 and finite, got 0.9"),
        ({"k": math.inf}, ValueError, "k must be >= 1 and finite, got inf"),
        ({"k": math.nan}, ValueError, "k must be >= 1 and finite, got nan"),
        ({"k": True}, TypeError, "k must be a number, got True"),
        ({"window": 0}, ValueError, "window must be > 0 and finite, got 0"),
        ({"window": math.inf}, ValueError, "window must be > 0 and finite, got inf"),
        ({"most": 0}, ValueError, "most must be > 0, got 0"),
        ({"most": 1.5}, ValueError, "most must be <= 1, got 1.5"),
        ({"on": 3}, TypeError, "on must be an Exception type, a tuple of them or a predicate, got 3"),
        ({"neutral": 3}, TypeError, "neutral must be an Exception type, a tuple of them or a predicate, got 3"),
        ({"classify": 3}, TypeError, "classify must be a plain function, got 3"),
        ({"name": 3}, TypeError, "name must be a str, got 3"),
        ({"rng": 3}, TypeError, "rng must have random() and uniform(), got 3"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SreThrottle(**options)
    assert str(caught.value) == message


def test_the_first_calls_of_a_client_are_not_refused_for_being_under_way() -> None:
    async def main() -> None:
        throttle, refused = SreThrottle(rng=Always()), 0

        async def call() -> None:
            nonlocal refused
            try:
                await throttle.call(trio.sleep, 1)
            except BudgetExhaustedError:
                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(150):
                nursery.start_soon(call)
        assert refused == 50  # the minimum of 100 is let through

    run_virtual(main)


def test_what_a_guard_was_told_holds() -> None:
    def classify(result: object) -> bool:
        if result is None:
            raise LookupError
        return result == "bad"

    async def main() -> None:
        throttle = SreThrottle(classify=classify)
        with throttle.guard() as guard:
            guard.ignore()
            assert guard.judge("bad") == "bad"
        with pytest.raises(LookupError), throttle.guard() as guard:
            guard.judge(None)
        statistics = throttle.statistics()
        assert (statistics.failures, statistics.neutral, statistics.requests) == (0, 2, 0)

    run_virtual(main)
