"""Who wins, when, and how many copies run: exact timelines in virtual time."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio

from tests.policies.service import Purse
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.hedge import Hedge, HedgeStatistics, Quantile
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policy_event import HedgeStarted
from trio_orchestrator.testing import run_virtual


class Copies:
    """A function whose n-th invocation takes `seconds`, then returns its number or raises; counts enters and exits."""

    def __init__(self, *script: tuple[float, BaseException | None]) -> None:
        self.script = script
        self.starts: list[float] = []
        self.ends: list[tuple[int, str, float]] = []
        self.inside = 0

    async def __call__(self) -> int:
        number = len(self.starts)
        seconds, error = self.script[number]
        self.starts.append(trio.current_time())
        self.inside += 1
        how = "cancelled"
        try:
            await trio.sleep(seconds)
            how = "returned" if error is None else "raised"
            if error is not None:
                raise error
            return number
        finally:
            self.inside -= 1
            self.ends.append((number, how, trio.current_time()))


def outcome(hedge: Hedge, fn: Callable[[], Awaitable[Any]], seed: int = 0) -> tuple[Any, float]:
    """Return the result, or the exception, and the virtual time at which it came."""

    async def main() -> tuple[Any, float]:
        try:
            return await hedge.call(fn), trio.current_time()
        except Exception as error:
            return error, trio.current_time()

    return run_virtual(main, seed=seed)


def test_a_fast_call_gets_no_copy() -> None:
    hedge, body = Hedge(after=1), Copies((0.5, None))
    assert outcome(hedge, body) == (0, 0.5)
    assert hedge.statistics() == HedgeStatistics(1, 0, 0, 0, 0, 0, 0, 0)


def test_a_slow_call_gets_a_copy_that_wins() -> None:
    hedge, body = Hedge(after=1), Copies((10, None), (0.5, None))
    assert outcome(hedge, body) == (1, 1.5)
    assert body.starts == [0, 1]
    assert body.ends == [(1, "returned", 1.5), (0, "cancelled", 1.5)]
    assert hedge.statistics() == HedgeStatistics(1, 0, 0, hedged=1, copies=1, won_by_copy=1, refused=0, late_failures=0)


def test_the_original_may_still_win() -> None:
    hedge, body = Hedge(after=1), Copies((1.25, None), (0.5, None))
    assert outcome(hedge, body) == (0, 1.25)
    assert body.ends == [(0, "returned", 1.25), (1, "cancelled", 1.25)]
    assert hedge.statistics().won_by_copy == 0


def test_copies_start_one_after_the_other() -> None:
    hedge, body = Hedge(after=1, copies=3), Copies((10, None), (10, None), (10, None), (0.5, None))
    assert outcome(hedge, body) == (3, 3.5)
    assert body.starts == [0, 1, 2, 3]
    assert body.inside == 0
    assert (hedge.statistics().hedged, hedge.statistics().copies) == (1, 3)


def test_with_after_0_all_start_at_once() -> None:
    body = Copies((3, None), (2, None), (1, None))
    assert outcome(Hedge(after=0, copies=2), body)[1] == 1
    assert body.starts == [0, 0, 0]


def test_with_after_inf_there_is_never_a_copy() -> None:
    body = Copies((1e9, None))
    assert outcome(Hedge(after=math.inf, copies=9), body) == (0, 1e9)


def test_a_failure_before_any_copy_comes_out_at_once_and_bare() -> None:
    error = OSError()
    error.__context__ = context = KeyError()
    found, at = outcome(Hedge(after=1), Copies((0.5, error)))
    assert (found, at) == (error, 0.5)
    assert (error.__context__, error.__cause__) == (context, None)
    assert not hasattr(error, "__notes__")


def test_a_failure_waits_for_those_that_still_run() -> None:
    body = Copies((1.5, OSError()), (2, None))
    assert outcome(Hedge(after=1), body) == (1, 3)
    assert body.ends == [(0, "raised", 1.5), (1, "returned", 3)]


def test_copies_go_on_starting_while_one_still_runs() -> None:
    body = Copies((1.5, OSError()), (5, None), (0.25, None))
    assert outcome(Hedge(after=1, copies=2), body) == (2, 2.25)


def test_if_all_fail_the_failure_of_the_original_comes_out_bare() -> None:
    first = OSError("first")
    found, at = outcome(Hedge(after=1, copies=2), Copies((2.5, first), (0.5, KeyError()), (1, ValueError())))
    assert (found, at) == (first, 3)
    assert (first.__context__, first.__cause__) == (None, None)


def test_a_failure_is_bare_also_where_another_one_is_handled() -> None:
    error = OSError()

    async def main() -> None:
        try:
            raise KeyError
        except KeyError:
            with pytest.raises(OSError):
                await Hedge(after=1).call(Copies((0.5, error)))
        assert error.__context__ is None

    run_virtual(main)


def test_a_group_of_the_functions_own_passes_as_it_is() -> None:
    group = ExceptionGroup("own", [OSError(), KeyError()])
    assert outcome(Hedge(after=1), Copies((0.5, group)))[0] is group


def test_a_refusal_inside_never_hurts_the_original() -> None:
    refused = CircuitOpenError("search", "open", retry_after=3)
    assert outcome(Hedge(after=1, copies=2), Copies((5, None), (0, refused), (0, refused))) == (0, 5)
    assert outcome(Hedge(after=1), Copies((0, refused)))[0] is refused


# ------------------------------------------------------------------------------------------------------- budget


def test_failsafe_go_141_a_budget_that_refuses_a_copy_leaves_those_that_run() -> None:
    purse = Purse(coins=1)
    hedge, body = Hedge(after=1, copies=2, budget=purse), Copies((5, None), (3, None))
    assert outcome(hedge, body) == (1, 4)
    assert body.starts == [0, 1]
    assert purse.asked == [None, None]
    assert (hedge.statistics().refused, hedge.statistics().copies) == (1, 1)


def test_after_a_refusal_the_call_asks_no_more() -> None:
    purse = Purse(coins=0)
    assert outcome(Hedge(after=1, copies=5, budget=purse), Copies((10, None))) == (0, 10)
    assert purse.asked == [None]


class Ledger(Purse):
    def __init__(self) -> None:
        super().__init__(coins=100)
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1


def test_a_budget_hears_when_a_call_begins_and_succeeds() -> None:
    ledger = Ledger()
    hedge = Hedge(after=1, budget=ledger)
    outcome(hedge, Copies((3, None), (1, None)))
    outcome(hedge, Copies((0, OSError())))
    assert (ledger.begun, ledger.asked, ledger.deposits) == (2, [None], [1])


def test_a_hedge_with_another_budget_shares_what_it_learned_and_counted() -> None:
    ledger = Ledger()
    own = Ledger()
    hedge = Hedge(after=Quantile(minimum=1, initial=1), budget=own)
    shared = hedge._sharing(ledger)
    assert outcome(shared, Copies((3, None), (1, None))) == (1, 2)
    assert (ledger.begun, ledger.asked, ledger.deposits) == (1, [None], [1])
    assert (own.begun, own.asked, own.deposits) == (0, [], [])
    assert (hedge.budget, shared.budget) == (own, ledger)
    assert shared.statistics() == hedge.statistics()

    async def main() -> float:
        return hedge.after_now

    assert 2 < run_virtual(main) < 2.2


class Broken(Purse):
    def withdraw(self, error: BaseException | None) -> bool:
        raise ZeroDivisionError


def test_what_a_budget_raises_ends_the_call() -> None:
    body = Copies((5, None))
    found, at = outcome(Hedge(after=1, budget=Broken(1)), body)
    assert (type(found), at, found.__context__) == (ZeroDivisionError, 1, None)
    assert body.ends == [(0, "cancelled", 1)]


# ----------------------------------------------------------------------------------------------------- quantile


def test_after_a_quantile_of_what_was_seen() -> None:
    hedge = Hedge(after=Quantile(0.9, minimum=10, window=60))
    body = Copies(*[(1 + n % 10, None) for n in range(10)], (50, None), (0.5, None))

    async def main() -> None:
        assert hedge.after_now == math.inf
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(hedge.call, body)
        after = hedge.after_now
        assert 9 < after < 10
        before = trio.current_time()
        assert await hedge.call(body) == 11
        assert trio.current_time() - before == pytest.approx(after + 0.5)
        await trio.sleep(60)
        assert hedge.after_now == math.inf

    run_virtual(main)


def test_only_successes_are_learned_and_a_copys_latency_is_that_of_the_call() -> None:
    hedge = Hedge(after=Quantile(1, minimum=1, initial=4))

    async def main() -> None:
        with pytest.raises(OSError):
            await hedge.call(Copies((1, OSError())))
        assert hedge.after_now == 4
        assert await hedge.call(Copies((9, None), (2, None))) == 1
        assert 6 < hedge.after_now < 6.6

    run_virtual(main)


def test_hedging_keeps_its_share_of_calls() -> None:
    """One original in ten is slow; with the copies' own latencies the threshold would sink, and copies multiply."""
    hedge = Hedge(after=Quantile(0.9, window=600))
    calls = 0

    async def body(slow: bool, number: list[int]) -> None:
        number.append(1)
        await trio.sleep(10 if slow and len(number) == 1 else 1)

    async def main() -> None:
        nonlocal calls
        for calls in range(1, 501):
            await hedge.call(body, calls % 11 == 0, [])

    run_virtual(main)
    assert 0.05 < hedge.statistics().copies / calls < 0.12


