"""Each policy as `protect=` of a queue: refusals burn no attempts, the gate opens when it should, nothing gets lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import pytest
import trio
import trio.lowlevel

from tests.queue.timeline import Flop, Timeline, briefly, pauses, virtual
from trio_orchestrator import (
    AdaptiveLimiter,
    BudgetExhaustedError,
    Bulkhead,
    CallMeter,
    CircuitBreaker,
    CircuitClosed,
    CircuitOpened,
    CircuitOpenError,
    CircuitState,
    Consecutive,
    Cooldown,
    Failures,
    Fallback,
    FallbackUsed,
    Gate,
    GateShut,
    GrpcThrottle,
    Hedge,
    HedgeStarted,
    JobHandle,
    JobTimeoutError,
    RateLimiter,
    RateLimits,
    Recorder,
    RejectedError,
    Retry,
    RetryBudget,
    SlidingWindow,
    SpendGuard,
    SreThrottle,
    Stack,
    StormAlarm,
    StormStarted,
    Timeout,
    TokenQuota,
    open_task_queue,
)
from trio_orchestrator.abc import Budget, Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual


class Halves:
    """A source of jitter that always draws the middle."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def hourly(limit: int, **options: object) -> SpendGuard:
    """Return a guard that lets so many calls through an hour; the first hour has 30 minutes left."""

    def wall() -> float:
        return 1800 + trio.current_time()

    return SpendGuard(Decimal(1), Decimal(limit), per="hour", wall=wall, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- an outage


@briefly
async def test_an_outage_costs_the_backlog_one_call_a_cooldown() -> None:
    line, heard = Timeline(), Recorder()
    breaker = CircuitBreaker(trip=Consecutive(5), cooldown=4, instruments=[heard])

    async def body(number: int) -> int:
        began_at = trio.current_time()
        await line.work(str(number))
        if 5 <= began_at < 40:
            raise Flop
        return number

    async with open_task_queue(concurrency=10, protect=breaker, retry=pauses(0.5, attempts=20)) as queue:
        jobs = [queue.submit_nowait(body, number) for number in range(200)]
    assert [job.result_nowait() for job in jobs] == list(range(200))
    during = [at for at, _ in line.events if 5 <= at < 40]
    assert during == [5] * 10 + [10, 15, 20, 25, 30, 35]  # ten were under way; then a probe of one second each four
    assert sum(job.attempts for job in jobs) == len(line.events) == 200 + len(during)
    assert queue.statistics().retries == len(during)
    assert line.times("0") == [0]
    assert heard.times(CircuitOpened) == [6, *range(11, 37, 5)]
    assert heard.times(CircuitClosed) == [41]
    # While a probe is out the time is not known: the gate has shut for at most 1 s, 2 s and then 4 s.
    assert 41 <= min(at for at, _ in line.events if at > 40) < 45


@virtual
async def test_jobs_keep_their_order_through_an_outage() -> None:
    line, breaker = Timeline(), CircuitBreaker(trip=Consecutive(1), cooldown=2)

    async def body(number: int) -> None:
        await line.work(str(number))
        if 3 <= trio.current_time() < 20:
            raise Flop

    async with open_task_queue(concurrency=1, protect=breaker, retry=pauses(0, attempts=99)) as queue:
        jobs = [queue.submit_nowait(body, number) for number in range(8)]
    assert line.names == ["0", "1", *["2"] * 7, *"34567"]
    assert line.times("2") == [2, 5, 8, 11, 14, 17, 20]
    assert [job.attempts for job in jobs] == [1, 1, 7, 1, 1, 1, 1, 1]


@virtual
async def test_a_hung_service_opens_the_breaker_and_its_jobs_wait() -> None:
    breaker = CircuitBreaker(trip=Consecutive(3), cooldown=10)
    line = Timeline()

    async def body() -> None:
        began_at = trio.current_time()
        line.note("call")
        await trio.sleep(math.inf if began_at < 20 else 1)

    retry = Retry(on=Flop, attempts=9, backoff=Constant(1), attempt_timeout=2)
    async with open_task_queue(concurrency=3, protect=breaker, retry=retry, rng=Halves()) as queue:
        for _ in range(30):
            queue.submit_nowait(body)
    assert [at for at, _ in line.events if at < 24] == [0, 0, 0, 12]  # the probe at 12 hangs as well, until 14
    assert next(at for at, _ in line.events if at >= 24) == 24
    assert len(line.events) == 30 + 4
    assert breaker.state is CircuitState.CLOSED


@virtual
async def test_an_operator_isolates_and_no_job_is_lost() -> None:
    line, breaker = Timeline(), CircuitBreaker()
    async with open_task_queue(concurrency=2, protect=breaker, retry=pauses(1), rng=Halves()) as queue:
        jobs = [queue.submit_nowait(line.work, str(number)) for number in range(6)]
        await trio.sleep(0.5)
        with breaker.isolate():
            await trio.sleep(60)
        assert len(line.events) == 2
    assert len(line.events) == 6
    assert {job.attempts for job in jobs} == {1}
    assert line.events[2][0] <= 60.5 + 30


@virtual
async def test_two_queues_learn_from_one_breaker() -> None:
    line, breaker = Timeline(), CircuitBreaker(trip=Consecutive(2), cooldown=10)

    async def fail() -> None:
        line.note("fail")
        raise Flop

    async with open_task_queue(protect=breaker, failures=Failures.RECORD) as one:
        for _ in range(2):
            one.submit_nowait(fail)
        await one.wait_idle()
        async with open_task_queue(protect=breaker) as other:
            job = other.submit_nowait(line.work, "work")
    assert line.events == [(0, "fail"), (0, "fail"), (10, "work")]
    assert job.attempts == 1


# ------------------------------------------------------------------------------------------------ every refusal


REFUSING: dict[str, Callable[[], Policy]] = {
    "RateLimiter": lambda: RateLimiter(2, per=1, max_wait=0),
    "RateLimiter, a short line": lambda: RateLimiter(2, per=1, max_waiting=1),
    "SlidingWindow": lambda: SlidingWindow(3, per=2, max_wait=0),
    "RateLimits": lambda: RateLimits(RateLimiter(2, per=1, max_wait=0), SlidingWindow(5, per=7, max_wait=0)),
    "Bulkhead": lambda: Bulkhead(2, max_waiting=0),
    "AdaptiveLimiter": lambda: AdaptiveLimiter(max_waiting=0),
    "SreThrottle": lambda: SreThrottle(2, 10, minimum=3),
    "SpendGuard": lambda: hourly(7),
    "CircuitBreaker": lambda: CircuitBreaker(trip=Consecutive(2), cooldown=5),
    "Stack": lambda: Stack(
        CircuitBreaker(trip=Consecutive(3), cooldown=5), RateLimiter(3, per=1, max_wait=0), Bulkhead(2, max_waiting=0)
    ),
    "inside a Retry": lambda: Stack(
        Retry(on=RejectedError, attempts=2, backoff=Constant(0.1)), Bulkhead(1, max_waiting=0)
    ),
}


@briefly
@pytest.mark.parametrize("policy", REFUSING)
async def test_refusals_burn_no_attempts_and_lose_nothing(policy: str) -> None:
    calls: Counter[int] = Counter()

    async def body(number: int) -> int:
        calls[number] += 1
        await trio.sleep(0.5)
        if number % 3 == 0 and calls[number] == 1:
            raise Flop
        return number

    async with open_task_queue(concurrency=24, protect=REFUSING[policy](), retry=pauses(0.3)) as queue:
        jobs = [queue.submit_nowait(body, number) for number in range(30)]
    assert [job.result_nowait() for job in jobs] == list(range(30))
    expected = {number: 2 if number % 3 == 0 else 1 for number in range(30)}
    assert {number: jobs[number].attempts for number in range(30)} == dict(calls) == expected
    statistics = queue.statistics()
    assert (statistics.retries, statistics.succeeded, statistics.waiting) == (10, 30, 0)
    assert statistics.refusals > 0


@virtual
@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        (lambda: RateLimiter(1, per=2, max_wait=0), [0, 2, 4, 6, 8, 10, 12]),
        (lambda: RateLimiter(1, per=2, burst=3, max_wait=0), [0, 0, 0, 2, 4, 6, 8]),
        (lambda: SlidingWindow(2, per=5, max_wait=0), [0, 0, 5, 5, 10, 10, 15]),
        (
            lambda: RateLimits(SlidingWindow(2, 5, max_wait=0), SlidingWindow(3, 20, max_wait=0)),
            [0, 0, 5, 20, 20, 25, 40],
        ),
        (lambda: hourly(3), [0, 0, 0, 1800, 1800, 1800, 5400]),
    ],
    ids=["RateLimiter", "burst", "SlidingWindow", "RateLimits", "SpendGuard"],
)
async def test_the_gate_opens_at_the_very_moment(policy: Callable[[], Policy], starts: list[float]) -> None:
    line, heard = Timeline(), Recorder()
    async with open_task_queue(concurrency=4, protect=policy(), instruments=[heard]) as queue:
        jobs = [queue.submit_nowait(line.work, str(number), 0.25) for number in range(7)]
    assert [at for at, _ in line.events] == starts
    assert {job.attempts for job in jobs} == {1}
    assert all(event.known for event in heard.of(GateShut))


