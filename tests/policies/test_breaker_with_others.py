"""A circuit breaker among others: time-outs of ours on either side, policies inside, groups, a queue around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.policies.circuits import CLOSED, HALF_OPEN, OPEN, by_call, by_guard, fail
from tests.policies.service import AT_ONCE, Form, Service, three_forms
from trio_orchestrator import Failures, JobTimeoutError, open_task_queue
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.trip import Consecutive, Ratio
from trio_orchestrator.errors import CircuitOpenError, LimitExceededError, RejectedError
from trio_orchestrator.event import GateShut
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policy_event import CircuitOpened
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

INNER = [by_call, by_guard]
both_inner = pytest.mark.parametrize("inner", INNER, ids=lambda form: form.__name__)


async def hang() -> None:
    await trio.sleep_forever()


async def run_100(fn: Callable[[], Awaitable[Any]], kind: type[Exception] = trio.TooSlowError) -> None:
    async def run() -> None:
        with pytest.raises(kind):
            await fn()

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(run)


# --------------------------------------------------------------------------------- the time-outs of law 4


@both_inner
@three_forms
async def test_100_hung_calls_under_attempt_timeout_open_it(
    form: Form, inner: Callable[..., Awaitable[Any]], autojump_clock: MockClock
) -> None:
    recorder = Recorder()
    breaker = CircuitBreaker(trip=Ratio(0.5, calls=100, minimum=100), on=ConnectionError, instruments=[recorder])
    retry = Retry(on=OSError, attempts=1, attempt_timeout=3)
    await run_100(lambda: form(retry, lambda: inner(breaker, hang)))
    assert recorder.events == [(3, CircuitOpened("circuit", 30, 1, None))]
    assert (breaker.statistics().failures, breaker.statistics().neutral, breaker.statistics().in_flight) == (100, 0, 0)


@both_inner
@pytest.mark.parametrize("limit", [Timeout(3), Retry(on=OSError, timeout=3)], ids=repr)
async def test_so_do_a_timeout_and_a_total_time_out_around_it(
    limit: Timeout | Retry, inner: Callable[..., Awaitable[Any]], autojump_clock: MockClock
) -> None:
    breaker = CircuitBreaker(on=ConnectionError)
    await run_100(lambda: limit.call(inner, breaker, hang))
    assert (breaker.state, breaker.statistics().failures, breaker.statistics().late) == (OPEN, 10, 90)


@both_inner
@three_forms
async def test_100_hung_calls_that_the_users_own_scope_ends_do_not(
    form: Form, inner: Callable[..., Awaitable[Any]], autojump_clock: MockClock
) -> None:
    breaker = CircuitBreaker()
    retry = Retry(on=OSError, attempt_timeout=30, timeout=60)

    async def run() -> None:
        with trio.fail_after(3):
            await form(retry, lambda: inner(breaker, hang))

    await run_100(run)
    assert (breaker.state, breaker.statistics().neutral, breaker.statistics().failures) == (CLOSED, 100, 0)


@both_inner
@pytest.mark.parametrize("on", [ConnectionError, (), lambda error: False], ids=["type", "nothing", "predicate"])
async def test_a_timeout_inside_counts_whatever_on_says(
    on: Any, inner: Callable[..., Awaitable[Any]], autojump_clock: MockClock
) -> None:
    breaker = CircuitBreaker(on=on, neutral=trio.TooSlowError)
    await run_100(lambda: inner(breaker, lambda: Timeout(3).call(hang)))
    assert (breaker.state, breaker.statistics().failures) == (OPEN, 10)


async def test_a_time_out_of_the_services_own_is_judged_by_on(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(on=ConnectionError)

    async def body() -> None:
        with trio.fail_after(3):
            await trio.sleep_forever()

    await run_100(lambda: breaker.call(body))
    assert (breaker.state, breaker.statistics().successes) == (CLOSED, 100)


async def test_a_time_out_of_ours_in_a_nursery_inside_is_a_failure_too(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(on=ConnectionError)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Timeout(3).call, hang)
            nursery.start_soon(hang)

    await run_100(lambda: breaker.call(body), ExceptionGroup)
    assert (breaker.state, breaker.statistics().failures) == (OPEN, 10)


async def test_a_breaker_in_a_child_task_hears_of_the_time_out_around_the_nursery(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaker.call, hang)
            nursery.start_soon(breaker.call, hang)

    await run_100(lambda: Timeout(3).call(body))
    assert (breaker.state, breaker.statistics().failures, breaker.statistics().late) == (OPEN, 10, 190)


async def test_a_probe_that_our_time_out_ends_opens_again_at_once(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Consecutive(1))
    await fail(breaker)
    await trio.sleep(30)
    with pytest.raises(trio.TooSlowError):
        await Timeout(3).call(breaker.call, hang)
    statistics = breaker.statistics()
    assert (statistics.state, statistics.opens_in, statistics.openings, statistics.probes) == (OPEN, 30, 2, 0)


# -------------------------------------------------------------------------------- policies inside, groups


@both_inner
async def test_a_refusal_of_a_policy_further_in_is_neutral(
    inner: Callable[..., Awaitable[Any]], autojump_clock: MockClock
) -> None:
    other, breaker = CircuitBreaker(trip=Consecutive(1), cooldown=1000), CircuitBreaker(trip=Consecutive(1))
    await fail(other)

    async def refused_by_another() -> None:
        await other.call(hang)

    async def refuse_20_times() -> None:
        for body in (refused_by_another, Service(LimitExceededError())):
            for _ in range(10):
                with pytest.raises(RejectedError):
                    await inner(breaker, body)

    await refuse_20_times()
    assert breaker.is_idle
    await fail(breaker)
    await trio.sleep(30)
    await refuse_20_times()
    assert (breaker.state, breaker.statistics().probes, breaker.statistics().neutral) == (HALF_OPEN, 0, 40)


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([OSError()], "failures"),
        ([OSError(), ValueError()], "failures"),
        ([OSError(), RejectedError()], "failures"),
        ([OSError(), LookupError()], "failures"),
        ([ValueError(), ExceptionGroup("inner", [LookupError(), OSError()])], "failures"),
        ([ValueError()], "successes"),
        ([ValueError(), RejectedError()], "successes"),
        ([LookupError(), ValueError()], "successes"),
        ([LookupError(), RejectedError()], "neutral"),
        ([ExceptionGroup("inner", [RejectedError()])], "neutral"),
    ],
    ids=repr,
)
async def test_a_group_is_a_failure_if_any_of_it_is_and_neutral_if_all_of_it_is(
    errors: list[Exception], verdict: str
) -> None:
    group = ExceptionGroup("several", errors)
    for form in INNER:
        breaker = CircuitBreaker(on=OSError, neutral=LookupError)
        with pytest.raises(ExceptionGroup) as caught:
            await form(breaker, Service(group))
        assert caught.value is group
        counts = {name: getattr(breaker.statistics(), name) for name in ("failures", "successes", "neutral")}
        assert counts == {"failures": 0, "successes": 0, "neutral": 0} | {verdict: 1}


async def test_a_group_with_a_cancellation_in_it_is_neutral(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()

    async def raise_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raise_when_cancelled)
            nursery.start_soon(hang)

    with pytest.raises(ExceptionGroup), trio.move_on_after(1):
        await breaker.call(body)
    assert (breaker.statistics().neutral, breaker.statistics().failures) == (1, 0)


async def test_tower_resilience_381_an_open_circuit_touches_nothing_inside(autojump_clock: MockClock) -> None:
    service = Service(OSError())
    breaker = CircuitBreaker(trip=Consecutive(1))
    made: list[object] = []

    def plain() -> Any:
        made.append(None)
        return service()

    for _ in range(100):
        with pytest.raises((OSError, CircuitOpenError)):
            await breaker.call(plain)
        with pytest.raises(CircuitOpenError):
            await breaker.wrap(service)()
        with pytest.raises(CircuitOpenError), breaker.guard():
            made.append(None)
    assert (len(service.starts), len(made)) == (1, 1)


async def test_a_retry_outside_is_one_failure_an_attempt_and_is_refused_when_it_opens(
    autojump_clock: MockClock,
) -> None:
    service = Service(OSError())
    breaker = CircuitBreaker(trip=Consecutive(3))
    with pytest.raises(CircuitOpenError) as caught:
        await Retry(on=OSError, attempts=10, backoff=AT_ONCE).call(breaker.call, service)
    assert isinstance(caught.value.__cause__, OSError)
    assert (len(service.starts), breaker.statistics().failures) == (3, 3)


async def test_a_retry_inside_is_one_failure_an_operation(autojump_clock: MockClock) -> None:
    service = Service(OSError())
    breaker = CircuitBreaker(trip=Consecutive(3), on=OSError)
    with pytest.raises(OSError):
        await breaker.call(Retry(on=OSError, attempts=10, backoff=AT_ONCE).call, service)
    assert (len(service.starts), breaker.statistics().failures, breaker.state) == (10, 1, CLOSED)


def test_three_deep_it_gives_everything_back_wherever_it_is_cancelled() -> None:
    async def scenario(injector: CancelAt) -> None:
        outer, inner = CircuitBreaker(trip=Consecutive(1)), CircuitBreaker(trip=Consecutive(1))
        retry = Retry(on=OSError, attempts=2, attempt_timeout=30, backoff=Constant(1))
        service = Service(OSError(), "fine", seconds=1)

        async def body() -> None:
            with outer.guard():
                await retry.call(inner.call, service)

        with injector.watch():
            try:
                await body()
            except CircuitOpenError:
                assert not injector.fired
        for breaker in (outer, inner):
            assert breaker.statistics().in_flight == 0
        assert outer.state is CLOSED
        assert outer.statistics().neutral == 1  # cancelled, or refused by the inner one

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 2


# ---------------------------------------------------------------------------------------------- in a queue


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("inside", [False, True], ids=["protect", "inside the job"])
@pytest.mark.parametrize("option", ["attempt_timeout", "timeout"])
def test_a_time_out_of_the_queue_is_a_failure(option: str, inside: bool, seed: int) -> None:
    async def main() -> None:
        breaker = CircuitBreaker(trip=Consecutive(3), on=ConnectionError)
        options: dict[str, Any] = {option: 3} if inside else {option: 3, "protect": breaker}
        async with open_task_queue(concurrency=3, failures=Failures.RECORD, **options) as queue:
            jobs = [queue.submit_nowait(breaker.call, hang) if inside else queue.submit_nowait(hang) for _ in range(3)]
            for job in jobs:
                with pytest.raises(JobTimeoutError):
                    await job.wait()
            statistics = breaker.statistics()
            assert (statistics.state, statistics.failures, statistics.in_flight) == (OPEN, 3, 0)
            assert trio.current_time() == 3

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("how", ["handle", "queue", "outside"])
async def test_a_job_that_somebody_cancels_is_neutral(how: str, autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Consecutive(1))
    with trio.CancelScope() as scope:
        async with open_task_queue(protect=breaker, timeout=50, attempt_timeout=40) as queue:
            job = queue.submit_nowait(hang)
            await trio.sleep(1)
            if how == "handle":
                job.cancel()
            elif how == "queue":
                await queue.close()
            else:
                scope.cancel()
    assert (breaker.state, breaker.statistics().neutral, breaker.statistics().in_flight) == (CLOSED, 1, 0)


async def test_an_open_circuit_burns_no_attempt_of_a_queued_job(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    breaker = CircuitBreaker(trip=Consecutive(2), cooldown=10)
    service = Service(OSError(), OSError(), OSError(), "fine")
    retry = Retry(on=OSError, attempts=5, backoff=Constant(0))
    async with open_task_queue(concurrency=1, protect=breaker, retry=retry, instruments=[recorder]) as queue:
        jobs = [queue.submit_nowait(service) for _ in range(20)]
        assert [await job.wait() for job in jobs] == ["fine"] * 20
    assert service.starts == [0, 0, 10, *[20] * 20]
    assert sum(job.attempts for job in jobs) == 23  # no more than the service has seen
    assert [event.seconds for event in recorder.of(GateShut)] == [10, 10]
    assert breaker.statistics().refused == 2


async def test_an_isolated_circuit_holds_the_queue_back_until_it_is_released(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    service = Service("fine")
    async with open_task_queue(concurrency=5, protect=breaker) as queue:
        hold = breaker.isolate()
        jobs = [queue.submit_nowait(service) for _ in range(10)]
        await trio.sleep(100)
        assert service.starts == []
        hold.release()
        assert [await job.wait() for job in jobs] == ["fine"] * 10
        assert {job.attempts for job in jobs} == {1}
    assert 100 < trio.current_time() <= 130  # its gate asks again after 30 s at most
    assert breaker.statistics().refused < 50


@pytest.mark.parametrize("seed", range(5))
def test_of_a_full_queue_only_the_probes_pass_when_the_cooldown_is_over(seed: int) -> None:
    async def main() -> None:
        running = peak = 0

        async def body() -> None:
            nonlocal running, peak
            running += 1
            peak = max(peak, running) if breaker.state is not CLOSED else peak
            try:
                await trio.sleep(1)
            finally:
                running -= 1

        breaker = CircuitBreaker(trip=Consecutive(1), probes=2, close_after=2, cooldown=10)
        await fail(breaker)
        async with open_task_queue(concurrency=50, protect=breaker) as queue:
            jobs = [queue.submit_nowait(body) for _ in range(100)]
            for job in jobs:
                await job.wait()
            assert {job.attempts for job in jobs} == {1}
        assert peak == 2
        assert breaker.state is CLOSED

    run_virtual(main, seed=seed)


async def test_a_retry_of_refusals_inside_a_job_pauses_until_the_cooldown_is_over(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker(trip=Consecutive(1), cooldown=10)
    await fail(breaker)
    service = Service("fine")
    retry = Retry(on=CircuitOpenError, attempts=3, backoff=Constant(4))
    async with open_task_queue(retry=retry) as queue:
        job = queue.submit_nowait(breaker.call, service)
        assert await job.wait() == "fine"
    assert (job.attempts, service.starts, breaker.state) == (2, [10], CLOSED)
