"""What one queue must be seen to do when everything is used at once: told by the bodies, judged at each instant.

The model knows what was asked for and what the bodies report; from that it says in which phase each job is. It looks at
the queue only to compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import trio

from trio_orchestrator import Failures, Gate, JobHandle, JobState, KeyOrder, Overflow, RejectedError, TaskQueue
from trio_orchestrator.testing import Call

BAD = "a result that is to be repeated"
PENDING = (JobState.WAITING, JobState.RETRY_SCHEDULED)

current_job: ContextVar[Job] = ContextVar("current_job")


class Failed(Exception):
    """What bodies raise; `wish` is the pause that the server asks for."""

    def __init__(self, wish: float | None = None) -> None:
        super().__init__()
        self.wish = wish


class Phase(Enum):
    OUTSIDE = "at the door, or never let in"
    WAITING = "waiting"
    OUT = "running"
    PAUSING = "retry-scheduled"
    ENDED = "ended"


class Sparse:
    """Shows what differs from the defaults."""

    def __repr__(self) -> str:
        shown = [(one.name, getattr(self, one.name)) for one in fields(self) if getattr(self, one.name) != one.default]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Asked(Sparse):
    """The options of a job, as drawn."""

    kind: str = "quick"
    seconds: float = 1.0
    priority: float = 0
    key: str | None = None
    weight: int = 1
    gate: int | None = None
    delay: float = 0
    attempt_timeout: float = math.inf
    timeout: float = math.inf
    start_within: float = math.inf
    attempts: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Config(Sparse):
    """How a queue was opened."""

    attempts: int = 1
    pause: float = 2.0
    max_waiting: int = 6
    overflow: Overflow = Overflow.WAIT
    failures: Failures = Failures.RECORD
    ageing: float = math.inf
    per_key: int = 1
    order: KeyOrder = KeyOrder.FREE
    bypass: int = 0
    attempt_timeout: float = math.inf
    timeout: float = math.inf
    start_within: float = math.inf
    protected: bool = False
    cooled: bool = False


@dataclass(eq=False)
class Watch:
    """A gate, as its listeners see it."""

    gate: Gate
    lowest: float = (
        -math.inf
    )  # the earliest time at which it let somebody through, as of any moment since the last look
    changed: bool = False
    probe: Job | None = None

    def __post_init__(self) -> None:
        self.gate._listeners.insert(0, self.hear)  # before the queues, which act on what they hear

    def hear(self, _: Gate) -> None:
        self.lowest, self.changed = min(self.lowest, self.opens_at), True
        if self.opens_at < math.inf:
            self.probe = None

    @property
    def opens_at(self) -> float:
        return self.gate.opens_at(trio.current_time())

    @property
    def open(self) -> bool:
        return self.opens_at <= trio.current_time()

    def passes(self, job: Job) -> None:
        now = trio.current_time()
        job.side.check(self.lowest <= now or self.open, f"{job} starts behind a gate that is shut until {self.lowest}")
        if self.gate.probing and self.opens_at == math.inf:
            job.side.check(self.probe is None or not self.probe.out, f"{job} starts while {self.probe} has gone first")
            self.probe = job
        self.changed = True

    def look(self) -> None:
        self.lowest, self.changed = self.opens_at, False


@dataclass(eq=False)
class Group:
    """Jobs of one `queue.group()`."""

    failures: Failures
    jobs: list[Job]
    leave: trio.Event = field(default_factory=trio.Event)
    call: Call[None] = field(init=False)
    broken: bool = False

    @property
    def gone(self) -> bool:
        """It cancels its jobs, or is about to."""
        failed = any(job.handle is not None and job.handle.state is JobState.FAILED for job in self.jobs)
        return self.broken or (failed and self.failures is Failures.FAIL_FAST)


@dataclass(eq=False)
class Job:
    side: Side
    number: int
    asked: Asked
    watch: Watch
    handle: JobHandle[object] | None = None
    call: Call[Any] | None = None  # of `submit` or `run`
    by_run: bool = False
    group: Group | None = None
    caller_deadline: float = math.inf
    phase: Phase = Phase.OUTSIDE
    submitted_at: float = 0
    start_at: float = -math.inf
    arrival: int = 0
    priority: float = field(init=False)
    rank: float = 0
    seq: int = -1
    tries: int = 0
    slots: int = 0  # while it is out
    armed: float = math.inf  # the deadline of its attempt
    due: float = -math.inf  # when its pause is over
    end: tuple[str, Any] = ("", None)  # how its body left: "returned", "raised", "cancelled", "refused"
    stopped: bool = False  # cancelled while it was out
    forbidden: bool = False  # cancelled after its time-out
    ended_at: float = math.inf
    states: tuple[JobState, ...] = ()  # what it may have become
    error: Exception | None = None  # the failure that it ended with, if it is the body's
    ready: bool = False  # nothing of its own kept it from starting at the last look
    moved: bool = False  # given another priority since the last look
    passed: int = 0  # light jobs that overtook it
    told: bool = False  # somebody was, or may have been, told of its failure
    blocked_on: Job | None = None

    def __post_init__(self) -> None:
        self.priority = self.asked.priority

    def __repr__(self) -> str:
        return f"<{self.number} {self.asked.kind} {self.phase.value}>"

    @property
    def out(self) -> bool:
        return self.phase is Phase.OUT

    @property
    def deadline(self) -> float:
        return self.submitted_at + min(self.asked.timeout, self.side.config.timeout)

    @property
    def start_by(self) -> float:
        return self.submitted_at + min(self.asked.start_within, self.side.config.start_within)

    @property
    def attempts(self) -> int:
        return self.side.config.attempts if self.asked.attempts is None else self.asked.attempts

    @property
    def order(self) -> tuple[float, int]:
        return self.rank, self.seq

    @property
    def holds_key(self) -> bool:
        strict = self.side.config.order is KeyOrder.STRICT
        return self.out or (strict and self.tries > 0 and self.phase is not Phase.ENDED)

    @property
    def caller_gone(self) -> bool:
        """The caller of `run()` has cancelled it, or is about to."""
        return self.caller_deadline <= trio.current_time() or (
            self.by_run and self.call is not None and self.call._scope.cancel_called
        )

    @property
    def adrift(self) -> bool:
        """Somebody else than a rule may cancel it now."""
        return self.caller_gone or (self.group is not None and self.group.gone)

    @property
    def loose(self) -> bool:
        """Something else may have ended it at this very instant."""
        return self.adrift or self.side.fails_fast

    def let_in(self) -> None:
        self.phase, self.submitted_at = Phase.WAITING, trio.current_time()
        self.start_at = self.start_at if self.start_at > self.submitted_at else -math.inf
        self.arrival = self.side.arrivals = self.side.arrivals + 1
        self.rank = self.submitted_at / self.side.config.ageing - self.priority

    def cut_short(self) -> tuple[JobState, ...]:
        """The queue has closed, perhaps just before its attempt ended: then no further one was allowed."""
        self.ends(JobState.CANCELLED, JobState.FAILED, *((JobState.SUCCEEDED,) if self.end[0] == "returned" else ()))
        self.error = None  # or that of its body: it may have ended in either way
        return self.states

    def ends(self, *states: JobState) -> None:
        self.phase, self.states, self.ended_at = Phase.ENDED, states, trio.current_time()


@dataclass(eq=False)
class Side:
    """One queue, its jobs, and what is known of it."""

    name: str
    config: Config
    check: Callable[[object, str], None]
    limit: Callable[[], int]
    crowd: Callable[[], int]  # slots of the limiter that are in use
    private: bool
    jobs: list[Job] = field(default_factory=list)
    unseen: int = 0  # of the jobs, those that were let in and cancelled in one instant
    queue: TaskQueue = field(init=False)
    main: Call[None] = field(init=False)
    paused: bool = False
    ramp: tuple[float, float] | None = None
    before_ramp: set[Job] = field(default_factory=set)  # had a slot when it began
    least: int = 0  # the least limit during the ramp: it is not told of a change from outside
    leaving: bool = False
    closed: bool = False
    aborted: bool = False
    cut_at: float = math.inf  # when `close(grace=)` cancels what still runs
    granted: set[Job] = field(default_factory=set)  # had a slot, but not begun, when all starts were forbidden
    over_admitted: int = 0
    unexplained: list[Job] = field(default_factory=list)  # cancelled, and the model does not know why
    started: list[Job] = field(default_factory=list)  # since the last look
    touched: set[str | None] = field(default_factory=set)  # keys that were in use since the last look
    arrivals: int = 0

    def of(self, *phases: Phase) -> list[Job]:
        return [job for job in self.jobs if job.phase in phases]

    @property
    def fails_fast(self) -> bool:
        return self.config.failures is Failures.FAIL_FAST

    @property
    def busy(self) -> int:
        return sum(job.slots for job in self.of(Phase.OUT))

    def in_flight(self) -> set[Job]:
        """The jobs that have a slot, and have not begun."""
        return {
            job
            for job in self.of(Phase.WAITING, Phase.PAUSING, Phase.OUTSIDE)
            if job.handle is None or job.handle.state is JobState.RUNNING
        }

    # ------------------------------------------------------------------------------------------ reported

    def begins(self, job: Job) -> None:
        """An attempt begins: the job has a slot."""
        now, check = trio.current_time(), self.check
        worker = self.queue._engine.inside()
        assert worker is not None and worker.job is not None
        job.handle, job.seq = worker.job, worker.job.seq
        if job.phase is Phase.OUTSIDE:
            job.let_in()
        check(job.phase in (Phase.WAITING, Phase.PAUSING), f"{job} starts")
        check(job.handle.state is JobState.RUNNING, f"{job} is said to be {job.handle}")
        forbidden = self.paused or self.closed
        check(not forbidden or job in self.granted, f"{job} starts while the queue is paused or closed")
        self.granted.discard(job)
        self.started.append(job)
        self.touched.add(job.asked.key)
        job.slots = max(1, min(job.asked.weight, self.limit()))
        if job.asked.key is not None:
            holders = [other for other in self.jobs if other.asked.key == job.asked.key and other.holds_key]
            holders = [other for other in holders if other.handle is None or not other.handle.done]
            check(len({*holders, job}) <= self.config.per_key, f"{job} starts beside {holders} of its key")
        job.phase = Phase.OUT
        check(self.crowd() <= self.limit(), f"{job} starts: {self.crowd()} slots in use, of {self.limit()}")
        if self.ramp is not None:
            start, seconds = self.ramp
            most = max(1, math.floor(self.limit() * (now - start) / seconds + 1e-6)) if now < start + seconds else 1e9
            early = len(self.of(Phase.OUT)) <= most or job in self.before_ramp
            check(early, f"{job} starts too early in the ramp")
        check(now >= job.start_at, f"{job} starts before its delay is over")
        check(now >= job.due, f"{job} starts in its pause")
        check(job.tries > 0 or now <= job.start_by, f"{job} starts, {job.start_by=}")
        check(now <= job.deadline, f"{job} starts after its deadline")
        limit = min(job.asked.attempt_timeout, self.config.attempt_timeout)
        job.armed, job.stopped, job.forbidden = min(now + limit, job.deadline), False, False
        effective = trio.current_effective_deadline()
        check(
            effective == job.armed or (effective == -math.inf and (self.aborted or self.fails_fast)),
            f"{job}: deadline {effective}",
        )
        job.watch.passes(job)
        job.passed = 0
        job.tries += 1

    def over(self, job: Job) -> None:
        """An attempt is over: say what must become of the job."""
        how, what = job.end
        now = trio.current_time()
        final = job.stopped or job.forbidden or self.closed
        if how == "returned":
            self._repeat_or_end(job, self.config.pause if what == BAD else None, JobState.SUCCEEDED, final)
        elif how == "raised":
            job.error = what
            wish = getattr(what, "wish", getattr(what, "retry_after", None))
            wish = wish if wish is not None and wish < math.inf else 0
            retryable = isinstance(what, (Failed, RejectedError))
            pause = max(self.config.pause, wish) if retryable else None
            self._repeat_or_end(job, pause, JobState.FAILED, final)
        elif how == "leaked":
            job.ends(JobState.FAILED)
        elif how == "refused":
            job.tries -= 1
            if final:
                job.ends(JobState.CANCELLED, *(PENDING if self.aborted else ()))
            else:
                job.phase = Phase.WAITING
        elif job.stopped or (self.closed and (self.aborted or now >= self.cut_at)):
            job.ends(JobState.CANCELLED, *((JobState.FAILED,) if job.armed <= now else ()))
        elif now >= job.armed:
            job.error = None
            if job.deadline <= job.armed:
                job.ends(JobState.FAILED, *((JobState.CANCELLED,) if job.loose else ()))
            else:
                self._repeat_or_end(job, self.config.pause, JobState.FAILED, final)
        else:
            job.ends(JobState.CANCELLED)
            self.unexplained.append(job)
        if job.phase is Phase.ENDED and job.states[0] is JobState.FAILED and not job.adrift:
            self.failed(job)

    def _repeat_or_end(self, job: Job, pause: float | None, state: JobState, final: bool) -> None:
        now = trio.current_time()
        deadline = min(job.deadline, job.caller_deadline)
        fits = pause is not None and now < deadline and now + pause < deadline
        if pause is None or not fits or job.tries >= job.attempts or final:
            job.ends(state, *((JobState.CANCELLED,) if job.loose and pause is not None else ()))
        elif pause == 0:
            job.phase = Phase.WAITING
        else:
            job.phase, job.due = Phase.PAUSING, now + pause

    def failed(self, job: Job) -> None:
        if self.fails_fast and not self.aborted:
            self.abort()

    # ---------------------------------------------------------------------------------------- asked of it

    def cancel(self, job: Job) -> None:
        now = trio.current_time()
        handle = job.handle
        assert handle is not None
        if job.out and now < job.armed:
            job.stopped = True
        elif job.out:
            job.forbidden = True
        elif job.phase is not Phase.ENDED and not handle.done:
            job.ends(JobState.CANCELLED)
        handle.cancel("rule")

    def reprioritise(self, job: Job, priority: float) -> None:
        assert job.handle is not None
        job.priority, job.moved = priority, True
        job.rank = job.submitted_at / self.config.ageing - priority
        job.handle.priority = priority

    def find_handles(self) -> None:
        """Jobs whose submitter has not come back with the handle, or never will (`run`)."""
        engine = self.queue._engine
        scheduled = (entry[2] for entry in engine.alarm._heap)
        for handle in [*engine.schedule, *scheduled, *(worker.job for worker in engine.crew)]:
            if isinstance(handle, JobHandle) and isinstance(handle._args, Job):
                handle._args.handle = handle

    def clear(self) -> None:
        self.find_handles()
        pending = [job for job in self.jobs if job.handle is not None and job.handle.state in PENDING]
        for job in pending:
            if job.phase is Phase.OUTSIDE:
                job.let_in()
            job.ends(JobState.DROPPED)
        statistics = self.queue.statistics()
        expected = statistics.waiting + statistics.retry_scheduled
        self.check(self.queue.clear() == expected == len(pending), "clear() counts wrongly")

    def close(self, cut_at: float = math.inf) -> None:
        """All that waits is cancelled."""
        self.find_handles()
        for job in self.of(Phase.OUTSIDE):
            if job.handle is not None and job.handle.state in PENDING:
                job.let_in()
        self.granted |= self.in_flight()
        self.closed, self.cut_at = True, min(self.cut_at, cut_at)
        for job in self.of(Phase.WAITING, Phase.PAUSING):
            if job not in self.granted:
                job.cut_short()

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.close()
