"""A queue driven by all its controls at once, against `model.Model`. The bodies count what runs, not the queue."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queue.model import Fate, Model
from trio_orchestrator import (
    Constant,
    Failures,
    JobCancelledError,
    JobDroppedError,
    JobHandle,
    JobState,
    Overflow,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.testing import Call, Stepper

PAUSE = 2.0  # before a retry
CLEAN_UP = 1.5  # of a body that swallows its cancellation

KINDS = ("quick", "sleepy", "failing", "failing slowly", "hanging", "swallowing", "stubborn", "submitting")
OVERFLOWS = (Overflow.WAIT, Overflow.REJECT, Overflow.DROP_OLDEST, Overflow.DROP_NEWEST, Overflow.DROP_LOWEST)


class Failed(Exception):
    pass


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stepper: Stepper | None = None
        self.handles: dict[int, JobHandle[int]] = {}
        self.waits: dict[int, Call[int]] = {}
        self.numbers = 0

    @initialize(
        seed=st.integers(0, 2**16),
        limit=st.integers(1, 4),
        attempts=st.integers(1, 3),
        overflow=st.sampled_from(OVERFLOWS),
        most=st.integers(2, 6),
        shared=st.booleans(),
    )
    def begin(self, seed: int, limit: int, attempts: int, overflow: Overflow, most: int, shared: bool) -> None:
        self.stepper = Stepper(seed)
        self.model = Model(limit, attempts)
        self.overflow, self.most = overflow, most
        self.limiter = trio.CapacityLimiter(limit) if shared else None
        self.block: AbstractAsyncContextManager[TaskQueue] = open_task_queue(
            concurrency=None if shared else limit,
            limiter=self.limiter,
            retry=Retry(on=Failed, attempts=attempts, backoff=Constant(PAUSE)),
            max_waiting=most,
            overflow=overflow,
            failures=Failures.RECORD,
        )
        self.opened = trio.Event()
        self.over = trio.Event()
        self.main = self.stepper.start(self.run_block)
        self.ramping = False

    async def run_block(self) -> None:
        async with self.block as self.queue:
            self.opened.set()
            await self.over.wait()

    # ------------------------------------------------------------------------------------------ the bodies

    async def body(self, job: int, kind: str, seconds: float) -> int:
        self.model.enter(job)
        try:
            await self.act(kind, seconds)
        except Failed:
            self.model.raised(job)
            raise
        except trio.Cancelled:
            self.model.was_cancelled(job)
            raise
        self.model.returned(job)
        return job

    async def act(self, kind: str, seconds: float) -> None:
        if kind == "sleepy":
            await trio.sleep(seconds)
        elif kind == "failing":
            raise Failed
        elif kind == "failing slowly":
            await trio.sleep(seconds)
            raise Failed
        elif kind == "hanging":
            await trio.sleep_forever()
        elif kind in ("swallowing", "stubborn"):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(CLEAN_UP)
                if kind == "stubborn":
                    raise
        elif kind == "submitting" and not self.model.closed:
            self.send("quick", 0.0, priority=0)

    # ------------------------------------------------------------------------------------------- the rules

    def send(self, kind: str, seconds: float, priority: int) -> None:
        """Submit without waiting, and tell the model what became of it."""
        job = self.numbers
        self.numbers += 1
        before = {number for number, handle in self.handles.items() if handle.state is JobState.DROPPED}
        self.model.submit(job)  # it may run before `submit_nowait` returns to us
        try:
            handle = self.queue.submit_nowait(self.body, job, kind, seconds, priority=priority)
        except (trio.WouldBlock, Exception):
            self.model.submitted.remove(job)
            return
        self.handles[job] = handle
        for number, other in self.handles.items():
            if other.state is JobState.DROPPED and number not in before and number not in self.model.fate:
                self.model.drop(number)

    @precondition(lambda self: not self.model.closed)
    @rule(kind=st.sampled_from(KINDS), seconds=st.sampled_from((0.5, 1.0, 3.0)), priority=st.integers(0, 2))
    def submit(self, kind: str, seconds: float, priority: int) -> None:
        self.send(kind, seconds, priority)
        self.step.settle()

    @precondition(lambda self: bool(self.handles))
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.handles)))
        if job not in self.waits:
            self.waits[job] = self.step.start(self.handles[job].wait)

    @precondition(lambda self: bool(self.handles))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.handles)))
        self.model.cancel(job)
        self.handles[job].cancel("rule")
        self.step.settle()

    @rule()
    def pause(self) -> None:
        self.model.paused = True
        self.queue.pause()

    @rule(ramp=st.sampled_from((0.0, 0.0, 4.0)))
    def resume(self, ramp: float) -> None:
        if self.model.paused:
            self.ramping = ramp > 0
        self.model.paused = False
        self.queue.resume(ramp)
        self.step.settle()

    @rule(limit=st.integers(0, 5))
    def resize(self, limit: int) -> None:
        self.model.limit = limit
        if self.limiter is None:
            self.queue.concurrency = limit
        else:
            self.limiter.total_tokens = limit
        self.step.settle()

    @rule()
    def clear(self) -> None:
        expected = self.model.clear()
        assert self.queue.clear() == expected
        self.step.settle()

    @rule(seconds=st.sampled_from((0.5, 1.0, PAUSE, 5.0)))
    def advance(self, seconds: float) -> None:
        self.step.advance(seconds)
        if seconds >= 4.0:
            self.ramping = False

    @precondition(lambda self: not self.model.closed and len(self.handles) > 3)
    @rule()
    def close(self) -> None:
        """Every waiting job ends at once; the running ones are cancelled, and left to clean up."""
        self.model.close()
        self.closing = self.step.start(self.queue.close)

    # ------------------------------------------------------------------------------------- what must hold

    @property
    def step(self) -> Stepper:
        assert self.stepper is not None
        return self.stepper

    @invariant()
    def counts_agree(self) -> None:
        if self.stepper is None:
            return
        model, seen = self.model, self.queue.statistics()
        assert seen.running == len(model.inside)
        assert seen.waiting + seen.retry_scheduled == len(model.pending)
        assert seen.submitted == len(model.submitted)
        assert (seen.succeeded, seen.failed, seen.cancelled, seen.dropped) == tuple(map(model.count, Fate))
        assert seen.idle == model.idle
        assert seen.paused == model.paused
        for job, handle in self.handles.items():
            fate = model.fate.get(job)
            assert handle.attempts == model.tries[job]
            assert handle.done == (fate is not None)
            assert fate is None or handle.state.value == fate.value
        if seen.waiting and not (model.paused or self.ramping or model.closed):
            assert seen.running >= model.limit, "a slot is free, and jobs wait"
        if self.limiter is not None:
            assert self.limiter.borrowed_tokens == seen.running

    @invariant()
    def waiters_are_told(self) -> None:
        for job, call in self.waits.items():
            assert call.done == (job in self.model.fate)
            if call.done:
                self.check_outcome(job, call)

    def check_outcome(self, job: int, call: Call[int]) -> None:
        expected: dict[Fate, Any] = {
            Fate.FAILED: Failed, Fate.CANCELLED: JobCancelledError, Fate.DROPPED: JobDroppedError
        }  # fmt: skip
        if self.model.fate[job] is Fate.SUCCEEDED:
            assert call.value == job
        else:
            assert type(call.error) is expected[self.model.fate[job]]

    def teardown(self) -> None:
        if self.stepper is None:
            return
        try:
            self.finish()
        finally:
            self.stepper.close()

    def finish(self) -> None:
        """Leave the block: it waits for every job, and nothing is left."""
        for job in sorted(self.handles):
            if not self.model.closed:
                self.model.cancel(job)
                self.handles[job].cancel("teardown")
        self.step.settle()
        self.model.limit = 5
        self.resize(5)
        self.resume(0.0)
        self.over.set()
        self.step.advance(60.0)
        assert self.main.done and self.main.state == "ok"
        assert self.model.idle
        self.counts_agree()
        self.waiters_are_told()
        assert self.queue.limiter.borrowed_tokens == 0


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
