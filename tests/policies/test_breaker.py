"""A circuit breaker by examples: whole timelines, what passes through it, and the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.policies.circuits import CLOSED, HALF_OPEN, OPEN, by_call, fail, fine, once, refusal
from tests.policies.service import Service
from trio_orchestrator.algorithms.backoff import Exponential
from trio_orchestrator.algorithms.trip import Consecutive, Ratio, SlowRatio
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitOpened
from trio_orchestrator.testing import CancelAt, SchedulerPasses, cancelled_everywhere

Form = Callable[[CircuitBreaker, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def by_wrap(breaker: CircuitBreaker, fn: Callable[[], Awaitable[Any]]) -> Any:
    @breaker.wrap
    async def wrapped() -> Any:
        return await fn()

    return await wrapped()


async def by_guard(breaker: CircuitBreaker, fn: Callable[[], Awaitable[Any]]) -> Any:
    with breaker.guard() as guard:
        return guard.judge(await fn())


three_forms = pytest.mark.parametrize("form", [by_call, by_wrap, by_guard], ids=lambda form: form.__name__)
both_paths = pytest.mark.parametrize("watched", [False, True], ids=["plain", "watched"])


# --------------------------------------------------------------------------------------------- timelines


@three_forms
async def test_a_whole_outage(form: Form, autojump_clock: MockClock) -> None:
    recorder, error = Recorder(), OSError("down")
    breaker = CircuitBreaker(trip=Ratio(0.5, seconds=10, minimum=4), cooldown=5, name="db", instruments=[recorder])
    service = Service("ok", "ok", OSError(), error, error, "ok")
    line: list[tuple[float, str]] = []
    for _ in range(16):
        try:
            what = await form(breaker, service)
        except CircuitOpenError as refused:
            what = f"refused for {refused.retry_after:g}"
            assert refused.__cause__ is error
        except OSError:
            what = "failed"
        line.append((trio.current_time(), what))
        await trio.sleep(1)
    assert line == [
        (0, "ok"),
        (1, "ok"),
        (2, "failed"),
        (3, "failed"),
        *[(4 + n, f"refused for {4 - n}") for n in range(4)],
        (8, "failed"),
        *[(9 + n, f"refused for {4 - n}") for n in range(4)],
        (13, "ok"),
        (14, "ok"),
        (15, "ok"),
    ]
    assert recorder.events == [
        (3, CircuitOpened("db", 5, 1, error)),
        (8, CircuitHalfOpened("db", 5)),
        (8, CircuitOpened("db", 5, 2, error)),
        (13, CircuitHalfOpened("db", 5)),
        (13, CircuitClosed("db", 10, reset=False)),
    ]
    statistics = breaker.statistics()
    assert (statistics.admitted, statistics.refused, statistics.successes, statistics.failures) == (8, 8, 5, 3)
    assert (statistics.state, statistics.in_flight, statistics.openings, statistics.opens_in) == (CLOSED, 0, 0, 0)


async def test_the_defaults_open_at_half_of_ten_calls_in_ten_seconds(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    for n in range(9):
        await (fail(breaker) if n % 2 else breaker.call(fine))
    assert breaker.state is CLOSED
    await fail(breaker)
    assert breaker.state is OPEN
    assert refusal(breaker).retry_after == 30


async def test_an_idle_hour_leaves_nothing_of_nine_failures(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    for _ in range(9):
        await fail(breaker)
    assert not breaker.is_idle
    await trio.sleep(3600)
    assert breaker.is_idle
    await fail(breaker)
    assert breaker.state is CLOSED


async def test_the_state_is_half_open_once_the_cooldown_is_over_although_nobody_calls(
    autojump_clock: MockClock,
) -> None:
    recorder = Recorder()
    breaker = once(instruments=[recorder])
    await fail(breaker)
    assert [breaker.state, breaker.statistics().opens_in] == [OPEN, 30]
    await trio.sleep(29.5)
    assert [breaker.state, breaker.statistics().opens_in] == [OPEN, 0.5]
    await trio.sleep(0.5)
    for _ in range(3):
        assert [breaker.state, breaker.statistics().state, breaker.statistics().opens_in] == [HALF_OPEN, HALF_OPEN, 0]
    assert recorder.times(CircuitHalfOpened) == []  # it tells of it when a probe passes
    await trio.sleep(10)
    await breaker.call(fine)
    assert recorder.of(CircuitHalfOpened) == [CircuitHalfOpened("circuit", 40)]
    assert breaker.state is CLOSED


async def test_a_growing_cooldown_begins_anew_after_closing(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = once(cooldown=Exponential(base=5, cap=15), instruments=[recorder])
    for _ in range(2):
        for _ in range(4):
            await fail(breaker)
            await trio.sleep(breaker.statistics().opens_in)
        await breaker.call(fine)
    assert [event.cooldown for event in recorder.of(CircuitOpened)] == [5, 10, 15, 15] * 2
    assert [event.openings for event in recorder.of(CircuitOpened)] == [1, 2, 3, 4] * 2
    assert [event.open_for for event in recorder.of(CircuitClosed)] == [45, 45]


async def test_slow_calls_open_and_a_slow_probe_opens_again(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=SlowRatio(1.0, calls=2), slow_call=3, cooldown=10)
    for seconds in (3, 3, 3.5, 3.5):
        assert breaker.state is CLOSED
        await breaker.call(trio.sleep, seconds)
    assert refusal(breaker).__cause__ is None
    await trio.sleep(10)
    await breaker.call(trio.sleep, 4)
    assert (breaker.state, breaker.statistics().openings) == (OPEN, 2)
    await trio.sleep(10)
    await breaker.call(trio.sleep, 3)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(("close_after", "probes", "needed"), [(0.07, 100, 7), (0.5, 3, 2), (0.29, 100, 29), (3, 1, 3)])
async def test_so_many_probes_close(close_after: float, probes: int, needed: int, autojump_clock: MockClock) -> None:
    breaker = once(probes=probes, close_after=close_after)
    await fail(breaker)
    await trio.sleep(30)
    for _ in range(needed):
        assert breaker.state is HALF_OPEN
        await breaker.call(fine)
    assert breaker.state is CLOSED


async def test_a_fraction_tolerates_the_rest(autojump_clock: MockClock) -> None:
    breaker = once(probes=100, close_after=0.93)
    await fail(breaker)
    await trio.sleep(30)
    for _ in range(7):
        await fail(breaker)
    assert breaker.state is HALF_OPEN
    await fail(breaker)
    assert breaker.state is OPEN


# ------------------------------------------------------------------------------------- what passes through


@both_paths
@three_forms
async def test_a_result_passes_and_an_exception_passes_bare(form: Form, watched: bool) -> None:
    breaker = CircuitBreaker(trip=Consecutive(99), classify=(lambda result: False) if watched else None)
    result = object()
    assert await form(breaker, Service(result)) is result
    for error in (
        OSError(),
        ExceptionGroup("g", [OSError()]),
        KeyboardInterrupt(),
        BaseExceptionGroup("b", [SystemExit()]),
    ):
        with pytest.raises(type(error)) as caught:
            await form(breaker, Service(error))
        assert caught.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
    statistics = breaker.statistics()
    assert (statistics.successes, statistics.failures, statistics.neutral, statistics.in_flight) == (1, 2, 2, 0)


@both_paths
@three_forms
async def test_it_adds_no_checkpoint(form: Form, watched: bool) -> None:
    breaker = once(watched)
    passes = SchedulerPasses()
    trio.lowlevel.add_instrument(passes)
    before = passes.count
    for _ in range(10):
        await form(breaker, fine)
    assert passes.count == before


@both_paths
@three_forms
def test_cancelled_at_every_checkpoint_it_gives_everything_back(form: Form, watched: bool) -> None:
    async def scenario(injector: CancelAt) -> None:
        breaker = once(watched)

        async def body() -> None:
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)

        await fail(breaker)
        await trio.sleep(30)
        before = breaker.statistics()
        with injector.watch():
            await form(breaker, body)
        after = breaker.statistics()
        assert (after.in_flight, after.probes, after.failures) == (0, 0, before.failures)
        assert (after.state, after.neutral) == ((HALF_OPEN, 1) if injector.fired else (CLOSED, 0))

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 2


@three_forms
async def test_100_concurrent_callers(form: Form, autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Ratio(0.5, calls=100, minimum=100))

    async def one(n: int) -> None:
        try:
            await form(breaker, Service(OSError() if n % 2 else "fine", seconds=1 + n % 7))
        except OSError:
            pass

    async with trio.open_nursery() as nursery:
        for n in range(100):
            nursery.start_soon(one, n)
        await trio.sleep(0.5)
        assert breaker.statistics().in_flight == 100
    statistics = breaker.statistics()
    assert (statistics.successes, statistics.failures, statistics.in_flight) == (50, 50, 0)
    assert breaker.state is OPEN


async def test_the_refusal_says_all() -> None:
    breaker = once(name="db")
    error = OSError("down")
    await fail(breaker, error)
    refused = refusal(breaker)
    assert str(refused) == "db is open"
    assert (refused.name, refused.state) == ("db", "open")
    assert refused.__cause__ is error
    assert repr(breaker) == "<CircuitBreaker 'db' open, 1 of 1 failed>"


# --------------------------------------------------------------------------------------------- the guard


async def test_a_guard_is_entered_once() -> None:
    breaker = CircuitBreaker(trip=Consecutive(99))
    guard = breaker.guard()
    with guard:
        with pytest.raises(RuntimeError, match="entered before"):
            guard.__enter__()
        assert breaker.statistics().in_flight == 1
    with pytest.raises(RuntimeError, match="entered before"), guard:
        raise AssertionError
    assert (breaker.statistics().admitted, breaker.statistics().in_flight) == (1, 0)


async def test_a_guard_that_was_refused_may_be_entered_later(autojump_clock: MockClock) -> None:
    breaker = once()
    await fail(breaker)
    guard = breaker.guard()
    for seconds in (0, 15):
        await trio.sleep(seconds)
        with pytest.raises(CircuitOpenError), guard:
            raise AssertionError
    await trio.sleep(15)
    with guard:
        pass
    assert breaker.state is CLOSED


@both_paths
async def test_one_task_may_be_in_it_twice(watched: bool) -> None:
    breaker = once(watched)
    with breaker.guard(), breaker.guard():
        assert breaker.statistics().in_flight == 2
    assert breaker.statistics().successes == 2


@both_paths
@pytest.mark.parametrize("error", [None, ValueError(), OSError(), KeyboardInterrupt()], ids=repr)
async def test_what_is_said_of_a_call_counts_however_it_ends(watched: bool, error: BaseException | None) -> None:
    def end() -> None:
        if error is not None:
            raise error

    for said, verdict in (("fail", (1, 0)), ("ignore", (0, 1))):
        breaker = once(watched, on=OSError)
        try:
            with breaker.guard() as guard:
                getattr(guard, said)()
                end()
        except BaseException as caught:
            assert caught is error
        assert (breaker.statistics().failures, breaker.statistics().neutral) == verdict
        assert breaker.statistics().in_flight == 0
        if said == "fail":
            cause = refusal(breaker).__cause__
            assert cause is (error if isinstance(error, Exception) else None)


async def test_a_bad_result_is_a_failure_unless_the_call_is_ignored() -> None:
    breaker = CircuitBreaker(trip=Consecutive(99), classify=lambda result: result >= 500)
    with breaker.guard() as guard:
        assert guard.judge(503) == 503
    with breaker.guard() as guard:
        guard.judge(503)
        guard.judge(200)
    with breaker.guard() as guard:
        guard.ignore()
        guard.judge(503)
    with pytest.raises(ZeroDivisionError), breaker.guard() as guard:
        guard.judge(200)
        raise ZeroDivisionError
    assert await breaker.call(Service(503)) == 503
    statistics = breaker.statistics()
    assert (statistics.failures, statistics.successes, statistics.neutral) == (4, 0, 1)


@three_forms
@pytest.mark.parametrize("half_open", [False, True])
@pytest.mark.parametrize("broken", ["classify", "on", "neutral"])
async def test_what_a_predicate_raises_comes_out_and_the_call_is_neutral(
    form: Form, half_open: bool, broken: str, autojump_clock: MockClock
) -> None:
    def raises(value: object) -> bool:
        if value == "odd" or isinstance(value, ArithmeticError):
            raise LookupError(broken)
        return isinstance(value, OSError)

    options: dict[str, Any] = {"on": OSError, broken: raises}
    breaker = CircuitBreaker(trip=Consecutive(1), **options)
    if half_open:
        breaker.restore({"state": "open", "seconds": 0, "openings": 1})
    for _ in range(5):
        with pytest.raises(LookupError, match=broken):
            await form(breaker, Service("odd" if broken == "classify" else ArithmeticError()))
    statistics = breaker.statistics()
    assert (statistics.neutral, statistics.in_flight, statistics.probes) == (5, 0, 0)
    assert statistics.state is (HALF_OPEN if half_open else CLOSED)
