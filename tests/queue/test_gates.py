"""Gates and cooldowns: an outage, or a busy server, does not burn the backlog."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeVar, TypeVarTuple, Unpack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, pauses, virtual
from trio_orchestrator import (
    Cooldown,
    Failures,
    Gate,
    JobHandle,
    JobState,
    JobTimeoutError,
    RejectedError,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Steady:
    """A source of jitter that always draws the same part of a range."""

    def __init__(self, part: float) -> None:
        self.part = part

    def random(self) -> float:
        return self.part

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.part


class Switch(Policy):
    """Refuses every call until a time, and says for how long (if it knows)."""

    def __init__(self, until: float, retry_after: float = math.inf) -> None:
        self.until = until
        self.retry_after = retry_after
        self.asked: list[float] = []

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        self.asked.append(trio.current_time())
        if trio.current_time() < self.until:
            raise RejectedError("down", retry_after=self.retry_after)
        return await fn(*args)


# ------------------------------------------------------------------------------------------ a queue's own


@virtual
async def test_a_known_time_opens_the_gate_for_all() -> None:
    line, switch = Timeline(), Switch(until=25, retry_after=10)
    async with open_task_queue(concurrency=3, protect=switch, retry=pauses(1)) as queue:
        jobs = [queue.submit_nowait(line.work, str(number)) for number in range(9)]
        await trio.sleep(5)
        statistics = queue.statistics()
        assert (statistics.refusals, statistics.waiting, statistics.gate_shut_for) == (3, 9, 5)
        assert {job.attempts for job in jobs} == {0}
        await queue.wait_idle()
        assert {job.attempts for job in jobs} == {1}
        assert queue.statistics().retries == 0
    assert switch.asked == [0] * 3 + [10] * 3 + [20] * 3 + [30] * 3 + [31] * 3 + [32] * 3
    assert [sorted(line.names[at : at + 3]) for at in (0, 3, 6)] == [list("012"), list("345"), list("678")]


@virtual
async def test_an_unknown_time_sends_one_job_first_ever_later() -> None:
    line, switch = Timeline(), Switch(until=100)
    async with open_task_queue(concurrency=3, protect=switch, rng=Steady(1.0)) as queue:
        for number in range(9):
            queue.submit_nowait(line.work, str(number), 2)
        await trio.sleep(0.5)
        assert queue.statistics().gate_shut_for == 0.5
    # 1, 2, 4, 8, 16 and then 30 seconds after the last refusal; the success after 2 s opens it for all
    probes = [1, 3, 7, 15, 31, 61, 91, 121]
    assert switch.asked == [0, 0, 0, *probes, 123, 123, 123, 125, 125, 125, 127, 127]
    assert line.events[0] == (121, "0")


@virtual
async def test_unknown_times_are_jittered_and_none_is_a_busy_loop() -> None:
    line, switch = Timeline(), Switch(until=1000)
    async with open_task_queue(concurrency=3, protect=switch) as queue:
        for number in range(9):
            queue.submit_nowait(line.work, str(number))
    asked = switch.asked[2:]  # three were refused together
    probes = asked[: asked.index(next(at for at in asked if at >= 1000)) + 1]
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert all(0 < gap <= min(30, 2**number) for number, gap in enumerate(gaps))
    assert len(set(gaps)) == len(gaps)
    assert line.names[0] == "0"


@virtual
@pytest.mark.parametrize("end", ["raise", "cancel", "time out"])
async def test_only_a_success_of_the_first_job_opens_it(end: str) -> None:
    line, switch = Timeline(), Switch(until=0.5)

    async def body(name: str) -> None:
        await line.work(name)
        if name == "0" and end == "raise":
            raise Flop

    async with open_task_queue(concurrency=3, protect=switch, rng=Steady(1.0), failures=Failures.RECORD) as queue:
        jobs = [queue.submit_nowait(body, "0", attempt_timeout=1 if end == "time out" else math.inf)]
        jobs += [queue.submit_nowait(body, str(number)) for number in range(1, 6)]
        if end == "cancel":
            await trio.sleep(1.5)
            jobs[0].cancel()
    expected = {
        "raise": [1, 4, 5, 5, 5, 6],  # it failed at 2: shut for 2 s; the next one opens it
        "cancel": [1, 1.5, 2.5, 2.5, 2.5, 3.5],  # which says nothing: the next one goes at once
        "time out": [1, 4, 5, 5, 5, 6],
    }
    assert [at for at, _ in line.events] == expected[end]


@virtual
async def test_a_job_keeps_its_place_and_its_attempts_when_it_is_refused() -> None:
    line, switch = Timeline(), Switch(until=15, retry_after=20)
    async with open_task_queue(concurrency=1, protect=switch, retry=pauses(5)) as queue:
        first = queue.submit_nowait(line.flaky("first"))
        queue.submit_nowait(line.work, "second", 10)
        await trio.sleep(3)
        queue.submit_nowait(line.work, "third")
        assert first.state is JobState.WAITING
        await first.wait()
        assert first.attempts == 2
    assert line.events == [(20, "first"), (21, "second"), (31, "first"), (32, "third")]


@virtual
async def test_a_refusal_out_of_the_body_is_a_failure_with_a_wish() -> None:
    line = Timeline()

    async def body() -> None:
        line.note("x")
        if len(line.events) == 1:
            raise RejectedError("busy", retry_after=7)

    async with open_task_queue(concurrency=1, protect=Switch(until=0), retry=pauses(1, on=RejectedError)) as queue:
        job = queue.submit_nowait(body)
        queue.submit_nowait(line.work, "other")
        await job.wait()
        assert job.attempts == 2
        assert queue.statistics().refusals == 0
    assert line.events == [(0, "x"), (0, "other"), (7, "x")]


@virtual
async def test_start_within_and_timeout_hold_behind_a_shut_gate() -> None:
    line, switch = Timeline(), Switch(until=100, retry_after=50)
    async with open_task_queue(protect=switch, failures=Failures.RECORD) as queue:
        jobs = [
            queue.submit_nowait(line.work, "x", start_within=3),
            queue.submit_nowait(line.work, "x", timeout=4),
            queue.submit_nowait(line.work, "x", start_within=70),
        ]
        ends = {}
        for job in jobs:
            with pytest.raises(JobTimeoutError) as caught:
                await job.wait()
            ends[caught.value.which, caught.value.seconds] = trio.current_time()
    assert ends == {("start_within", 3): 3, ("timeout", 4): 4, ("start_within", 70): 70}
    assert line.events == []


@virtual
async def test_cancel_clear_and_priorities_work_behind_a_shut_gate() -> None:
    line, switch = Timeline(), Switch(until=5, retry_after=10)
    async with open_task_queue(concurrency=1, protect=switch) as queue:
        jobs = [queue.submit_nowait(line.work, str(number)) for number in range(5)]
        await trio.sleep(1)
        jobs[1].cancel()
        jobs[4].priority = 1
        assert queue.statistics().waiting == 4
        await trio.sleep(1)
        assert queue.clear() == 4
        queue.submit_nowait(line.work, "new")
    assert line.events == [(10, "new")]


# --------------------------------------------------------------------------------------------- named gates


@virtual
async def test_a_named_gate_holds_back_its_own_jobs_only() -> None:
    line, gate = Timeline(), Gate("slow server")
    async with open_task_queue(concurrency=2) as queue:
        gate.shut(5)
        for _ in range(3):
            queue.submit_nowait(line.work, "gated", gate=gate)
            queue.submit_nowait(line.work, "free")
        await wait_all_tasks_blocked()
        assert queue.statistics().gate_shut_for == 0
    assert line.times("free") == [0, 0, 1]
    assert line.times("gated") == [5, 5, 6]


@virtual
async def test_a_refusal_shuts_the_gate_that_the_job_names() -> None:
    line, gate, other = Timeline(), Gate(), Gate()

    class Picky(Switch):
        async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
            if trio.current_time() < self.until and not line.times("gated"):
                self.until = -math.inf
                raise RejectedError(retry_after=self.retry_after)
            return await fn(*args)

    async with open_task_queue(concurrency=1, protect=Picky(1, retry_after=4)) as queue:
        queue.submit_nowait(line.work, "gated", gate=gate)
        queue.submit_nowait(line.work, "free")
        queue.submit_nowait(line.work, "other", gate=other)
    assert line.events == [(0, "free"), (1, "other"), (4, "gated")]


@virtual
async def test_gates_keep_the_order_among_their_jobs() -> None:
    line, gate = Timeline(), Gate()
    async with open_task_queue(concurrency=1) as queue:
        queue.pause()
        gate.shut(1.5)
        queue.submit_nowait(line.work, "gated 1", gate=gate)
        queue.submit_nowait(line.work, "free 1")
        queue.submit_nowait(line.work, "gated 2", gate=gate, priority=1)
        queue.submit_nowait(line.work, "free 2", priority=2)
        queue.submit_nowait(line.work, "free 3")
        queue.resume()
    assert line.names == ["free 2", "free 1", "gated 2", "gated 1", "free 3"]


@virtual
async def test_a_gate_shared_by_two_queues_sends_one_job_first() -> None:
    line, gate, switch = Timeline(), Gate(rng=Steady(1.0)), Switch(until=0.5)

    async def submit(queue: TaskQueue, name: str) -> JobHandle[str]:
        return await queue.submit(line.work, name, 5, gate=gate)

    async with open_task_queue(protect=switch) as left, open_task_queue(protect=switch) as right:
        await submit(left, "left")
        await trio.sleep(2)  # the one job of the left queue went first, at 1
        await submit(right, "right")
        await submit(left, "left")
    assert line.events[0] == (1, "left")
    assert sorted(line.events[1:]) == [(6, "left"), (6, "right")]


@virtual
async def test_the_first_job_counts_for_all_queues_that_know_the_gate_already() -> None:
    """Both queues see the time pass while neither has a job that waits; then both get one."""
    line, gate, switch = Timeline(), Gate(rng=Steady(1.0)), Switch(until=0.5)
    async with open_task_queue(protect=switch, limiter=trio.CapacityLimiter(9)) as left, open_task_queue() as right:
        holder = right.submit_nowait(line.work, "holder", 20, gate=gate)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await left.run(line.work, "refused", 1, gate=gate)
        await trio.sleep(2.5)
        left.submit_nowait(line.work, "left", 5, gate=gate)
        await trio.sleep(1)
        right.submit_nowait(line.work, "right", 5, gate=gate)
        await holder.wait()
    assert line.events == [(0, "holder"), (3, "left"), (8, "right")]


# ----------------------------------------------------------------------------------------------- cooldowns


def told(wish: float) -> Retry:
    """Return a retry whose other side always asks for so long."""
    return Retry(on=Flop, attempts=9, backoff=Constant(0), retry_after=lambda error: wish)


@virtual
async def test_retry_after_of_one_job_holds_back_the_others_and_keeps_their_order() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=told(20), cooldown=Cooldown(ramp=0)) as queue:
        queue.submit_nowait(line.work, "before")
        queue.submit_nowait(line.flaky("told"))
        for name in "abc":
            queue.submit_nowait(line.work, name)
        await trio.sleep(5)
        assert queue.statistics().gate_shut_for == 17
    assert line.events == [(0, "before"), (1, "told"), (22, "told"), (23, "a"), (24, "b"), (25, "c")]


@virtual
async def test_running_jobs_go_on_and_other_keys_flow() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, retry=told(20), cooldown=Cooldown(ramp=0)) as queue:
        queue.submit_nowait(line.flaky("told"), key="a")
        queue.submit_nowait(line.work, "runs", 10, key="a")
        for _ in range(3):
            queue.submit_nowait(line.work, "held", key="a")
            queue.submit_nowait(line.work, "other", key="b")
            queue.submit_nowait(line.work, "keyless")
    # the first "held" and the like take the third slot before the failure at 1
    assert line.times("held") == [0, 21, 21] or line.times("held") == [21, 21, 22]
    assert max(line.times("other") + line.times("keyless")) < 10
    assert line.times("runs") == [0]


@virtual
async def test_a_cooldown_reopens_with_a_ramp() -> None:
    line = Timeline()
    cooldown = Cooldown(ramp=10, rng=Steady(0.0))
    async with open_task_queue(concurrency=5, retry=told(20), cooldown=cooldown) as queue:
        told_job = queue.submit_nowait(line.flaky("told", seconds=1))
        await trio.sleep(1.5)
        for _ in range(8):
            queue.submit_nowait(line.work, "x", 100)
        await told_job.wait()
    assert line.times("told") == [0, 21]
    # max(1, floor(5 * elapsed / 10)) have passed; the limit of 5 holds besides
    assert line.times("x")[:5] == [25, 27, 29, 31, 31]


@virtual
async def test_each_step_of_a_ramp_is_late_by_a_part_of_itself() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=5, retry=told(20), cooldown=Cooldown(ramp=10)) as queue:
        queue.submit_nowait(line.flaky("told", seconds=1))
        await trio.sleep(1.5)
        for _ in range(4):
            queue.submit_nowait(line.work, "x", 100)
    starts = line.times("x")
    assert all(starts[index] >= 21 + 2 * (index + 2) for index in range(3))
    assert starts[0] < 27
    assert starts == sorted(starts)
    assert starts[-1] <= 33


@virtual
async def test_a_cooldown_is_shared_by_queues_and_by_other_code() -> None:
    line, cooldown = Timeline(), Cooldown(ramp=0)
    async with (
        open_task_queue(retry=told(20), cooldown=cooldown) as left,
        open_task_queue(retry=told(20), cooldown=cooldown) as right,
    ):
        left.submit_nowait(line.flaky("told", seconds=1), key="server")
        await trio.sleep(2)
        right.submit_nowait(line.work, "right", key="server")
        right.submit_nowait(line.work, "elsewhere", key="another")
        await cooldown.gate("server").wait_open()
        assert trio.current_time() == 21
        assert cooldown.gate("server") is cooldown.gate("server")
    assert sorted(line.events) == [(0, "told"), (2, "elsewhere"), (21, "right"), (21, "told")]


@virtual
async def test_a_longer_wish_wins_and_a_shorter_one_changes_nothing() -> None:
    line, gate = Timeline(), Gate()
    async with open_task_queue(concurrency=1) as queue:
        gate.shut(10)
        gate.shut(5)
        queue.submit_nowait(line.work, "x", gate=gate)
        await trio.sleep(8)
        gate.shut(0)
        gate.shut(20)
    assert line.events == [(28, "x")]


@virtual
async def test_a_cooldown_forgets_gates_that_say_nothing_and_keeps_the_others() -> None:
    cooldown = Cooldown()
    shut, heard = cooldown.gate("shut"), cooldown.gate("heard")
    shut.shut(10)
    heard.listen(lambda _: None)
    for key in range(10_000):
        cooldown.gate(key)
    assert cooldown.gate("shut") is shut
    assert cooldown.gate("heard") is heard
    assert len(cooldown._gates) < 2_100, "a crawler of many hosts would keep a gate for each of them"
