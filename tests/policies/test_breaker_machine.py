"""A breaker that is called, cancelled, timed out, isolated, reset and restored in any order, against `CircuitModel`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.policies.circuit_model import OUTCOMES, TRIPS, CallModel, CircuitModel, Nosy, Running, TripModel
from trio_orchestrator.abc import Backoff
from trio_orchestrator.algorithms.backoff import Custom
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.circuit_guard import Isolation
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policy_event import CircuitClosed, CircuitOpened
from trio_orchestrator.testing import Call, Stepper

LINGERING = 1.0  # of a call whose time is over, behind the guard and before our time-out closes
TINY = 2.0**-16  # no two deadlines fall together, and none with the end of a step; sums stay exact


def is_bad(result: object) -> bool:
    return result == "bad"


class BreakerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stepper: Stepper | None = None
        self.running: list[Running] = []
        self.waits: list[tuple[Call[None], int]] = []
        self.holds: list[Isolation] = []
        self.entered: list[Callable[[object], None]] = []
        self.seen: list[CircuitState] = []
        self.numbers = 0

    @initialize(
        seed=st.integers(0, 2**16),
        trip=TRIPS,
        cooldowns=st.sampled_from([(8.0,), (4.0, 8.0, 32.0)]),
        probes=st.integers(1, 4),
        lease=st.sampled_from([None, 2.0, math.inf]),
        close_after=st.sampled_from([1, 2, 3, 0.5, 0.75]),
        ramp=st.sampled_from([0.0, 0.0, 16.0]),
        nosy=st.booleans(),
        classify=st.booleans(),
        operated=st.booleans(),
    )
    def begin(
        self,
        seed: int,
        trip: TripModel,
        cooldowns: tuple[float, ...],
        probes: int,
        lease: float | None,
        close_after: float,
        ramp: float,
        nosy: bool,
        classify: bool,
        operated: bool,
    ) -> None:
        self.stepper = Stepper(seed)
        slow_call = 1.5 if trip.kind == "slow" else math.inf
        needed = math.ceil(close_after * probes) if close_after < 1 else int(close_after)
        tolerated = probes - needed if close_after < 1 else 0
        self.model = CircuitModel(trip, cooldowns, probes, lease, needed, tolerated, slow_call, ramp, nosy)
        self.classify, self.operated = classify, operated
        self.recorder = Recorder()
        nose = Nosy()
        growing: Backoff = Custom(lambda opening, rng: cooldowns[min(opening, len(cooldowns)) - 1])
        self.breaker = nose.breaker = CircuitBreaker(
            trip=trip.rule(),
            cooldown=growing if len(cooldowns) > 1 else cooldowns[0],
            probes=probes,
            probe_lease=lease,
            close_after=close_after,
            slow_call=slow_call,
            on=OSError,
            neutral=LookupError,
            classify=is_bad if classify else None,
            ramp=ramp,
            name="c",
            instruments=[self.recorder, nose] if nosy else [self.recorder],
        )
        self.slow_reader = self.breaker.changes()
        self.reader = self.stepper.start(self.read)

    async def read(self) -> None:
        async for state in self.breaker.changes():
            self.seen.append(state)

    # ----------------------------------------------------------------------------------------------- the calls

    async def body(self) -> object:
        """Wait for its end, and do what it says."""
        event, box = trio.Event(), list[object]()

        def end(outcome: object) -> None:
            box.append(outcome)
            event.set()

        self.entered.append(end)
        await event.wait()
        if isinstance(box[0], BaseException):
            raise box[0]
        return box[0]

    async def by_call(self) -> object:
        return await self.breaker.call(self.body)

    async def by_wrap(self) -> object:
        return await self.breaker.wrap(self.body)()

    async def by_guard(self) -> object:
        with self.breaker.guard() as guard:
            return guard.judge(await self.body())

    async def run(self, form: Callable[[], Awaitable[object]], kind: str, seconds: float) -> None:
        """Call in the given form, inside a time-out of ours, a scope of the user's, or neither."""
        try:
            if kind == "plain":
                await form()
            elif kind == "user's":
                with trio.move_on_after(seconds):
                    await form()
            elif kind == "ours":
                await Timeout(seconds).call(form)
            else:
                await Timeout(seconds).call(self.linger, form)
        except BaseExceptionGroup as group:
            if any(isinstance(error, KeyboardInterrupt) for error in group.exceptions):
                return
            raise

    async def linger(self, form: Callable[[], Awaitable[object]]) -> None:
        try:
            await form()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(LINGERING)
            raise

    def form(self, name: str) -> Callable[[], Awaitable[object]]:
        return {"call": self.by_call, "wrap": self.by_wrap, "guard": self.by_guard}[name]

    FORM = st.sampled_from(["call", "wrap", "guard"])

    @rule(form=FORM, kind=st.sampled_from(["plain", "user's", "ours", "lingering"]), seconds=st.integers(1, 12))
    def start(self, form: str, kind: str, seconds: int) -> None:
        assert self.stepper is not None
        self.numbers += 1
        limit = seconds + self.numbers * TINY
        before = len(self.entered)
        expected = self.model.admit()
        call = self.stepper.start(self.run, self.form(form), kind, limit)
        if isinstance(expected, CallModel):
            assert len(self.entered) == before + 1
            assert not call.done
            ends_at = math.inf if kind == "plain" else self.model.now + limit
            failed = None if kind == "user's" else True
            self.running.append(Running(expected, call, self.entered[-1], kind, ends_at, failed=failed))
        else:
            assert len(self.entered) == before, "an open circuit touches nothing inside"
            self.check_refusal(call, expected)

    def check_refusal(self, call: Call[None], expected: tuple[str, float, float]) -> None:
        error = call.error
        assert isinstance(error, CircuitOpenError)
        state, least, most = expected
        assert error.state == state
        assert least <= error.retry_after <= most
        assert error.__cause__ is self.cause()

    def cause(self) -> BaseException | None:
        """Return the failure that opened the circuit, while it is not closed."""
        for event in reversed(self.recorder.events):
            if isinstance(event[1], CircuitClosed):
                return None
            if isinstance(event[1], CircuitOpened):
                return event[1].error
        return None

    @rule(form=FORM, n=st.integers(2, 12))
    def burst(self, form: str, n: int) -> None:
        """Many at one instant, in the order of the schedule."""
        assert self.stepper is not None
        before = len(self.entered)
        expected = [self.model.admit() for _ in range(n)]
        calls = [self.stepper.start(self.run, self.form(form), "plain", 0.0, settle=False) for _ in range(n)]
        self.stepper.settle()
        admitted = [call for call in expected if isinstance(call, CallModel)]
        assert len(self.entered) == before + len(admitted)
        assert sum(call.done for call in calls) == n - len(admitted)
        out = [call for call in calls if not call.done]
        unknown = Call[None]("one of the burst")
        for model, end in zip(admitted, self.entered[before:], strict=True):
            self.running.append(Running(model, out[0] if len(out) == 1 else unknown, end, "burst"))

    @precondition(lambda self: self.in_body())
    @rule(data=st.data(), outcome=st.sampled_from(["fine", "failure"]))
    def finish_clearly(self, data: st.DataObject, outcome: str) -> None:
        self.finish_one(data, outcome)

    @precondition(lambda self: self.in_body())
    @rule(data=st.data(), outcome=st.sampled_from(sorted(OUTCOMES)))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        self.finish_one(data, outcome)

    def finish_one(self, data: st.DataObject, outcome: str) -> None:
        assert self.stepper is not None
        one = data.draw(st.sampled_from(self.in_body()))
        result, failed = OUTCOMES[outcome]
        if result == "bad" and not self.classify:
            failed = False
        self.running.remove(one)
        one.end(result)
        self.stepper.settle()
        self.model.end(one.model, failed, error=result if isinstance(result, Exception) else None)

    @precondition(lambda self: any(one.kind != "burst" for one in self.in_body()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Somebody else's cancellation: the place is free at once, and nothing is learned, now or later."""
        assert self.stepper is not None
        one = data.draw(st.sampled_from([one for one in self.in_body() if one.kind != "burst"]))
        one.call.cancel()
        self.stepper.settle()
        self.model.leave(one.model)
        self.running.remove(one)  # if it lingers, then outside the guard; and no time-out of ours has passed
        self.model.end(one.model, None)

    def in_body(self) -> list[Running]:
        return [one for one in self.running if one.verdict_at == math.inf]

    @rule(data=st.data())
    def guard_without_waiting(self, data: st.DataObject) -> None:
        """A guard in sync code, whose end is said by hand."""
        said = data.draw(st.sampled_from(["nothing", "fail", "ignore", "ignored failure", "raise"]))
        expected = self.model.admit()
        error = OSError("sync")
        try:
            with self.breaker.guard() as guard:
                assert isinstance(expected, CallModel)
                if said == "fail":
                    guard.fail()
                elif said != "nothing" and said != "raise":
                    guard.ignore()
                if said in ("raise", "ignored failure"):
                    raise error
        except OSError as raised:
            assert raised is error
        except CircuitOpenError as refusal:
            assert not isinstance(expected, CallModel)
            assert expected[1] <= refusal.retry_after <= expected[2]
        if isinstance(expected, CallModel):
            verdicts = {"nothing": False, "fail": True, "raise": True}
            self.model.end(expected, verdicts.get(said), error=error if said == "raise" else None)

    # ------------------------------------------------------------------------------------------------- time

    @rule(dt=st.sampled_from([0.25, 1.0, 2.0, 4.0, 7.75, 8.0, 32.0]))
    def advance(self, dt: float) -> None:
        self.pass_time(dt)

    @precondition(lambda self: self.model.mode is CircuitState.OPEN and self.model.opens_at > self.model.now)
    @rule(short=st.booleans())
    def wait_for_the_cooldown(self, short: bool) -> None:
        """Until it is over, to the instant; or until just before."""
        self.pass_time(self.model.opens_at - self.model.now - short * TINY / 2)

    @precondition(lambda self: self.model.out and self.model.out[0].lease_ends < math.inf)
    @rule()
    def wait_for_a_lease(self) -> None:
        self.pass_time(max(0.0, self.model.out[0].lease_ends - self.model.now))

    def pass_time(self, dt: float) -> None:
        assert self.stepper is not None
        self.stepper.advance(dt)
        until = self.model.now + dt
        while (due := min(self.running, key=self.due, default=None)) is not None and self.due(due) <= until:
            self.happens(due)
        self.model.now = until

    @staticmethod
    def due(one: Running) -> float:
        return min(one.ends_at, one.verdict_at)

    def happens(self, one: Running) -> None:
        """The scope around a call ends it, or its verdict comes."""
        self.model.now = self.due(one)
        if one.kind == "lingering" and one.verdict_at == math.inf:
            self.model.leave(one.model)
            one.ends_at, one.verdict_at = math.inf, self.model.now + LINGERING
        else:
            self.running.remove(one)
            self.model.end(one.model, one.failed)

    # -------------------------------------------------------------------------------------------- operators

    @precondition(lambda self: self.operated and len(self.holds) < 3)
    @rule()
    def isolate(self) -> None:
        self.holds.append(self.breaker.isolate())
        self.model.hold(1)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        hold = data.draw(st.sampled_from(self.holds))
        self.holds.remove(hold)
        hold.release()
        self.model.hold(-1)
        if twice:
            hold.release()

    @precondition(lambda self: self.operated)
    @rule()
    def reset(self) -> None:
        self.breaker.reset()
        self.model.close(reset=True)

    @precondition(lambda self: self.operated)
    @rule(age=st.sampled_from([0.0, 1.0, 100.0]))
    def restore_what_was_exported(self, age: float) -> None:
        exported = self.breaker.export()
        seconds = self.model.statistics()["opens_in"]
        if self.model.mode is CLOSED:
            assert exported == {"state": "closed"}
            self.model.close(reset=True)
        else:
            assert exported == {"state": "open", "seconds": seconds, "openings": self.model.openings}
            self.model.restore_open(max(0.0, seconds - age), self.model.openings)
        self.breaker.restore(exported, age=age)

    @rule()
    def wait_closed(self) -> None:
        assert self.stepper is not None
        closed = [state for state in [CLOSED, *self.model.published][-1:] if state is CLOSED]
        before = len(self.model.published)
        self.waits.append((self.stepper.start(self.breaker.wait_closed), -1 if closed else before))

    @rule()
    def read_one_change(self) -> None:
        """A reader that looks now and then sees every change, in order."""
        assert self.stepper is not None
        if self.read_slowly < len(self.model.published):
            assert self.stepper.call(self.slow_reader.__anext__) is self.model.published[self.read_slowly]
            self.read_slowly += 1

    read_slowly = 0

    # ------------------------------------------------------------------------------------------- invariants

    @precondition(lambda self: self.stepper is not None)
    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.stepper is not None
        self.stepper.settle()
        statistics = self.breaker.statistics()
        found: dict[str, Any] = {name: getattr(statistics, name) for name in statistics.__slots__}
        assert found == self.model.statistics()
        assert self.breaker.state is self.model.state
        assert self.breaker.is_idle is self.model.is_idle
        ended = statistics.successes + statistics.failures + statistics.neutral + statistics.late
        assert statistics.admitted == ended + statistics.in_flight

    @precondition(lambda self: self.stepper is not None)
    @invariant()
    def tells_each_change_once(self) -> None:
        assert [event for _, event in self.recorder.events] == self.model.events
        assert self.seen == self.model.published
        for call, since in self.waits:
            assert call.done is (since < 0 or CLOSED in self.model.published[since:])

    def teardown(self) -> None:
        if self.stepper is not None:
            with self.stepper:
                while self.read_slowly < len(self.model.published):
                    self.read_one_change()
            assert not self.reader.error


CLOSED = CircuitState.CLOSED

TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
