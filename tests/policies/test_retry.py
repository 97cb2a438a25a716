from __future__ import annotations

import math
from random import Random

import pytest
import trio

from tests.policies.service import AT_ONCE, FORMS, Form, Purse, Service, by_call, notes, outcome, three_forms
from trio_orchestrator.algorithms.backoff import Constant, Custom, Exponential, FullJitter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.testing import SchedulerPasses, run_virtual

# ----------------------------------------------------------------------------------------------------------- the basics


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

    async def two(a: int, b: int) -> int:
        return a + b

    assert run_virtual(lambda: retry.call(two, 1, 2)) == 3


def test_wrap_takes_keywords() -> None:
    retry = Retry(on=OSError)

    @retry.wrap
    async def add(a: int, *, b: int) -> int:
        return a + b

    async def main() -> int:
        return await add(1, b=2)

    assert run_virtual(main) == 3


# --------------------------------------------------------------------------------------------------------------- pauses


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


# -------------------------------------------------------------------------------------------------------------- results


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


def test_the_body_of_a_loop_asks_whether_a_result_is_refused() -> None:
    purse = Purse(9)
    retry = Retry(on=(), on_result=lambda result: result < 3, attempts=3, backoff=Constant(1), budget=purse)

    async def run(service: Service) -> tuple[int, float]:
        async for attempt in retry:
            with attempt:
                result: int = await service()
                if not attempt.refuses(result):
                    return result, trio.current_time()
        raise AssertionError

    assert run_virtual(run, Service(1, 2, 3)) == (3, 2)
    assert run_virtual(run, Service(1, 2, 0, 3)) == (0, 2)
    assert purse.deposits == [3]


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.__name__)
def test_what_on_result_raises_ends_the_call(form: Form) -> None:
    mistake = ZeroDivisionError()

    def bad(result: object) -> bool:
        raise mistake

    service = Service("fine")
    assert outcome(form, Retry(on=Exception, on_result=bad), service) == (mistake, 0)
    assert len(service.starts) == 1
    assert (mistake.__context__, notes(mistake)) == (None, [])


@three_forms
def test_what_a_predicate_raises_ends_the_call(form: Form) -> None:
    def on(error: Exception) -> bool:
        raise ZeroDivisionError

    service = Service(failure := OSError())
    error, _ = outcome(form, Retry(on=on), service)
    assert isinstance(error, ZeroDivisionError)
    assert error.__context__ is failure
    assert len(service.starts) == 1


# -------------------------------------------------------------------------------------------- what a call itself raises


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
