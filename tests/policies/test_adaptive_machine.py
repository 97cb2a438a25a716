"""Acquire, end in every way, cancel, resize, wait: a bulkhead and an adaptive limiter against a small model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, final

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from trio_orchestrator.abc import Control, Limit, RandomSource, Sample
from trio_orchestrator.errors import LimitExceededError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.slot import tokens_of
from trio_orchestrator.testing import Call, Stepper

MAX_WAITING, MAX_WAIT = 4, 10.0


@final
class User:
    """One call: it waits, is inside until it is told how to end, and has ended."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.inside = False
        self.order: str | None = None
        self.told = trio.Event()
        self.call: Call[None] | None = None

    async def enter(self, slot: Any) -> None:
        async with slot as held:
            self.inside = True
            try:
                await self.told.wait()
                if self.order == "fail":
                    raise OSError
                if self.order in ("drop", "ignore") and hasattr(held, self.order):
                    getattr(held, self.order)()
            finally:
                self.inside = False


class BulkheadMachine(RuleBasedStateMachine):
    """The model: who is inside and who waits, in order; a slot goes to the first in line whenever there is room."""

    def make(self, limit: int) -> Any:
        return Bulkhead(limit, max_waiting=MAX_WAITING, max_wait=MAX_WAIT)

    @initialize(seed=st.integers(0, 2**32 - 1), limit=st.integers(1, 4))
    def begin(self, seed: int, limit: int) -> None:
        self.stepper = Stepper(seed)
        self.policy = self.make(limit)
        self.limit: float = limit
        self.first_limit = limit
        self.line: list[User] = []
        self.inside: list[User] = []
        self.refused = 0
        self.endings: Counter[str] = Counter()

    def admit(self) -> None:
        while self.line and len(self.inside) < self.limit:
            self.inside.append(self.line.pop(0))

    @rule()
    def arrive(self) -> None:
        user = User(self.stepper.now)
        user.call = self.stepper.start(user.enter, self.policy.slot())
        if len(self.inside) >= self.limit and len(self.line) >= MAX_WAITING:
            self.refused += 1
            assert isinstance(user.call.error, LimitExceededError)
        else:
            self.line.append(user)
            self.admit()

    @rule(order=st.sampled_from(["ok", "fail", "drop", "ignore"]), data=st.data())
    def end(self, order: str, data: st.DataObject) -> None:
        if not self.inside:
            return
        user = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        user.order = order
        self.learn(order)
        user.told.set()
        self.stepper.settle()
        self.admit()

    def learn(self, order: str) -> None:
        self.endings[order] += 1

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        users = self.line + self.inside
        if not users:
            return
        user = data.draw(st.sampled_from(users))
        if user in self.inside:
            self.inside.remove(user)
            self.endings["ignore"] += 1
        else:
            self.line.remove(user)
        assert user.call is not None
        user.call.cancel()
        self.stepper.settle()
        assert user.call.state == "cancelled"
        self.admit()

    @rule(step=st.sampled_from([0.5, 3.0, MAX_WAIT]))
    def wait(self, step: float) -> None:
        self.stepper.advance(step)
        late = [user for user in self.line if user.arrived + MAX_WAIT <= self.stepper.now]
        self.refused += len(late)
        for user in late:
            self.line.remove(user)
            assert user.call is not None
            assert isinstance(user.call.error, LimitExceededError)

    @rule(limit=st.integers(1, 6))
    def resize(self, limit: int) -> None:
        self.set_limit(limit)
        self.admit()
        self.stepper.settle()

    def set_limit(self, limit: int) -> None:
        self.policy.limit = self.limit = limit

    @rule()
    def take_nowait(self) -> None:
        if self.line or len(self.inside) >= self.limit:
            with pytest.raises(trio.WouldBlock):
                self.policy.slot_nowait().__enter__()
        else:
            with self.policy.slot_nowait() as slot:
                assert self.policy.statistics().in_flight == len(self.inside) + 1
                if hasattr(slot, "ignore"):
                    slot.ignore()
            self.endings["ignore"] += 1

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not hasattr(self, "stepper"):
            return
        statistics = self.policy.statistics()
        assert all(user.inside for user in self.inside)
        assert not any(user.inside for user in self.line)
        assert (statistics.limit, statistics.in_flight) == (self.limit, len(self.inside))
        assert (statistics.waiting, statistics.refused) == (len(self.line), self.refused)
        assert len(self.inside) >= self.limit or not self.line, "somebody waits although there is room"
        assert self.policy.is_idle is (self.is_unchanged() and not (self.inside or self.line))

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()
            assert self.policy.is_idle is self.is_unchanged()

    def is_unchanged(self) -> bool:
        return self.limit == self.first_limit


