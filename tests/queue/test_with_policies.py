"""A queue on an `AdaptiveLimiter`: its slots are the limiter's, and each attempt is a sample."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

import outcome
import pytest
import trio

from tests.queue.timeline import Flop, Timeline, briefly, clean_up, pauses, virtual
from trio_orchestrator import (
    AIMD,
    ARC,
    AdaptiveLimiter,
    EnvoyGradient,
    Failures,
    Gate,
    Gradient2,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LimitChanged,
    RateLimiter,
    Recorder,
    RejectedError,
    Retry,
    Vegas,
    map_all,
    open_map,
    open_task_queue,
)
from trio_orchestrator.abc import Control, Limit, Policy, RandomSource, Sample

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Overloaded(Exception):
    """What the service answers beyond its room."""


@dataclass
class Service:
    """Serves what comes, `seconds` each, but drops at once whoever comes when `room` are there."""

    room: float = math.inf
    seconds: float = 1.0
    running: int = 0
    peak: int = 0
    served: int = 0
    dropped: int = 0

    async def __call__(self, limiter: AdaptiveLimiter | None = None) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        assert limiter is None or self.running <= limiter.limit
        try:
            if self.running > self.room:
                self.dropped += 1
                raise Overloaded
            await trio.sleep(self.seconds)
            self.served += 1
        finally:
            self.running -= 1


@dataclass
class Script(Limit):
    """Takes each of some limits in turn, one a sample, and keeps the samples."""

    limits: list[float]
    samples: list[Sample] = field(default_factory=list)

    def control(self, rng: RandomSource) -> Control:
        return Scripted(self)


class Scripted(Control):
    def __init__(self, script: Script) -> None:
        self.script = script
        self.limit = script.limits[0]

    def update(self, sample: Sample) -> tuple[float, str]:
        self.script.samples.append(sample)
        limits = self.script.limits
        self.limit = limits[min(len(self.script.samples), len(limits) - 1)]
        return self.limit, "script"


# ------------------------------------------------------------------------------------------------- it moves


@virtual
async def test_the_limit_grows_by_one_a_round_trip_and_shrinks_when_the_service_drops() -> None:
    heard, service = Recorder(), Service(room=6)
    limiter = AdaptiveLimiter(limit=AIMD(initial=4, shrink=0.5), on=Overloaded, instruments=[heard])
    async with open_task_queue(limiter=limiter, retry=pauses(1, attempts=9, on=Overloaded)) as queue:
        for _ in range(60):
            queue.submit_nowait(service, limiter)
    changes = [(at, event.old, event.new) for at, event in heard.events if isinstance(event, LimitChanged)]
    assert changes[:4] == [(1, 4, 5), (2, 5, 6), (3, 6, 7), (3, 7, 3)]
    assert max(event.new for event in heard.of(LimitChanged)) <= 8
    assert all(event.name == "adaptive limit" and event.reason for event in heard.of(LimitChanged))
    assert service.peak <= 8
    assert service.served == 60
    assert service.dropped == queue.statistics().retries == limiter.statistics().dropped
    assert limiter.is_idle


@briefly
@pytest.mark.parametrize(
    "rule", [AIMD(), ARC(), EnvoyGradient(), Gradient2(), Vegas()], ids=lambda rule: type(rule).__name__
)
async def test_under_every_rule_all_is_done_and_the_service_never_sees_more_than_the_limit(rule: Limit) -> None:
    service, limiter = Service(room=30), AdaptiveLimiter(limit=rule, on=Overloaded)
    async with open_task_queue(limiter=limiter, retry=pauses(0.25, attempts=99, on=Overloaded)) as queue:
        for _ in range(600):
            queue.submit_nowait(service, limiter)
    statistics = limiter.statistics()
    assert (statistics.ok, statistics.dropped, statistics.ignored) == (600, service.dropped, 0)
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert queue.statistics().succeeded == service.served == 600


@virtual
async def test_a_higher_limit_starts_at_once_all_that_fit() -> None:
    line, limiter = Timeline(), AdaptiveLimiter(limit=Script([1, 4, 4, 4, 4, 6]))
    async with open_task_queue(limiter=limiter) as queue:
        for number in range(11):
            queue.submit_nowait(line.work, str(number))
    assert [at for at, _ in line.events] == [0] + [1] * 4 + [2] * 6


@virtual
async def test_a_lower_limit_interrupts_nobody_and_starts_nobody_until_the_debt_is_worked_off() -> None:
    line, limiter = Timeline(), AdaptiveLimiter(limit=Script([4, 2]))
    async with open_task_queue(limiter=limiter) as queue:
        for seconds in (1, 2, 3, 4, 1, 1, 1):
            queue.submit_nowait(line.work, f"{seconds} s", seconds)
        await trio.sleep(1.5)
        assert (queue.statistics().running, queue.statistics().limit, queue.concurrency) == (3, 2, 2)
    # 3 run after 1 s, 2 after 2 s: only then may the next one come, one by one, and two from 4 s on
    assert [at for at, _ in line.events] == [0, 0, 0, 0, 3, 4, 4]
    assert limiter.is_idle


@virtual
async def test_a_job_that_was_picked_before_the_limit_fell_waits() -> None:
    service, limiter = Service(seconds=0), AdaptiveLimiter(limit=Script([8, 8, 1]))
    async with open_task_queue(limiter=limiter) as queue:
        for _ in range(100):
            queue.submit_nowait(service, limiter)
    assert service.served == 100


@virtual
async def test_the_job_that_goes_first_through_a_gate_goes_again_when_the_limit_fell_before_it_began() -> None:
    line, limiter, gate = Timeline(), AdaptiveLimiter(limit=Script([2, 1])), Gate()

    async def answer_at_once() -> None:
        pass

    gate.refused(math.inf)  # for a second at most; then one job goes first
    async with open_task_queue(limiter=limiter) as queue:
        queue.pause()
        for number in range(3):
            queue.submit_nowait(line.work, str(number), gate=gate)
        await trio.sleep(2)
        async with limiter.slot():
            queue.resume()  # the first job has the other slot now, and
            await limiter.measured.call(answer_at_once)  # there are too many before it has made a step
            await trio.sleep(1)
            assert (line.events, queue.statistics().running) == ([], 0)
    assert line.events == [(3, "0"), (4, "1"), (5, "2")]


@virtual
async def test_code_beside_the_queue_shares_the_slots() -> None:
    service, limiter = Service(), AdaptiveLimiter(limit=Script([2]))
    async with open_task_queue(limiter=limiter) as queue, trio.open_nursery() as nursery:
        for _ in range(10):
            queue.submit_nowait(service, limiter)
            nursery.start_soon(limiter.call, service, limiter)
    assert (service.peak, service.served, trio.current_time()) == (2, 20, 10)
    assert limiter.statistics().ok == 20


@virtual
async def test_two_queues_on_one_limiter_share_it_and_neither_starves() -> None:
    services = Service(), Service()
    together, limiter = Timeline(), AdaptiveLimiter(limit=AIMD(initial=2, maximum=10))

    async def body(service: Service) -> None:
        assert together.running < limiter.limit
        await together.work(str(services.index(service)))
        service.served += 1

    async with open_task_queue(limiter=limiter) as one, open_task_queue(limiter=limiter) as other:
        for _ in range(60):
            one.submit_nowait(body, services[0])
            other.submit_nowait(body, services[1])
        await trio.sleep(9.5)
        assert all(service.served >= 15 for service in services)
    assert together.peak == limiter.limit == 10
    assert [service.served for service in services] == [60, 60]
    assert limiter.statistics().ok == 120
    assert limiter.is_idle


@virtual
async def test_a_map_runs_on_one_too() -> None:
    limiter = AdaptiveLimiter(limit=AIMD(initial=1))

    async def double(number: int) -> int:
        await trio.sleep(1)
        return 2 * number

    assert await map_all(double, range(10), limiter=limiter) == [2 * number for number in range(10)]
    assert (trio.current_time(), limiter.limit) == (4, 5)  # 1 + 2 + 3 + 4
    async with open_map(double, range(5), limiter=limiter) as outcomes:
        assert [outcome.result() async for outcome in outcomes] == [0, 2, 4, 6, 8]
    assert trio.current_time() == 5
    assert (limiter.statistics().ok, limiter.is_idle) == (15, True)


# ------------------------------------------------------------------------------------------- what a sample is


@virtual
async def test_neither_waits_in_the_queue_nor_pauses_nor_waits_in_protect_are_measured() -> None:
    script = Script([2])
    limiter, pace = AdaptiveLimiter(limit=script), RateLimiter(1, per=3)
    seen: list[float] = []
    failed: set[int] = set()

    async def body(number: int) -> None:
        at = trio.current_time()
        await trio.sleep(0.5)
        seen.append(at)
        if number % 3 == 0 and number not in failed:
            failed.add(number)
            raise Flop

    async with open_task_queue(limiter=limiter, protect=pace, retry=pauses(7)) as queue:
        for number in range(6):
            queue.submit_nowait(body, number, delay=2)
    assert {sample.rtt for sample in script.samples} == {0.5}
    assert [sample.start for sample in script.samples] == seen == [2 + 3 * n for n in range(8)]
    assert sum(sample.dropped for sample in script.samples) == 2
    assert {sample.in_flight for sample in script.samples} <= {1, 2}


@virtual
async def test_in_flight_is_what_runs_when_the_attempt_starts() -> None:
    script = Script([3])
    line, limiter = Timeline(), AdaptiveLimiter(limit=script)
    async with open_task_queue(limiter=limiter) as queue:
        for number in range(3):
            queue.submit_nowait(line.work, str(number), 1 + number)
        await trio.sleep(1.5)
        queue.submit_nowait(line.work, "3")
        await trio.sleep(3.5)
        queue.submit_nowait(line.work, "4")
    assert [(sample.start, sample.rtt, sample.in_flight) for sample in script.samples] == [
        *((0, seconds, 3) for seconds in (1, 2)),
        (1.5, 1, 3),
        (0, 3, 3),
        (5, 1, 1),
    ]


@virtual
@pytest.mark.parametrize("whose", ["queue", "job", "retry"])
@pytest.mark.parametrize("option", ["attempt_timeout", "timeout"])
async def test_a_time_out_of_the_queue_is_a_drop(option: str, whose: str) -> None:
    script, limits = Script([5]), {option: 2.0}
    limiter = AdaptiveLimiter(limit=script, on=OSError)
    retry = Retry(on=Flop, attempts=1, **limits) if whose == "retry" else None  # type: ignore[arg-type]
    of_queue, of_job = (limits if whose == "queue" else {}), (limits if whose == "job" else {})
    async with open_task_queue(limiter=limiter, retry=retry, failures=Failures.RECORD, **of_queue) as queue:  # type: ignore[arg-type]
        for body in (trio.sleep_forever, lambda: clean_up(10)):
            with pytest.raises(JobTimeoutError):
                await queue.run(body, **of_job)  # type: ignore[arg-type]
    assert [(sample.start, sample.dropped) for sample in script.samples] == [(0, True), (2, True)]
    assert limiter.statistics().dropped == 2


@virtual
async def test_a_service_that_hangs_drives_the_limit_down() -> None:
    limiter = AdaptiveLimiter(limit=AIMD(initial=8, shrink=0.5))
    async with open_task_queue(limiter=limiter, attempt_timeout=1, failures=Failures.RECORD) as queue:
        for _ in range(15):
            queue.submit_nowait(trio.sleep_forever)
    # 8, then 4, 2 and 1: halved once a round trip
    assert (trio.current_time(), limiter.limit) == (4, 1)


@virtual
@pytest.mark.parametrize("how", ["handle", "queue", "outside", "caller", "clear"])
async def test_cancelled_jobs_say_nothing(how: str) -> None:
    script = Script([5])
    limiter = AdaptiveLimiter(limit=script)
    with trio.CancelScope() as scope:
        async with open_task_queue(limiter=limiter, timeout=50, attempt_timeout=40) as queue:
            if how == "caller":
                with trio.move_on_after(1):
                    await queue.run(trio.sleep_forever)
                continue_with = trio.current_time()
                assert continue_with == 1
            else:
                job = queue.submit_nowait(trio.sleep_forever)
                await trio.sleep(1)
                if how == "handle":
                    job.cancel()
                elif how == "outside":
                    scope.cancel()
                elif how == "clear":
                    assert queue.clear() == 0
                    job.cancel()
                else:
                    await queue.close()
    assert script.samples == []
    statistics = limiter.statistics()
    assert (statistics.ok, statistics.dropped, statistics.ignored) == (0, 0, 1)
    assert limiter.is_idle


@virtual
async def test_a_job_cancelled_before_its_body_is_not_even_ignored() -> None:
    limiter = AdaptiveLimiter(limit=Script([1]))
    async with open_task_queue(limiter=limiter) as queue:
        queue.submit_nowait(trio.sleep, 1)
        waiting = queue.submit_nowait(trio.sleep, 1)
        waiting.cancel("no")
        with pytest.raises(JobCancelledError):
            await waiting.wait()
    assert (limiter.statistics().ok, limiter.statistics().ignored) == (1, 0)


@virtual
async def test_the_limiter_judges_results_errors_and_refusals_of_the_body() -> None:
    async def body(end: object) -> object:
        await trio.sleep(1)
        if isinstance(end, Exception):
            raise end
        return end

    limiter = AdaptiveLimiter(
        limit=Script([9]), on=(Flop, OSError), neutral=FileNotFoundError, classify=lambda result: result == "busy"
    )
    ends = ["fine", "busy", Flop(), OSError(), ValueError(), FileNotFoundError(), RejectedError("inside")]
    outcomes = await map_all(body, ends, limiter=limiter, outcomes=True)
    assert [end.value if isinstance(end, outcome.Value) else end.error for end in outcomes] == ends
    statistics = limiter.statistics()
    assert (statistics.ok, statistics.dropped, statistics.ignored) == (1, 3, 3)


class Closed(Policy):
    """Refuses until a time."""

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        if trio.current_time() < 10:
            raise RejectedError("closed", retry_after=10 - trio.current_time())
        return await fn(*args)


@virtual
async def test_what_protect_refuses_is_no_sample_and_no_attempt() -> None:
    script, line = Script([3]), Timeline()
    async with open_task_queue(limiter=AdaptiveLimiter(limit=script), protect=Closed()) as queue:
        jobs = [queue.submit_nowait(line.work, str(number)) for number in range(6)]
    assert {job.attempts for job in jobs} == {1}
    assert line.events[0][0] == 10
    assert queue.statistics().refusals == 3
    assert len(script.samples) == 6
    assert {sample.rtt for sample in script.samples} == {1}


# ----------------------------------------------------------------------------------------- with all the rest


@virtual
async def test_priorities_keys_gates_and_delays_work_on_it() -> None:
    line, limiter, gate = Timeline(), AdaptiveLimiter(limit=Script([1, 2])), Gate("billing")
    async with open_task_queue(limiter=limiter, per_key=1) as queue:
        gate.shut(3)
        queue.submit_nowait(line.work, "gated", gate=gate)
        queue.submit_nowait(line.work, "low")
        queue.submit_nowait(line.work, "late", delay=5, priority=9)
        for _ in range(2):
            queue.submit_nowait(line.work, "keyed", key="k", priority=1)
    assert line.events == [(0, "low"), (1, "keyed"), (2, "keyed"), (3, "gated"), (5, "late")]


@virtual
async def test_pausing_and_closing_leave_the_limiter_as_it_was() -> None:
    limiter, service = AdaptiveLimiter(limit=Script([2])), Service(seconds=2)
    async with open_task_queue(limiter=limiter) as queue:
        jobs = [queue.submit_nowait(service, limiter) for _ in range(6)]
        await trio.sleep(1)
        queue.pause()
        await trio.sleep(9)
        assert limiter.statistics().in_flight == 0
        queue.resume()
        await trio.sleep(1)
        await queue.close(grace=10)
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 4 + [JobState.CANCELLED] * 2
    assert (service.served, limiter.statistics().ok, limiter.is_idle) == (4, 4, True)


@virtual
async def test_what_cannot_go_together_is_said_at_the_call() -> None:
    limiter = AdaptiveLimiter()
    with pytest.raises(TypeError, match=r"^concurrency must not be given together with limiter"):
        open_task_queue(limiter=limiter, concurrency=3)
    with pytest.raises(TypeError, match=r"^limiter must be a CapacityLimiter, got"):
        open_task_queue(limiter=limiter.measured)  # type: ignore[arg-type]
    async with open_task_queue(limiter=limiter) as queue:
        assert queue.limiter is limiter.tokens
        with pytest.raises(AttributeError, match="concurrency cannot be set"):
            queue.concurrency = 3
        with pytest.raises(ValueError, match=r"^weight must be 1 in a queue with limiter="):
            queue.submit_nowait(trio.sleep, 1, weight=2)
