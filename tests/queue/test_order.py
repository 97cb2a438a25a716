"""Priorities, ageing, keys and weights: who is next, to the second."""

from __future__ import annotations

import math
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, pauses, virtual
from trio_orchestrator import Failures, JobHandle, JobState, KeyOrder, TaskQueue, open_task_queue

# ---------------------------------------------------------------------------------------------- priorities


@virtual
async def test_jobs_start_in_the_order_of_submission() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        for number in range(100):
            await queue.submit(line.work, str(number), 0)
    assert line.names == [str(number) for number in range(100)]


@virtual
async def test_priorities_are_strict_and_equals_go_as_they_came() -> None:
    chance = Random(7)
    line = Timeline()
    priorities = [chance.choice([-1, -0.5, 0, 0, 0, 1, 2.5]) for _ in range(200)]
    async with open_task_queue(concurrency=1) as queue:
        queue.pause()
        for number, priority in enumerate(priorities):
            if priority or number % 2:
                queue.submit_nowait(line.work, str(number), 1, priority=priority)
            else:
                queue.submit_nowait(line.work, str(number), 1)
        queue.resume()
    expected = sorted(range(200), key=lambda number: (-priorities[number], number))
    assert line.events == [(at, str(number)) for at, number in enumerate(expected)]


@virtual
async def test_strict_priorities_starve_without_ageing() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        queue.pause()
        queue.submit_nowait(line.work, "low")
        await trio.sleep(80_000)
        queue.submit_nowait(line.work, "high", priority=1e-9)
        queue.resume()
    assert line.names == ["high", "low"]


@virtual
@pytest.mark.parametrize(("head_start", "first"), [(9.99, "high"), (10.01, "low")])
async def test_ageing_seconds_of_waiting_are_worth_one_level(head_start: float, first: str) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, ageing=10) as queue:
        queue.pause()
        queue.submit_nowait(line.work, "low")
        await trio.sleep(head_start)
        queue.submit_nowait(line.work, "high", priority=1)
        queue.resume()
    assert line.names[0] == first


@virtual
async def test_ageing_bounds_the_wait_under_a_flood_of_higher_priorities() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, ageing=10) as queue:
        queue.submit_nowait(line.work, "running")
        low = queue.submit_nowait(line.work, "low", priority=-3)
        for _ in range(100):
            await queue.submit(line.work, "high")
            await trio.sleep(0.9)
        await low.wait()
    # those submitted within 30 s go before it: 34 of them (one each 0.9 s)
    assert line.times("low") == [35]


@virtual
async def test_a_retry_keeps_its_age_and_its_priority() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, ageing=10, retry=pauses(5)) as queue:
        queue.submit_nowait(line.work, "busy", 30, priority=9)
        queue.submit_nowait(line.flaky("old", seconds=0), priority=-1)
        await trio.sleep(15)
        queue.submit_nowait(line.work, "new", 10)
        await trio.sleep(5)
        queue.submit_nowait(line.work, "newer")
    # the one of priority -1 has been worth 10 s less, and is 15 and 20 s older
    assert line.events == [(0, "busy"), (30, "old"), (30, "new"), (40, "old"), (40, "newer")]


# ---------------------------------------------------------------------------------------------------- keys


@virtual
async def test_a_key_runs_so_many_and_blocks_nobody_else() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=5, per_key=2) as queue:
        for _ in range(5):
            queue.submit_nowait(line.work, "a", 1, key="a")
        queue.submit_nowait(line.work, "b", 1, key="b")
        queue.submit_nowait(line.work, "none", 1)
    assert line.times("a") == [0, 0, 1, 1, 2]
    assert line.times("b") == line.times("none") == [0]


@virtual
async def test_without_per_key_a_key_means_nothing() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=5) as queue:
        for _ in range(5):
            queue.submit_nowait(line.work, "a", 1, key="a")
    assert line.times("a") == [0] * 5


@virtual
async def test_a_free_key_may_be_overtaken_during_a_retry_pause() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, per_key=1, retry=pauses(1.5)) as queue:
        queue.submit_nowait(line.flaky("first"), key="k")
        for name in ("second", "third", "fourth"):
            queue.submit_nowait(line.work, name, key="k")
    # the retry is due at 2.5, when the key is full: it takes the first unit, before those that came later
    assert line.events == [(0, "first"), (1, "second"), (2, "third"), (3, "first"), (4, "fourth")]


