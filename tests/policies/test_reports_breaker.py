"""More public bug reports about circuit breakers: a half-open state that cannot be left, or lets too many in."""

from __future__ import annotations

import math
import time
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.policies.circuits import CLOSED, HALF_OPEN, fine, half_open
from tests.policies.service import Service
from trio_orchestrator.algorithms.trip import Consecutive, Ratio
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitOpened
from trio_orchestrator.testing import run_virtual

SEEDS = st.integers(0, 2**32 - 1)


async def outcome(breaker: CircuitBreaker, fn: Any) -> str:
    try:
        await breaker.call(fn)
    except CircuitOpenError as refused:
        return refused.state
    except Exception as error:
        return type(error).__name__
    return "passed"


# ------------------------------------------------------------------------------------- left by itself, or not at all


async def test_polly_717_an_error_that_is_not_handled_is_not_the_one_call_of_half_open(
    autojump_clock: MockClock,
) -> None:
    breaker = await half_open(on=OSError, neutral=LookupError)
    with pytest.raises(LookupError), breaker.guard():
        raise LookupError
    with breaker.guard() as guard:
        guard.ignore()
    with pytest.raises(LookupError):
        await breaker.call(Service(LookupError()))
    assert (breaker.state, breaker.statistics().refused) == (HALF_OPEN, 0)
    assert await outcome(breaker, fine) == "passed"
    assert breaker.state is CLOSED


@pytest.mark.parametrize("lease", [None, 5.0], ids=["the cooldown", "5 s"])
@pytest.mark.parametrize("n", [1, 3])
async def test_resilience4j_903_half_open_is_left_although_no_probe_ever_ends(
    n: int, lease: float | None, autojump_clock: MockClock
) -> None:
    """All probes hang: when their leases are over, as many others take their places, and close it."""
    breaker = await half_open(probes=n, close_after=n, probe_lease=lease)
    lasts = 30 if lease is None else lease
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(outcome, breaker, trio.sleep_forever)
        await trio.sleep_until(math.nextafter(30 + lasts, 0))
        assert await outcome(breaker, fine) == "half-open"
        await trio.sleep_until(30 + lasts)
        assert [await outcome(breaker, fine) for _ in range(n)] == ["passed"] * n
        assert (breaker.state, breaker.statistics().in_flight) == (CLOSED, n)
        nursery.cancel_scope.cancel()
    assert (breaker.state, breaker.statistics().neutral) == (CLOSED, n)


async def test_resilience4j_1389_nobody_calls_and_nothing_changes(autojump_clock: MockClock) -> None:
    """It went from open to half-open and back, again and again, without a call."""
    recorder = Recorder()
    breaker = await half_open(instruments=[recorder])
    await trio.sleep(86_400)
    assert (breaker.state, breaker.statistics().openings) == (HALF_OPEN, 1)
    assert [type(event) for _, event in recorder.events] == [CircuitOpened]
    assert await outcome(breaker, fine) == "passed"
    assert [(at, type(event)) for at, event in recorder.events[1:]] == [
        (86_430, CircuitHalfOpened),
        (86_430, CircuitClosed),
    ]


@given(ends=st.lists(st.sampled_from(["cancelled", "ignored", "refused inside"]), max_size=20), n=st.integers(1, 4))
def test_resilience4j_1568_probes_that_come_to_nothing_leave_all_places_free(ends: list[str], n: int) -> None:
    """The permits of half-open were used up by calls that counted neither way, and it was stuck."""

    async def main() -> None:
        breaker = await half_open(probes=n, close_after=n, neutral=LookupError)
        kinds: dict[str, Any] = {
            "cancelled": trio.sleep_forever,
            "ignored": Service(LookupError()),
            "refused inside": Service(CircuitOpenError("another", "open")),
        }
        for end in ends:
            with trio.move_on_after(0.125):
                await outcome(breaker, kinds[end])
            assert (breaker.state, breaker.statistics().probes) == (HALF_OPEN, 0)
        assert [await outcome(breaker, fine) for _ in range(n)] == ["passed"] * n
        assert breaker.state is CLOSED

    run_virtual(main)


async def test_omniroute_13836_six_days_with_a_probe_that_never_settles(autojump_clock: MockClock) -> None:
    """49 607 refusals in six days, since one call never came back. What it comes to at last changes nothing."""
    breaker = await half_open()
    released = trio.Event()

    async def hung() -> None:
        await released.wait()
        raise OSError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome, breaker, hung)
        refused: list[float] = []
        await trio.sleep(10)
        while await outcome(breaker, fine) == "half-open":
            refused.append(trio.current_time())
            await trio.sleep(10)
        assert refused == [40, 50]
        assert (trio.current_time(), breaker.state) == (60, CLOSED)
        await trio.sleep(6 * 86_400)
        released.set()
    statistics = breaker.statistics()
    assert (statistics.state, statistics.late, statistics.failures, statistics.refused) == (CLOSED, 1, 1, 2)