@final
@dataclass(frozen=True)
class Steered(Limit):
    """A rule that goes where the test says, one answer or drop later."""

    limits: list[float]

    def control(self, rng: RandomSource) -> Control:
        return _Wheel(self.limits)


@final
class _Wheel(Control):
    def __init__(self, limits: list[float]) -> None:
        self.limits = limits
        self.limit = limits[-1]

    def update(self, sample: Sample) -> tuple[float, str]:
        self.limit = self.limits[-1]
        return self.limit, "steered"


class AdaptiveMachine(BulkheadMachine):
    """In addition: each attempt ends in exactly one of three ways, and the limit in force follows the rule."""

    def is_unchanged(self) -> bool:
        return True  # what it has learned does not count

    def make(self, limit: int) -> Any:
        self.limits: list[float] = [limit]
        return AdaptiveLimiter(limit=Steered(self.limits), max_waiting=MAX_WAITING, max_wait=MAX_WAIT)

    def set_limit(self, limit: int) -> None:
        self.limits.append(limit)

    @rule(fraction=st.floats(-0.9, 0.9))
    def flutter(self, fraction: float) -> None:
        self.limits.append(max(1.0, self.limits[-1] + fraction))

    def learn(self, order: str) -> None:
        super().learn(order)
        if order != "ignore" and abs(self.limits[-1] - self.limit) >= 1:
            self.limit = tokens_of(self.limits[-1])

    @invariant()
    def every_attempt_has_ended_in_one_way(self) -> None:
        if not hasattr(self, "stepper"):
            return
        statistics, endings = self.policy.statistics(), self.endings
        found = (statistics.ok, statistics.dropped, statistics.ignored)
        assert found == (endings["ok"], endings["fail"] + endings["drop"], endings["ignore"])


BulkheadMachine.TestCase.settings = AdaptiveMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40)
TestBulkhead = BulkheadMachine.TestCase
TestAdaptiveLimiter = AdaptiveMachine.TestCase


async def test_tower_resilience_365_cancelled_waiters_leave_the_limit_as_it_is(autojump_clock: Any) -> None:
    """5 to 2 with 5 inside; waiters are cancelled meanwhile: afterwards two are let in at a time, no fewer, no more."""
    limits: list[float] = [5]
    limiter = AdaptiveLimiter(limit=Steered(limits))
    inside: list[int] = [0]
    most: list[tuple[float, int]] = []

    async def run(seconds: float) -> None:
        async with limiter.slot():
            inside[0] += 1
            most.append((trio.current_time(), inside[0]))
            try:
                await trio.sleep(seconds)
            finally:
                inside[0] -= 1

    async def impatient(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await run(1)

    async with trio.open_nursery() as nursery:
        for seconds in (1, 2, 3, 4, 5):
            nursery.start_soon(run, seconds)
        await trio.testing.wait_all_tasks_blocked()
        limits.append(2)
        for patience in (0.5, 1.5, 2.5, 3.5):
            nursery.start_soon(impatient, patience)
        for _ in range(6):
            nursery.start_soon(run, 1)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1.75)
        assert (limiter.limit, limiter.statistics().waiting) == (2, 8)
    late = [(at, count) for at, count in most if at > 0]
    assert max(count for _, count in late) == 2
    assert [at for at, _ in late] == [4, 5, 5, 6, 6, 7]
    with limiter.slot_nowait(), limiter.slot_nowait(), pytest.raises(trio.WouldBlock), limiter.slot_nowait():
        pass
