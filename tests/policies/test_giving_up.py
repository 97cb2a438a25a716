"""What comes out in the end: the last error itself, bare; and who may repeat it further out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, Ear, Form, Service, by_call, notes, outcome, three_forms
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.failure import mark_permanent
from trio_orchestrator.policies.retry import GiveUp, Retry
from trio_orchestrator.testing import run_virtual

# ------------------------------------------------------------------------------------------- bare exceptions, giving up


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
    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await form(Retry(on=lambda error: True, backoff=AT_ONCE, instruments=[ear]), service)
        assert caught.value is error

    for service in (Service(error), Service(OSError(), error)):
        ear = Ear()
        run_virtual(main)
        assert len(service.starts) == len(service.outcomes)
        assert len(ear.heard) == len(service.outcomes) - 1
        assert notes(error) == []


def test_an_error_that_takes_no_notes_comes_out_all_the_same() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    failure = Frozen()
    assert outcome(by_call, Retry(on=Frozen, backoff=AT_ONCE), Service(failure)) == (failure, 0)


class Tracked(Exception):
    pass


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", [{}, {"attempt_timeout": 5.0}, {"timeout": 1.0}], ids=str)
@three_forms
def test_failures_are_freed_without_the_garbage_collector(form: Form, options: dict[str, Any]) -> None:
    async def body() -> None:
        await trio.sleep(0.75)
        error = GiveUp(Tracked()) if len(alive) == 2 else Tracked()
        alive.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    alive: list[weakref.ref[Exception]] = []

    async def main() -> None:
        for _ in range(3):
            try:
                await form(Retry(on=Tracked, attempts=2, backoff=AT_ONCE, **options), body)
            except (Tracked, trio.TooSlowError) as error:
                assert error.__traceback__ is not None
            assert [ref() for ref in alive] == [None] * len(alive)

    run_virtual(main)
    assert len(alive) >= 3


# ---------------------------------------------------------------------------------------------------- shared and nested


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


def calls_under_three_layers(form: Form, retry: Retry) -> int:
    calls: list[int] = []

    async def innermost() -> None:
        calls.append(1)
        raise OSError

    outcome(form, retry, lambda: form(retry, lambda: form(retry, innermost)))
    return len(calls)


@three_forms
def test_three_layers_of_four_attempts_make_four_calls_unless_asked(form: Form) -> None:
    assert calls_under_three_layers(form, Retry(on=OSError, backoff=AT_ONCE)) == 4
    assert calls_under_three_layers(form, Retry(on=OSError, backoff=AT_ONCE, retry_exhausted=True)) == 64


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
def test_a_mark_from_an_earlier_attempt_says_nothing_about_this_one(form: Form) -> None:
    constant = OSError("a constant")
    inner = Retry(on=OSError, attempts=1)
    calls: list[int] = []

    async def body() -> str:
        calls.append(1)
        if len(calls) == 1:
            with pytest.raises(OSError):
                await form(inner, Service(constant))
            raise KeyError
        if len(calls) == 2:
            raise constant
        return "fine"

    assert outcome(form, Retry(on=(OSError, KeyError), backoff=AT_ONCE), body) == ("fine", 0)


@three_forms
def test_an_error_that_was_given_up_or_not_retryable_inside_may_be_repeated_outside(form: Form) -> None:
    outer = Retry(on=OSError, attempts=3, backoff=AT_ONCE)
    for failure in (OSError(), GiveUp(OSError())):
        service = Service(failure)
        error, _ = outcome(form, outer, partial(form, Retry(on=KeyError), service))
        assert isinstance(error, OSError)
        assert len(service.starts) == 3
