"""What must hold of one queue at every instant at which nothing more happens."""

from __future__ import annotations

import math
from collections import Counter

import trio

from tests.queue.rich_model import PENDING, Job, Phase, Side
from trio_orchestrator import JobCancelledError, JobState, Overflow

STATES = {
    Phase.WAITING: (JobState.WAITING,),
    Phase.OUT: (JobState.RUNNING,),
    Phase.PAUSING: (JobState.RETRY_SCHEDULED,),
}


def look(side: Side) -> None:
    side.find_handles()
    for job in side.jobs:
        pass_time(side, job)
    for job in side.of(Phase.ENDED):
        if job.handle is not None and job.handle.state is JobState.FAILED:
            side.failed(job)
    for job in side.of(Phase.OUTSIDE):
        come_in(side, job)
    explain(side)
    compare(side)
    count(side)
    if not (side.paused or side.closed or side.aborted):
        use_all_slots(side)
    keep_the_order(side)
    side.started, side.touched, side.unexplained = [], set(), []


def come_in(side: Side, job: Job) -> None:
    call = job.call
    if job.handle is not None:
        job.let_in()
        if job.handle.done:
            job.ends(JobState.CANCELLED)
            side.check(job.adrift or side.closed, f"{job} ended before it was let in")
    elif call is not None and call.done:  # cancelled at the door, or sent away
        side.jobs.remove(job)
        if job.by_run and isinstance(call.error, JobCancelledError):
            side.check(side.fails_fast or side.closed, f"{job} was let in and cancelled at once: {call.error!r}")
            side.unseen += 1  # nobody ever had its handle
        elif call.state == "raised":
            side.check(isinstance(call.error, trio.ClosedResourceError), f"{job}: submit raised {call.error!r}")
            side.check(side.closed or side.leaving, f"{job} was sent away from the door")
    else:
        statistics = side.queue.statistics()
        side.check(not (side.closed or side.leaving), f"{job} still waits at the door of a closed queue")
        pending = statistics.waiting + statistics.retry_scheduled
        side.check(pending >= side.config.max_waiting, f"{job} waits at the door, and there is room")


def pass_time(side: Side, job: Job) -> None:
    """What the clock alone does to a job."""
    now = trio.current_time()
    if job.out and side.cut_at <= now:
        job.stopped = job.stopped or now < job.armed
    if job.phase not in (Phase.WAITING, Phase.PAUSING):
        return
    late = job.deadline <= now or (not job.tries and job.start_by <= now)
    if job.caller_gone or (job.adrift and job.handle is not None and job.handle.done):
        job.cut_short()
    elif late:
        job.error = None
        job.ends(JobState.FAILED, *((JobState.CANCELLED,) if side.closed or side.fails_fast or job.adrift else ()))
        side.failed(job)
    elif job.phase is Phase.PAUSING and job.due <= now:
        job.phase = Phase.WAITING


def explain(side: Side) -> None:
    """A body saw a `Cancelled`: somebody must have asked for it."""
    for job in side.unexplained:
        side.check(side.aborted or job.adrift, f"{job} saw a Cancelled that nobody had asked for")
        job.ends(JobState.CANCELLED, JobState.FAILED)


def compare(side: Side) -> None:
    for job in side.jobs:
        handle = job.handle
        if handle is None:
            continue
        states = STATES.get(job.phase, job.states)
        if side.closed and job.phase in (Phase.WAITING, Phase.PAUSING):  # it ended as the queue closed under it
            states = job.cut_short()
        side.check(handle.state in states, f"{job} should be {states}, is {handle}")
        side.check(handle.attempts == job.tries, f"{job}: {job.tries} attempts, {handle}")
        if not handle.done and not job.out:
            seq = handle.seq
            side.check(seq >= 0, f"{job} has left the order")
            job.seq = seq
        if job.out and not job.stopped and not job.forbidden and job.end[0] != "cleaning":
            side.check(trio.current_time() < job.armed, f"{job} runs after its deadline")