# ------------------------------------------------------------------------------------------ never more than it may


@settings(max_examples=25)
@given(n=st.integers(1, 5), seed=SEEDS, ends=st.lists(st.booleans(), min_size=1, max_size=12))
def test_resilience4j_1090_what_began_before_lets_no_more_in_and_counts_for_nothing(
    n: int, seed: int, ends: list[bool]
) -> None:
    """Calls let in while it was closed end while it is half-open: they free no place, and neither close nor open it."""

    async def main() -> None:
        breaker = CircuitBreaker(trip=Ratio(1.0, calls=1), probes=n, close_after=n)
        inside = 0

        async def early(good: bool) -> None:
            await trio.sleep_until(31)
            if not good:
                raise OSError

        async def probe() -> None:
            nonlocal inside
            inside += 1
            await trio.sleep_until(32)

        async with trio.open_nursery() as nursery:
            for good in ends:
                nursery.start_soon(outcome, breaker, partial(early, good))
            await wait_all_tasks_blocked()
            assert await outcome(breaker, Service(OSError())) == "OSError"
            for at in (30.0, 31.0, 31.5):  # as the probes begin, as the others end, and behind that
                await trio.sleep_until(at)
                for _ in range(3 * n):
                    nursery.start_soon(outcome, breaker, probe)
            await trio.sleep(0.25)
            statistics = breaker.statistics()
            assert (inside, statistics.probes, statistics.state) == (n, n, HALF_OPEN)
            assert (statistics.late, statistics.successes, statistics.failures) == (len(ends), 0, 1)
        assert (breaker.state, breaker.statistics().successes) == (CLOSED, n)

    run_virtual(main, seed=seed)


# -------------------------------------------------------------------------------------------------------- clocks


def timeline() -> list[tuple[float, str]]:
    """Return what callers meet who come every 7 s, and for how long it will be open."""
    seen: list[tuple[float, str]] = []

    async def main() -> None:
        breaker = CircuitBreaker(trip=Ratio(0.5, seconds=20, minimum=2), cooldown=30)
        service = Service(OSError(), OSError(), OSError(), "fine")
        for _ in range(20):
            seen.append((trio.current_time(), await outcome(breaker, service)))
            seen.append((breaker.statistics().opens_in, breaker.state.value))
            await trio.sleep(7)

    run_virtual(main, seed=0)
    return seen


@given(steps=st.randoms(use_true_random=False))
def test_fabfuel_circuitbreaker_31_steps_of_the_wall_clock_neither_open_nor_close_it(steps: Random) -> None:
    """The clock was set back, and the breaker stayed open until it had caught up."""
    expected = timeline()
    assert {what for _, what in expected} == {"OSError", "open", "closed", "passed"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("time", "monotonic"):
            patch.setattr(time, name, lambda: steps.uniform(-1e9, 1e9))
        assert timeline() == expected


def test_fabfuel_circuitbreaker_31_a_run_whose_clock_is_behind_is_not_locked_out() -> None:
    """Each run of Trio has a clock of its own: what one at module level knows of an earlier run is over."""
    opened = CircuitBreaker(trip=Consecutive(1))
    ramping = CircuitBreaker(trip=Consecutive(1), ramp=1000)
    counting = CircuitBreaker(trip=Ratio(0.5, seconds=10, minimum=2))
    breakers = (opened, ramping, counting)

    async def first() -> None:
        await trio.sleep(5000)
        for breaker in breakers:
            assert await outcome(breaker, Service(OSError())) == "OSError"
        await trio.sleep(30)
        assert [await outcome(ramping, fine) for _ in range(3)] == [
            "passed",
            "passed",
            "closed",
        ]
        assert await outcome(opened, Service(OSError())) == "OSError"
        assert await outcome(counting, Service(OSError())) == "OSError"

    async def second() -> None:
        assert [breaker.state for breaker in breakers] == [HALF_OPEN, CLOSED, CLOSED]
        assert opened.statistics().opens_in == 0
        assert counting.is_idle
        for breaker in breakers:
            assert [await outcome(breaker, fine) for _ in range(9)] == ["passed"] * 9
        assert await outcome(counting, Service(OSError())) == "OSError"
        assert [breaker.state for breaker in breakers] == [CLOSED] * 3

    run_virtual(first)
    run_virtual(second)