# ----------------------------------------------------------------------------------------------- unusual endings


def test_a_keyboard_interrupt_in_a_copy_ends_all_and_comes_out_bare() -> None:
    for error in (KeyboardInterrupt(), SystemExit(), BaseExceptionGroup("", [KeyboardInterrupt(), OSError()])):
        body = Copies((10, None), (0.5, error))

        async def main(body: Copies = body, error: BaseException = error) -> float:
            with pytest.raises(BaseException) as caught:
                await Hedge(after=1).call(body)
            assert caught.value is error
            assert caught.value.__context__ is None
            return trio.current_time()

        assert run_virtual(main) == 1.5
        assert body.ends == [(1, "raised", 1.5), (0, "cancelled", 1.5)]


def test_a_keyboard_interrupt_of_a_loser_comes_before_the_result() -> None:
    async def body(number: list[int]) -> None:
        number.append(1)
        try:
            await trio.sleep(2)
        except trio.Cancelled:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt) as caught:
        run_virtual(Hedge(after=1, copies=2).call, body, [])
    assert not isinstance(caught.value, BaseExceptionGroup)


class CtrlC(trio.abc.Instrument):
    """Presses Ctrl-C when every task sleeps, at a time."""

    def __init__(self, at: float) -> None:
        self.at = at

    def before_io_wait(self, timeout: float) -> None:
        if trio.current_time() >= self.at:
            self.at = math.inf
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", [0.5, 1.5, 2.5])
def test_ctrl_c_comes_out_bare_at_any_time(at: float) -> None:
    hedge = Hedge(after=1)

    async def body() -> None:
        try:
            await trio.sleep(2)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt) as caught:
            await hedge.call(body)
        assert caught.value.__context__ is None
        assert hedge.is_idle
        assert hedge.statistics().running == 0

    run_virtual(main, instruments=[CtrlC(at)])


