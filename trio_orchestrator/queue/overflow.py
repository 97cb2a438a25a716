"""What happens when a queue is full: who waits at the door, and who is dropped."""

from __future__ import annotations

import enum
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, final

import trio
from trio.lowlevel import Abort, Task, current_task, enable_ki_protection, reschedule, wait_task_rescheduled

from trio_orchestrator.queue.handle import WAITING, JobHandle

_TOO_FEW_TO_COMPACT = 64


@final
class Overflow(enum.Enum):
    """What `submit` does when `max_waiting` jobs wait. Jobs that have started once are never dropped."""

    WAIT = "wait"
    """Wait until there is room: backpressure. `submit_nowait` raises `trio.WouldBlock`."""
    REJECT = "reject"
    """Raise `QueueFullError`. For requests: the caller can tell its own caller."""
    DROP_OLDEST = "drop oldest"
    """Drop the job that has waited longest. For telemetry: the newest reading counts."""
    DROP_LOWEST = "drop lowest"
    """Drop the job of the lowest priority, the newest among equals; it may be the new one."""
    DROP_NEWEST = "drop newest"
    """Drop the new job: its handle is returned, already dropped."""


@final
class Guest:
    """A submitter at the door, with its job."""

    __slots__ = ("error", "job", "start_at", "task")

    def __init__(self, job: JobHandle[Any], start_at: float, task: Task) -> None:
        self.job: JobHandle[Any] = job
        self.start_at: float = start_at
        self.task: Task = task
        self.error: BaseException | None = None


@final
class Door:
    """Submitters that wait for room, first come, first in. Whoever makes room moves the first one's job in."""

    __slots__ = ("_guests",)

    def __init__(self) -> None:
        self._guests: deque[Guest] = deque()

    def __len__(self) -> int:
        return len(self._guests)

    @enable_ki_protection
    async def wait(self, job: JobHandle[Any], start_at: float) -> None:
        """Wait until `job` has been moved in. Cancelled before that, the job is taken away: it was never submitted.

        Raises:
            trio.ClosedResourceError: The queue was closed meanwhile.
        """
        guest = Guest(job, start_at, current_task())
        self._guests.append(guest)

        def abort(_: object) -> Abort:
            self._guests.remove(guest)
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)
        if guest.error is not None:
            raise guest.error

    def next(self) -> tuple[JobHandle[Any], float]:
        """Let the first submitter go, and return its job and when that may start, for the caller to move in."""
        guest = self._guests.popleft()
        reschedule(guest.task)
        return guest.job, guest.start_at

    def close(self) -> None:
        """Send everybody away."""
        while self._guests:
            guest = self._guests.popleft()
            guest.error = trio.ClosedResourceError("the queue was closed while submit() waited for room")
            reschedule(guest.task)


class Victims(Protocol):
    """The order in which waiting jobs are dropped."""

    def add(self, job: JobHandle[Any]) -> None:
        """Remember a job that was just submitted, or whose priority changed."""
        ...

    def take(self, newcomer: JobHandle[Any]) -> JobHandle[Any] | None:
        """Choose a waiting job that has never started; None if there is none, or the newcomer is the one."""
        ...


def _may_be_dropped(job: JobHandle[Any]) -> bool:
    return job.state is WAITING and job.attempts == 0


@final
class Oldest:
    """First submitted, first dropped."""

    __slots__ = ("_jobs", "_limit")

    def __init__(self) -> None:
        self._jobs: deque[JobHandle[Any]] = deque()
        self._limit = _TOO_FEW_TO_COMPACT

    def add(self, job: JobHandle[Any]) -> None:
        """Remember it behind those that came before; one whose priority has changed is remembered twice for a while."""
        if len(self._jobs) >= self._limit:
            self._jobs = deque(dict.fromkeys(filter(_may_be_dropped, self._jobs)))
            self._limit = max(_TOO_FEW_TO_COMPACT, 2 * len(self._jobs))
        self._jobs.append(job)

    def take(self, newcomer: JobHandle[Any]) -> JobHandle[Any] | None:
        """Choose the one that was submitted first."""
        while self._jobs:
            job = self._jobs.popleft()
            if _may_be_dropped(job):
                return job
        return None


@final
class Lowest:
    """Lowest priority first, the newest among equals."""

    __slots__ = ("_heap", "_limit")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, JobHandle[Any]]] = []
        self._limit = _TOO_FEW_TO_COMPACT

    def add(self, job: JobHandle[Any]) -> None:
        """Remember it by its priority."""
        if len(self._heap) >= self._limit:
            self._heap[:] = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)
            self._limit = max(_TOO_FEW_TO_COMPACT, 2 * len(self._heap))
        heappush(self._heap, (job.priority, -job.seq, job))

    def take(self, newcomer: JobHandle[Any]) -> JobHandle[Any] | None:
        """Choose the newest of the lowest priority, unless the newcomer is that."""
        heap = self._heap
        while heap and not self._is_valid(heap[0]):
            heappop(heap)
        if not heap or heap[0][0] >= newcomer.priority:
            return None
        return heappop(heap)[2]

    @staticmethod
    def _is_valid(entry: tuple[float, int, JobHandle[Any]]) -> bool:
        return _may_be_dropped(entry[2]) and (entry[2].priority, -entry[2].seq) == entry[:2]


@final
class Newest:
    """Nobody but the newcomer."""

    __slots__ = ()

    def add(self, job: JobHandle[Any]) -> None:
        """Nothing to remember."""

    def take(self, newcomer: JobHandle[Any]) -> JobHandle[Any] | None:
        """Choose nobody."""
        return None


def victims_for(overflow: Overflow) -> Victims | None:
    """Return the order of dropping, or None if nobody is dropped."""
    if overflow is Overflow.DROP_OLDEST:
        return Oldest()
    if overflow is Overflow.DROP_LOWEST:
        return Lowest()
    return Newest() if overflow is Overflow.DROP_NEWEST else None