@virtual
async def test_a_limiter_that_may_wait_does_so_in_the_slot() -> None:
    line, heard = Timeline(), Recorder()
    async with open_task_queue(concurrency=3, protect=RateLimiter(1, per=2), instruments=[heard]) as queue:
        for number in range(7):
            queue.submit_nowait(line.work, str(number))
        await trio.sleep(1.5)
        assert queue.statistics().running == 3  # in line: the one that went first has ended, and given its slot away
        await trio.lowlevel.checkpoint()
    assert [at for at, _ in line.events] == [0, 2, 4, 6, 8, 10, 12]
    assert (queue.statistics().refusals, heard.of(GateShut)) == (0, [])


@virtual
async def test_one_job_goes_first_when_the_time_is_not_known() -> None:
    line, heard = Timeline(), Recorder()
    bulkhead = Bulkhead(3, max_waiting=0)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(bulkhead.call, trio.sleep, 5)
        await trio.testing.wait_all_tasks_blocked()
        async with open_task_queue(concurrency=3, protect=bulkhead, instruments=[heard], rng=Halves()) as queue:
            for number in range(6):
                queue.submit_nowait(line.work, str(number))
    # refused at 0 (three at once), and after pauses of 0.5, 1 and 2 s: at 0.5, 1.5, 3.5; then one alone at 7.5
    assert sorted({round(at, 3) for at in heard.times(GateShut)}) == [0, 0.5, 1.5, 3.5]
    assert [at for at, _ in line.events] == [7.5, 8.5, 8.5, 8.5, 9.5, 9.5]
    assert queue.statistics().refusals == 6