def test_a_loser_that_raises_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trio_orchestrator")
    hedge, number, late = Hedge(after=1, name="search"), [0], KeyError("while cleaning up")

    async def body() -> str:
        number[0] += 1
        if number[0] == 2:
            return "copy"
        try:
            await trio.sleep(5)
        finally:
            raise late

    assert outcome(hedge, body) == ("copy", 1)
    (record,) = caplog.records
    assert record.getMessage() == "copy 0 of 'search' raised when it had lost"
    assert record.exc_info is not None
    assert record.exc_info[1] is late
    assert hedge.statistics().late_failures == 1


def test_a_second_result_is_dropped() -> None:
    async def body(number: list[int]) -> int:
        mine = len(number)
        number.append(mine)
        try:
            await trio.sleep(1.5 if mine == 1 else 5)
        except trio.Cancelled:
            return 99
        return mine

    hedge = Hedge(after=1, copies=2)
    assert run_virtual(hedge.call, body, []) == 1
    assert (hedge.statistics().copies, hedge.statistics().won_by_copy) == (2, 1)


def test_losers_are_awaited() -> None:
    async def body(number: list[int]) -> int:
        mine = len(number)
        number.append(mine)
        try:
            await trio.sleep(5 if mine == 0 else 1)
        finally:
            if mine == 0:
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)
        return mine

    assert outcome(Hedge(after=1), lambda: body([])) == (0, 9)  # the original at 8; its copy, begun at 1, unwinds
    number: list[int] = []
    assert outcome(Hedge(after=1), lambda: body(number)) == (1, 5)


