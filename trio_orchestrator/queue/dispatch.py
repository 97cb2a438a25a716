"""Which job runs next, and in which slot. Who wakes whom:

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
        self.settings = settings
        self.slots = Slots(settings.limiter, settings.concurrency)
        self.schedule: Schedule[JobHandle[Any]] = Schedule(settings.per_key)
        self.alarm = Alarm(self.restore_due)
        self.own_gate = settings.cooldown.gate() if settings.cooldown is not None else Gate(settings.name, rng=settings.rng)
        self.lanes = Lanes(self.own_gate, self.schedule, self.alarm, self.dispatch, hooks.of("gate_opened"))
        self.home = copy_context()
        self.block: Block | None = None

        self.workers: dict[Task, Worker] = {}
        self.parked: list[Worker] = []
        self._line: Worker | None = None  # stands in the limiter's line
        self._reserve: list[object] = []  # tokens that nobody works with: collected for a heavy job
        self._picked: list[object] = []  # the tokens of the job that `_pick` returned
        self._passed_heavy = 0  # light jobs that overtook the heavy one at the head

        # What the fast paths test. `calm`: the deque is all there is to ask. `plain`: so is a job without terms.
        self.calm = False
        self.plain = settings.plain
        self.hungry = True  # a slot may be free for a job that is pushed now
        self.seen_limit: float = self.slots.limit

        self.running = 0
        self.paused = False
        self.closed = False  # nothing starts any more
        self._ramp: Ramp | None = None
        self._ramp_timer: Timer | None = None

    @abstractmethod
    def restore_due(self, jobs: list[JobHandle[Any]]) -> None:
        """Jobs whose pause or delay is over want a slot again."""

    @abstractmethod
    def tell(self) -> bool:
        """Tell those who wait for a state of the queue; return whether somebody still waits, and wants every change."""

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
        self.paused, self.calm = True, False
        self._end_ramp()

    def resume(self, ramp: float) -> None:
        """Start again, at once or over `ramp` seconds."""
        if self.paused:
            self.paused = False
            self._ramp = Ramp(trio.current_time(), ramp) if ramp > 0 else None
            self.dispatch()

    # ------------------------------------------------------------------------------------------ what is next

    def dispatch(self) -> None:
        """Start what may start."""
        while (job := self._pick()) is not None:
            self._launch(job)
        self._settle()

    def next(self, worker: Worker) -> JobHandle[Any] | None:
        """Take a worker's tokens back and return its next job, with tokens; or None, and it has to park."""
        self.running -= 1
        self._take_back(worker)
        job = self._pick()
        if job is None:
            worker.token = None
        else:
            self.running += 1
            self._hand_tokens(worker)
        self._settle()
        return job

    def granted(self, worker: Worker) -> None:
        """The worker in the limiter's line got a token."""
        self._line = None
        self.running += 1  # for `next`, which is asked now

    def begin(self, job: JobHandle[Any], worker: Worker) -> Context:
        """Mark a job as running, and return the context of its next attempt."""
        job._state = RUNNING
        job._outcome = worker
        context = cast("Context", job._context)
        return context if self.plain and job._terms is None else context.copy()

    def _pick(self) -> JobHandle[Any] | None:
        """Choose the next job, and put its tokens into `_picked`; or None: nothing may start now."""
        slots, reserve = self.slots, self._reserve
        while reserve and slots.in_debt:
            slots.give(reserve.pop())
        self.hungry = False
        if self.paused or self.closed or not self._ramp_allows():
            return self._pick_nothing()
        head = self.schedule.peek()
        if head is None:
            self.hungry = True
            return self._pick_nothing()
        need = 1 if head._terms is None else self._need(head._terms)
        while len(reserve) < need:
            token = slots.take()
            if token is None:
                self._stand_in_line()
                return self._bypass()
            reserve.append(token)
        self._passed_heavy = 0
        return self._take(self.schedule.pop(), need)

    def _pick_nothing(self) -> None:
        while self._reserve:
            self.slots.give(self._reserve.pop())

    def _take(self, job: JobHandle[Any] | None, need: int) -> JobHandle[Any] | None:
        if job is not None:
            self._picked = self._reserve[-need:]
            del self._reserve[-need:]
            terms = job._terms
            gate = self.own_gate if terms is None or terms.gate is None else terms.gate
            self.lanes.passed(job, gate, self.slots.limit)
        return job

    def _need(self, terms: Terms) -> int:
        """A weight above the present limit counts as the limit: the job runs alone."""
        return max(1, min(terms.weight, int(min(self.slots.limit, 1 << 31))))

    def _bypass(self) -> JobHandle[Any] | None:
        """A heavy job collects its tokens; a few light ones may overtake it."""
        if not self._reserve or self._passed_heavy >= self.settings.bypass:
            return None
        job = self.schedule.pop_behind(lambda job: (job.terms.weight if job.terms else 1) <= len(self._reserve))
        if job is not None:
            self._passed_heavy += 1
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

    def _launch(self, job: JobHandle[Any]) -> None:
        """Hand a job and its tokens to a parked worker, whose context is set while it sleeps, or to a new one."""
        self.running += 1
        if self.parked:
            worker = self.parked.pop()
            worker.job = job
            task = cast("Task", worker.task)
            task.context = self.begin(job, worker)
            self._hand_tokens(worker)
            reschedule(task)
        else:
            worker = Worker(cast("Engine", self), job, None)
            self._hand_tokens(worker)
            self.begin(job, worker).run(self._spawn, worker)

    def _spawn(self, worker: Worker) -> None:
        block = cast("Block", self.block)
        block.nursery.start_soon(worker.serve, name=f"worker of {self.settings.name}")

    def _hand_tokens(self, worker: Worker) -> None:
        picked = self._picked
        token = picked.pop()
        if not self.slots.private and token is not worker.token:
            worker.served, worker.since = 0, trio.current_time()
        worker.token, worker.extra = token, picked
        self._picked = []

    def _take_back(self, worker: Worker) -> None:
        """Take a worker's tokens into the reserve; one of a shared limiter is passed on from time to time."""
        if self.slots.private:
            self._reserve.append(worker.token)
            self._reserve.extend(worker.extra)
            worker.extra = []
            return
        worker.served += 1
        if worker.served >= _JOBS_A_TOKEN or trio.current_time() - worker.since >= _SECONDS_A_TOKEN:
            self.slots.give(worker.token)
        else:
            self._reserve.append(worker.token)

    def _stand_in_line(self) -> None:
        if self._line is not None:
            return
        if self.parked:
            worker = self._line = self.parked.pop()
            worker.token, worker.in_line = object(), True
            reschedule(cast("Task", worker.task))
        else:
            self._line = Worker(cast("Engine", self), None, object())
            self.home.copy().run(self._spawn, self._line)

    def park(self, worker: Worker) -> bool:
        """Keep a worker without a job for the next one; False: there are enough, it shall end."""
        if self.closed or len(self.parked) >= min(self.slots.limit, _MOST_PARKED):
            return False
        self.parked.append(worker)
        return True

    def left(self, worker: Worker) -> None:
        """A worker's task ends."""
        if worker.task is not None:
            self.workers.pop(worker.task, None)
        if self._line is worker:
            self._line = None
        if worker.token is not None and not worker.in_line:  # it broke, with its slot in hand
            self.running -= 1
            self._take_back(worker)
            self._pick_nothing()
            self._settle()

    def _end_ramp(self) -> None:
        self._ramp = None
        if self._ramp_timer is not None:
            self.alarm.cancel(self._ramp_timer)
            self._ramp_timer = None

    def _settle(self) -> None:
        """After anything that was not calm: see who can be told, and whether it is calm again."""
        watched = self.tell()
        self.seen_limit = self.slots.limit
        self.calm = (
            self.slots.private
            and self.schedule.plain
            and not (watched or self.paused or self.closed or self._reserve)
            and self._ramp is None
            and self.lanes.open
        )
