from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_orchestrator.errors import LimitExceededError, RejectedError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.bulkhead import Bulkhead, BulkheadStatistics
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual


class Timeline:
    """Who started when, and how many were inside at most."""

    def __init__(self, bulkhead: Bulkhead, seconds: float = 1) -> None:
        self.bulkhead = bulkhead
        self.seconds = seconds
        self.starts: list[tuple[str, float]] = []
        self.inside = self.most = 0

    async def run(self, name: str, *, by_call: bool = False) -> None:
        if by_call:
            await self.bulkhead.call(self.body, name)
        else:
            async with self.bulkhead.slot():
                await self.body(name)

    async def body(self, name: str) -> None:
        self.starts.append((name, trio.current_time()))
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.inside -= 1


@pytest.mark.parametrize("by_call", [False, True])
async def test_so_many_at_once_and_the_others_in_line(autojump_clock: MockClock, by_call: bool) -> None:
    timeline = Timeline(Bulkhead(2))
    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(partial(timeline.run, name, by_call=by_call))
            await wait_all_tasks_blocked()
    assert sorted(timeline.starts) == [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2)]
    assert timeline.most == 2
    assert timeline.bulkhead.statistics() == BulkheadStatistics("bulkhead", 2, 0, 0, 0)


@pytest.mark.parametrize("policy", [Bulkhead(2), AdaptiveLimiter()], ids=repr)
async def test_one_task_may_hold_two_slots(autojump_clock: MockClock, policy: Bulkhead | AdaptiveLimiter) -> None:
    async def inside() -> None:
        async with policy.slot():
            assert policy.statistics().in_flight == 2

    await policy.call(inside)
    async with policy.slot():
        await policy.call(trio.sleep, 1)
    await policy.call(policy.call, trio.sleep, 1)
    assert trio.current_time() == 2
    assert policy.is_idle


async def test_nobody_overtakes_those_who_wait(autojump_clock: MockClock) -> None:
    timeline = Timeline(Bulkhead(1))

    async def late() -> None:
        await trio.sleep(1)  # in the very moment in which the slot changes hands
        await timeline.run("late", by_call=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late)
        for name in "abc":
            nursery.start_soon(timeline.run, name)
            await wait_all_tasks_blocked()
    assert [name for name, _ in timeline.starts] == ["a", "b", "c", "late"]


async def test_more_than_max_waiting_are_refused_at_once(autojump_clock: MockClock) -> None:
    bulkhead = Bulkhead(1, max_waiting=2, name="db")
    timeline = Timeline(bulkhead)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(timeline.run, name)
        await wait_all_tasks_blocked()
        for by_call in (False, True):
            with pytest.raises(LimitExceededError, match=r"^db: all 1 slots taken, 2 waiting$") as caught:
                await timeline.run("d", by_call=by_call)
            assert isinstance(caught.value, RejectedError)
            assert caught.value.retry_after == math.inf
            assert (caught.value.__context__, caught.value.__cause__) == (None, None)
        assert trio.current_time() == 0
        assert bulkhead.statistics() == BulkheadStatistics("db", 1, 1, 2, 2)
    assert len(timeline.starts) == 3


async def test_nobody_waits_longer_than_max_wait(autojump_clock: MockClock) -> None:
    timeline = Timeline(Bulkhead(1, max_wait=2.5))
    refusals: list[tuple[str, float]] = []

    async def patient(name: str) -> None:
        try:
            await timeline.run(name)
        except LimitExceededError as error:
            refusals.append((str(error), trio.current_time()))

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(patient, name)
            await wait_all_tasks_blocked()
    assert timeline.starts == [("a", 0), ("b", 1), ("c", 2)]
    assert refusals == [("bulkhead: all 1 slots taken, none free within 2.5 s", 2.5)]
    assert timeline.bulkhead.is_idle