@virtual
async def test_a_strict_key_waits_until_its_predecessor_has_ended() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, per_key=1, per_key_order=KeyOrder.STRICT, retry=pauses(10)) as queue:
        queue.submit_nowait(line.flaky("first"), key="k")
        queue.submit_nowait(line.work, "second", key="k")
        queue.submit_nowait(line.work, "other", key="x")
    assert line.events[2:] == [(11, "first"), (12, "second")]
    assert sorted(line.events[:2]) == [(0, "first"), (0, "other")]


@virtual
@pytest.mark.parametrize("how", ["cancel", "clear", "time out"])
async def test_a_strict_key_goes_on_when_its_predecessor_ends_in_its_pause(how: str) -> None:
    line = Timeline()
    async with open_task_queue(
        concurrency=3, per_key=1, per_key_order=KeyOrder.STRICT, retry=pauses(10), failures=Failures.RECORD
    ) as queue:
        first = queue.submit_nowait(line.flaky("first"), key="k", timeout=13)
        if how == "time out":  # due at 11, it finds no slot until 13
            for _ in range(3):
                queue.submit_nowait(trio.sleep, 20, start_at=10)
        queue.submit_nowait(line.work, "second", 1, key="k", start_at=4)
        await trio.sleep(3)
        if how == "cancel":
            first.cancel()
        if how == "clear":
            queue.clear()
            queue.submit_nowait(line.work, "second", 1, key="k", start_at=4)
        await trio.sleep(27)
        assert first.done
    assert line.events == [(0, "first"), ({"time out": 30}.get(how, 4), "second")]


@virtual
async def test_a_keyed_retry_keeps_its_limit() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=10, per_key=2, retry=pauses(0.5, attempts=9)) as queue:
        for number in range(10):
            queue.submit_nowait(line.flaky("k", failures=number % 3), key="k")
    assert line.peak == 2
    assert len(line.events) == 10 + 1 + 2 + 1 + 2 + 1 + 2


# ------------------------------------------------------------------------------------------------- weights


async def heavy_scene(queue: TaskQueue, line: Timeline, weight: int = 3) -> JobHandle[str]:
    """Three light jobs of 1, 2 and 3 seconds, then a heavy one, then two light ones."""
    for seconds in (1, 2, 3):
        queue.submit_nowait(line.work, f"light {seconds}", seconds)
    heavy = queue.submit_nowait(line.work, "heavy", weight=weight)
    for name in "ab":
        queue.submit_nowait(line.work, name)
    await wait_all_tasks_blocked()
    line.events.clear()
    return heavy


@virtual
async def test_a_heavy_head_collects_its_slots() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        await heavy_scene(queue, line)
    assert sorted(line.events) == [(3, "heavy"), (4, "a"), (4, "b")]


@virtual
async def test_light_jobs_may_overtake_it_so_many_times() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, bypass=1) as queue:
        await heavy_scene(queue, line)
    assert line.events == [(1, "a"), (3, "heavy"), (4, "b")]


@virtual
async def test_bypass_never_lets_a_key_overtake_itself() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, per_key=1, bypass=5) as queue:
        queue.submit_nowait(line.work, "light 1", 1)
        queue.submit_nowait(line.work, "light 2", 2)
        queue.submit_nowait(line.work, "heavy", 1, key="k", weight=2)
        queue.submit_nowait(line.work, "after", 9, key="k")
    assert sorted(line.events)[2:] == [(2, "heavy"), (3, "after")]


@virtual
async def test_a_weight_above_the_limit_runs_alone() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2) as queue:
        queue.submit_nowait(line.work, "a", 3)
        queue.submit_nowait(line.work, "b", 1)
        queue.submit_nowait(line.work, "heavy", 2, weight=50)
        queue.submit_nowait(line.work, "c", 1)
        await trio.sleep(4)
        assert queue.limiter.borrowed_tokens == 2
        assert queue.statistics().running == 1
    assert sorted(line.events) == [(0, "a"), (0, "b"), (3, "heavy"), (5, "c")]


