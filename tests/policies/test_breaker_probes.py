"""Half-open: who is let in, for every interleaving, and probes that end neutrally."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.policies.circuits import (
    CLOSED,
    HALF_OPEN,
    OPEN,
    both_forms,
    by_call,
    by_guard,
    fail,
    fine,
    half_open,
)
from tests.policies.service import Service
from trio_orchestrator.algorithms.trip import Consecutive, Ratio
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

SEEDS = st.integers(0, 2**32 - 1)
ENDS = ["fine", "neutral", "cancelled", "hangs", "fatal"]


class Inside:
    """Counts who is in the dependency, from the inside."""

    def __init__(self) -> None:
        self.now = self.peak = self.calls = self.refused = 0

    async def stay(self, seconds: float) -> None:
        self.now += 1
        self.calls += 1
        self.peak = max(self.peak, self.now)
        try:
            await trio.sleep(seconds)
        finally:
            self.now -= 1

    async def attempt(self, breaker: CircuitBreaker, form: Callable[..., Awaitable[None]], seconds: float) -> None:
        try:
            await form(breaker, partial(self.stay, seconds))
        except CircuitOpenError:
            self.refused += 1


@both_forms
@settings(max_examples=5)
@given(n=st.integers(1, 50), seed=SEEDS)
def test_resilience4j_1432_of_1000_callers_at_the_tick_exactly_the_probes_are_let_in(
    form: Callable[..., Awaitable[None]], n: int, seed: int
) -> None:
    async def main() -> None:
        inside = Inside()
        breaker = CircuitBreaker(trip=Consecutive(1), probes=n, close_after=n)
        await fail(breaker)
        async with trio.open_nursery() as nursery:

            async def call_at_the_tick() -> None:
                await trio.sleep_until(30)
                await inside.attempt(breaker, form, 1)

            for _ in range(1000):
                nursery.start_soon(call_at_the_tick)
            await trio.sleep_until(30.5)
            assert (inside.now, inside.refused) == (n, 1000 - n)
            assert breaker.statistics().probes == n
        assert (inside.calls, inside.peak) == (n, n)
        assert breaker.state is CLOSED

    run_virtual(main, seed=seed)


@settings(max_examples=25)
@given(
    n=st.integers(1, 6),
    seed=SEEDS,
    steps=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(ENDS)), min_size=20, max_size=60),
)
def test_safe_client_gateway_3442_never_more_than_the_probes_are_in_flight(
    n: int, seed: int, steps: list[tuple[float, str]]
) -> None:
    """However they end; without a lease, so that one that hangs keeps its place."""

    async def main() -> None:
        inside = Inside()
        breaker = await half_open(probes=n, probe_lease=math.inf, close_after=1000, neutral=LookupError)

        async def call(end: str) -> None:
            async def body() -> None:
                await inside.stay(math.inf if end == "hangs" else 1.5)
                if end == "neutral":
                    raise LookupError
                if end == "fatal":
                    raise SystemExit

            with trio.move_on_after(1 if end == "cancelled" else math.inf):
                try:
                    await breaker.call(body)
                except (LookupError, SystemExit, CircuitOpenError):
                    pass

        async with trio.open_nursery() as nursery:
            for pause, end in steps:
                for _ in range(3):
                    nursery.start_soon(call, end)
                await trio.sleep(pause)
                await wait_all_tasks_blocked()
                assert inside.now <= n
                assert inside.now == breaker.statistics().probes == breaker.statistics().in_flight
            assert inside.peak <= n
            assert breaker.state is HALF_OPEN
            nursery.cancel_scope.cancel()
        assert (breaker.statistics().in_flight, breaker.statistics().probes) == (0, 0)

    run_virtual(main, seed=seed)


# ------------------------------------------------------------------------------------------- neutral ends


@both_forms
@pytest.mark.parametrize("n", [1, 10])
async def test_polly_1979_an_ignored_exception_returns_the_place(
    form: Callable[..., Awaitable[None]], n: int, autojump_clock: MockClock
) -> None:
    breaker = await half_open(probes=n, close_after=n, neutral=LookupError)
    for _ in range(25):
        with pytest.raises(LookupError):
            await form(breaker, Service(LookupError()))
    for k in range(n):
        assert breaker.state is HALF_OPEN, k
        await form(breaker, fine)
    assert breaker.state is CLOSED


async def test_polly_311_a_neutral_probe_is_not_the_one_attempt(autojump_clock: MockClock) -> None:
    breaker = await half_open(on=OSError, neutral=LookupError)
    with pytest.raises(LookupError):
        await breaker.call(Service(LookupError()))
    await breaker.call(fine)
    assert breaker.state is CLOSED


async def test_resilience4j_544_the_last_of_ten_probes_is_ignored(autojump_clock: MockClock) -> None:
    breaker = await half_open(probes=10, close_after=10, neutral=LookupError)
    for _ in range(9):
        await breaker.call(fine)
    with pytest.raises(LookupError):
        await breaker.call(Service(LookupError()))
    assert breaker.state is HALF_OPEN
    await breaker.call(fine)
    assert breaker.state is CLOSED


async def test_mcp_server_222_a_validation_error_in_the_probe_is_an_answer_or_neutral(
    autojump_clock: MockClock,
) -> None:
    breaker = await half_open(on=OSError)
    with pytest.raises(ValueError):
        await breaker.call(Service(ValueError()))
    assert breaker.state is CLOSED
    breaker = await half_open(on=OSError, neutral=ValueError)
    with pytest.raises(ValueError):
        await breaker.call(Service(ValueError()))
    assert (breaker.state, breaker.statistics().probes) == (HALF_OPEN, 0)


async def test_resilience4j_682_100_cancelled_calls_are_no_failures(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Ratio(0.5, calls=10, minimum=1))
    await breaker.call(fine)
    async with trio.open_nursery() as nursery:
        for form in (by_call, by_guard):
            for _ in range(50):
                nursery.start_soon(form, breaker, trio.sleep_forever)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    statistics = breaker.statistics()
    assert (statistics.neutral, statistics.failures, statistics.state) == (100, 0, CLOSED)
    await fail(breaker)
    assert breaker.state is OPEN  # one of two: nothing was learned from the hundred


@both_forms
async def test_cancelled_probes_return_their_place_at_once(
    form: Callable[..., Awaitable[None]], autojump_clock: MockClock
) -> None:
    breaker = await half_open()
    for _ in range(50):
        with trio.move_on_after(0.125):
            await form(breaker, trio.sleep_forever)
    assert (breaker.state, breaker.statistics().probes, trio.current_time()) == (HALF_OPEN, 0, 36.25)
    await form(breaker, fine)
    assert breaker.state is CLOSED


@both_forms
@pytest.mark.parametrize("limit", [None, 50.0], ids=["bare", "inside a time-out of ours"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_must_end_everything_is_neutral_for_a_probe(
    form: Callable[..., Awaitable[None]], limit: float | None, error: type[BaseException], autojump_clock: MockClock
) -> None:
    breaker = await half_open()
    with pytest.raises(error):
        if limit is None:
            await form(breaker, Service(error()))
        else:
            await Timeout(limit).call(form, breaker, Service(error()))
    statistics = breaker.statistics()
    assert (statistics.state, statistics.neutral, statistics.probes, statistics.in_flight) == (HALF_OPEN, 1, 0, 0)


async def test_studio_5322_every_way_out_of_the_block_reports(autojump_clock: MockClock) -> None:
    breaker = await half_open(probes=1, close_after=5)

    async def leave(how: str) -> None:
        for _ in range(1):
            with breaker.guard():
                if how == "return":
                    return
                if how == "break":
                    break
                if how == "continue":
                    continue

    for n, how in enumerate(["return", "break", "continue", "end"], 1):
        await leave(how)
        assert (breaker.statistics().probes, breaker.statistics().successes) == (0, n)


async def test_polly_216_a_second_caller_waits_for_the_first_to_finish(autojump_clock: MockClock) -> None:
    breaker = await half_open()
    inside = Inside()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inside.attempt, breaker, by_call, 1)
        nursery.start_soon(inside.attempt, breaker, by_call, 1)
    assert (inside.calls, inside.refused) == (1, 1)