@pytest.mark.parametrize("seed", range(5))
def test_a_slot_that_is_handed_over_in_the_last_moment_counts(seed: int) -> None:
    async def main() -> list[tuple[str, float]]:
        timeline = Timeline(Bulkhead(1, max_wait=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timeline.run, "a")
            await wait_all_tasks_blocked()
            try:
                await timeline.run("b")
            except LimitExceededError:
                assert timeline.bulkhead.statistics().refused == 1
        assert timeline.bulkhead.is_idle
        return timeline.starts

    assert run_virtual(main, seed=seed) in ([("a", 0)], [("a", 0), ("b", 1)])


@pytest.mark.parametrize("options", [{"max_waiting": 0}, {"max_wait": 0}])
async def test_zero_is_not_at_all(autojump_clock: MockClock, options: dict[str, Any]) -> None:
    bulkhead = Bulkhead(1, **options)
    async with bulkhead.slot():
        with pytest.raises(LimitExceededError):
            await bulkhead.call(trio.sleep, 1)
    await bulkhead.call(trio.sleep, 1)
    assert (trio.current_time(), bulkhead.is_idle) == (1, True)


def test_one_whose_limit_was_changed_is_not_as_a_new_one() -> None:
    """A `PerKey` must not forget it: made again, it would have the old limit."""
    bulkhead = Bulkhead(2)
    bulkhead.limit = 3
    assert not bulkhead.is_idle
    bulkhead.limit = 2
    assert bulkhead.is_idle


def test_slot_nowait_raises_would_block() -> None:
    bulkhead = Bulkhead(2)
    with bulkhead.slot_nowait(), bulkhead.slot_nowait():
        assert bulkhead.statistics().in_flight == 2
        with pytest.raises(trio.WouldBlock), bulkhead.slot_nowait():
            pass
    assert bulkhead.is_idle


async def test_a_slot_is_entered_once(autojump_clock: MockClock) -> None:
    bulkhead = Bulkhead(5)
    slot = bulkhead.slot()
    async with slot:
        with pytest.raises(RuntimeError):
            await slot.__aenter__()
        async with bulkhead.slot():  # another one, in the same task
            assert bulkhead.statistics().in_flight == 2
    assert bulkhead.is_idle


async def test_entering_and_being_refused_are_checkpoints(autojump_clock: MockClock) -> None:
    bulkhead = Bulkhead(1, max_waiting=0)
    with trio.testing.assert_checkpoints():
        slot = await bulkhead.slot().__aenter__()
    for refused in (bulkhead.slot().__aenter__, lambda: bulkhead.call(trio.sleep, 1)):
        with trio.testing.assert_checkpoints(), pytest.raises(LimitExceededError):
            await refused()
    with trio.testing.assert_no_checkpoints():
        await slot.__aexit__(None, None, None)


async def test_a_slot_is_kept_until_the_body_has_really_ended(autojump_clock: MockClock) -> None:
    """A call that timed out and still cleans up is in flight."""
    bulkhead, inside, most = Bulkhead(1), 0, 0

    async def body() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await trio.sleep(120)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            inside -= 1

    async def caller() -> None:
        with pytest.raises(trio.TooSlowError):
            await bulkhead.call(Timeout(0.02).call, body)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(caller)
    assert most == 1
    assert trio.current_time() == pytest.approx(5 * 5.02)


async def test_resilience4j_979_a_lower_limit_does_not_wait_for_its_permits(autojump_clock: MockClock) -> None:
    """10 to 5 with 10 running: returns at once, interrupts nothing, and new ones start when fewer than 5 run."""
    bulkhead = Bulkhead(10)
    starts: list[float] = []

    async def run(seconds: float) -> None:
        async with bulkhead.slot():
            starts.append(trio.current_time())
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in range(1, 11):
            nursery.start_soon(run, seconds)
        await wait_all_tasks_blocked()
        bulkhead.limit = 5
        assert trio.current_time() == 0
        assert bulkhead.statistics() == BulkheadStatistics("bulkhead", 5, 10, 0, 0)
        nursery.start_soon(run, 1)
        await trio.sleep(5.5)
        assert (bulkhead.statistics().in_flight, bulkhead.statistics().waiting) == (5, 1)
    assert sorted(starts) == [0] * 10 + [6]


async def test_a_higher_limit_starts_all_that_fit(autojump_clock: MockClock) -> None:
    timeline = Timeline(Bulkhead(1), seconds=10)
    async with trio.open_nursery() as nursery:
        for name in "abcdef":
            nursery.start_soon(timeline.run, name)
            await wait_all_tasks_blocked()
        await trio.sleep(3)
        timeline.bulkhead.limit = 4
        await wait_all_tasks_blocked()
        assert sorted(timeline.starts) == [("a", 0), ("b", 3), ("c", 3), ("d", 3)]
        timeline.bulkhead.limit = math.inf
    assert sorted(timeline.starts[4:]) == [("e", 3), ("f", 3)]


async def test_hyx_a_cancelled_waiter_leaves_no_hole(autojump_clock: MockClock) -> None:
    """Two slots, and one of those who waited was cancelled: there are two slots afterwards, and not one."""
    bulkhead = Bulkhead(2)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(bulkhead.call, trio.sleep, 1)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await bulkhead.call(trio.sleep, 1)
        assert bulkhead.statistics().waiting == 0
    with bulkhead.slot_nowait(), bulkhead.slot_nowait():
        pass


async def test_cockatiel_112_the_next_starts_when_the_head_of_the_line_was_cancelled(
    autojump_clock: MockClock,
) -> None:
    timeline = Timeline(Bulkhead(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timeline.run, "a")
        await wait_all_tasks_blocked()
        with trio.CancelScope() as head:
            async with trio.open_nursery() as inner:
                inner.start_soon(timeline.run, "b")
                await wait_all_tasks_blocked()
                nursery.start_soon(timeline.run, "c")
                await trio.sleep(0.5)
                head.cancel()
    assert timeline.starts == [("a", 0), ("c", 1)]


def test_cancelled_everywhere() -> None:
    async def scenario(injector: CancelAt) -> None:
        bulkhead = Bulkhead(1, max_waiting=2, max_wait=10)

        async def victim() -> None:
            async with bulkhead.slot():
                await trio.sleep(0.5)
            await bulkhead.call(trio.sleep, 0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bulkhead.call, trio.sleep, 1)
            nursery.start_soon(bulkhead.call, trio.sleep, 1)
            with injector.watch():
                await victim()
        assert bulkhead.is_idle
        assert bulkhead.statistics() == BulkheadStatistics("bulkhead", 1, 0, 0, 0)
        assert bulkhead.tokens.available_tokens == 1

    assert cancelled_everywhere(scenario) > 10


async def test_who_was_handed_a_slot_and_has_not_run_since_does_not_wait(autojump_clock: MockClock) -> None:
    bulkhead = Bulkhead(1, max_waiting=1)
    async with trio.open_nursery() as nursery:
        async with bulkhead.slot():
            nursery.start_soon(bulkhead.call, trio.sleep, 1)
            await wait_all_tasks_blocked()
            assert bulkhead.statistics().waiting == 1
        assert bulkhead.statistics() == BulkheadStatistics("bulkhead", 1, 1, 0, 0)
        await bulkhead.call(trio.sleep, 1)  # there is room in the line
    assert trio.current_time() == 2


def test_what_it_refuses() -> None:
    for bad in (0, -1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"^limit must be"):
            Bulkhead(bad)
    for wrong in (True, "2", None):
        with pytest.raises(TypeError, match=r"^limit must be"):
            Bulkhead(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^max_waiting must be"):
        Bulkhead(1, max_waiting=-1)
    with pytest.raises(ValueError, match=r"^max_wait must be"):
        Bulkhead(1, max_wait=math.nan)
    bulkhead = Bulkhead(3)
    with pytest.raises(ValueError, match=r"^limit must be"):
        bulkhead.limit = 0
    assert bulkhead.limit == 3


def test_repr_and_parameters() -> None:
    bulkhead = Bulkhead(3, name="db", max_wait=5)
    with bulkhead.slot_nowait():
        assert repr(bulkhead) == "<Bulkhead 'db': 1 of 3 in flight, 0 waiting>"
    assert bulkhead.parameters() == {"limit": 3, "max_waiting": math.inf, "max_wait": 5, "name": "db"}