@virtual
async def test_the_limit_may_shrink_while_it_collects() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        await heavy_scene(queue, line)
        await trio.sleep(1.5)
        queue.concurrency = 1
        await trio.sleep(1)
        assert queue.limiter.borrowed_tokens == 1
    assert line.events == [(3, "heavy"), (4, "a"), (5, "b")]


@virtual
async def test_the_limit_may_be_zero_or_grow_while_it_collects() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        await heavy_scene(queue, line, weight=4)
        await trio.sleep(1.5)
        queue.concurrency = 0
        await trio.sleep(8.5)
        assert queue.limiter.borrowed_tokens == 0
        queue.concurrency = 2
        await wait_all_tasks_blocked()
        queue.concurrency = 4
    # it was content with both slots that there were, and then there were two more
    assert sorted(line.events) == [(10, "a"), (10, "b"), (10, "heavy")]


@virtual
@pytest.mark.parametrize("how", ["cancel", "clear"])
async def test_what_it_has_collected_is_given_back(how: str) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        heavy = await heavy_scene(queue, line)
        await trio.sleep(1.5)
        assert queue.limiter.borrowed_tokens == 3
        if how == "cancel":
            heavy.cancel()
            await trio.sleep(0.25)
            assert line.events == [(1.5, "a")]
        else:
            assert queue.clear() == 3
            await wait_all_tasks_blocked()
            assert queue.limiter.borrowed_tokens == 2


@virtual
async def test_it_starts_after_a_pause_too() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        await heavy_scene(queue, line)
        await trio.sleep(1.5)
        queue.pause()
        await trio.sleep(3)
        assert line.events == []
        queue.resume()
    assert sorted(line.events) == [(4.5, "heavy"), (5.5, "a"), (5.5, "b")]


@virtual
async def test_a_light_job_raised_above_a_collecting_one_starts_with_what_is_there() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3) as queue:
        await heavy_scene(queue, line)
        await trio.sleep(1.5)
        queue.submit_nowait(line.work, "urgent", 0.1, priority=1)
        await trio.sleep(0.05)
        assert line.events == [(1.5, "urgent")]
        last = queue.submit_nowait(line.work, "raised", 0.1)
        last.priority = 1
        await trio.sleep(0.25)
        assert line.names == ["urgent", "raised"]
    assert line.times("heavy") == [3]


@virtual
async def test_heavy_and_light_jobs_never_hold_more_slots_than_there_are() -> None:
    chance = Random(3)
    held = 0

    async def body(weight: int, seconds: float) -> None:
        nonlocal held
        held += min(weight, 4)
        assert held <= 4
        try:
            await trio.sleep(seconds)
            if chance.random() < 0.2:
                raise Flop
        finally:
            held -= min(weight, 4)

    async with open_task_queue(concurrency=4, bypass=2, retry=pauses(1), failures=Failures.RECORD) as queue:
        for _ in range(60):
            weight = chance.choice([1, 1, 1, 2, 3, 4, 9])
            queue.submit_nowait(body, weight, chance.choice([0, 1, 2]), weight=weight, attempt_timeout=1.5)
        await queue.wait_idle()
        await wait_all_tasks_blocked()
        assert queue.limiter.borrowed_tokens == 0
        assert queue.statistics().succeeded + queue.statistics().failed == 60


@virtual
async def test_after_a_heavy_job_all_its_slots_are_used_at_once() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=4) as queue:
        queue.submit_nowait(line.work, "heavy", weight=4)
        for _ in range(4):
            queue.submit_nowait(line.work, "light")
    assert line.times("light") == [1] * 4


@virtual
async def test_a_job_shows_its_state_on_the_way() -> None:
    async with open_task_queue(concurrency=math.inf, retry=pauses(5)) as queue:
        job = queue.submit_nowait(Timeline().flaky("a"), name="shown")
        assert repr(job) == "<JobHandle 'shown' running, 0 attempts>"
        await trio.sleep(2)
        assert job.state is JobState.RETRY_SCHEDULED
        assert repr(queue) == "<TaskQueue 'queue': 0 of inf running, 0 waiting 1 retry-scheduled>"
        await job.wait()
        assert repr(job) == "<JobHandle 'shown' succeeded, 2 attempts>"
