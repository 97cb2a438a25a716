"""Who else uses a circuit breaker: operators, and those who wait for it; and what it keeps in memory."""

from __future__ import annotations

import gc
import json
import math
import sys
import weakref
from random import Random

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints

from tests.policies.circuits import CLOSED, HALF_OPEN, ISOLATED, OPEN, fail, fine, once, refusal
from trio_orchestrator.algorithms.backoff import Exponential
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import Consecutive, Ratio
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policy_event import CircuitClosed, CircuitIsolated, CircuitOpened
from trio_orchestrator.testing import run_virtual


async def test_two_operators_may_hold_it_open(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = once(instruments=[recorder])
    one, other = breaker.isolate(), breaker.isolate()
    assert refusal(breaker).retry_after == math.inf
    assert (refusal(breaker).state, refusal(breaker).__cause__) == ("isolated", None)
    one.release()
    one.release()
    assert breaker.state is ISOLATED
    with other:
        pass
    assert breaker.state is CLOSED
    assert await breaker.call(fine) == "fine"
    with breaker.isolate() as handle:
        handle.release()
    assert [event for _, event in recorder.events] == [
        CircuitIsolated("circuit", True, 1),
        CircuitIsolated("circuit", False, 0),
    ] * 2


async def test_isolated_while_half_open_it_is_half_open_again_and_its_probe_says_nothing(
    autojump_clock: MockClock,
) -> None:
    breaker = once()
    await fail(breaker)
    await trio.sleep(30)
    with breaker.guard():
        with breaker.isolate():
            assert breaker.statistics().probes == 0
        assert breaker.state is HALF_OPEN
        with breaker.guard():  # the place is free: the circuit has forgotten the first one
            assert refusal(breaker).state == "half-open"
        assert breaker.state is CLOSED
    assert breaker.statistics().late == 1


async def test_isolated_while_ramping_the_ramp_goes_on(autojump_clock: MockClock) -> None:
    breaker = once(ramp=10)
    await fail(breaker)
    await trio.sleep(30)
    await breaker.call(fine)
    hold = breaker.isolate()
    await trio.sleep(4)
    assert refusal(breaker).state == "isolated"
    hold.release()
    assert breaker.state is CLOSED
    assert await breaker.call(fine) == "fine"  # the first one after closing
    refused = refusal(breaker)
    assert refused.state == "closed"
    assert 0 <= refused.retry_after <= 6
    await trio.sleep(6)
    for _ in range(10):
        await breaker.call(fine)
    assert breaker.statistics().refused == 2


async def test_reset_closes_at_once_and_forgets(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = CircuitBreaker(trip=Consecutive(2), ramp=100, instruments=[recorder])
    await fail(breaker)
    breaker.reset()  # closed already: nothing happens, but the failure is forgotten
    await fail(breaker)
    assert recorder.events == []
    await fail(breaker)
    await trio.sleep(7)
    breaker.reset()
    for _ in range(10):
        await breaker.call(fine)  # no ramp
    assert recorder.of(CircuitClosed) == [CircuitClosed("circuit", 7, reset=True)]


async def test_reset_does_not_end_an_isolation(autojump_clock: MockClock) -> None:
    breaker = once()
    await fail(breaker)
    with breaker.isolate():
        breaker.reset()
        assert breaker.state is ISOLATED
    assert breaker.state is CLOSED


async def test_wait_closed_waits_for_it(autojump_clock: MockClock) -> None:
    breaker = once(cooldown=5)
    await breaker.wait_closed()
    await fail(breaker)
    times: list[float] = []

    async def wait() -> None:
        await breaker.wait_closed()
        times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await trio.sleep(6)
        await fail(breaker)
        await trio.sleep(6)
        assert breaker.state is HALF_OPEN
        await breaker.call(fine)
    assert times == [12, 12, 12]
    with breaker.isolate(), trio.move_on_after(5) as scope:
        await breaker.wait_closed()
    assert scope.cancelled_caught


async def test_waiting_is_a_checkpoint_although_there_is_nothing_to_wait_for(autojump_clock: MockClock) -> None:
    breaker = once()
    changes = breaker.changes()
    with assert_checkpoints():
        await breaker.wait_closed()
    await fail(breaker)
    with assert_checkpoints():
        assert await anext(changes) is OPEN


async def test_the_share_that_passes_grows_over_the_ramp_and_the_rest_is_told_a_time_within_a_second(
    autojump_clock: MockClock,
) -> None:
    class Middle(Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

    breaker = once(ramp=8, rng=Middle())
    await fail(breaker)
    await trio.sleep(30)
    await breaker.call(fine)
    line: list[tuple[float, object]] = []
    for _ in range(10):
        try:
            line.append((trio.current_time() - 30, await breaker.call(fine)))
        except CircuitOpenError as refused:
            assert refused.__cause__ is None
            line.append((trio.current_time() - 30, refused.retry_after))
        await trio.sleep(1)
    passed = {0, 4, 6, 7, 8, 9}  # the first; then where 1/8 + 2/8 + ... reaches 1, 2, 3
    assert line == [(at, "fine" if at in passed else 0.5) for at in range(10)]
    assert (breaker.statistics().refused, breaker.state, breaker.is_idle) == (4, CLOSED, True)


async def test_changes_are_told_to_each_reader_from_when_it_began_to_read(autojump_clock: MockClock) -> None:
    breaker = once(cooldown=5)
    early = breaker.changes()
    await fail(breaker)
    late = breaker.changes()
    await trio.sleep(5)
    await breaker.call(fine)
    with breaker.isolate():
        pass
    after = [HALF_OPEN, CLOSED, ISOLATED, CLOSED]
    assert [await anext(early) for _ in range(5)] == [OPEN, *after]
    assert [await anext(late) for _ in range(4)] == after
    with trio.move_on_after(1) as scope:
        await anext(early)
    assert scope.cancelled_caught
    with trio.CancelScope() as scope:
        scope.cancel()
        breaker.isolate()
        await anext(early)
    assert scope.cancelled_caught
    assert await anext(early) is ISOLATED  # not lost


async def test_two_tasks_may_share_one_reader(autojump_clock: MockClock) -> None:
    breaker = once(cooldown=5)
    changes, seen = breaker.changes(), list[CircuitState]()

    async def read() -> None:
        seen.append(await anext(changes))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.sleep(1)
        await fail(breaker)
        await trio.sleep(5)
        await breaker.call(fine)
    assert seen == [OPEN, HALF_OPEN]


@pytest.mark.parametrize(
    ("age", "seconds"), [(0, 12.0), (11.5, 0.5), (12, 0.0), (1e9, 0.0)], ids=["fresh", "aged", "just over", "ancient"]
)
async def test_what_was_exported_is_restored_as_it_is_now(
    age: float, seconds: float, autojump_clock: MockClock
) -> None:
    recorder = Recorder()
    breaker = once(cooldown=Exponential(base=30, cap=200))
    await fail(breaker)
    await trio.sleep(30)
    await fail(breaker)
    await trio.sleep(48)
    exported = json.loads(json.dumps(breaker.export()))
    assert exported == {"state": "open", "seconds": 12, "openings": 2}
    other = once(cooldown=Exponential(base=30, cap=200), instruments=[recorder])
    other.restore(exported, age=age)
    assert other.statistics().opens_in == seconds
    assert other.state is (OPEN if seconds else HALF_OPEN)
    assert recorder.of(CircuitOpened) == [CircuitOpened("circuit", seconds, 2, None)]
    await trio.sleep(seconds)
    await fail(other)
    assert refusal(other).retry_after == 120  # the third opening in a row
    await trio.sleep(120)
    await other.call(fine)
    assert recorder.of(CircuitClosed) == [CircuitClosed("circuit", seconds + 120, reset=False)]


async def test_closed_is_restored_as_closed(autojump_clock: MockClock) -> None:
    breaker, other = once(), once()
    await fail(other)
    other.restore(breaker.export())
    assert other.state is CLOSED
    assert breaker.export() == other.export() == {"state": "closed"}


async def test_half_open_is_exported_as_open_without_a_wait(autojump_clock: MockClock) -> None:
    breaker, other = once(probes=2), once(probes=2)
    await fail(breaker)
    await trio.sleep(30)
    with breaker.guard():
        exported = breaker.export()
    assert exported == {"state": "open", "seconds": 0, "openings": 1}
    other.restore(exported)
    guards = [other.guard() for _ in range(10)]
    admitted = 0
    for guard in guards:
        try:
            guard.__enter__()
            admitted += 1
        except CircuitOpenError:
            pass
    assert admitted == 2


async def test_nothing_keeps_the_failure_once_it_is_closed(autojump_clock: MockClock) -> None:
    class Failure(OSError):
        pass

    async def body() -> None:
        raise Failure

    alive: list[weakref.ref[BaseException]] = []
    breaker = once()
    gc.collect()
    gc.disable()
    try:
        for close in (True, False):
            for kind in (Failure, CircuitOpenError):
                try:
                    await breaker.call(body)
                except kind as error:
                    alive.append(weakref.ref(error))
            failure, refused = alive[-2:]
            assert isinstance(failure(), Failure)  # the cause of refusals to come
            assert refused() is None
            await trio.sleep(30)
            if close:
                await breaker.call(fine)
            else:
                breaker.reset()
            assert failure() is None
    finally:
        gc.enable()


def test_10_000_rounds_do_not_grow() -> None:
    def rounds(breaker: CircuitBreaker, n: int) -> None:
        for _ in range(n):
            with breaker.guard() as guard:
                guard.fail()
            try:
                breaker.guard().__enter__()
            except CircuitOpenError:
                pass
            breaker.restore(breaker.export(), age=30)
            with breaker.guard():
                pass

    async def main() -> None:
        breaker = CircuitBreaker(trip=Consecutive(1) | Ratio(0.9, seconds=1000) | Ratio(0.9, calls=100))
        rounds(breaker, 1000)
        gc.collect()
        before = sys.getallocatedblocks()
        rounds(breaker, 9000)
        gc.collect()
        assert sys.getallocatedblocks() - before < 200
        assert breaker.statistics().successes == 10_000

    run_virtual(main)
