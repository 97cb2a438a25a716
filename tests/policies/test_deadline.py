"""Time-outs, deadlines and wishes of a retry, at exact virtual times."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from tests.policies.service import AT_ONCE, FORMS, Ear, Form, Purse, Service, by_loop, notes, outcome, three_forms
from trio_orchestrator.algorithms.backoff import Constant, Exponential
from trio_orchestrator.errors import QueueFullError, RejectedError
from trio_orchestrator.event import RetryScheduled
from trio_orchestrator.policies.http import http_retry_after, http_transient
from trio_orchestrator.policies.retry import GiveUp, Retry
from trio_orchestrator.testing import run_virtual

# ------------------------------------------------------------------------------------------- deadline and pauses


@three_forms
def test_tenacity_423_no_sleep_beyond_the_time_out(form: Form) -> None:
    service = Service(OSError(), seconds=1)
    error, now = outcome(form, Retry(on=OSError, attempts=9, backoff=Exponential(), timeout=5), service)
    assert service.starts == [0, 2]
    assert now == 3  # a pause of 2 would end at 5
    assert isinstance(error, OSError)
    assert notes(error) == ["gave up after 2 attempts in 3 s: deadline"]


@pytest.mark.parametrize(("timeout", "starts"), [(1, [0]), (1.001, [0, 1]), (3, [0, 1]), (3.5, [0, 1, 3])])
@three_forms
def test_a_pause_must_end_before_the_deadline(form: Form, timeout: float, starts: list[float]) -> None:
    service = Service(OSError())
    error, now = outcome(form, Retry(on=OSError, attempts=9, backoff=Exponential(), timeout=timeout), service)
    assert service.starts == starts
    assert now == starts[-1]
    assert notes(error)[0].endswith("s: deadline")


@three_forms
def test_google_cloud_rust_2307_no_sleep_beyond_the_callers_deadline(form: Form) -> None:
    service = Service(OSError(), seconds=1)

    async def main() -> float:
        with pytest.raises(OSError) as caught, trio.fail_after(5):  # the error itself, not TooSlowError
            await form(Retry(on=OSError, attempts=9, backoff=Exponential()), service)
        assert notes(caught.value) == ["gave up after 2 attempts in 3 s: deadline"]
        return trio.current_time()

    assert run_virtual(main) == 3


@three_forms
def test_a_deadline_that_passed_unnoticed_ends_the_run_also_without_a_pause(form: Form) -> None:
    async def body() -> None:
        starts.append(trio.current_time())
        scope.deadline = trio.current_time()
        raise OSError

    starts: list[float] = []
    scope = trio.CancelScope()

    async def main() -> None:
        with pytest.raises(OSError) as caught, scope:
            await form(Retry(on=OSError, backoff=AT_ONCE), body)
        assert notes(caught.value) == ["gave up after 1 attempt in 0 s: deadline"]

    run_virtual(main)
    assert starts == [0]


@three_forms
def test_what_a_cancelled_body_raises_is_not_repeated_into_the_cancellation(form: Form) -> None:
    async def body() -> None:
        starts.append(trio.current_time())
        try:
            await trio.sleep(10)
        finally:
            raise OSError("while cleaning up")

    starts: list[float] = []

    async def main() -> None:
        with pytest.raises(OSError, match="while cleaning up"), trio.move_on_after(1):
            await form(Retry(on=OSError, backoff=AT_ONCE), body)

    run_virtual(main)
    assert starts == [0]


# --------------------------------------------------------------------------------------------- time-outs of ours


@three_forms
def test_an_attempt_that_is_too_slow_is_repeated_whatever_on_says(form: Form) -> None:
    service = Service("never", seconds=10)
    error, now = outcome(form, Retry(on=(), attempts=3, attempt_timeout=2, backoff=Constant(1)), service)
    assert service.starts == [0, 3, 6]
    assert now == 8
    assert isinstance(error, trio.TooSlowError)
    assert str(error) == "attempt_timeout=2 s was exceeded"
    assert error.__context__ is None
    assert notes(error) == ["gave up after 3 attempts in 8 s: attempts"]


@three_forms
def test_the_total_time_out_ends_an_attempt_and_is_never_repeated(form: Form) -> None:
    failure = OSError("the last failure")
    service = Service(failure, failure, "late", seconds=2)
    retry = Retry(on=(OSError, trio.TooSlowError), attempts=9, backoff=Constant(0.5), timeout=6.5)
    error, now = outcome(form, retry, service)
    assert (service.starts, now) == ([0, 2.5, 5], 6.5)
    assert isinstance(error, trio.TooSlowError)
    assert str(error) == "timeout=6.5 s was exceeded"
    assert error.__cause__ is failure
    assert notes(error) == ["gave up after 3 attempts in 6.5 s: deadline"]


@three_forms
def test_the_total_time_out_of_a_first_attempt_has_no_cause(form: Form) -> None:
    error, now = outcome(form, Retry(on=OSError, timeout=3), Service("late", seconds=9))
    assert (str(error), now, error.__cause__) == ("timeout=3 s was exceeded", 3, None)


@three_forms
def test_the_attempt_runs_under_the_smaller_of_both(form: Form) -> None:
    retry = Retry(on=(), attempts=9, attempt_timeout=2, timeout=3, backoff=AT_ONCE)
    service = Service("late", seconds=9)
    error, now = outcome(form, retry, service)
    assert (service.starts, now) == ([0, 2], 3)
    assert str(error) == "timeout=3 s was exceeded"
    assert str(error.__cause__) == "attempt_timeout=2 s was exceeded"


@three_forms
def test_of_two_equal_time_outs_the_total_one_counts(form: Form) -> None:
    error, now = outcome(form, Retry(on=(), attempt_timeout=2, timeout=2), Service("late", seconds=9))
    assert (str(error), now) == ("timeout=2 s was exceeded", 2)


@three_forms
def test_the_total_time_out_in_the_last_attempt_is_told_as_the_deadline(form: Form) -> None:
    error, _ = outcome(form, Retry(on=OSError, attempts=1, timeout=3), Service("late", seconds=9))
    assert notes(error) == ["gave up after 1 attempt in 3 s: deadline"]


@pytest.mark.parametrize("options", [{"attempt_timeout": 5.0}, {"timeout": 5.0}], ids=str)
@three_forms
def test_the_callees_own_too_slow_error_is_not_ours(form: Form, options: dict[str, float]) -> None:
    async def body() -> None:
        starts.append(trio.current_time())
        with trio.fail_after(1):
            await trio.sleep(3)

    starts: list[float] = []
    error, _ = outcome(form, Retry(on=OSError, backoff=AT_ONCE, **options), body)  # type: ignore[arg-type]
    assert isinstance(error, trio.TooSlowError)
    assert "exceeded" not in str(error)
    assert starts == [0]
    outcome(form, Retry(on=trio.TooSlowError, attempts=2, backoff=AT_ONCE, **options), body)  # type: ignore[arg-type]
    assert starts == [0, 0, 1]


@three_forms
def test_an_attempt_that_returns_without_noticing_its_time_out_has_succeeded(form: Form) -> None:
    async def body() -> str:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(10)
        return "fine"

    assert outcome(form, Retry(on=OSError, attempt_timeout=2, timeout=3), body) == ("fine", 10)


@three_forms
def test_what_a_timed_out_body_raises_while_it_cleans_up_is_the_failure(form: Form) -> None:
    async def body() -> None:
        starts.append(trio.current_time())
        try:
            await trio.sleep(10)
        finally:
            raise ZeroDivisionError(len(starts))

    starts: list[float] = []
    retry = Retry(on=ZeroDivisionError, attempts=2, attempt_timeout=1, backoff=AT_ONCE)
    error, _ = outcome(form, retry, body)
    assert repr(error) == "ZeroDivisionError(2)"
    assert isinstance(error.__context__, trio.Cancelled)
    outcome(form, Retry(on=OSError, attempt_timeout=1, backoff=AT_ONCE), body)
    assert starts == [0, 1, 0]


@three_forms
def test_a_group_out_of_a_timed_out_nursery_is_judged_without_our_cancellation(form: Form) -> None:
    async def fail_late() -> None:
        try:
            await trio.sleep(10)
        finally:
            raise OSError("late")

    async def body() -> None:
        starts.append(trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep, 20)

    starts: list[float] = []
    error, _ = outcome(form, Retry(on=OSError, attempts=2, attempt_timeout=1, backoff=AT_ONCE), body)
    assert isinstance(error, ExceptionGroup)
    assert [repr(leaf) for leaf in error.exceptions] == ["OSError('late')"]
    assert starts == [0, 1]


@three_forms
def test_trio_698_a_scope_cancelled_by_hand_is_not_a_time_out(form: Form) -> None:
    service = Service("late", seconds=100)

    async def main() -> bool:
        with trio.fail_after(50) as outer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(form, Retry(on=lambda error: True, attempt_timeout=9), service)
                await trio.sleep(1)
                outer.cancel()
        return outer.cancelled_caught

    with pytest.raises(trio.TooSlowError):  # Trio's own report, not ours
        run_virtual(main)
    assert service.starts == [0]


@three_forms
def test_the_bodys_own_scope_inside_an_attempt_works_as_ever(form: Form) -> None:
    async def body() -> str:
        with trio.move_on_after(1):
            await trio.sleep(5)
        return "fine"

    assert outcome(form, Retry(on=OSError, attempt_timeout=3), body) == ("fine", 1)


@three_forms
def test_give_up_works_under_a_time_out_too(form: Form) -> None:
    last = KeyError()
    assert outcome(form, Retry(on=OSError, attempt_timeout=3), Service(GiveUp(last))) == (last, 0)
    assert last.__context__ is None


# ---------------------------------------------------------------------------------------------------- wishes


class Refusal(Exception):
    def __init__(self, wish: Any) -> None:
        self.wish = wish


def wish_of(error: Refusal) -> Any:
    return error.wish


@pytest.mark.parametrize(
    ("wish", "pause"),
    [(5, 5), (5.5, 5.5), (1, 2), (0, 2), (2, 2), (None, 2), (-1, 2), (math.nan, 2), (math.inf, 2), ("9", 2), ([], 2)],
)
@three_forms
def test_the_pause_is_the_longer_of_backoff_and_wish(form: Form, wish: Any, pause: float) -> None:
    service = Service(Refusal(wish), "fine")
    assert outcome(form, Retry(on=Refusal, backoff=Constant(2), retry_after=wish_of), service) == ("fine", pause)


@three_forms
def test_ky_390_a_wish_of_zero_is_a_retry_at_once_and_no_stop(form: Form) -> None:
    service = Service(Refusal(0), "fine")
    assert outcome(form, Retry(on=Refusal, backoff=AT_ONCE, retry_after=wish_of), service) == ("fine", 0)
    assert service.starts == [0, 0]


@three_forms
def test_openai_agents_python_3266_a_wish_is_not_cut_by_the_cap(form: Form) -> None:
    service = Service(Refusal(60), "fine")
    retry = Retry(on=Refusal, backoff=Exponential(cap=30), retry_after=wish_of)
    assert outcome(form, retry, service) == ("fine", 60)


@three_forms
def test_prefect_20470_a_wish_beyond_the_deadline_ends_the_run_now(form: Form) -> None:
    error, now = outcome(form, Retry(on=Refusal, timeout=60, retry_after=wish_of), Service(Refusal(60)))
    assert now == 0
    assert notes(error) == ["gave up after 1 attempt in 0 s: deadline"]
    assert outcome(form, Retry(on=Refusal, timeout=61, retry_after=wish_of), Service(Refusal(60), "ok")) == ("ok", 60)


@three_forms
def test_a_refusal_is_a_wish_by_itself(form: Form) -> None:
    for refusal, pause in (
        (RejectedError(retry_after=7), 7),
        (QueueFullError(3), 2),
        (RejectedError(retry_after=1), 2),
    ):
        service = Service(refusal, "fine")
        assert outcome(form, Retry(on=RejectedError, backoff=Constant(2)), service) == ("fine", pause)


@three_forms
def test_the_longest_wish_in_a_group_counts(form: Form) -> None:
    group = ExceptionGroup("", [Refusal(3), ExceptionGroup("", [Refusal(9), RejectedError(retry_after=5)])])

    def wish_or_none(error: Exception) -> Any:
        return getattr(error, "wish", None)

    retry = Retry(on=(Refusal, RejectedError), backoff=Constant(2), retry_after=wish_or_none)
    assert outcome(form, retry, Service(group, "fine")) == ("fine", 9)


def test_a_bad_result_may_wish_too() -> None:
    retry = Retry(on=(), on_result=lambda result: result > 0, retry_after=lambda result: result, backoff=AT_ONCE)
    assert outcome(FORMS[0], retry, Service(8, 3, 0)) == (0, 11)


@three_forms
def test_nobody_is_asked_for_a_wish_when_our_time_out_ended_the_attempt_or_none_follows(form: Form) -> None:
    asked: list[Exception] = []
    retry = Retry(on=OSError, attempts=2, attempt_timeout=1, backoff=AT_ONCE, retry_after=asked.append)
    outcome(form, retry, Service("late", seconds=5))
    outcome(form, retry, Service(KeyError()))
    assert asked == []


def test_the_body_of_a_loop_may_wish_for_itself_and_only_for_this_pause() -> None:
    async def main() -> list[float]:
        starts: list[float] = []
        async for attempt in Retry(on=OSError, attempts=5, backoff=Constant(2)):
            with attempt:
                starts.append(trio.current_time())
                if attempt.number in wishes:
                    attempt.retry_after(wishes[attempt.number])
                if attempt.number < 5:
                    raise OSError
        return starts

    wishes = {1: 5, 3: 1, 4: math.nan}
    assert run_virtual(main) == [0, 5, 7, 9, 11]


def test_decide_tells_the_wish_whatever_it_decides() -> None:
    retry = Retry(on=Refusal, attempts=2, backoff=Constant(2), retry_after=wish_of)
    again = retry.decide("job", Refusal(30), attempt=1, started_at=0, now=0, deadline=math.inf)
    late = retry.decide("job", Refusal(30), attempt=1, started_at=0, now=0, deadline=9)
    ended = retry.decide("job", Refusal(30), attempt=2, started_at=0, now=0, deadline=math.inf)
    own = retry.decide("job", Refusal(30), attempt=1, started_at=0, now=0, deadline=math.inf, wish=40)
    assert [(d.delay, d.reason, d.wish) for d in (again, late, ended, own)] == [
        (30, "", 30),
        (None, "deadline", 30),
        (None, "attempts", 30),
        (40, "", 40),
    ]


def test_a_503_of_httpx_is_repeated_when_the_server_says() -> None:
    answers = iter([httpx.Response(503, headers={"Retry-After": "60"}), httpx.Response(200, text="fine")])

    async def fetch() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: next(answers))) as client:
            response = await client.get("https://example.org")
            return response.raise_for_status().text

    assert outcome(by_loop, Retry(on=http_transient, retry_after=http_retry_after), fetch) == ("fine", 60)


def test_the_budget_is_not_asked_for_a_retry_that_a_wish_pushes_over_the_deadline() -> None:
    retry = Retry(on=Refusal, timeout=30, retry_after=wish_of, budget=(purse := Purse(9)), instruments=[ear := Ear()])
    outcome(by_loop, retry, Service(Refusal(5), Refusal(60)))
    assert len(purse.asked) == 1
    assert [isinstance(event, RetryScheduled) for event in ear.heard] == [True, False]
