"""Everything that a queue can do, at once, against `rich_model`. Two queues may share a limiter and gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.queue.rich_bodies import KINDS, Bodies, Outage
from tests.queue.rich_look import look, submitted
from tests.queue.rich_model import BAD, Asked, Config, Failed, Group, Job, Phase, Side, Watch, current_job
from trio_orchestrator import (
    Constant,
    Cooldown,
    Failures,
    Gate,
    JobCancelledError,
    JobDroppedError,
    JobGroup,
    JobState,
    JobTimeoutError,
    KeyOrder,
    Overflow,
    QueueFullError,
    RejectedError,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.testing import Call, Stepper

often = partial(st.sampled_from)
CONFIGS = st.builds(
    Config,
    attempts=st.integers(1, 3),
    pause=often((2.0, 0.0)),
    max_waiting=st.integers(1, 6),
    overflow=often((Overflow.WAIT, Overflow.WAIT, *Overflow)),
    failures=often((Failures.RECORD, Failures.RECORD, Failures.RAISE, Failures.FAIL_FAST)),
    ageing=often((math.inf, 2.0)),
    per_key=st.integers(1, 2),
    order=often(KeyOrder),
    bypass=st.integers(0, 2),
    attempt_timeout=often((math.inf, math.inf, 3.0)),
    timeout=often((math.inf, math.inf, 8.0)),
    start_within=often((math.inf, math.inf, 6.0)),
    protected=st.booleans(),
    cooled=st.booleans(),
)
ASKED = st.builds(
    Asked,
    kind=often(KINDS),
    seconds=often((0.5, 1.0, 3.0)),
    priority=often((0, 0, 0, 1, 2)),
    key=often((None, None, "a", "b")),
    weight=often((1, 1, 1, 2, 3)),
    gate=often((None, None, None, 0, 1)),
    delay=often((0, 0, 0, 1.0)),
    attempt_timeout=often((math.inf, math.inf, 2.0)),
    timeout=often((math.inf, math.inf, 4.0)),
    start_within=often((math.inf, math.inf, 1.0)),
    attempts=often((None, None, 0, 2)),
)
T = TypeVar("T")
CROWDS = st.lists(ASKED, min_size=1, max_size=5)
SIDES = st.integers(0, 1)
SETTLE = often((True, True, False))


def one_of(data: st.DataObject, some: list[T]) -> T:
    return some[data.draw(st.integers(0, len(some) - 1))]


class RichMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stepper: Stepper | None = None
        self.problems: list[str] = []
        self.bodies = Bodies(self)
        self.numbers = 0
        self.acts: list[Call[None]] = []
        self.waits: list[tuple[Job, Call[object]]] = []
        self.watchers: list[tuple[Side, int, Call[None]]] = []  # of `wait_idle` (0) and `wait_below(n)`
        self.foreign: list[tuple[Call[None], trio.Event]] = []
        self.foreign_slots = 0
        self.closings: list[tuple[Side, Call[Any]]] = []
        self.groups: list[Group] = []
        self.leave: dict[str, trio.Event] = {}
        self.restless = False

    @initialize(
        seed=st.integers(0, 2**16),
        limit=st.integers(1, 4),
        shared=often((False, False, True)),
        configs=st.tuples(CONFIGS, CONFIGS),
        ramp=often((0.0, 2.0)),
    )
    def begin(self, seed: int, limit: int, shared: bool, configs: tuple[Config, Config], ramp: float) -> None:
        self.stepper = Stepper(seed)
        self.limiter = trio.CapacityLimiter(limit) if shared else None
        self.limit = limit
        self.gates = [Gate("first"), Gate("second")]
        self.cooldown = Cooldown(ramp=ramp)
        self.outages = [Outage(), Outage()]
        self.blocks = [self.open(config, outage) for config, outage in zip(configs, self.outages, strict=True)]
        self.sides = [self.side(number, configs[number]) for number in range(1 + shared)]
        for number, side in enumerate(self.sides):
            self.leave[side.name] = trio.Event()
            side.main = self.stepper.start(self.run_block, side, self.blocks[number])
        self.watches = {gate: Watch(gate) for gate in self.gates}

    def open(self, config: Config, outage: Outage) -> AbstractAsyncContextManager[TaskQueue]:
        return open_task_queue(
            concurrency=self.limit if self.limiter is None else None,
            limiter=self.limiter,
            retry=self.retry(config.attempts, config.pause),
            protect=outage if config.protected else None,
            cooldown=self.cooldown if config.cooled else None,
            max_waiting=config.max_waiting,
            overflow=config.overflow,
            failures=config.failures,
            ageing=config.ageing,
            per_key=config.per_key,
            per_key_order=config.order,
            bypass=config.bypass,
            attempt_timeout=config.attempt_timeout,
            timeout=config.timeout,
            start_within=config.start_within,
        )

    def retry(self, attempts: int, pause: float) -> Retry:
        return Retry(
            on=(Failed, RejectedError),
            on_result=lambda result: result == BAD,
            attempts=attempts,
            backoff=Constant(pause),
            retry_after=lambda failure: getattr(failure, "wish", None),
        )

    def side(self, number: int, config: Config) -> Side:
        side = Side(
            "right" if number else "left", config, self.check, lambda: self.limit, self.crowd, self.limiter is None
        )
        self.outages[number].side = side
        return side

    def crowd(self) -> int:
        return sum(side.busy for side in self.sides) + self.foreign_slots

    async def run_block(self, side: Side, block: AbstractAsyncContextManager[TaskQueue]) -> None:
        async with block as side.queue:
            await self.leave[side.name].wait()

    # ------------------------------------------------------------------------------------------- the ground

    @property
    def step(self) -> Stepper:
        assert self.stepper is not None
        return self.stepper

    def check(self, condition: object, text: str) -> None:
        """Remember what is wrong: an `AssertionError` in a body would be a failure of its job."""
        if not condition:
            self.problems.append(text)

    def act(self, fn: Callable[[], object], settle: bool) -> None:
        """Do something inside the run, at once or in one batch with what follows."""

        async def act() -> None:
            fn()

        self.acts.append(self.step.start(act, settle=False))
        self.settle(settle)

    def settle(self, really: bool = True) -> None:
        self.restless = not really
        if really:
            self.step.settle()
            self.look()

    def look(self) -> None:
        for call in self.acts:
            if call.error is not None:
                raise call.error
        self.acts.clear()
        for side in self.sides:
            look(side)
        for watch in self.watches.values():
            watch.look()
        self.look_at_waiters()
        assert not self.problems, "\n".join(self.problems)

    def watch(self, gate: Gate) -> Watch:
        return self.watches.setdefault(gate, Watch(gate)) if gate not in self.watches else self.watches[gate]

    def job(self, side: Side, asked: Asked) -> Job:
        if not side.private and asked.weight > 1:
            asked = Asked(kind=asked.kind, seconds=asked.seconds)
        if asked.gate is not None:
            gate = self.gates[asked.gate]
        elif side.config.cooled and asked.key is not None:
            gate = self.cooldown.gate(asked.key)
        else:
            gate = side.queue._engine.own_gate
        self.numbers += 1
        return Job(side, self.numbers, asked, self.watch(gate))

    def options(self, job: Job) -> dict[str, Any]:
        """What the job asks for; as little as possible, for the fast paths."""
        asked, plain = job.asked, Asked()
        names = ("priority", "key", "weight", "delay", "attempt_timeout", "timeout", "start_within")
        options = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(plain, name)}
        if asked.gate is not None:
            options["gate"] = self.gates[asked.gate]
        if asked.attempts is not None:
            options["retry"] = self.retry(asked.attempts, job.side.config.pause) if asked.attempts else None
        return options

    def submit_now(self, job: Job, inside: bool) -> bool:
        side, queue = job.side, job.side.queue
        before = {other: other.handle.state for other in side.jobs if other.handle is not None}
        seen = queue.statistics()
        pending = seen.waiting + seen.retry_scheduled
        token = current_job.set(job)
        job.start_at = trio.current_time() + job.asked.delay
        try:
            job.handle = queue.submit_nowait(self.bodies.body, job, **self.options(job))
        except (trio.WouldBlock, QueueFullError):
            full = pending >= side.config.max_waiting or seen.at_the_door
            lets_its_own_in = inside and side.config.overflow is Overflow.WAIT
            self.check(full and not lets_its_own_in, f"{job} was refused: {pending} wait")
            return False
        except trio.ClosedResourceError:
            open_to = not side.closed and not side.fails_fast and (inside or not side.leaving)
            self.check(not open_to, f"{job} was refused as if the queue were closed")
            return False
        finally:
            current_job.reset(token)
        side.jobs.append(job)
        job.let_in()
        submitted(side, job, inside, before, pending, seen.at_the_door)
        return True

    # ------------------------------------------------------------------------------------------- the rules

    def pick(self, number: int) -> Side:
        return self.sides[number % len(self.sides)]

    @rule(number=SIDES, asked=CROWDS, settle=SETTLE)
    def submit_nowait(self, number: int, asked: list[Asked], settle: bool) -> None:
        side = self.pick(number)
        for one in asked:
            self.act(partial(self.submit_now, self.job(side, one), inside=False), settle=False)
        self.settle(settle)

    @rule(number=SIDES, asked=ASKED, by_run=st.booleans(), patience=often((math.inf, math.inf, 2.0)), settle=SETTLE)
    def submit(self, number: int, asked: Asked, by_run: bool, patience: float, settle: bool) -> None:
        side = self.pick(number)
        if side.config.overflow is not Overflow.WAIT or side.closed or side.leaving:
            return
        job = self.job(side, asked)
        job.by_run = by_run
        job.call = self.step.start(self.put, job, patience, settle=False)
        self.settle(settle)

    async def put(self, job: Job, patience: float) -> None:
        side, queue = job.side, job.side.queue
        side.jobs.append(job)
        current_job.set(job)
        job.start_at = trio.current_time() + job.asked.delay
        if not job.by_run:
            job.handle = await queue.submit(self.bodies.body, job, **self.options(job))
            return
        job.told = True
        job.caller_deadline = trio.current_time() + patience
        with trio.CancelScope(deadline=job.caller_deadline):
            await queue.run(self.bodies.body, job, **self.options(job))

    def draw(self, data: st.DataObject, *phases: Phase) -> Job | None:
        jobs = [job for side in self.sides for job in side.of(*phases) if job.handle is not None]
        return one_of(data, jobs) if jobs else None

    @rule(data=st.data(), settle=SETTLE)
    def cancel(self, data: st.DataObject, settle: bool) -> None:
        job = self.draw(data, Phase.WAITING, Phase.OUT, Phase.PAUSING)
        if job is not None:
            self.act(lambda: job.side.cancel(job), settle)

    @rule(data=st.data())
    def cancel_the_caller(self, data: st.DataObject) -> None:
        jobs = [job for side in self.sides for job in side.jobs if job.call is not None and not job.call.done]
        if jobs:
            call = one_of(data, jobs).call
            assert call is not None
            call.cancel()
            self.settle()

    @rule(data=st.data(), priority=st.integers(-1, 2), settle=SETTLE)
    def reprioritise(self, data: st.DataObject, priority: int, settle: bool) -> None:
        job = self.draw(data, Phase.WAITING, Phase.OUT, Phase.PAUSING)
        if job is not None:
            self.act(lambda: job.side.reprioritise(job, priority), settle)

    @rule(number=SIDES, settle=SETTLE)
    def pause(self, number: int, settle: bool) -> None:
        side = self.pick(number)

        def pause() -> None:
            side.granted |= side.in_flight()
            side.paused, side.ramp = True, None
            side.queue.pause()

        self.act(pause, settle)

    @rule(number=SIDES, ramp=often((0.0, 0.0, 4.0)), settle=SETTLE)
    def resume(self, number: int, ramp: float, settle: bool) -> None:
        side = self.pick(number)

        def resume() -> None:
            if side.paused:
                side.ramp = (trio.current_time(), ramp) if ramp else None
                side.least, side.before_ramp = self.limit, side.in_flight()
            side.paused = False
            side.granted &= set() if not side.closed else side.granted
            side.queue.resume(ramp)

        self.act(resume, settle)

    @rule(limit=often((0, 1, 1, 2, 2, 3, 4, 5)))
    def resize(self, limit: int) -> None:
        """From outside: the queue is not told."""
        self.settle()
        self.limit = limit
        for side in self.sides:
            side.least = min(side.least, limit)
        (self.limiter or self.sides[0].queue.limiter).total_tokens = limit
        self.settle()

    @rule(number=SIDES, settle=SETTLE)
    def clear(self, number: int, settle: bool) -> None:
        self.act(self.pick(number).clear, settle)

    @rule(number=st.integers(0, 1), seconds=often((1.0, 3.0)), settle=SETTLE)
    def shut_a_gate(self, number: int, seconds: float, settle: bool) -> None:
        self.act(lambda: self.gates[number].shut(seconds), settle)

    @rule(
        number=SIDES,
        refusals=st.lists(often((math.inf, 1.0, 3.0)), max_size=3),
        seconds=often((0.0, 1.0)),
        shielded=st.booleans(),
        late=st.booleans(),
    )
    def begin_an_outage(self, number: int, refusals: list[float], seconds: float, shielded: bool, late: bool) -> None:
        outage = self.outages[number]
        outage.refusals, outage.seconds, outage.shielded, outage.late = [*refusals], seconds, shielded, late

    @rule(seconds=often((0.5, 1.0, 2.0, 5.0)))
    def advance(self, seconds: float) -> None:
        self.settle()
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Look at every instant at which something happens."""
        until = self.step.now + seconds
        for _ in range(1000):
            ahead = trio.lowlevel.current_statistics().seconds_to_next_deadline
            self.step.advance(max(0.0, min(ahead, until - self.step.now)))
            self.look()
            if self.step.now >= until:
                return
        raise AssertionError("busy loop in time")

    # --------------------------------------------------------------------------------------------- waiters

    @rule(data=st.data(), settle=SETTLE)
    def wait(self, data: st.DataObject, settle: bool) -> None:
        job = self.draw(data, *Phase)
        if job is not None and job.handle is not None:
            job.told = True
            self.waits.append((job, self.step.start(job.handle.wait, settle=False)))
            self.settle(settle)

    @rule(data=st.data())
    def cancel_a_wait(self, data: st.DataObject) -> None:
        calls = [call for _, call in self.waits if not call.done] + [
            call for *_, call in self.watchers if not call.done
        ]
        if calls:
            one_of(data, calls).cancel()
            self.settle()

    @rule(number=SIDES, bound=st.integers(0, 3))
    def wait_for_a_state(self, number: int, bound: int) -> None:
        side = self.pick(number)
        wait = partial(side.queue.wait_below, bound) if bound else side.queue.wait_idle
        self.watchers.append((side, bound, self.step.start(wait, settle=False)))
        self.settle()

    def look_at_waiters(self) -> None:
        for job, call in self.waits:
            assert job.handle is not None
            assert call.done == job.handle.done or call.state == "cancelled", f"{call}, {job.handle}"
            if call.done and call.state != "cancelled":
                self.look_at_an_outcome(job, job.handle.state, call)
        for side, bound, watch in self.watchers:
            seen = side.queue.statistics()
            pending = seen.waiting + seen.retry_scheduled
            true = pending < bound if bound else seen.idle
            closed = bound > 0 and (side.closed or side.leaving)
            assert watch.done or not (true or closed), f"{'wait_below' if bound else 'wait_idle'} is not told"
            assert watch.error is None or isinstance(watch.error, trio.ClosedResourceError)
        for group in self.groups:
            left = [job for job in group.jobs if job.handle is not None and not job.handle.done]
            assert not (group.call.done and left), f"a group left {left}"
        for side, closing in self.closings:
            assert not closing.done or closing.state == "cancelled" or side.queue.statistics().idle

    def look_at_an_outcome(self, job: Job, state: JobState, call: Call[object]) -> None:
        error = call.error
        if state is JobState.SUCCEEDED:
            assert call.value in (job.number, BAD)
        elif state is JobState.FAILED:
            assert isinstance(error, (Failed, RejectedError, JobTimeoutError, RuntimeError)), error
            assert job.error is None or error is job.error
        else:
            assert type(error) is (JobCancelledError if state is JobState.CANCELLED else JobDroppedError)

    # --------------------------------------------------------------------------------------------- strangers

    @precondition(lambda self: self.limiter is not None)
    @rule()
    def a_stranger_comes(self) -> None:
        event = trio.Event()
        self.foreign.append((self.step.start(self.borrow, event, settle=False), event))
        self.settle()

    async def borrow(self, event: trio.Event) -> None:
        assert self.limiter is not None
        async with self.limiter:
            self.foreign_slots += 1
            try:
                await event.wait()
            finally:
                self.foreign_slots -= 1

    @precondition(lambda self: self.foreign)
    @rule(leave=st.booleans(), settle=SETTLE)
    def a_stranger_goes(self, leave: bool, settle: bool) -> None:
        call, event = self.foreign.pop(0)
        if leave:
            event.set()
        else:
            call.cancel()
        self.settle(settle)

    @rule(number=SIDES, asked=CROWDS, failures=often(Failures))
    def open_a_group(self, number: int, asked: list[Asked], failures: Failures) -> None:
        side = self.pick(number)
        if side.config.overflow is not Overflow.WAIT or side.closed or side.leaving:
            return
        group = Group(failures, [self.job(side, one) for one in asked])
        self.groups.append(group)
        group.call = self.step.start(self.run_group, side, group, settle=False)
        self.settle()

    async def run_group(self, side: Side, group: Group) -> None:
        async with side.queue.group(failures=group.failures) as mine:
            try:
                for job in group.jobs:
                    await self.put_into(mine, job, group)
                await group.leave.wait()
            except BaseException:
                group.broken = True
                raise

    async def put_into(self, mine: JobGroup, job: Job, group: Group) -> None:
        job.told, job.group = True, group
        job.side.jobs.append(job)
        current_job.set(job)
        job.start_at = trio.current_time() + job.asked.delay
        try:
            job.handle = await mine.submit(self.bodies.body, job, **self.options(job))
        finally:
            if job.handle is None and job.phase is Phase.OUTSIDE:
                job.side.jobs.remove(job)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), leave=st.booleans())
    def leave_a_group(self, data: st.DataObject, leave: bool) -> None:
        group = one_of(data, self.groups)
        if leave:
            group.leave.set()
        elif not group.call.done:
            group.broken = True
            group.call.cancel()
        self.settle()

    # ------------------------------------------------------------------------------------------- the end

    @precondition(lambda self: self.numbers > 15)
    @rule(number=SIDES, grace=often((0.0, 1.0, 3.0)))
    def close(self, number: int, grace: float) -> None:
        side = self.pick(number)
        if side.closed:
            return

        async def close() -> None:
            side.close(trio.current_time() + grace)
            await side.queue.close(grace=grace)

        self.settle()
        self.closings.append((side, self.step.start(close, settle=False)))
        self.settle()

    @precondition(lambda self: self.closings)
    @rule(data=st.data())
    def cancel_a_closing(self, data: st.DataObject) -> None:
        side, call = one_of(data, self.closings)
        if not call.done and trio.current_time() < side.cut_at:
            side.cut_at = math.inf
            call.cancel()
            self.settle()

    @precondition(lambda self: self.numbers > 15)
    @rule(number=SIDES, how=often(("leave", "leave", "cancel")))
    def end_the_block(self, number: int, how: str) -> None:
        side = self.pick(number)
        self.settle()
        if side.main.done:
            return
        side.leaving = True
        if how == "leave":
            self.leave[side.name].set()
        else:
            side.abort()
            side.main.cancel()
        self.settle()

    def teardown(self) -> None:
        if self.stepper is None:
            return
        try:
            self.finish()
        finally:
            self.stepper.close()

    def finish(self) -> None:
        """Leave the blocks: they wait for every job, and nothing is left."""
        self.settle()
        for outage in self.outages:
            outage.refusals, outage.seconds = [], 0.0
        for job in [job for side in self.sides for job in side.jobs if job.handle is not None]:
            self.act(partial(job.side.cancel, job), settle=True)
        while self.foreign:
            self.a_stranger_goes(leave=True, settle=True)
        for group in self.groups:
            group.leave.set()
        self.resize(limit=5)
        for number in range(len(self.sides)):
            self.resume(number=number, ramp=0.0, settle=True)
        for _ in range(20):
            if not any(side.of(Phase.WAITING, Phase.OUT, Phase.PAUSING) for side in self.sides):
                break
            for job in [
                job for side in self.sides for job in side.of(Phase.WAITING, Phase.OUT) if job.handle is not None
            ]:
                self.act(partial(job.side.cancel, job), settle=True)
            self.pass_time(5.0)
        for number in range(len(self.sides)):
            self.end_the_block(number=number, how="leave")
        self.pass_time(60.0)
        for side in self.sides:
            self.look_at_the_end(side)
        for _, call in self.waits:
            assert call.done
        for *_, watch in self.watchers:
            assert watch.done

    def look_at_the_end(self, side: Side) -> None:
        assert side.main.done and side.queue.limiter.borrowed_tokens == 0
        assert not side.of(Phase.WAITING, Phase.OUT, Phase.PAUSING, Phase.OUTSIDE)
        main = side.main
        failed = [job for job in side.jobs if job.handle is not None and job.handle.state is JobState.FAILED]
        unseen = [job for job in failed if not job.told]
        first = min((job.ended_at for job in failed), default=math.inf)
        if side.fails_fast and failed and main.state == "raised":
            assert any(job.ended_at == first and job.error in (main.error, None) for job in failed)
        elif side.config.failures is Failures.RAISE and unseen and not side.aborted:
            assert isinstance(main.error, ExceptionGroup)
            assert {job.error for job in unseen if job.error is not None} <= {*main.error.exceptions}
        else:
            expected = "cancelled" if side.aborted else "ok"
            assert main.state == expected or (failed and side.config.failures is not Failures.RECORD)


TestRichMachine = RichMachine.TestCase
TestRichMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