@virtual
async def test_time_outs_of_the_job_hold_while_it_is_refused() -> None:
    line, guard = Timeline(), hourly(1)
    async with open_task_queue(protect=guard, failures=Failures.RECORD) as queue:
        first = queue.submit_nowait(line.work, "first")
        await trio.lowlevel.checkpoint()
        late = queue.submit_nowait(line.work, "late", start_within=10)
        slow = queue.submit_nowait(line.work, "slow", timeout=20)
        patient = queue.submit_nowait(line.work, "patient", timeout=3000)
        for job, which in ((late, "start_within"), (slow, "timeout")):
            with pytest.raises(JobTimeoutError) as caught:
                await job.wait()
            assert caught.value.which == which
        assert trio.current_time() == 20
    assert line.events == [(0, "first"), (1800, "patient")]
    assert (first.attempts, patient.attempts) == (1, 1)


# --------------------------------------------------------------------------------------------------- spend guard


@virtual
async def test_money_that_is_spent_in_the_body_shuts_the_gate_of_the_queue() -> None:
    line, cooldown = Timeline(), Cooldown(ramp=0)
    guard = hourly(3, gate=cooldown.gate())
    retry = Retry(on=BudgetExhaustedError, attempts=2, backoff=Constant(0))
    async with open_task_queue(concurrency=1, cooldown=cooldown, retry=retry) as queue:
        jobs = [queue.submit_nowait(guard.wrap(line.work), str(number)) for number in range(8)]
    assert line.events == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        *((1800 + n, str(3 + n)) for n in range(3)),
        (5400, "6"),
        (5401, "7"),
    ]
    # a refusal in the body was an attempt: one job an hour has two, the others did not try in vain
    assert [job.attempts for job in jobs] == [1, 1, 1, 2, 1, 1, 2, 1]


