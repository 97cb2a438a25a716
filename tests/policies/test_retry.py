from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, FORMS, Form, Service, by_call, by_loop, notes
from trio_orchestrator.abc import GaveUp, Instrument, RetryScheduled
from trio_orchestrator.algorithms.backoff import Constant, Custom, Exponential, FullJitter
from trio_orchestrator.policies.failure import mark_permanent
from trio_orchestrator.policies.retry import NO_RESULT, GiveUp, Retry
from trio_orchestrator.testing import SchedulerPasses, run_virtual

three_forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def outcome(form: Form, retry: Retry, service: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Return the result, or the exception, and the virtual time at which it came."""

    async def main() -> tuple[Any, float]:
        try:
            result = await form(retry, service)
        except Exception as error:
            return error, trio.current_time()
        return result, trio.current_time()

    return run_virtual(main)


# ------------------------------------------------------------------------------------------------ the basics


@three_forms
def test_a_success_is_returned_at_once(form: Form) -> None:
    service = Service("fine")
    assert outcome(form, Retry(on=OSError), service) == ("fine", 0)
    assert service.starts == [0]


@three_forms
def test_failures_are_repeated_with_the_pauses_of_the_backoff(form: Form) -> None:
    service = Service(OSError(), OSError(), OSError(), "fine")
    assert outcome(form, Retry(on=OSError, backoff=Exponential()), service) == ("fine", 7)
    assert service.starts == [0, 1, 3, 7]


@three_forms
def test_exhaustion_raises_the_last_error_itself_with_a_note(form: Form) -> None:
    errors = [OSError(n) for n in range(4)]
    service = Service(*errors, seconds=0.775)
    error, _ = outcome(form, Retry(on=OSError, backoff=AT_ONCE), service)
    assert error is errors[3]
    assert notes(error) == ["gave up after 4 attempts in 3.1 s: attempts"]
    assert [notes(error) for error in errors[:3]] == [[], [], []]
    assert len(service.starts) == 4


@three_forms
def test_an_error_that_is_not_retryable_comes_out_unchanged(form: Form) -> None:
    failure = KeyError("a")
    service = Service(failure)
    assert outcome(form, Retry(on=OSError), service) == (failure, 0)
    assert notes(failure) == []
    assert len(service.starts) == 1


@three_forms
def test_a_later_error_that_is_not_retryable_says_so(form: Form) -> None:
    error, _ = outcome(form, Retry(on=OSError, backoff=Constant(2)), Service(OSError(), KeyError("a")))
    assert isinstance(error, KeyError)
    assert notes(error) == ["gave up after 2 attempts in 2 s: not retryable"]


@three_forms
def test_one_attempt_in_all(form: Form) -> None:
    error, now = outcome(form, Retry(on=OSError, attempts=1), Service(OSError()))
    assert notes(error) == ["gave up after 1 attempt in 0 s: attempts"]
    assert now == 0


@three_forms
def test_attempts_may_be_endless(form: Form) -> None:
    service = Service(*[OSError()] * 5000, "fine")
    assert outcome(form, Retry(on=OSError, attempts=math.inf, backoff=AT_ONCE), service)[0] == "fine"
    assert len(service.starts) == 5001


def test_arguments_and_the_signature_pass_through() -> None:
    async def add(a: int, b: int, *, c: int = 0) -> int:
        """Add."""
        return a + b + c

    retry = Retry(on=OSError)
    wrapped = retry.wrap(add)
    assert (wrapped.__name__, wrapped.__doc__) == ("add", "Add.")
    assert run_virtual(wrapped, 1, 2) == 3
    assert run_virtual(retry.call, add, 1, 2) == 3


def test_wrap_takes_keywords() -> None:
    retry = Retry(on=OSError)

    @retry.wrap
    async def add(a: int, *, b: int) -> int:
        return a + b

    async def main() -> int:
        return await add(1, b=2)

    assert run_virtual(main) == 3


# ----------------------------------------------------------------------------------- bare exceptions, giving up


@three_forms
def test_the_context_of_the_last_error_is_untouched(form: Form) -> None:
    inner = LookupError("inner")
    raised: list[OSError] = []

    async def service() -> None:
        await trio.lowlevel.checkpoint()
        try:
            raise inner
        except LookupError:
            raised.append(OSError(len(raised)))
            raise raised[-1]

    async def main() -> None:
        try:
            raise ZeroDivisionError("of the caller")
        except ZeroDivisionError:
            with pytest.raises(OSError) as caught:
                await form(Retry(on=OSError, attempts=3, backoff=AT_ONCE), service)
        assert caught.value is raised[2]
        assert caught.value.__context__ is inner
        assert caught.value.__cause__ is None
        assert isinstance(inner.__context__, ZeroDivisionError)

    run_virtual(main)


@three_forms
def test_give_up_raises_its_error_bare(form: Form) -> None:
    last = KeyError("last")

    async def service() -> None:
        starts.append(trio.current_time())
        if len(starts) == 2:
            try:
                raise last
            except KeyError as error:
                raise GiveUp(error)
        raise OSError

    starts: list[float] = []
    error, _ = outcome(form, Retry(on=Exception, backoff=Constant(1)), service)
    assert error is last
    assert error.__context__ is None
    assert notes(last) == ["gave up after 2 attempts in 1 s: given up"]
    assert starts == [0, 1]


@three_forms
def test_give_up_at_the_first_attempt_gets_no_note(form: Form) -> None:
    last = KeyError("last")
    assert outcome(form, Retry(on=Exception), Service(GiveUp(last))) == (last, 0)
    assert notes(last) == []


@three_forms
def test_a_permanent_error_is_not_repeated(form: Form) -> None:
    service = Service(mark_permanent(OSError()))
    error, _ = outcome(form, Retry(on=OSError), service)
    assert isinstance(error, OSError)
    assert len(service.starts) == 1


@three_forms
def test_tenacity_501_a_group_out_of_a_nursery_is_repeated_if_all_its_leaves_are(form: Form) -> None:
    async def fail(error: Exception) -> None:
        raise error

    def service_of(*errors: Exception) -> Callable[[], Awaitable[None]]:
        async def service() -> None:
            starts.append(trio.current_time())
            async with trio.open_nursery() as nursery:
                for error in errors:
                    nursery.start_soon(fail, error)

        return service

    for errors, attempts in (([ConnectionError(), ConnectionError()], 3), ([ConnectionError(), ValueError()], 1)):
        starts: list[float] = []
        error, _ = outcome(form, Retry(on=ConnectionError, attempts=3, backoff=AT_ONCE), service_of(*errors))
        assert isinstance(error, ExceptionGroup)
        assert set(error.exceptions) == set(errors)
        assert len(starts) == attempts


@pytest.mark.parametrize("error", [KeyboardInterrupt("a"), SystemExit(3), GeneratorExit("b")], ids=repr)
@three_forms
def test_backon_56_what_must_end_everything_is_not_swallowed(form: Form, error: BaseException) -> None:
    service = Service(error)

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await form(Retry(on=lambda error: True), service)
        assert caught.value is error

    run_virtual(main)
    assert len(service.starts) == 1
    assert notes(error) == []


def test_an_error_that_takes_no_notes_comes_out_all_the_same() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    failure = Frozen()
    assert outcome(by_call, Retry(on=Frozen, backoff=AT_ONCE), Service(failure)) == (failure, 0)


# ------------------------------------------------------------------------------------------- shared and nested


@three_forms
def test_tenacity_93_shared_retry_object_keeps_state_per_call(form: Form) -> None:
    retry = Retry(on=OSError, attempts=3, backoff=Constant(1))
    services = [Service(OSError(), seconds=0.5) for _ in range(5)]

    async def run(service: Service) -> None:
        with pytest.raises(OSError):
            await form(retry, service)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for service in services:
                nursery.start_soon(run, service)

    for seed in range(5):
        run_virtual(main, seed=seed)
        assert [len(service.starts) for service in services] == [3, 3, 3, 3, 3]
        for service in services:
            service.starts.clear()


def layered(asked: bool, form: Form) -> int:
    """Return how often the innermost function of three layers of four attempts is called."""
    service = Service(OSError())
    retry = Retry(on=OSError, backoff=AT_ONCE, retry_exhausted=asked)

    async def inner() -> Any:
        return await form(retry, lambda: service.fresh())

    class Fresh:
        calls = 0

        async def fresh(self) -> None:
            self.calls += 1
            raise OSError

    service = Fresh()  # type: ignore[assignment]

    async def middle() -> Any:
        return await form(retry, inner)

    outcome(form, retry, middle)
    return Fresh.calls or service.calls  # type: ignore[attr-defined,no-any-return]


@three_forms
def test_three_layers_of_four_attempts_make_four_calls_unless_asked(form: Form) -> None:
    assert layered(False, form) == 4
    assert layered(True, form) == 64


@three_forms
def test_an_exhausted_error_is_not_repeated_by_an_outer_retry_even_inside_a_group(form: Form) -> None:
    service = Service(OSError())
    inner = Retry(on=OSError, attempts=2, backoff=AT_ONCE)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(form, inner, service)

    error, _ = outcome(form, Retry(on=OSError, backoff=AT_ONCE), body)
    assert isinstance(error, ExceptionGroup)
    assert len(service.starts) == 2


@three_forms
def test_an_error_object_that_is_raised_again_in_a_later_call_is_repeated_again(form: Form) -> None:
    service = Service(OSError("a constant"))
    retry = Retry(on=OSError, attempts=3, backoff=AT_ONCE)
    for calls in (3, 6, 9):
        outcome(form, retry, service)
        assert len(service.starts) == calls


@three_forms
def test_an_error_that_was_given_up_or_not_retryable_inside_may_be_repeated_outside(form: Form) -> None:
    outer = Retry(on=OSError, attempts=3, backoff=AT_ONCE)
    for service in (Service(OSError()), Service(GiveUp(OSError()))):
        error, _ = outcome(form, outer, lambda service=service: form(Retry(on=KeyError), service))
        assert isinstance(error, OSError)
        assert len(service.starts) == 3


# --------------------------------------------------------------------------------------------------- pauses


@three_forms
def test_every_retry_passes_a_checkpoint_also_without_a_pause(form: Form) -> None:
    async def fail() -> None:
        raise OSError

    async def main() -> int:
        passes = SchedulerPasses()
        trio.lowlevel.add_instrument(passes)
        await trio.lowlevel.checkpoint()
        before = passes.count
        with pytest.raises(OSError):
            await form(Retry(on=OSError, attempts=11, backoff=AT_ONCE), fail)
        await trio.lowlevel.checkpoint()
        return passes.count - before - 1

    assert run_virtual(main) == 10


def test_jitter_comes_from_the_given_source() -> None:
    expected = FullJitter().preview(3, Random(5))
    service = Service(OSError())
    outcome(by_call, Retry(on=OSError, rng=Random(5)), service)
    pauses = [later - earlier for earlier, later in zip(service.starts, service.starts[1:])]
    assert pauses == pytest.approx(expected)


@three_forms
def test_a_users_backoff_that_returns_nonsense_is_refused(form: Form) -> None:
    error, _ = outcome(form, Retry(on=OSError, backoff=Custom(lambda retry, rng: math.nan)), Service(OSError()))
    assert isinstance(error, ValueError)
    assert str(error) == "backoff must return a finite delay >= 0, got nan"


# -------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.__name__)
def test_a_bad_result_is_repeated_and_the_last_one_returned(form: Form) -> None:
    retry = Retry(on=(), on_result=lambda result: result < 3, backoff=Constant(1))
    assert outcome(form, retry, Service(1, 2, 3)) == (3, 2)
    service = Service(1, 2, 0, 1, 3)
    assert outcome(form, retry, service) == (1, 3)
    assert len(service.starts) == 4


def test_results_and_errors_share_the_attempts() -> None:
    retry = Retry(on=OSError, on_result=lambda result: result is None, attempts=3, backoff=AT_ONCE)
    service = Service(OSError(), None, "fine")
    assert outcome(by_call, retry, service) == ("fine", 0)
    error, _ = outcome(by_call, retry, Service(None, OSError()))
    assert isinstance(error, OSError)


# ------------------------------------------------------------------------------------ what a call itself raises


@pytest.mark.parametrize("options", [{}, {"attempt_timeout": 5.0}], ids=str)
def test_a_call_that_cannot_work_is_not_repeated(options: dict[str, float]) -> None:
    def plain() -> int:
        calls.append(1)
        return 3

    async def two(a: int, b: int) -> None: ...

    retry = Retry(on=Exception, backoff=AT_ONCE, **options)  # type: ignore[arg-type]
    calls: list[int] = []
    for bad in (plain, two, None):
        error, _ = outcome(by_call, retry, bad)  # type: ignore[arg-type]
        assert isinstance(error, TypeError)
        assert notes(error) == []
    assert calls == [1]


@three_forms
def test_a_type_error_of_the_body_is_repeated(form: Form) -> None:
    service = Service(TypeError("of the body"), "fine")
    assert outcome(form, Retry(on=TypeError, backoff=AT_ONCE), service)[0] == "fine"


# --------------------------------------------------------------------------------------------- budget and hooks


class Purse:
    def __init__(self, coins: int) -> None:
        self.coins = coins
        self.asked: list[BaseException | None] = []
        self.deposits: list[int] = []

    def withdraw(self, error: BaseException | None) -> bool:
        self.asked.append(error)
        self.coins -= 1
        return self.coins >= 0

    def deposit(self, attempts: int) -> None:
        self.deposits.append(attempts)


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


class Ear(Instrument):
    def __init__(self) -> None:
        self.heard: list[RetryScheduled | GaveUp] = []

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        self.heard.append(event)

    def gave_up(self, event: GaveUp, /) -> None:
        self.heard.append(event)


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


# -------------------------------------------------------------------------------------------------- decide


def test_decide_is_what_a_queue_calls() -> None:
    retry = Retry(on=OSError, attempts=3, backoff=Constant(2))
    error = OSError()
    again = retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=math.inf)
    assert again == (2, "", None, error)
    late = retry.decide("job", error, attempt=1, started_at=0, now=1, deadline=3)
    assert late == (None, "deadline", None, error)
    assert late.error is error
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
    from trio_orchestrator.policies.failure import EXHAUSTIONS

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


assert by_loop in FORMS
