"""The engine of a queue: how jobs come in, how the queue closes, and what can be waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, final

import trio
from trio.lowlevel import enable_ki_protection

from trio_orchestrator.algorithms.argument import finite
from trio_orchestrator.block import Block, Hooks
from trio_orchestrator.queue.attempts import Attempts
from trio_orchestrator.queue.handle import WAITING, JobHandle
from trio_orchestrator.queue.overflow import Victims, victims_for
from trio_orchestrator.queue.settings import Settings
from trio_orchestrator.queue.worker import Worker

_logger = logging.getLogger("trio_orchestrator")


@final
class Engine(Attempts):
    """The inside of a `TaskQueue`."""

    # Declared again because it assigns them; they are its base's.
    block: Block | None
    calm: bool
    delayed: int
    quiet: bool
    reason: str
    renumbered: int
    room: float
    watched: bool

    def __init__(self, settings: Settings) -> None:
        hooks = Hooks(settings.instruments)
        super().__init__(settings, hooks)
        self.on_limit_changed: list[Callable[[Any], None]] = hooks.of("limit_changed")
        self.victims: Victims | None = victims_for(settings.overflow)
        self._brisk = self.victims is None and not settings.needs_terms
        self.over_admitted: int = 0
        self.leaving: bool = False  # the block is left: outsiders are refused
        self._warned = False
        self._letting_in = False
        self._idle_event: trio.Event | None = None
        self._below: list[tuple[float, trio.Event]] = []
        self._blocked: dict[Worker, list[JobHandle[Any]]] = {}  # what jobs of this queue wait for in it

    @property
    def waiting(self) -> int:
        """Jobs that want a slot, delayed ones included."""
        return len(self.schedule) + self.delayed

    def has_room(self) -> bool:
        """Whether one more job may wait."""
        away, most = self.delayed + self.scheduled, self.settings.max_waiting
        brisk = self._brisk and not self.leaving and not self.door
        self.room = most - away - self.schedule.aside if brisk else 0
        return not self.door and len(self.schedule) + away < most

    def admit(self, job: JobHandle[Any], start_at: float) -> None:
        """Let a job in: from now on it is submitted, and this engine's to end."""
        job.seq = self.number()
        if job._terms is not None:
            self._watch_over(job, job._terms)
        if start_at > -math.inf and start_at > trio.current_time():
            job._make_times().delayed = True
            self.delayed += 1
            self.room -= 1
            self.alarm.wake_job(start_at, job)
        else:
            self.schedule.push(job)
        if self.victims is not None:
            self.victims.add(job)
        if not self.schedule.plain:
            self.calm = False
            self.room -= 1
        if self.hungry:
            self.dispatch()

    def check_open(self) -> None:
        """Refuse a submission to a closed queue."""
        if self.closed or (self.leaving and self.inside() is None):
            raise trio.ClosedResourceError(f"the queue {self.settings.name!r} is closed: {self.reason}")

    def let_in(self) -> None:
        """Move those at the door in, while there is room."""
        if self._letting_in:  # to admit is to dispatch, which comes here again: no recursion as deep as the crowd
            return
        self._letting_in = True
        try:
            while self.door and len(self.schedule) + self.delayed + self.scheduled < self.settings.max_waiting:
                job, start_at = self.door.next()
                self._submitted_now(job)
                self.admit(job, start_at)
        finally:
            self._letting_in = False

    def _submitted_now(self, job: JobHandle[Any]) -> None:
        """Count the times of a job from now: while its submitter waited at the door it was not submitted."""
        times, now = job._times, trio.current_time()
        if times is not None and times.submitted_at is not None:
            if self.settings.ageing < math.inf:
                terms = job._make_terms()
                times.age_rank = now / self.settings.ageing
                terms.rank = times.age_rank - terms.priority
            times.submitted_at = now
            times.deadline, times.start_by = now + times.timeout, now + times.start_within

    def reprioritise(self, job: JobHandle[Any], priority: float) -> None:
        """Give a job another priority; while it waits for a slot, it goes to the end of its new level."""
        finite("priority", priority)
        terms = job._make_terms()
        terms.priority = priority
        times = terms.times
        rank = (0.0 if times is None else times.age_rank) - priority
        if job._state is WAITING and not (times is not None and times.delayed):
            self.calm = False
            self.room -= 1
            self.schedule.reprioritise(job, terms, rank, self._renumber())
            if self.hungry:
                self.dispatch()
        else:
            terms.rank = rank
        if self.victims is not None:
            self.victims.add(job)

    def _renumber(self) -> int:
        """Return a number behind all others, for a job that was submitted before."""
        self.renumbered += 1
        return self.number()

    def seconds_per_job(self) -> float:
        """Return how long one place takes to become free, judged by all that has ended so far; inf if nothing has."""
        ended = self.succeeded + self.failed + self.cancelled_jobs
        return (trio.current_time() - self.record.opened_at) / ended if ended else math.inf

    # --------------------------------------------------------------------------------------------- opening and closing

    def open(self, block: Block) -> None:
        """The block begins: its nursery is ours until it ends."""
        self.block = block
        block.nursery.start_soon(self._watch, name=f"alarm of {self.settings.name}")

    @enable_ki_protection
    async def _watch(self) -> None:
        """Run the alarm. A queue whose tasks are cancelled from outside learns of it here."""
        try:
            await self.alarm.run()
        except trio.Cancelled:
            self.abort("the queue was cancelled")
            raise

    @enable_ki_protection
    async def leave(self, error: BaseException | None) -> None:
        """The block has left, with `error`: wait for all jobs, or cancel them."""
        if error is None:
            self.refuse_outsiders("its block was left")
            try:
                if not self.idle:
                    await self.wait_idle()
            except BaseException:
                self.abort("the queue was cancelled")
                raise
            self.close("its block was left")
        else:
            self.abort(f"its block raised {type(error).__name__}")
        block = self.block
        assert block is not None
        block.nursery.cancel_scope.cancel(reason=self.reason)

    def refuse_outsiders(self, reason: str) -> None:
        """The block is left: only jobs may submit."""
        self.leaving, self.reason = True, reason
        self.room = 0
        self._close_doors()
        self._warn_if_stuck()

    def _close_doors(self) -> None:
        self.door.close()
        for _, event in self._below:
            event.set()
        self.watched = False

    def _warn_if_stuck(self) -> None:
        """Leaving the block waits for a pause, a shut gate or a limit of 0 to be lifted: say so, once."""
        waiting = self.waiting
        if not self.leaving or self._warned or self.closed or self.running or not waiting:
            return
        why = (
            "it is paused" if self.paused
            else "its limit is 0" if self.slots.limit == 0
            else self.lanes.shut_gate()
        )  # fmt: skip
        if why is not None:
            self._warned = True
            _logger.warning("leaving the queue %r: %d jobs wait, and %s", self.settings.name, waiting, why)

    # ---------------------------------------------------------------------------------------------- waiting for states

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is scheduled for a retry."""
        return not (self.running or self.scheduled or self.delayed or len(self.schedule))

    @property
    def unobserved(self) -> bool:
        """Whether nobody needs to be told when nothing runs any more."""
        return self._idle_event is None and not self.leaving and not self._news

    def tell(self) -> None:
        """Tell those who wait for a state of the queue."""
        if self.door:
            self.let_in()
        if self.watched:
            self._tell_below()
        if self._idle_event is not None and self.idle:
            self._idle_event.set()
            self._idle_event = None
        if self.leaving and not self.running:
            self._warn_if_stuck()
        if self._news:
            self._flush()

    def _tell_below(self) -> None:
        waiting = self.waiting + self.scheduled
        for entry in [entry for entry in self._below if waiting < entry[0]]:
            entry[1].set()
            self._below.remove(entry)
        self.watched = bool(self._below)

    async def wait_idle(self) -> None:
        """Wait until the last job has ended."""
        if self._idle_event is None:
            self._idle_event = trio.Event()
        await self._idle_event.wait()

    async def wait_below(self, bound: float) -> bool:
        """Wait until fewer than `bound` jobs wait or are scheduled; False: the queue closes."""
        entry = (bound, trio.Event())
        self._below.append(entry)
        self.watched, self.quiet, self.calm = True, False, False
        try:
            await entry[1].wait()
            return entry not in self._below
        finally:
            if entry in self._below:
                self._below.remove(entry)
                self.watched = self.watched and bool(self._below)

    def block_on(self, job: JobHandle[Any]) -> Worker | None:
        """A task is about to wait for `job`; if it belongs to a job of this queue, note that, and return its worker.

        Raises:
            RuntimeError: It waits for itself; or no slot is free, and every running job waits like this.
        """
        worker = self.inside()
        if worker is None:
            return None
        self._blocked.setdefault(worker, []).append(job)
        limiter = self.slots.limiter
        ours = self.running + len(self._reserve) + sum(len(worker.extra or ()) for worker in self.workers.values())
        no_slot = limiter.available_tokens <= 0 and limiter.borrowed_tokens <= ours
        if worker.job is job:
            self.unblock(worker, job)
            raise RuntimeError(f"deadlock: the job {job.name!r} waits for itself")
        if no_slot and self._stuck() >= self.running:
            self.unblock(worker, job)
            raise RuntimeError(
                f"deadlock: no slot is free, and all {self.running} running jobs of {self.settings.name!r} "
                f"wait for other jobs; {job.name!r} would never end"
            )
        return worker

    def _stuck(self) -> int:
        """Return how many running jobs wait for others that have not ended; one that was woken moves again."""
        return sum(not any(job.done for job in awaited) for awaited in self._blocked.values())

    def unblock(self, worker: Worker | None, job: JobHandle[Any]) -> None:
        """The wait is over."""
        if worker is not None:
            self._blocked[worker].remove(job)
            if not self._blocked[worker]:
                del self._blocked[worker]