def count(side: Side) -> None:
    seen = side.queue.statistics()
    phases = Counter(job.phase for job in side.jobs)
    ended = Counter(job.handle.state for job in side.of(Phase.ENDED) if job.handle is not None)
    ended[JobState.CANCELLED] += side.unseen
    side.check(seen.running == phases[Phase.OUT], f"{seen.running=}, {phases=}")
    side.check(seen.waiting == phases[Phase.WAITING], f"{seen.waiting=}, {phases=}")
    side.check(seen.retry_scheduled == phases[Phase.PAUSING], f"{seen.retry_scheduled=}, {phases=}")
    side.check(seen.at_the_door == phases[Phase.OUTSIDE], f"{seen.at_the_door=}, {phases=}")
    total = seen.waiting + seen.running + seen.retry_scheduled + sum(ended.values())
    side.check(seen.submitted == total, f"{seen.submitted=}, {total=}")
    counted = (seen.succeeded, seen.failed, seen.cancelled, seen.dropped)
    states = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.DROPPED)
    side.check(counted == tuple(ended[state] for state in states), f"{counted=}, {ended=}")
    side.check(seen.idle == (seen.waiting + seen.running + seen.retry_scheduled == 0), "idle is wrong")
    side.check(seen.over_admitted == side.over_admitted, f"{seen.over_admitted=}, {side.over_admitted=}")
    if side.private:
        borrowed = side.queue.limiter.borrowed_tokens
        side.check(borrowed == side.busy or (borrowed > side.busy and seen.waiting), f"{borrowed=}, {side.busy=}")


def may_start(side: Side) -> list[Job]:
    now = trio.current_time()
    held = Counter(job.asked.key for job in side.jobs if job.holds_key)
    return sorted(
        (
            job
            for job in side.of(Phase.WAITING)
            if now >= job.start_at and job.watch.open
            and (job.asked.key is None or held[job.asked.key] - job.holds_key < side.config.per_key)
        ),
        key=lambda job: job.order,
    )  # fmt: skip


def use_all_slots(side: Side) -> None:
    """No job waits while a slot is free for it."""
    now, limit = trio.current_time(), side.limit()
    if side.ramp is not None:
        start, seconds = side.ramp
        if now >= start + seconds:
            side.ramp = None
        elif len(side.of(Phase.OUT)) >= max(1, math.floor(side.least * (now - start) / seconds - 1e-6)):
            return
    ready, free = may_start(side), limit - side.crowd()
    if ready:
        need = max(1, min(ready[0].asked.weight, limit))
        side.check(need > free, f"{free} slots are free, and {ready[0]} waits")


def keep_the_order(side: Side) -> None:
    """Nothing starts before a better one that could have started: before, and still."""
    ready, keys = set[Job](), set[str | None]()
    for job in may_start(side):  # a heavy job that collects its slots has claimed a unit of its key
        if not job.watch.changed and (job.asked.key is None or job.asked.key not in side.touched | keys):
            ready.add(job)
        keys.add(job.asked.key)
    for first in side.started:
        if first.moved:
            continue
        passed = [job for job in ready if job.ready and not job.moved and job.order < first.order and first.seq >= 0]
        for job in passed:
            job.passed += 1
            light = first.asked.weight < job.asked.weight and len(passed) == 1
            side.check(light and job.passed <= side.config.bypass, f"{first} overtakes {job}, {job.passed}")
    for job in side.jobs:
        job.ready, job.moved = job in ready, False


def submitted(side: Side, job: Job, inside: bool, before: dict[Job, JobState], pending: int, at_door: int) -> None:
    """`submit_nowait` has let a job in, at the cost of another one perhaps."""
    overflow, config = side.config.overflow, side.config
    full = pending >= config.max_waiting or at_door > 0
    dropped = [
        other
        for other, state in before.items()
        if state in PENDING and other.handle is not None and other.handle.state is JobState.DROPPED
    ]
    droppable = [other for other, state in before.items() if state is JobState.WAITING and not other.tries]
    for other in dropped:
        side.check(other in droppable, f"{other} was dropped")
        other.ends(JobState.DROPPED)
    assert job.handle is not None
    went = job.handle.state is JobState.DROPPED
    if went:
        job.ends(JobState.DROPPED)
    side.check(
        len(dropped) + went == (full and overflow not in (Overflow.WAIT, Overflow.REJECT)), f"{dropped=} {went=}"
    )
    if overflow in (Overflow.WAIT, Overflow.REJECT) and full:
        side.check(inside and overflow is Overflow.WAIT, f"{job} was let in: {pending} wait, {at_door} at the door")
        side.over_admitted += 1
    elif overflow is Overflow.DROP_OLDEST and full and not config.protected:
        oldest = min(droppable, key=lambda other: other.arrival, default=job)
        side.check((dropped or [job])[0] is oldest, f"{dropped} or {job} was dropped, not {oldest}")
    elif overflow is Overflow.DROP_LOWEST and full and not config.protected:
        lowest = min(other.priority for other in [*droppable, job])
        side.check((dropped or [job])[0].priority == lowest, f"{dropped} or {job} was dropped, not {lowest=}")