# ---------------------------------------------------------------------------------------------- the rest of the shell

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


def test_each_copy_has_its_own_copy_of_the_callers_context() -> None:
    seen: list[str] = []

    async def body() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("changed")
        await trio.sleep(3)

    async def main() -> None:
        VARIABLE.set("caller's")
        await Hedge(after=1, copies=2).call(body)
        assert VARIABLE.get() == "caller's"

    run_virtual(main)
    assert seen == ["caller's"] * 3


def test_events() -> None:
    recorder = Recorder()

    async def search() -> None:
        await trio.sleep(2.5)

    run_virtual(Hedge(after=1, copies=2, instruments=[recorder]).call, search)
    run_virtual(Hedge(after=2, name="mine", instruments=[recorder]).call, search)
    name = search.__qualname__
    assert recorder.of(HedgeStarted) == [HedgeStarted(name, 1, 1), HedgeStarted(name, 2, 2), HedgeStarted("mine", 1, 2)]
    assert recorder.times(HedgeStarted) == [1, 2, 2]


def test_live_state() -> None:
    hedge = Hedge(after=1, copies=2)

    async def look() -> None:
        await trio.sleep(1.5)
        assert repr(hedge) == "Hedge(after=1, copies=2, in_flight=2)"
        assert not hedge.is_idle
        assert (hedge.statistics().in_flight, hedge.statistics().running) == (2, 4)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(hedge.call, trio.sleep, 2)
            nursery.start_soon(look)
        assert hedge.is_idle

    run_virtual(main)
    assert (hedge.after, hedge.after_now, hedge.copies) == (1, 1, 2)
    rule = Quantile(0.9, window=30)
    assert repr(Hedge(after=rule)) == f"Hedge(after={rule!r}, copies=1, in_flight=0)"


def test_a_call_with_wrong_arguments_is_not_repeated_by_a_retry_around() -> None:
    async def body() -> None: ...

    retry, hedge = Retry(on=Exception), Hedge(after=1)
    with pytest.raises(TypeError, match="takes 0 positional arguments"):
        run_virtual(lambda: retry.call(hedge.call, body, 3))  # type: ignore[arg-type]
    assert hedge.statistics().calls == 1


def test_a_type_error_from_within_is_repeated() -> None:
    async def body() -> None:
        raise TypeError

    hedge = Hedge(after=1)
    with pytest.raises(TypeError):
        run_virtual(lambda: Retry(on=Exception, attempts=3).call(hedge.call, body))
    assert hedge.statistics().calls == 3


def test_as_a_decorator() -> None:
    @Hedge(after=1).wrap
    async def fetch(seconds: float, *, result: str) -> str:
        await trio.sleep(seconds)
        return result

    assert run_virtual(lambda: fetch(3, result="a")) == "a"
    assert fetch.__name__ == "fetch"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"after": -1}, ValueError, "after must be >= 0, got -1"),
        ({"after": math.nan}, ValueError, "after must be >= 0, got nan"),
        ({"after": "1"}, TypeError, "after must be a number, got '1'"),
        ({"after": True}, TypeError, "after must be a number, got True"),
        ({"after": 1, "copies": 0}, ValueError, "copies must be >= 1, got 0"),
        ({"after": 1, "copies": 1.5}, ValueError, "copies must be a whole number or math.inf, got 1.5"),
        ({"after": 1, "copies": math.inf}, ValueError, "copies must be finite, got inf"),
        ({"after": 1, "budget": 3}, TypeError, r"budget must be a Budget such as RetryBudget\(\), got 3"),
        ({"after": 1, "name": 3}, TypeError, "name must be a str, got 3"),
        ({"after": 1, "instruments": [3]}, TypeError, "instruments must be Instrument objects, got 3"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        Hedge(**arguments)