@virtual
async def test_a_gate_of_its_own_holds_back_what_costs_money_and_nothing_else() -> None:
    line, paid = Timeline(), Gate("paid")
    guard = hourly(2, gate=paid)
    async with open_task_queue(concurrency=1, retry=Retry(on=BudgetExhaustedError, backoff=Constant(0))) as queue:
        for number in range(5):
            queue.submit_nowait(guard.wrap(line.work), f"paid {number}", gate=paid)
            queue.submit_nowait(line.work, f"free {number}")
    assert [at for at, what in line.events if what.startswith("free")] == [1, 3, 4, 5, 6]
    assert [at for at, what in line.events if what.startswith("paid")] == [0, 2, 1800, 1801, 5400]


# ------------------------------------------------------------------------------------------- budgets of retries


@briefly
@pytest.mark.parametrize(
    ("budget", "jobs", "calls"),
    [
        (lambda: TokenQuota(500, cost=5), 1000, 1100),
        (lambda: RetryBudget(0.1, minimum_per_second=0), 100, 110),
        (lambda: GrpcThrottle(), 100, 104),
    ],
    ids=["TokenQuota", "RetryBudget", "GrpcThrottle"],
)
@pytest.mark.parametrize("concurrency", [1, 7, 500])
async def test_queues_share_a_budget_of_retries_to_the_call(
    budget: Callable[[], Budget], jobs: int, calls: int, concurrency: int
) -> None:
    made = 0

    async def body() -> None:
        nonlocal made
        made += 1
        await trio.lowlevel.checkpoint()
        raise Flop

    retry = Retry(on=Flop, attempts=3, backoff=Constant(0), budget=budget())
    async with (
        open_task_queue(concurrency=concurrency, retry=retry, failures=Failures.RECORD) as one,
        open_task_queue(concurrency=concurrency, retry=retry, failures=Failures.RECORD) as other,
    ):
        for _ in range(jobs // 2):
            one.submit_nowait(body)
            other.submit_nowait(body)
    assert made == calls
    assert one.statistics().retries + other.statistics().retries == calls - jobs


@virtual
async def test_refusals_ask_no_budget() -> None:
    quota, line = TokenQuota(500, cost=5), Timeline()
    retry = Retry(on=Flop, backoff=Constant(1), budget=quota)
    async with open_task_queue(protect=RateLimiter(1, per=5, max_wait=0), retry=retry) as queue:
        for number in range(4):
            queue.submit_nowait(line.work, str(number))
    assert queue.statistics().refusals > 0
    assert quota.statistics().level == 500


# ----------------------------------------------------------------------------- those that watch, and that replace


async def fetch(number: int) -> int:
    await trio.sleep(1)
    if number % 3 == 0:
        raise Flop
    return number


async def push(number: int) -> int:
    await trio.sleep(1)
    return number


class Sender:
    async def send(self, number: int) -> int:
        return await push(number)


@virtual
async def test_a_meter_counts_for_the_function_of_each_job_and_hears_of_retries() -> None:
    meter = CallMeter()
    async with open_task_queue(
        concurrency=2, protect=meter, instruments=[meter], retry=pauses(2), failures=Failures.RECORD
    ) as queue:
        for number in range(6):
            queue.submit_nowait(fetch, number)
            queue.submit_nowait(push, number)
            queue.submit_nowait(Sender().send, number)
    assert set(meter.keys()) == {"fetch", "push", "Sender.send"}
    figures = {key: meter.statistics(key) for key in meter.keys()}
    assert {key: (of.calls, of.failures, of.retries) for key, of in figures.items()} == {
        "fetch": (8, 4, 2),
        "push": (6, 0, 0),
        "Sender.send": (6, 0, 0),
    }


def test_a_meter_counts_for_the_function_that_runs_in_a_thread() -> None:
    async def main() -> None:
        async with open_task_queue(protect=meter) as queue:
            for number in range(3):
                await queue.submit_sync(divmod, 10, number + 1)
            await queue.submit_sync(max, number, 7)
        assert {key: meter.statistics(key).calls for key in meter.keys()} == {"divmod": 3, "max": 1}

    meter = CallMeter()
    trio.run(main)


@virtual
async def test_a_key_is_made_from_what_the_job_was_submitted_with() -> None:
    meter = CallMeter(key=lambda fn, args: (fn, args))
    protect = Stack(CircuitBreaker(), meter)
    async with open_task_queue(protect=protect) as queue:
        queue.submit_nowait(push, 1)
        queue.submit_nowait(push, 2)
    assert set(meter.keys()) == {(push, (1,)), (push, (2,))}


@virtual
async def test_an_alarm_hears_a_storm_of_retries() -> None:
    heard = Recorder()
    alarm = StormAlarm(calls=5, per=1, instruments=[heard])

    async def body() -> None:
        raise Flop

    retry = Retry(on=Flop, attempts=20, backoff=Constant(0.1))
    async with open_task_queue(protect=alarm, instruments=[alarm], retry=retry, failures=Failures.RECORD) as queue:
        queue.submit_nowait(body)
    assert [round(at, 3) for at in heard.times(StormStarted)] == [0.4]
    assert alarm.meter.statistics("test_an_alarm_hears_a_storm_of_retries.<locals>.body").spacing.p50 == pytest.approx(
        0.1
    )


@virtual
async def test_a_hedge_starts_the_body_again_and_that_is_one_attempt() -> None:
    heard, starts = Recorder(), Counter[int]()

    async def body(number: int) -> int:
        starts[number] += 1
        await trio.sleep(10 if starts[number] == 1 and number % 2 else 1)
        return number

    hedge = Hedge(after=2, instruments=[heard])
    async with open_task_queue(concurrency=4, protect=hedge) as queue:
        jobs = [queue.submit_nowait(body, number) for number in range(4)]
    assert (trio.current_time(), [job.result_nowait() for job in jobs]) == (3, [0, 1, 2, 3])
    assert starts == {0: 1, 1: 2, 2: 1, 3: 2}
    assert [event.name.rpartition(".")[2] for event in heard.of(HedgeStarted)] == ["body", "body"]
    assert {job.attempts for job in jobs} == {1}


@virtual
async def test_the_loser_of_a_hedge_says_nothing_to_the_limit_of_the_queue() -> None:
    limiter, starts = AdaptiveLimiter(), Counter[int]()

    async def body() -> None:
        starts[0] += 1
        await trio.sleep(10 if starts[0] == 1 else 1)

    async with open_task_queue(limiter=limiter, protect=Hedge(after=2)) as queue:
        queue.submit_nowait(body)
    statistics = limiter.statistics()
    assert (statistics.ok, statistics.dropped, statistics.ignored, statistics.rtt) == (1, 0, 1, 1)
    assert limiter.is_idle


@virtual
async def test_a_fallback_answers_for_what_fails_and_for_what_is_refused() -> None:
    heard = Recorder()
    breaker = CircuitBreaker(trip=Consecutive(1), cooldown=100)
    protect = Stack(Fallback(on=(Flop, CircuitOpenError), value=-1, instruments=[heard]), breaker)
    async with open_task_queue(concurrency=1, protect=protect) as queue:
        jobs = [queue.submit_nowait(fetch, number) for number in (1, 3, 4)]
    assert [job.result_nowait() for job in jobs] == [1, -1, -1]  # the third was refused
    assert [type(event.error) for event in heard.of(FallbackUsed)] == [Flop, CircuitOpenError]
    assert (queue.statistics().refusals, queue.statistics().failed, trio.current_time()) == (0, 0, 2)


@virtual
async def test_a_time_out_in_the_stack_is_a_failure_of_the_attempt() -> None:
    breaker, line = CircuitBreaker(trip=Consecutive(2), cooldown=10), Timeline()

    async def body() -> None:
        await line.work("x", 5 if trio.current_time() < 10 else 1)

    protect = Stack(breaker, Timeout(2))
    async with open_task_queue(
        concurrency=1, protect=protect, retry=pauses(0, attempts=9, on=trio.TooSlowError)
    ) as queue:
        job = queue.submit_nowait(body)
    assert line.events == [(0, "x"), (2, "x"), (14, "x")]
    assert job.attempts == 3


@virtual
async def test_a_policy_inside_the_body_is_an_ordinary_part_of_it() -> None:
    bulkhead, line = Bulkhead(2), Timeline()
    async with open_task_queue(concurrency=9) as queue:
        jobs: list[JobHandle[str]] = [queue.submit_nowait(bulkhead.wrap(line.work), str(n)) for n in range(6)]
    assert line.peak == 2
    assert (trio.current_time(), {job.attempts for job in jobs}) == (3, {1})
    assert bulkhead.is_idle


@virtual
async def test_the_tokens_of_a_bulkhead_are_slots_for_a_queue_and_for_others() -> None:
    bulkhead, line = Bulkhead(3), Timeline()
    async with open_task_queue(limiter=bulkhead.tokens) as queue, trio.open_nursery() as nursery:
        for number in range(6):
            queue.submit_nowait(line.work, str(number))
            nursery.start_soon(bulkhead.wrap(line.work), str(number))
        await trio.sleep(1.5)
        bulkhead.limit = 1
    assert line.peak == 3
    assert [at for at, _ in line.events] == [0] * 3 + [1] * 3 + [2, 3, 4, 5, 6, 7]
    assert not bulkhead.is_idle  # its limit is not that of a new one
    bulkhead.limit = 3
    assert bulkhead.is_idle


def test_a_success_lets_one_go_first_through_a_gate_that_is_shut_for_an_unknown_time() -> None:
    """A breaker's probe is out: another job is refused, nobody knows for how long. It is until the probe is back."""

    async def main() -> None:
        breaker = CircuitBreaker(trip=Consecutive(1), cooldown=10)
        starts: list[float] = []

        async def body() -> None:
            starts.append(trio.current_time())
            await trio.sleep(0.5)

        with suppress(OSError):
            with breaker.guard():
                raise OSError
        await trio.sleep(10)
        async with open_task_queue(concurrency=2, protect=breaker) as queue:
            for _ in range(5):
                queue.submit_nowait(body)
        assert starts == [10, 10.5, 11, 11, 11.5]  # the probe; one goes first; its success opens the gate for all

    for seed in range(3):
        run_virtual(main, seed=seed)
