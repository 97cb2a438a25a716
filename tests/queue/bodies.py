"""What runs, counted in the bodies themselves; and what must hold of a queue when its block has been left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, final

import trio

from trio_orchestrator import JobHandle, JobState, QueueStatistics, TaskQueue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.testing import assert_no_tokens


@final
class Bodies:
    """Bodies that count themselves: how many have started, run now, ran at most, and have left."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0
        self.peak = 0
        self.returned = 0
        self.starts: list[tuple[float, object]] = []
        """When each body started, and the label it was given."""

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.starts]

    @property
    def labels(self) -> list[object]:
        return [label for _, label in self.starts]

    @contextmanager
    def inside(self, label: object = None) -> Generator[None, None, None]:
        self.started += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.starts.append((trio.current_time(), label))
        try:
            yield
            self.returned += 1
        finally:
            self.running -= 1

    async def sleep(self, seconds: float, label: object = None) -> object:
        with self.inside(label):
            await trio.sleep(seconds)
        return label

    async def fail(self, seconds: float, error: Exception) -> None:
        with self.inside(error):
            await trio.sleep(seconds)
            raise error

    async def clean_up(self, seconds: float, shielded: float) -> None:
        with self.inside():
            try:
                await trio.sleep(seconds)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(shielded)


def assert_law(s: QueueStatistics) -> None:
    """Fail unless every job is in exactly one state."""
    ended = s.succeeded + s.failed + s.cancelled + s.dropped
    assert s.submitted == ended + s.waiting + s.running + s.retry_scheduled, s


def assert_over(queue: TaskQueue, handles: Iterable[JobHandle[Any]], bodies: Bodies | None = None) -> None:
    """Fail unless the block of `queue` has left nothing behind. `handles` are all its jobs."""
    s = queue.statistics()
    assert_law(s)
    assert s.idle, s
    assert (s.at_the_door, s.overdue) == (0, 0), s
    states = Counter(handle.state for handle in handles)
    ended = {
        JobState.SUCCEEDED: s.succeeded,
        JobState.FAILED: s.failed,
        JobState.CANCELLED: s.cancelled,
        JobState.DROPPED: s.dropped,
    }
    assert states == Counter(ended), (states, s)
    engine = queue._engine
    assert not (engine.workers or engine.parked or engine._blocked or engine._below or engine.door)
    assert not engine.alarm.clear_jobs()
    if bodies is not None:
        assert bodies.running == 0
        assert bodies.started == sum(handle.attempts for handle in handles)
    if engine.slots.private:
        assert_no_tokens(queue.limiter)


@final
class Watch(Instrument):
    """Asks for the statistics in every hook: the law holds at every instant, so also then."""

    def __init__(self) -> None:
        self.queue: TaskQueue | None = None
        self.heard = 0
        self.broken: list[AssertionError] = []

    def _look(self) -> None:
        self.heard += 1
        try:
            if self.queue is not None:
                assert_law(self.queue.statistics())
        except AssertionError as exc:  # the queue would log it, and remove the hook
            self.broken.append(exc)

    def check(self) -> None:
        assert self.heard
        assert not self.broken, self.broken

    def retry_scheduled(self, event: object, /) -> None:
        self._look()

    def gave_up(self, event: object, /) -> None:
        self._look()

    def job_finished(self, event: object, /) -> None:
        self._look()

    def queue_dropped(self, event: object, /) -> None:
        self._look()

    def gate_shut(self, event: object, /) -> None:
        self._look()

    def gate_opened(self, event: object, /) -> None:
        self._look()
