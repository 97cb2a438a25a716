"""Probes that hang, verdicts that wait, and ends from before: what comes late changes nothing."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

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
    fail,
    fine,
    half_open,
)
from tests.policies.service import Service
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import Consecutive, Ratio
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitOpened
from trio_orchestrator.testing import run_virtual

SEEDS = st.integers(0, 2**32 - 1)
ENDS = ["fine", "neutral", "cancelled", "hangs", "fatal"]


@both_forms
async def test_omniroute_13849_a_probe_that_never_ends_does_not_shut_it_for_ever(
    form: Callable[..., Awaitable[None]], autojump_clock: MockClock
) -> None:
    breaker = await half_open(close_after=2)
    passed: list[float] = []

    async def body() -> None:
        passed.append(trio.current_time())
        if len(passed) < 3:
            await trio.sleep_forever()

    async def attempt() -> None:
        try:
            await form(breaker, body)
        except CircuitOpenError as refused:
            assert refused.retry_after == math.inf

    async with trio.open_nursery() as nursery:
        for _ in range(130):
            nursery.start_soon(attempt)
            await trio.sleep(1)
        assert passed == [30, 60, *range(120, 160)]  # the lease is the cooldown; it doubles when one was not enough
        assert breaker.state is CLOSED
        late = breaker.statistics().in_flight
        nursery.cancel_scope.cancel()
    assert (late, breaker.statistics().in_flight, breaker.statistics().neutral) == (2, 0, 2)


async def test_resilience4j_935_without_calls_it_waits_and_does_not_change(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = await half_open(probes=10, close_after=10, instruments=[recorder])
    for _ in range(9):
        await breaker.call(fine)
    await trio.sleep(86_400)
    assert breaker.state is HALF_OPEN
    await breaker.call(fine)
    assert [type(event) for _, event in recorder.events] == [CircuitOpened, CircuitHalfOpened, CircuitClosed]


@pytest.mark.parametrize("end", ["fine", "failure", "neutral", "cancelled", "timed out"])
async def test_what_a_replaced_probe_comes_to_is_late(end: str, autojump_clock: MockClock) -> None:
    breaker = await half_open(probe_lease=5, neutral=LookupError)
    outcomes: dict[str, Any] = {"fine": "fine", "failure": OSError(), "neutral": LookupError()}

    async def first() -> None:
        service = Service(outcomes.get(end, "fine"), seconds=10 if end in outcomes else math.inf)
        with trio.move_on_after(10 if end == "cancelled" else math.inf):
            await Timeout(10 if end == "timed out" else 100).call(breaker.call, service)

    async def absorb() -> None:
        try:
            await first()
        except (OSError, LookupError, trio.TooSlowError):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(absorb)
        await trio.sleep(5)
        with breaker.guard():
            await trio.sleep(10)
            statistics = breaker.statistics()
            assert (statistics.state, statistics.probes, statistics.in_flight) == (HALF_OPEN, 1, 1)
            verdict = (0, 1) if end in ("neutral", "cancelled") else (1, 0)
            assert (statistics.late, statistics.neutral) == verdict
    assert breaker.state is CLOSED


async def hang_and_clean_up(breaker: CircuitBreaker) -> None:
    """Give the place back after 3 s; that it was a failure is known a second later."""

    async def lingering() -> None:
        try:
            await breaker.call(trio.sleep_forever)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    with pytest.raises(trio.TooSlowError):
        await Timeout(3).call(lingering)


async def test_a_verdict_that_waits_is_late_if_another_probe_was_quicker(autojump_clock: MockClock) -> None:
    breaker = await half_open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_and_clean_up, breaker)
        await trio.sleep(3.5)
        assert (breaker.statistics().probes, breaker.statistics().in_flight) == (0, 1)
        await breaker.call(fine)
        assert breaker.state is CLOSED
    statistics = breaker.statistics()
    assert (trio.current_time(), statistics.state, statistics.late, statistics.failures) == (34, CLOSED, 1, 1)


async def test_a_verdict_that_waits_opens_again_while_the_next_probe_is_out(autojump_clock: MockClock) -> None:
    breaker = await half_open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_and_clean_up, breaker)
        await trio.sleep(3.5)
        await breaker.call(trio.sleep, 1)
    statistics = breaker.statistics()
    assert (statistics.state, statistics.failures, statistics.late, statistics.openings) == (OPEN, 2, 1, 2)
    assert statistics.opens_in == 29.5


# ------------------------------------------------------------------------------------------- late results


@pytest.mark.parametrize("when", [OPEN, HALF_OPEN, CLOSED])
@pytest.mark.parametrize("end", ["fine", "failure"])
async def test_an_end_from_before_the_outage_changes_nothing(
    when: CircuitState, end: str, autojump_clock: MockClock
) -> None:
    recorder = Recorder()
    breaker = CircuitBreaker(trip=Consecutive(1), instruments=[recorder])
    seconds = {OPEN: 10.0, HALF_OPEN: 35.0, CLOSED: 50.0}[when]

    async def old() -> None:
        try:
            await breaker.call(Service(OSError() if end == "failure" else "fine", seconds=seconds))
        except OSError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(old)
        await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        await fail(breaker)
        await trio.sleep(30)
        await breaker.call(trio.sleep, 10)
    assert recorder.times(CircuitOpened) == [0]
    assert recorder.times(CircuitClosed) == [40]
    assert (breaker.state, breaker.statistics().late, breaker.statistics().failures) == (CLOSED, 1, 1)


async def test_polly_223_failures_that_arrive_while_it_is_open_are_no_second_event(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = CircuitBreaker(trip=Consecutive(1), instruments=[recorder])

    async def one(seconds: float) -> None:
        try:
            await breaker.call(Service(OSError(), seconds=seconds))
        except OSError:
            pass

    async with trio.open_nursery() as nursery:
        for seconds in range(1, 21):
            nursery.start_soon(one, seconds)
    assert recorder.times(CircuitOpened) == [1]
    assert breaker.statistics().opens_in == 11  # and none of them prolongs it
    assert breaker.statistics().late == 19


async def test_opossum_119_one_failed_probe_opens_whatever_the_share(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Ratio(0.5, calls=10, minimum=10))
    for _ in range(10):
        await fail(breaker)
        if breaker.state is OPEN:
            break
    await trio.sleep(30)
    await fail(breaker)  # one call, far below the minimum
    assert (breaker.state, breaker.statistics().opens_in) == (OPEN, 30)


@settings(max_examples=20)
@given(seed=SEEDS, n=st.integers(2, 8), good=st.integers(0, 8))
def test_of_probes_that_end_at_one_instant_the_first_failure_decides_and_there_is_one_event(
    seed: int, n: int, good: int
) -> None:
    async def main() -> None:
        recorder = Recorder()
        breaker = await half_open(probes=n, close_after=n, instruments=[recorder])

        async def one(outcome: object) -> None:
            try:
                await breaker.call(Service(outcome, seconds=1))
            except OSError:
                pass

        async with trio.open_nursery() as nursery:
            for k in range(n):
                nursery.start_soon(one, "fine" if k < good else OSError())
        opened = good < n
        assert [type(event) for _, event in recorder.events[1:]] == [
            CircuitHalfOpened,
            CircuitOpened if opened else CircuitClosed,
        ]
        statistics = breaker.statistics()
        assert statistics.state is (OPEN if opened else CLOSED)
        assert statistics.successes + statistics.failures + statistics.late == n + 1
        assert statistics.failures == 1 + opened

    run_virtual(main, seed=seed)


async def test_calls_that_take_longer_than_the_cooldown_close_it_all_the_same(autojump_clock: MockClock) -> None:
    breaker = await half_open(cooldown=5)
    async with trio.open_nursery() as nursery:

        async def attempt() -> None:
            with suppress(CircuitOpenError):
                await breaker.call(trio.sleep, 6)

        for _ in range(30):
            nursery.start_soon(attempt)
            await trio.sleep(1)
    assert breaker.state is CLOSED
    assert breaker.statistics().late == 1  # the first probe was replaced after 5 s, the second had 10
