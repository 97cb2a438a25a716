"""The spend guard: exact money, never above the limit, every warning once a period, whatever the wall clock does."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import inf
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.policies.service import AT_ONCE, Service
from trio_orchestrator import Cooldown, Gate, open_task_queue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.ledger import PLACES
from trio_orchestrator.algorithms.period import period_at
from trio_orchestrator.algorithms.usual import Usual
from trio_orchestrator.errors import BudgetExhaustedError, RejectedError
from trio_orchestrator.policies.per_key import PerKey
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.spend import SpendGuard
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policy_event import SpendStopped, SpendWarned
from trio_orchestrator.testing import CancelAt, Stepper, cancelled_everywhere, run_virtual

DAY = 86_400
NOON = 20_000 * DAY + DAY / 2
CENT = Decimal("0.01")


class Books(Instrument):
    def __init__(self) -> None:
        self.warned: list[SpendWarned] = []
        self.stopped: list[SpendStopped] = []

    def spend_warned(self, event: SpendWarned, /) -> None:
        self.warned.append(event)

    def spend_stopped(self, event: SpendStopped, /) -> None:
        self.stopped.append(event)

    @property
    def fractions(self) -> list[float]:
        return [event.fraction for event in self.warned if event.reason == "fraction"]


async def buy() -> str:
    return "bought"


def wall_from(start: float) -> Callable[[], float]:
    return lambda: start + trio.current_time()


# ------------------------------------------------------------------------------------------------- the limit


def test_a_call_that_would_pass_the_limit_is_refused_before_it_is_made() -> None:
    async def main() -> None:
        books, service = Books(), Service("bought")
        spend = SpendGuard(CENT, Decimal("0.055"), wall=wall_from(NOON), instruments=[books])
        for _ in range(5):
            assert await spend.call(service) == "bought"
        with pytest.raises(BudgetExhaustedError) as refused:
            await spend.call(service)
        assert refused.value.retry_after == DAY / 2
        await trio.sleep(100)
        with pytest.raises(BudgetExhaustedError) as refused:
            await spend.call(service)
        assert refused.value.retry_after == DAY / 2 - 100
        assert str(refused.value) == "spend: 0.05 of 0.055 a day is spent, free in 4.31e+04 s"
        assert len(service.starts) == 5
        assert books.stopped == [SpendStopped("spend", Decimal("0.05"), Decimal("0.055"), DAY / 2)]
        found = spend.statistics()
        assert (found.spent, found.calls, found.refused, found.stopped) == (Decimal("0.05"), 5, 2, True)
        assert (found.period_start, found.period_end) == (NOON - DAY / 2, NOON + DAY / 2)
        await trio.sleep(refused.value.retry_after)
        assert await spend.call(service) == "bought"
        assert spend.statistics().spent == CENT

    run_virtual(main)


@pytest.mark.parametrize(("per", "seconds"), [("hour", 1800), ("day", DAY / 2), ("month", 41.5 * DAY - 20 * DAY)])
def test_periods_are_calendar_hours_days_and_months(per: Any, seconds: float) -> None:
    async def main() -> None:
        start = NOON + 1800 if per == "hour" else NOON
        spend = SpendGuard(CENT, CENT, per=per, wall=wall_from(start))
        left = period_at(start, per).end - start
        spend.charge()
        await trio.sleep(left - 0.5)
        with pytest.raises(BudgetExhaustedError):
            spend.charge()
        await trio.sleep(0.5)
        spend.charge()
        assert left == seconds or per == "month"

    run_virtual(main)


def amounts(least: str, most: str) -> st.SearchStrategy[Decimal]:
    """Draw amounts with as many places as are allowed: without a number of places Hypothesis may draw more."""
    return st.integers(9, PLACES).flatmap(lambda places: st.decimals(least, most, places=places))


@given(price=amounts("1e-9", "10"), limit=amounts("10", "20"), calls=st.integers(1, 40))
def test_money_is_exact_and_never_above_the_limit(price: Decimal, limit: Decimal, calls: int) -> None:
    async def main() -> None:
        spend, made = SpendGuard(price, limit, wall=wall_from(NOON)), 0
        for _ in range(calls):
            with suppress(BudgetExhaustedError):
                made += await spend.call(buy) == "bought"
            assert Fraction(spend.statistics().spent) == Fraction(price) * made <= Fraction(limit)
        assert made == min(calls, Fraction(limit) // Fraction(price))

    run_virtual(main)


def test_three_and_a_half_dollars_a_million_for_63_hours() -> None:
    async def main() -> None:
        spend = SpendGuard(Decimal("3.50") / 1_000_000, Decimal(1000), per="month", wall=wall_from(NOON - 15 * DAY))
        for _ in range(63):
            spend.charge(1_000_000)
            await trio.sleep(3600)
        assert spend.statistics().spent == Decimal("220.50")

    run_virtual(main)


def test_units_before_and_within() -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON))
        spend.charge(40)
        with spend.guard(50) as call:
            call.charge(20)  # more than was thought: it is spent
        assert spend.statistics().spent == Decimal("1.10")
        with pytest.raises(BudgetExhaustedError):
            spend.charge()
        with pytest.raises(BudgetExhaustedError), spend.guard():
            pytest.fail("it was let in")
        assert spend.statistics().calls == 2

    run_virtual(main)


def test_a_hundred_callers_at_once_pay_for_no_more_than_the_limit() -> None:
    async def main() -> None:
        spend, paid = SpendGuard(CENT, Decimal("0.37"), wall=wall_from(NOON)), list[str]()

        async def caller() -> None:
            with suppress(BudgetExhaustedError):
                await trio.lowlevel.checkpoint()
                paid.append(await spend.call(Service("bought", seconds=1)))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(caller)
        assert len(paid) == 37
        assert spend.statistics().spent == Decimal("0.37")

    run_virtual(main)


def test_a_guard_for_each_customer_is_forgotten_with_its_day() -> None:
    async def main() -> None:
        def make(customer: str) -> SpendGuard:
            return SpendGuard(CENT, Decimal(1), wall=wall_from(NOON), name=customer)

        guards = PerKey(make, most_idle=2)
        for customer in "abc":
            guards.get(customer).charge(100)
        for customer in "defghijk":
            assert guards.get(customer).is_idle
        assert "a" in guards
        with pytest.raises(BudgetExhaustedError):
            guards.get("a").charge()
        await trio.sleep(DAY / 2)
        for customer in "lmnopq":
            assert guards.get(customer).is_idle
        assert "a" not in guards

    run_virtual(main)


# ------------------------------------------------------------------------------------------- what is charged


@pytest.mark.parametrize(
    ("outcome", "calls"),
    [
        ("fine", 1),
        (OSError(), 1),
        (RejectedError(), 0),
        (ExceptionGroup("", [RejectedError(), RejectedError()]), 0),
        (ExceptionGroup("", [RejectedError(), OSError()]), 1),
    ],
    ids=repr,
)
def test_only_a_refusal_from_inside_is_refunded(outcome: object, calls: int) -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, CENT, wall=wall_from(NOON))
        with suppress(Exception):
            await spend.call(Service(outcome))
        found = spend.statistics()
        assert (found.spent, found.calls) == (CENT * calls, calls)

    run_virtual(main)


def test_a_refund_goes_to_the_period_that_paid() -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON))
        with suppress(RejectedError), spend.guard():
            await trio.sleep(DAY)
            spend.charge(3)
            raise RejectedError
        assert spend.statistics().spent == 3 * CENT
        assert spend.statistics().calls == 1

    run_virtual(main)


def test_every_attempt_costs_also_one_that_times_out() -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON))
        retry = Retry(on=trio.TooSlowError, attempts=4, attempt_timeout=1, backoff=AT_ONCE)
        with pytest.raises(trio.TooSlowError):
            await retry.call(spend.call, trio.sleep, 5)
        assert spend.statistics().spent == 4 * CENT
        with pytest.raises(trio.TooSlowError):
            await Timeout(1).call(spend.call, trio.sleep, 5)
        assert spend.statistics().spent == 5 * CENT

    run_virtual(main)


def test_cancelled_at_every_checkpoint_each_call_that_began_stays_charged() -> None:
    async def scenario(injector: CancelAt) -> None:
        spend, starts = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON)), list[float]()

        async def body() -> None:
            starts.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)

        with injector.watch():
            for _ in range(3):
                await spend.call(body)
        assert spend.statistics().spent == CENT * len(starts)
        assert spend.statistics().calls == len(starts)

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 6


def test_results_and_errors_pass_untouched() -> None:
    async def main() -> None:
        spend, error = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON)), OSError("mine")
        with pytest.raises(OSError, match="mine") as caught:
            await spend.wrap(Service(error))()
        assert caught.value is error
        assert error.__context__ is error.__cause__ is None

    run_virtual(main)


# --------------------------------------------------------------------------------------------------- warnings


def test_each_fraction_is_told_once_a_period_with_what_it_will_come_to() -> None:
    async def main() -> None:
        books = Books()
        spend = SpendGuard(
            CENT, Decimal(1), per="hour", warn_at=(0.8, 0.5, 1), wall=wall_from(NOON), instruments=[books]
        )
        for calls in (49, 1, 29, 1, 19, 1):
            spend.charge(calls)
        assert books.fractions == [0.5, 0.8, 1.0]
        assert [event.spent for event in books.warned] == [Decimal("0.50"), Decimal("0.80"), Decimal(1)]
        assert books.warned[0].projected == Decimal("0.50") + 5 * Decimal(36)  # 50 in 10 s, and 3600 s are left
        with pytest.raises(BudgetExhaustedError):
            spend.charge()
        await trio.sleep(3600)
        spend.charge(100)
        assert books.fractions == [0.5, 0.8, 1.0] * 2

    run_virtual(main)


def test_a_refund_does_not_warn_again() -> None:
    async def main() -> None:
        books = Books()
        spend = SpendGuard(CENT, Decimal(1), warn_at=(0.5,), wall=wall_from(NOON), instruments=[books])
        for _ in range(3):
            with suppress(RejectedError), spend.guard(60):
                raise RejectedError
        assert books.fractions == [0.5]

    run_virtual(main)


def test_more_than_usual_is_told_once_a_period_while_there_is_time() -> None:
    async def main() -> None:
        books = Books()
        spend = SpendGuard(CENT, Decimal(1000), per="hour", warn_at=(), wall=wall_from(NOON), instruments=[books])
        for _ in range(5 * 60):  # the first hour has no start that it saw; then four hours of 60 calls
            spend.charge()
            await trio.sleep(60)
        assert spend.statistics().usual == pytest.approx(0.60)
        assert books.warned == []
        began = trio.current_time()
        while not books.warned:
            spend.charge()
            await trio.sleep(15)
        assert trio.current_time() - began <= 300
        for _ in range(200):
            spend.charge()
            await trio.sleep(15)
        [event] = books.warned
        assert event.reason == "times_usual"
        assert 2 < event.fraction < 2.5
        assert float(event.projected) == pytest.approx(event.fraction * 0.60)
        assert event.spent < Decimal("0.30")

    run_virtual(main)


def test_a_quiet_weekend_is_usual_too() -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1000), wall=wall_from(20_000 * DAY - 5))
        spend.charge()
        await trio.sleep(5)
        for _ in range(5):
            spend.charge(70)
            await trio.sleep(DAY)
        before = spend.statistics().usual
        assert before == pytest.approx(0.70)
        await trio.sleep(2 * DAY)
        spend.charge()
        usual = Usual(7, 0.70, 5)
        usual.learn(0, 2)
        assert spend.statistics().usual == pytest.approx(usual.value)

    run_virtual(main)


def test_the_projection_is_the_present_rate_until_the_end() -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1000), per="hour", wall=wall_from(NOON))
        assert spend.statistics().projected == 0
        for _ in range(600):
            spend.charge()
            await trio.sleep(3)
        assert float(spend.statistics().projected) == pytest.approx(12, rel=0.02)
        await trio.sleep(600)
        assert spend.statistics().projected == Decimal(6)  # nothing was called in the last five minutes

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ the gate


def test_the_gate_is_shut_until_the_period_ends_and_what_comes_through_is_refused() -> None:
    async def main() -> None:
        gate = Gate("money")
        spend = SpendGuard(CENT, Decimal("0.03"), per="hour", wall=wall_from(NOON), gate=gate)
        for _ in range(3):
            await gate.wait_open()
            spend.charge()
        assert gate.is_open
        for _ in range(2):
            with pytest.raises(BudgetExhaustedError):
                spend.charge()
            assert not gate.is_open
        await gate.wait_open()
        assert trio.current_time() == 3600
        spend.charge()

    run_virtual(main)


@pytest.mark.parametrize("by_gate", [False, True])
def test_a_queue_pauses_until_the_next_hour_and_loses_nothing(by_gate: bool) -> None:
    starts: list[float] = []

    async def job() -> None:
        starts.append(trio.current_time())

    async def main() -> None:
        cooldown = Cooldown(ramp=0)
        gate = cooldown.gate() if by_gate else None
        spend = SpendGuard(CENT, Decimal("0.04"), per="hour", wall=wall_from(NOON), gate=gate)
        async with open_task_queue(
            concurrency=2, protect=spend, cooldown=cooldown, retry=Retry(on=(), retry_after=lambda error: None)
        ) as queue:
            for _ in range(10):
                await queue.submit(job)

    run_virtual(main)
    assert starts == [0] * 4 + [3600] * 4 + [7200] * 2


# ---------------------------------------------------------------------------------------------- the wall clock


class MoneyMachine(RuleBasedStateMachine):
    """Under a wall clock that jumps: money is conserved, and each period that is reached gives one limit."""

    limit = Decimal("0.10")

    @initialize(seed=st.integers(0, 2**32 - 1), wall=st.floats(1.7e9, 1.8e9))
    def begin(self, seed: int, wall: float) -> None:
        self.stepper = Stepper(seed)
        self.wall = wall
        self.books = Books()
        self.spend = self.make()
        self.bought = self.before = Decimal(0)
        self.period = self.spend.statistics().period_start
        self.entered_at = 0.0

    def make(self) -> SpendGuard:
        return SpendGuard(CENT, self.limit, per="hour", wall=lambda: self.wall, instruments=[self.books])

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()

    def look(self) -> None:
        """A new period begins when the wall clock has reached it, or when it went back and the old one has lasted."""
        found, now = self.spend.statistics(), self.stepper.now
        reached = self.wall >= self.period + 3600
        if reached or (self.wall < self.period and now - self.entered_at >= 3600):
            assert (found.period_start, found.period_end) == period_at(self.wall, "hour")
            self.period, self.entered_at, self.before = found.period_start, now, self.bought
            self.books.warned.clear()
            self.books.stopped.clear()
        assert found.period_start == self.period
        assert found.spent == self.bought - self.before <= self.limit

    @rule(units=st.integers(0, 10))
    def buy(self, units: int) -> None:
        self.look()
        fits = self.bought - self.before + units * CENT <= self.limit
        try:
            self.spend.charge(units)
        except BudgetExhaustedError as refused:
            assert not fits
            assert 0 < refused.retry_after <= 3600
        else:
            assert fits
            self.bought += units * CENT

    @rule(seconds=st.sampled_from([1.0, 100.0, 1800.0, 3600.0, 10_000.0]))
    def wait(self, seconds: float) -> None:
        self.stepper.advance(seconds)
        self.wall += seconds

    @rule(seconds=st.sampled_from([-1e6, -3600.0, -1.0, 1.0, 1800.0, 3600.0, 1e6]))
    def set_the_clock(self, seconds: float) -> None:
        self.wall += seconds

    @rule()
    def restart(self) -> None:
        exported = json.loads(json.dumps(self.spend.export()))
        before = self.spend.statistics()
        self.spend = self.make()
        self.spend.restore(exported)
        after = self.spend.statistics()
        assert (after.spent, after.calls, after.refused, after.stopped, after.period_start) == (
            before.spent,
            before.calls,
            before.refused,
            before.stopped,
            before.period_start,
        )
        self.entered_at = self.stepper.now

    @invariant()
    def everything_is_told_once_a_period(self) -> None:
        if not hasattr(self, "stepper"):
            return
        self.look()
        share = (self.bought - self.before) / self.limit
        assert self.books.fractions == [part for part in (0.5, 0.8) if Decimal(repr(part)) <= share]
        assert len(self.books.stopped) <= 1


TestMoney = MoneyMachine.TestCase


def test_a_wall_clock_that_steps_back_reopens_nothing() -> None:
    async def main() -> None:
        wall = [NOON]
        spend = SpendGuard(CENT, CENT, wall=lambda: wall[0])
        spend.charge()
        wall[0] += DAY
        spend.charge()
        wall[0] -= DAY
        with pytest.raises(BudgetExhaustedError) as refused:
            spend.charge()
        assert refused.value.retry_after == DAY
        assert spend.statistics().spent == CENT

    run_virtual(main)


def test_a_wall_clock_that_raises_lets_no_call_through() -> None:
    async def main() -> None:
        service = Service("bought")
        spend = SpendGuard(CENT, CENT, wall=lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await spend.call(service)
        assert service.starts == []

    run_virtual(main)


# -------------------------------------------------------------------------------------------------- restarts


def test_a_restart_forgets_nothing() -> None:
    books = Books()

    def make(price: Decimal = CENT) -> SpendGuard:
        return SpendGuard(price, Decimal(1), wall=wall_from(NOON), instruments=[books])

    async def main() -> None:
        spend = make()
        spend.charge(60)
        with pytest.raises(BudgetExhaustedError):
            spend.charge(60)
        exported = json.loads(json.dumps(spend.export()))
        assert books.fractions == [0.5]
        again = make(Decimal("0.013"))  # the price has changed
        again.restore(exported)
        assert again.statistics().spent == Decimal("0.60")
        again.charge(30)
        assert again.statistics().spent == Decimal("0.99")
        assert books.fractions == [0.5, 0.8]
        with pytest.raises(BudgetExhaustedError):
            again.charge()
        assert len(books.stopped) == 1
        assert repr(again) == "<SpendGuard 'spend' 0.990 of 1 a day>"
        tomorrow = make()
        await trio.sleep(DAY)
        tomorrow.restore(exported)
        assert tomorrow.statistics().spent == 0

    run_virtual(main)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"per": "hour"}, "exported must be of the same per, 'day', got 'hour'"),
        ({"spent": 0.5}, r"exported must be what export\(\) returns, got spent=0.5"),
        ({"spent": "a lot"}, r"exported must be what export\(\) returns, got spent='a lot'"),
        ({"spent": "NaN"}, r"exported spent must be >= 0 and finite, got Decimal\('NaN'\)"),
        ({"warned": None}, r"exported must be what export\(\) returns, got warned=None"),
    ],
)
def test_what_was_not_exported_is_refused_and_changes_nothing(change: dict[str, object], message: str) -> None:
    async def main() -> None:
        spend = SpendGuard(CENT, Decimal(1), wall=wall_from(NOON))
        exported = spend.export()
        with pytest.raises(ValueError, match=f"^{message}$"):
            spend.restore(exported | change)
        assert spend.export() == exported
        spend.charge()
        with pytest.raises(RuntimeError, match=r"^restore must come before the first call$"):
            spend.restore(exported)

    run_virtual(main)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((0.4, Decimal(1)), {}, TypeError, "price must be a Decimal, got 0.4"),
        ((Decimal(1), 0.5), {}, TypeError, "limit must be a Decimal, got 0.5"),
        ((Decimal(0), Decimal(1)), {}, ValueError, r"price must be > 0 and finite, got Decimal\('0'\)"),
        ((CENT, Decimal("inf")), {}, ValueError, r"limit must be > 0 and finite, got Decimal\('Infinity'\)"),
        ((CENT, Decimal("0.009")), {}, ValueError, r"limit must be >= price, got Decimal\('0.009'\)"),
        ((CENT, CENT), {"per": "week"}, ValueError, "per must be 'hour', 'day' or 'month', got 'week'"),
        ((CENT, CENT), {"warn_at": (0,)}, ValueError, "warn_at must be > 0, got 0"),
        ((CENT, CENT), {"warn_at": (1.5,)}, ValueError, "warn_at must be <= 1, got 1.5"),
        ((CENT, CENT), {"warn_at": (True,)}, TypeError, "warn_at must be a number, got True"),
        ((CENT, CENT), {"times_usual": 1}, ValueError, "times_usual must be > 1, got 1"),
        ((CENT, CENT), {"wall": 5}, TypeError, "wall must be a plain function, got 5"),
        ((CENT, CENT), {"gate": 5}, TypeError, r"gate must have shut\(seconds\), got 5"),
        ((CENT, CENT), {"instruments": [5]}, TypeError, "instruments must be Instrument objects, got 5"),
    ],
)
def test_bad_arguments(arguments: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        SpendGuard(*arguments, **options)


@pytest.mark.parametrize(
    ("units", "kind", "message"),
    [
        (-1, ValueError, "units must be >= 0 and finite, got -1"),
        (1.5, ValueError, "units must be a whole number or math.inf, got 1.5"),
        (inf, ValueError, "units must be >= 0 and finite, got inf"),
        (True, TypeError, "units must be a number, got True"),
        (101, ValueError, "units must be <= 100, which is all that the limit pays for, got 101"),
    ],
)
def test_bad_units(units: Any, kind: type[Exception], message: str) -> None:
    spend = SpendGuard(CENT, Decimal(1))
    for use in (spend.guard, spend.charge):
        with pytest.raises(kind, match=f"^{message}$"):
            use(units)


def test_the_rate_of_an_earlier_run_is_not_that_of_this_one() -> None:
    """The wall clock goes on, and so does the period; Trio's clock is another one."""
    started = NOON
    guard = SpendGuard(CENT, Decimal(1000), wall=lambda: started + trio.current_time() % 1000)

    async def hammer() -> None:
        await trio.sleep(5000)
        for _ in range(1000):
            await guard.call(Service("fine"))

    async def later() -> None:
        assert guard.statistics().projected == guard.statistics().spent == 10
        await guard.call(Service("fine"))
        assert guard.statistics().spent == Decimal("10.01")

    run_virtual(hammer)
    started += 600
    run_virtual(later)
