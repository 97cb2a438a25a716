"""Who is asked and told when an attempt has failed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, Ear, Form, Purse, Service, by_call, notes, outcome, three_forms
from trio_orchestrator.algorithms.backoff import Constant, Exponential
from trio_orchestrator.event import GaveUp, RetryScheduled
from trio_orchestrator.policies.failure import EXHAUSTIONS
from trio_orchestrator.policies.retry import NO_RESULT, GiveUp, Retry

# ----------------------------------------------------------------------------------------------------- budget and hooks


@three_forms
def test_the_budget_is_asked_before_each_retry(form: Form) -> None:
    purse = Purse(2)
    service = Service(failure := OSError())
    error, _ = outcome(form, Retry(on=OSError, backoff=AT_ONCE, budget=purse), service)
    assert notes(error) == ["gave up after 3 attempts in 0 s: budget"]
    assert purse.asked == [failure] * 3
    assert purse.deposits == []


@three_forms
def test_the_budget_is_not_asked_when_no_retry_would_happen(form: Form) -> None:
    for retry in (
        Retry(on=OSError, attempts=1, budget=(purse := Purse(9))),
        Retry(on=OSError, timeout=5, backoff=Constant(5), budget=purse),
        Retry(on=KeyError, budget=purse),
    ):
        outcome(form, retry, Service(OSError()))
        assert purse.asked == []


@three_forms
def test_a_success_is_deposited_with_its_attempts(form: Form) -> None:
    purse = Purse(9)
    retry = Retry(on=OSError, backoff=AT_ONCE, budget=purse)
    outcome(form, retry, Service(OSError(), OSError(), "fine"))
    outcome(form, retry, Service("fine"))
    assert purse.deposits == [3, 1]


def test_a_refused_result_asks_the_budget_with_no_error_and_deposits_nothing() -> None:
    purse = Purse(1)
    retry = Retry(on=(), on_result=lambda result: True, backoff=AT_ONCE, budget=purse)
    assert outcome(by_call, retry, Service(1, 2, 3)) == (2, 0)
    assert (purse.asked, purse.deposits) == ([None, None], [])


@three_forms
def test_instruments_and_on_retry_hear_what_follows_before_the_pause(form: Form) -> None:
    told: list[tuple[RetryScheduled, float]] = []
    ear = Ear()
    retry = Retry(
        on=OSError,
        attempts=3,
        backoff=Exponential(),
        on_retry=lambda event: told.append((event, trio.current_time())),
        instruments=[ear],
    )
    failure = OSError()
    outcome(form, retry, Service(failure, seconds=0.5))
    names = {event.name for event in ear.heard}
    assert len(names) == 1
    name = names.pop()
    assert name == {"by_call": "Service", "by_wrap": "by_wrap.<locals>.wrapped", "by_loop": "by_loop"}[form.__name__]
    assert ear.heard == [
        RetryScheduled(name, 1, 3, 1.0, 0.5, failure),
        RetryScheduled(name, 2, 3, 2.0, 2.0, failure),
        GaveUp(name, 3, 3, 4.5, "attempts", failure),
    ]
    assert told == [(ear.heard[0], 0.5), (ear.heard[1], 2.0)]


@pytest.mark.parametrize(
    ("retry", "failure", "reason"),
    [
        ({}, KeyError(), "not retryable"),
        ({}, GiveUp(OSError()), "given up"),
        ({"timeout": 5, "backoff": Constant(9)}, OSError(), "deadline"),
        ({"attempts": 1}, OSError(), "attempts"),
        ({"budget": Purse(0)}, OSError(), "budget"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@three_forms
def test_every_reason_to_give_up_is_heard(form: Form, retry: dict[str, Any], failure: Exception, reason: str) -> None:
    outcome(form, Retry(on=OSError, instruments=[ear := Ear()], **retry), Service(failure))
    [event] = ear.heard
    assert isinstance(event, GaveUp)
    assert (event.reason, event.attempt) == (reason, 1)
    assert event.error is (failure.error if isinstance(failure, GiveUp) else failure)


def test_a_refused_result_is_an_event_without_an_error() -> None:
    retry = Retry(on=(), on_result=lambda result: True, attempts=2, backoff=AT_ONCE, instruments=[ear := Ear()])
    outcome(by_call, retry, Service(1))
    assert [(type(event), event.error) for event in ear.heard] == [(RetryScheduled, None), (GaveUp, None)]


@three_forms
def test_what_on_retry_raises_ends_the_call(form: Form) -> None:
    def stop(event: RetryScheduled) -> None:
        raise LookupError("stop")

    service = Service(OSError())
    error, _ = outcome(form, Retry(on=OSError, on_retry=stop), service)
    assert isinstance(error, LookupError)
    assert len(service.starts) == 1


# --------------------------------------------------------------------------------------------------------------- decide


def test_decide_is_what_a_queue_calls() -> None:
    retry = Retry(on=OSError, attempts=3, backoff=Constant(2))
    error = OSError()
    again = retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf)
    assert again == (2, "", None, error)
    late = retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=3)
    assert late.error is error
    assert late == (None, "deadline", None, error)
    assert notes(error) == ["gave up after 1 attempt in 1 s: deadline"]


def test_decide_repeats_a_timed_out_attempt_whatever_on_says() -> None:
    retry = Retry(on=(), attempts=2, backoff=Constant(2))
    error = trio.TooSlowError()
    assert retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf).reason == "not retryable"
    decision = retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf, timed_out=True)
    assert (decision.delay, decision.reason) == (2, "")


def test_decide_takes_a_refused_result_and_unwraps_give_up() -> None:
    retry = Retry(on=OSError, on_result=lambda result: True, backoff=Constant(2))
    refused = retry.decide("job", None, attempt=1, started_at=0, now=1, deadline=math.inf, result=None)
    assert refused == (2, "", None, None)
    error = KeyError()
    ended = retry.decide("job", GiveUp(error), attempt=1, started_at=0, now=1, deadline=math.inf)
    assert ended == (None, "given up", None, error)
    assert repr(NO_RESULT) == "NO_RESULT"


def test_decide_tells_an_old_exhausted_mark_from_a_new_one() -> None:
    retry = Retry(on=OSError, attempts=2, backoff=Constant(2))
    error = OSError()
    retry.decide("job", error, attempt=2, started_at=0, now=1, deadline=math.inf)
    since = EXHAUSTIONS.count
    assert retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf).reason == "not retryable"
    assert retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf, since=since).delay == 2


def test_long_runs_are_told_in_whole_seconds() -> None:
    error = OSError()
    Retry(on=OSError, attempts=1).decide("job", error, attempt=1, started_at=0, now=86_400.4, deadline=math.inf)
    assert notes(error) == ["gave up after 1 attempt in 86400 s: attempts"]


def test_repr_shows_the_configuration() -> None:
    assert repr(Retry(on=OSError, attempts=3, backoff=Constant(2), attempt_timeout=5)) == (
        "Retry(on=<class 'OSError'>, attempts=3, backoff=Constant(delay=2.0), attempt_timeout=5)"
    )


def test_the_configuration_can_be_read_and_not_set() -> None:
    retry = Retry(on=OSError)
    assert (retry.attempts, retry.attempt_timeout, retry.timeout) == (4, math.inf, math.inf)
    assert (retry.budget, retry.on_result) == (None, None)
    with pytest.raises(AttributeError):
        retry.attempts = 5  # type: ignore[misc]
