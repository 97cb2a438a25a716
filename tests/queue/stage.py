"""What a scenario needs that is cancelled at any moment: a queue, bodies that count, and the final reckoning."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, final

import trio

from tests.queue.bodies import Bodies, Watch, assert_law
from trio_orchestrator import TaskQueue, open_task_queue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import JobFinished
from trio_orchestrator.testing import assert_no_tokens


@final
class Endings(Instrument):
    """Hears how each job ended."""

    def __init__(self) -> None:
        self.finished: list[JobFinished] = []

    def job_finished(self, event: JobFinished, /) -> None:
        self.finished.append(event)


@final
class Stage:
    """Queues and the bodies that run in them."""

    def __init__(self) -> None:
        self.bodies = Bodies()
        self.queues: list[tuple[TaskQueue, Endings, Watch]] = []

    @asynccontextmanager
    async def queue(self, **options: Any) -> AsyncGenerator[TaskQueue, None]:
        endings, watch = Endings(), Watch()
        async with open_task_queue(instruments=[endings, watch], **options) as queue:
            watch.queue = queue
            self.queues.append((queue, endings, watch))
            yield queue

    def check(self, *, all_bodies: bool = True) -> None:
        """Fail unless every queue has ended well, as counted in the bodies and in the endings of the jobs."""
        attempts = 0
        for queue, endings, watch in self.queues:
            s = queue.statistics()
            assert_law(s)
            assert s.idle, s
            assert (s.at_the_door, s.overdue) == (0, 0), s
            states = Counter(event.state for event in endings.finished)
            told = {"succeeded": s.succeeded, "failed": s.failed, "cancelled": s.cancelled, "dropped": s.dropped}
            assert states == Counter(told), (states, s)
            assert s.submitted == len(endings.finished)
            assert not watch.broken, watch.broken
            attempts += sum(event.attempts for event in endings.finished)
            engine = queue._engine
            assert not (engine.workers or engine.parked or engine._blocked or engine._below or engine.door)
            assert_no_tokens(queue.limiter)
        assert self.bodies.running == 0
        if all_bodies:
            assert self.bodies.started == attempts


class Hiccup(Exception):
    """A failure worth repeating."""


@final
class Flaky:
    """A body that fails so often, then succeeds."""

    def __init__(self, bodies: Bodies, failures: int, seconds: float = 1) -> None:
        self.bodies = bodies
        self.failures = failures
        self.seconds = seconds

    async def __call__(self, label: object = None) -> object:
        with self.bodies.inside(label):
            await trio.sleep(self.seconds)
            if self.failures:
                self.failures -= 1
                raise Hiccup
        return label
