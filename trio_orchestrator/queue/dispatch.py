"""Which job runs next, and in which slot.

Who wakes whom:

* submit -> the schedule -> `dispatch`, if a slot may be free.
* `dispatch`: while jobs wait and may start: a token, a job, and a parked or a new worker for both. Without a token one
  worker stands in the limiter's line for the queue.
* A worker whose body has left asks `next`: same token, next job; or it gives the token back and parks.
* The alarm restores what is due, and dispatches once a wake.

Decisions are sync functions on plain state. Only the worker frees a slot, and only after its scope is left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, cast

import trio
from trio.lowlevel import Task, current_task, reschedule

from trio_orchestrator.algorithms.ramp import Ramp
from trio_orchestrator.algorithms.schedule import Schedule
from trio_orchestrator.block import Block, Hooks
from trio_orchestrator.queue.alarm import Alarm, Timer
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import RUNNING, JobHandle, Terms
from trio_orchestrator.queue.lanes import Lanes
from trio_orchestrator.queue.overflow import Door
from trio_orchestrator.queue.settings import Settings
from trio_orchestrator.queue.slots import Slots
from trio_orchestrator.queue.worker import Worker

if TYPE_CHECKING:
    from trio_orchestrator.queue.engine import Engine

_MOST_PARKED = 64
_JOBS_A_TOKEN = 16  # of a shared limiter, before it is passed on
_SECONDS_A_TOKEN = 0.001


class Dispatch(ABC):
    """Hands jobs and slots to workers. What becomes of the jobs is its subclass's concern, the engine's."""

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        self.settings: Settings = settings
        self.slots: Slots = Slots(settings.limiter, settings.concurrency)
        self.schedule: Schedule[JobHandle[Any]] = Schedule(settings.per_key)
        self.alarm: Alarm = Alarm(self.restore_due)
        self.own_gate: Gate = (
            settings.cooldown.gate() if settings.cooldown is not None else Gate(settings.name, rng=settings.rng)
        )
        self.lanes: Lanes = Lanes(self.own_gate, self.schedule, self.alarm, self._gate_changed, hooks.of("gate_opened"))
        self.home: Context = copy_context()
        self.block: Block | None = None

        self.workers: dict[Task, Worker] = {}
        self.crew: dict[Worker, None] = {}  # the same, and those whose task has not begun yet
        self.parked: list[Worker] = []
        self._line: Worker | None = None  # stands in the limiter's line
        self._reserve: list[object] = []  # tokens that nobody works with: collected for a heavy job
        self._picked: tuple[object, list[object]] = (None, [])  # the tokens of the job that `_pick` returned
        self.passed: dict[JobHandle[Any], int] = {}  # how many light jobs have overtaken a heavy one

        # What the fast paths test. `quiet`: only the order decides what is next. `calm`: and that is the deque's.
        # `plain`: a job without terms needs nothing but a slot (and, if the queue `repeats`, the time of its start).
        # Whoever changes what they stand for clears them.
        self.quiet: bool = False
        self.calm: bool = False
        self.plain: bool = settings.plain
        self.repeats: bool = settings.retry is not None
        self.hungry: bool = True  # a slot may be free for a job that is pushed now
        self.seen_limit: float = self.slots.limit  # NaN, which equals nothing, while there is debt

        self.door: Door = Door()
        self.room: float = 0  # jobs that the deque may hold, at least; 0: not known
        self.heavy: int = 0  # jobs that take more than one slot
        self.watched: bool = False  # somebody waits for the backlog to shrink
        self.collecting: bool = False  # `_reserve` is kept for a heavy job
        self.running: int = 0
        self.held: bool = False  # a job has ended, its slot is not passed on yet: hooks have to wait
        self.paused: bool = False
        self.closed: bool = False  # nothing starts any more
        self._ramp: Ramp | None = None
        self._ramp_timer: Timer | None = None

    @abstractmethod
    def restore_due(self, jobs: list[JobHandle[Any]]) -> None:
        """Jobs whose pause or delay is over want a slot again."""

    @property
    @abstractmethod
    def unobserved(self) -> bool:
        """Whether nobody needs to be told when nothing runs any more."""

    @abstractmethod
    def let_in(self) -> None:
        """Move those at the door in, while there is room."""

    @abstractmethod
    def tell(self) -> None:
        """Tell those who wait for a state of the queue."""

    def inside(self) -> Worker | None:
        """Return the worker whose job the current task belongs to, if it is one of this queue."""
        task: Task | None = current_task()
        while task is not None:
            worker = self.workers.get(task)
            if worker is not None:
                return worker
            nursery = task.parent_nursery
            task = nursery.parent_task if nursery is not None else None
        return None

    def pause(self) -> None:
        """Start nothing more."""
        self.paused, self.quiet, self.calm = True, False, False
        self._end_ramp()

    def resume(self, ramp: float) -> None:
        """Start again, at once or over `ramp` seconds."""
        if self.paused:
            self.paused = False
            self._ramp = Ramp(trio.current_time(), ramp) if ramp > 0 else None
            self.dispatch()

    # ------------------------------------------------------------------------------------------ what is next

    def _gate_changed(self, shut: bool) -> None:
        self.quiet = self.calm = False
        if not shut:
            self.dispatch()
        elif self.collecting:  # perhaps for a job behind this gate; but a job that is being picked may have shut it
            self.alarm.call_at(-math.inf, self.dispatch)

    def dispatch(self) -> None:
        """Start what may start."""
        if self.quiet:
            return self._dispatch_quietly()
        self._settle()
        while (job := self._pick()) is not None:
            self._launch(job, *self._picked)
        return self._settle()

    def _dispatch_quietly(self) -> None:
        """Start what may start, if nothing but the order and free tokens decide."""
        self.hungry = False  # what is let in meanwhile is for this loop
        while len(self.schedule):
            token = self.slots.take()
            if token is None:
                self._stand_in_line()
                break
            job = self.schedule.pop()
            if job is None:
                self.slots.give(token)
                self.hungry = True
                break
            self._launch(job, token)
            if self.door:
                self.let_in()
                if not self.quiet:  # one came in for whom more than the order counts
                    self.dispatch()
                    return
        else:
            self.hungry = True
        self.calm = self.quiet and self.schedule.plain and not self.door

    def next(self, worker: Worker) -> JobHandle[Any] | None:
        """Return a worker's next job; or None, and it has to park, having given its tokens back."""
        if self.quiet and worker.token is not None and self.keeps_token(worker):
            job = self.schedule.pop()
            if job is not None:
                if self.door:
                    self.let_in()
                return job
            if self.unobserved:
                self._starve(worker)
                return None
        self.running -= 1
        self._take_back(worker)
        hungry, job = self.hungry, self._pick()
        if job is not None:
            self.running += 1
            self._hand_tokens(worker, *self._picked)
            self.hungry = self.hungry or hungry  # it goes on in its own slot: one that was free still is
        if self._reserve and not self.collecting:  # a heavy job has ended: there is room for several
            self.dispatch()
        else:
            self._settle()
        return job

    def keeps_token(self, worker: Worker) -> bool:
        """Whether a worker may go on with its token. One of a shared limiter is passed on when its time is over.

        It comes back at once if nobody stands in line for one.
        """
        if self.slots.private:
            return True
        now = trio.current_time()
        worker.served += 1
        if worker.served < _JOBS_A_TOKEN and now - worker.since < _SECONDS_A_TOKEN:
            return True
        worker.served, worker.since = 0, now
        if self.slots.pass_on(worker.token):
            return True
        worker.token = None
        return False

    def _starve(self, worker: Worker) -> None:
        """Nothing waits, and nobody needs to be told."""
        self.running -= 1
        self.slots.give(worker.token)
        worker.token = None
        self.hungry = True

    def granted(self, worker: Worker, token: object) -> None:
        """The worker in the limiter's line got a token."""
        self._line = None
        self._hand_tokens(worker, token, None)
        self._hold_anew(worker)
        self.running += 1  # for `next`, which is asked now

    def begin(self, job: JobHandle[Any], worker: Worker) -> Context:
        """Mark a job as running, and return the context of its next attempt."""
        job._state = RUNNING
        worker.last, job._outcome = job._outcome, worker
        context = cast("Context", job._context)
        retry = self.settings.retry if job._terms is None else job._terms.retry
        return context if retry is None and self.settings.protect is None else context.copy()

    def _pick(self) -> JobHandle[Any] | None:
        """Choose the next job, and put its tokens into `_picked`; or None: nothing may start now."""
        slots, reserve = self.slots, self._reserve
        self.collecting = False
        while reserve and slots.in_debt:
            slots.give(reserve.pop())
        self.hungry = False
        if self.paused or self.closed or not self._ramp_allows():
            self._give_reserve_back()
            return None
        head = self.schedule.peek()
        if head is None:
            self.hungry = True
            self._give_reserve_back()
            return None
        need = 1 if head._terms is None else self._need(head._terms)
        while len(reserve) < need:
            token = slots.take()
            if token is None:
                self._stand_in_line()
                self.hungry = self.collecting = bool(reserve)  # what is there will do for a light job of a higher rank
                return self._bypass(head)
            reserve.append(token)
        self.passed.pop(head, None)
        return self._take(self.schedule.pop(), need)

    def _give_reserve_back(self) -> None:
        while self._reserve:
            self.slots.give(self._reserve.pop())

    def _take(self, job: JobHandle[Any] | None, need: int) -> JobHandle[Any] | None:
        if job is not None:
            token, *extra = self._reserve[-need:]
            self._picked = token, extra
            del self._reserve[-need:]
            terms = job._terms
            gate = self.own_gate if terms is None or terms.gate is None else terms.gate
            self.lanes.passed(job, gate, self.slots.limit)
        return job

    def _need(self, terms: Terms) -> int:
        """A weight above the present limit counts as the limit: the job runs alone. Without a limit, nothing weighs."""
        limit = self.slots.limit
        return 1 if limit == math.inf else max(1, min(terms.weight, int(limit)))

    def _bypass(self, heavy: JobHandle[Any]) -> JobHandle[Any] | None:
        """A heavy job collects its tokens; a few light ones may overtake it."""
        passed = self.passed.get(heavy, 0)
        if not self._reserve or passed >= self.settings.bypass:
            return None
        self.room -= 1  # the heavy job leaves the deque for a heap
        job = self.schedule.pop_behind(lambda job: (job._terms.weight if job._terms else 1) <= len(self._reserve))
        if job is not None:
            self.passed[heavy] = passed + 1
        return self._take(job, 1 if job is None or job._terms is None else self._need(job._terms))

    def _ramp_allows(self) -> bool:
        ramp = self._ramp
        if ramp is None:
            return True
        now = trio.current_time()
        allowed = ramp.allowed(self.slots.limit, now)
        if allowed == math.inf:
            self._ramp = None
        elif self.running >= allowed:
            if self._ramp_timer is not None:
                self.alarm.cancel(self._ramp_timer)
            self._ramp_timer = self.alarm.call_at(ramp.next_step(self.slots.limit, now), self.dispatch)
            return False
        return True

    def _launch(self, job: JobHandle[Any], token: object, extra: list[object] | None = None) -> None:
        """Hand a job and its tokens to a parked worker, whose context is set while it sleeps, or to a new one."""
        self.running += 1
        if self.parked:
            worker = self.parked.pop()
            worker.job = job
            task = cast("Task", worker.task)
            task.context = self.begin(job, worker)
            self._hand_tokens(worker, token, extra)
            self._hold_anew(worker)
            reschedule(task)
        else:
            worker = Worker(cast("Engine", self), job)
            self._hand_tokens(worker, token, extra)
            self._hold_anew(worker)
            self.begin(job, worker).run(self._spawn, worker)

    def _spawn(self, worker: Worker) -> None:
        block = cast("Block", self.block)
        block.nursery.start_soon(worker.serve, name=f"worker of {self.settings.name}")

    def _hand_tokens(self, worker: Worker, token: object, extra: list[object] | None) -> None:
        worker.token, worker.extra = token, extra

    def _hold_anew(self, worker: Worker) -> None:
        """Count jobs and time with a token of a shared limiter from here on."""
        if not self.slots.private:
            worker.served, worker.since = 0, trio.current_time()

    def _take_back(self, worker: Worker) -> None:
        """Take a worker's tokens into the reserve; one of a shared limiter is passed on from time to time."""
        if worker.extra:
            self._reserve.extend(worker.extra)
            worker.extra = None
        if worker.token is not None and self.keeps_token(worker):
            self._reserve.append(worker.token)
            worker.token = None

    def _stand_in_line(self) -> None:
        if self._line is not None:
            return
        if self.parked:
            worker = self._line = self.parked.pop()
            worker.in_line = True
            reschedule(cast("Task", worker.task))
        else:
            self._line = Worker(cast("Engine", self), None)
            self.home.copy().run(self._spawn, self._line)

    def park(self, worker: Worker) -> bool:
        """Keep a worker without a job for the next one; False: there are enough, it shall end."""
        if self.closed or len(self.parked) >= min(self.slots.limit, _MOST_PARKED):
            return False
        worker.last = None
        self.parked.append(worker)
        return True

    def left(self, worker: Worker) -> None:
        """A worker's task ends."""
        self.crew.pop(worker, None)
        if worker.task is not None:
            self.workers.pop(worker.task, None)
        if self._line is worker:
            self._line = None
        if worker.token is not None:  # it broke, with its slot in hand
            self.running -= 1
            self.held = False
            self._take_back(worker)
            self._give_reserve_back()
            self._settle()

    def _end_ramp(self) -> None:
        self._ramp = None
        if self._ramp_timer is not None:
            self.alarm.cancel(self._ramp_timer)
            self._ramp_timer = None

    def notice_debt(self) -> bool:
        """Note the present limit; return whether more tokens are out than it allows."""
        in_debt = self.slots.in_debt
        self.seen_limit = math.nan if in_debt else self.slots.limit
        return in_debt

    def _settle(self) -> None:
        """After anything that was not quiet: see who can be told, and how much there is to ask from here on."""
        self.tell()
        self.notice_debt()
        self.quiet = (
            self._ramp is None
            and self.lanes.open
            and not (self.paused or self.closed or self._reserve or self.heavy or self.watched or self.held)
        )
        self.calm = self.quiet and self.schedule.plain and not self.door
