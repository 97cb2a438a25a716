"""Hooks that call the breaker which they listen to, at each of its changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.policies.circuits import CLOSED, HALF_OPEN, ISOLATED, OPEN, down, fail, fine, once
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitIsolated, CircuitOpened


class Caller(Instrument):
    """Calls the breaker from every hook."""

    def __init__(self, act: Callable[[CircuitBreaker], object]) -> None:
        self.act = act
        self.breaker: CircuitBreaker | None = None
        self.heard: list[str] = []
        self.busy = False

    def _heard(self, event: object) -> None:
        self.heard.append(type(event).__name__)
        if not self.busy:
            self.busy = True
            assert self.breaker is not None
            self.act(self.breaker)
            self.busy = False

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        self._heard(event)

    def circuit_half_opened(self, event: CircuitHalfOpened, /) -> None:
        self._heard(event)

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        self._heard(event)

    def circuit_isolated(self, event: CircuitIsolated, /) -> None:
        self.heard.append(type(event).__name__)  # to isolate at each isolation has no end


def knock(breaker: CircuitBreaker) -> None:
    try:
        with breaker.guard():
            pass
    except CircuitOpenError:
        pass


def isolate_briefly(breaker: CircuitBreaker) -> None:
    with breaker.isolate():
        pass


ROUND = ["CircuitOpened", "CircuitHalfOpened", "CircuitClosed"]


@pytest.mark.parametrize(
    ("act", "heard", "state"),
    [
        (repr, ROUND, CLOSED),
        (CircuitBreaker.statistics, ROUND, CLOSED),
        (CircuitBreaker.export, ROUND, CLOSED),
        (knock, ROUND, CLOSED),
        (CircuitBreaker.reset, ["CircuitOpened", "CircuitClosed"], CLOSED),
        (CircuitBreaker.isolate, ["CircuitOpened", "CircuitIsolated"], ISOLATED),
    ],
    ids=["repr", "statistics", "export", "knock", "reset", "isolate"],
)
async def test_polly_2953_a_hook_may_call_the_breaker(
    act: Callable[[CircuitBreaker], object], heard: list[str], state: CircuitState, autojump_clock: MockClock
) -> None:
    caller = Caller(act)
    breaker = caller.breaker = once(instruments=[caller])
    await fail(breaker)
    await trio.sleep(30)
    try:
        await breaker.call(fine)
    except CircuitOpenError:
        assert state is ISOLATED
    assert caller.heard == heard
    assert breaker.state is state
    assert breaker.statistics().in_flight == 0


async def test_a_hook_may_isolate_and_release_at_each_change(autojump_clock: MockClock) -> None:
    caller = Caller(isolate_briefly)
    breaker = caller.breaker = once(instruments=[caller])
    await fail(breaker)
    await trio.sleep(30)
    await breaker.call(fine)  # let in before the hook was called: what it says is late
    assert caller.heard == [
        *["CircuitOpened", "CircuitIsolated", "CircuitIsolated"],
        *["CircuitHalfOpened", "CircuitIsolated", "CircuitIsolated"],
    ]
    assert (breaker.state, breaker.statistics().late, breaker.statistics().probes) == (HALF_OPEN, 1, 0)


async def test_a_hook_that_raises_what_is_no_exception_does_not_spoil_the_counts() -> None:
    class Fatal(Instrument):
        def circuit_opened(self, event: CircuitOpened, /) -> None:
            raise KeyboardInterrupt

    for guarded in (False, True):
        breaker = once(instruments=[Fatal()])
        with pytest.raises(KeyboardInterrupt):
            if guarded:
                with breaker.guard():
                    await down()
            else:
                await breaker.call(down)
        statistics = breaker.statistics()
        assert (statistics.state, statistics.failures, statistics.neutral, statistics.in_flight) == (OPEN, 1, 0, 0)


async def test_every_instrument_hears_what_a_hook_causes_after_what_caused_it(autojump_clock: MockClock) -> None:
    first, second = Caller(CircuitBreaker.reset), Caller(lambda breaker: None)
    breaker = first.breaker = second.breaker = once(instruments=[first, second])
    await fail(breaker)
    assert first.heard == second.heard == ["CircuitOpened", "CircuitClosed"]
