"""The stepper under a state machine: a planted bug is found, and none in the repaired class."""

from __future__ import annotations

from collections import deque

import pytest
import trio
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from trio_orchestrator.testing import Call, Stepper


class Permits:
    """A semaphore whose releaser hands over."""

    forgets_cancelled_waiters = False

    def __init__(self, size: int) -> None:
        self.free = size
        self.queue: deque[trio.Event] = deque()

    async def acquire(self) -> None:
        if self.free:
            self.free -= 1
            return
        granted = trio.Event()
        self.queue.append(granted)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self.release()
            elif not self.forgets_cancelled_waiters:
                self.queue.remove(granted)
            raise

    def release(self) -> None:
        if self.queue:
            self.queue.popleft().set()
        else:
            self.free += 1


class ForgetfulPermits(Permits):
    forgets_cancelled_waiters = True


class PermitsMachine(RuleBasedStateMachine):
    kind: type[Permits] = Permits
    size = 2
    calls = Bundle[Call[None]]("calls")

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.stepper = Stepper(seed)
        self.permits = self.kind(self.size)
        self.started: list[Call[None]] = []

    @rule(target=calls)
    def acquire(self) -> Call[None]:
        call = self.stepper.start(self.permits.acquire)
        self.started.append(call)
        return call

    @rule(call=calls)
    def cancel(self, call: Call[None]) -> None:
        call.cancel()
        self.stepper.settle()

    @rule(target=calls, call=consumes(calls))
    def release(self, call: Call[None]) -> MultipleResults[Call[None]] | Call[None]:
        if call.state != "ok":
            return call
        self.started.remove(call)
        self.permits.release()
        self.stepper.settle()
        return multiple()

    @invariant()
    def every_permit_is_free_or_held(self) -> None:
        if hasattr(self, "stepper"):
            held = sum(call.state == "ok" for call in self.started)
            assert self.permits.free + held == self.size, "a permit is lost"
            assert self.permits.free == 0 or not any(call.state == "blocked" for call in self.started)

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()


class ForgetfulMachine(PermitsMachine):
    kind = ForgetfulPermits


MACHINE = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


def test_a_state_machine_finds_a_cancelled_waiter_that_keeps_its_permit() -> None:
    with pytest.raises(AssertionError, match="a permit is lost"):
        run_state_machine_as_test(ForgetfulMachine, settings=MACHINE)


def test_a_state_machine_finds_nothing_in_the_repaired_one() -> None:
    run_state_machine_as_test(PermitsMachine, settings=MACHINE)
