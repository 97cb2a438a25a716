"""What is replaced, by what, and what is never caught."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, Service
from trio_orchestrator.abc import Instrument
from trio_orchestrator.errors import BudgetExhaustedError, CircuitOpenError, RejectedError
from trio_orchestrator.observe.recorder import Recorder
from trio_orchestrator.policies.failure import GiveUp, mark_permanent
from trio_orchestrator.policies.fallback import Fallback
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policy_event import FallbackUsed
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

SUBSTITUTE = object()


def result_of(fallback: Fallback, *outcomes: object) -> Any:
    return run_virtual(fallback.call, Service(*outcomes))


def test_a_result_passes_even_if_it_is_none() -> None:
    assert result_of(Fallback(value=SUBSTITUTE), None) is None
    assert result_of(Fallback(value=SUBSTITUTE), "fine") == "fine"


def test_a_failure_is_replaced_by_the_same_object() -> None:
    assert result_of(Fallback(value=SUBSTITUTE), OSError()) is SUBSTITUTE
    assert result_of(Fallback(value=None), OSError()) is None


def test_a_function_makes_the_substitute_from_the_error_and_may_wait() -> None:
    error, heard = OSError("down"), list[BaseException]()

    async def stale(failure: OSError) -> str:
        heard.append(failure)
        await trio.sleep(2)
        return "stale"

    async def main() -> None:
        assert await Fallback(on=OSError, fn=stale).call(Service(error, seconds=1)) == "stale"
        assert trio.current_time() == 3

    run_virtual(main)
    assert heard == [error]


COVERED: list[tuple[Any, Exception]] = [
    (Exception, ValueError()),
    (OSError, ConnectionError()),
    ((OSError, KeyError), KeyError()),
    (lambda error: "x" in str(error), ValueError("x")),
    (RejectedError, CircuitOpenError("search", "open")),
    (Exception, BudgetExhaustedError()),
    (Exception, trio.TooSlowError()),
    (Exception, TypeError("of its own")),
    (OSError, mark_permanent(OSError())),
    (OSError, ExceptionGroup("", [OSError(), ExceptionGroup("", [ConnectionError()])])),
]
UNCOVERED: list[tuple[Any, BaseException]] = [
    (OSError, ValueError()),
    ((), ValueError()),
    (lambda error: "x" in str(error), ValueError("y")),
    (lambda error: "x" in str(error), ExceptionGroup("x", [ValueError("x"), ValueError("y")])),
    (OSError, ExceptionGroup("", [OSError(), KeyError()])),
    (OSError, GiveUp(KeyError())),
    (Exception, KeyboardInterrupt()),
    (Exception, SystemExit()),
    (Exception, BaseExceptionGroup("", [OSError(), KeyboardInterrupt()])),
]


@pytest.mark.parametrize(("on", "error"), COVERED, ids=repr)
def test_what_is_covered(on: Any, error: Exception) -> None:
    assert result_of(Fallback(on=on, value=SUBSTITUTE), error) is SUBSTITUTE


@pytest.mark.parametrize(("on", "error"), UNCOVERED, ids=repr)
def test_what_is_not_covered_passes_bare(on: Any, error: BaseException) -> None:
    error.__context__ = context = KeyError("earlier")
    with pytest.raises(type(error)) as caught:
        result_of(Fallback(on=on, value=SUBSTITUTE), error)
    assert caught.value is error
    assert (error.__context__, error.__cause__) == (context, None)
    assert not hasattr(error, "__notes__")


def test_a_predicate_does_not_see_what_is_no_exception() -> None:
    seen: list[BaseException] = []

    def note(error: BaseException) -> bool:
        seen.append(error)
        return True

    with pytest.raises(KeyboardInterrupt):
        result_of(Fallback(on=note, value=SUBSTITUTE), KeyboardInterrupt())
    assert seen == []


def test_a_give_up_is_handed_on_as_the_error_that_it_carries() -> None:
    error, heard = OSError(), list[BaseException]()

    async def note(failure: OSError) -> None:
        heard.append(failure)

    result_of(Fallback(on=OSError, fn=note), GiveUp(error))
    assert heard == [error]


def test_around_a_retry_it_replaces_the_last_failure_and_inside_it_hides_the_first() -> None:
    retry = Retry(on=OSError, attempts=3, backoff=AT_ONCE)
    fallback = Fallback(on=OSError, value="stale")
    around, inside = Service(OSError()), Service(OSError())
    assert run_virtual(lambda: fallback.call(retry.call, around)) == "stale"
    assert run_virtual(lambda: retry.call(fallback.call, inside)) == "stale"
    assert (len(around.starts), len(inside.starts)) == (3, 1)


def test_a_retry_around_still_obeys_an_uncovered_give_up() -> None:
    error = KeyError()
    service = Service(GiveUp(error))
    with pytest.raises(KeyError) as caught:
        run_virtual(lambda: Retry(on=KeyError).call(Fallback(on=OSError, value=1).call, service))
    assert caught.value is error
    assert len(service.starts) == 1


def test_a_time_out_of_ours_inside_is_replaced_and_outside_ends_the_substitute_too() -> None:
    async def slow(error: OSError) -> str:
        await trio.sleep(2)
        return "slow"

    assert run_virtual(lambda: Fallback(value="stale").call(Timeout(1).call, trio.sleep, 2)) == "stale"
    with pytest.raises(trio.TooSlowError):
        run_virtual(lambda: Timeout(3).call(Fallback(fn=slow).call, Service(OSError(), seconds=2)))


def test_what_the_substitutes_function_raises_comes_out_bare() -> None:
    first, second = OSError(), KeyError()

    async def broken(error: OSError) -> None:
        raise second

    async def chained(error: OSError) -> None:
        raise ValueError from error

    with pytest.raises(KeyError) as caught:
        result_of(Fallback(on=Exception, fn=broken), first)
    assert caught.value is second
    assert (second.__context__, second.__cause__) == (None, None)
    with pytest.raises(ValueError) as chain:
        result_of(Fallback(on=Exception, fn=chained), first)
    assert chain.value.__cause__ is first


def test_nested_fallbacks_are_asked_from_the_inside() -> None:
    async def broken(error: OSError) -> None:
        raise KeyError

    inner, outer = Fallback(on=OSError, fn=broken), Fallback(on=KeyError, value="outer")
    assert run_virtual(lambda: outer.call(inner.call, Service(OSError()))) == "outer"


def test_a_wrong_call_is_not_hidden() -> None:
    async def body() -> str:
        return "fine"

    def plain() -> int:
        return 3

    fallback = Fallback(value=SUBSTITUTE)
    with pytest.raises(TypeError, match="takes 0 positional arguments"):
        run_virtual(lambda: fallback.call(body, 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="await"):
        run_virtual(lambda: fallback.call(plain))  # type: ignore[arg-type]


VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


def test_both_run_in_the_callers_context() -> None:
    async def body() -> None:
        VARIABLE.set("body")
        raise OSError

    async def substitute(error: OSError) -> str:
        return VARIABLE.get()

    assert run_virtual(Fallback(fn=substitute).call, body) == "body"


def test_cancelled_at_every_checkpoint() -> None:
    async def scenario(injector: CancelAt) -> None:
        results: list[object] = []
        recorder = Recorder()

        async def body() -> None:
            await trio.sleep(1)
            await trio.sleep(1)
            raise OSError

        async def substitute(error: OSError) -> str:
            await trio.sleep(1)
            await trio.sleep(1)
            return "substitute"

        with injector.watch() as scope:
            results.append(await Fallback(fn=substitute, instruments=[recorder]).call(body))
        assert results == ([] if injector.fired else ["substitute"])
        assert scope.cancelled_caught is injector.fired
        assert len(recorder.events) == len(results)

    assert cancelled_everywhere(scenario) == 5 * 4


def test_a_group_with_a_cancellation_is_not_caught() -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            try:
                await trio.sleep(10)
            finally:
                raise OSError

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            with trio.move_on_after(1):
                await Fallback(value=SUBSTITUTE).call(body)
        assert [type(error) for error in caught.value.exceptions] == [OSError]

    run_virtual(main)


def test_100_concurrent_callers() -> None:
    fallback = Fallback(on=OSError, value="stale")

    async def one(n: int) -> None:
        outcome = OSError() if n % 2 else n
        assert await fallback.call(Service(outcome, seconds=n % 5)) == ("stale" if n % 2 else n)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(one, n)

    run_virtual(main)


def test_events_come_when_the_substitute_is_there() -> None:
    recorder, error = Recorder(), OSError()

    async def search() -> None:
        raise error

    async def slow(error: OSError) -> None:
        await trio.sleep(3)

    async def broken(error: OSError) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run_virtual(Fallback(fn=broken, instruments=[recorder]).call, search)
    assert recorder.events == []
    run_virtual(Fallback(fn=slow, instruments=[recorder]).call, search)
    run_virtual(Fallback(value=1, name="mine", instruments=[recorder]).call, search)
    assert recorder.events == [(3, FallbackUsed(search.__qualname__, error)), (0, FallbackUsed("mine", error))]


class Deaf(Instrument):
    def fallback_used(self, event: FallbackUsed, /) -> None:
        raise ZeroDivisionError


def test_an_instrument_that_raises_does_no_harm() -> None:
    assert result_of(Fallback(value="stale", instruments=[Deaf()]), OSError()) == "stale"


def test_the_error_is_not_kept_alive() -> None:
    class Big(Exception):
        pass

    async def body() -> None:
        raise Big

    async def substitute(error: Big) -> None:
        dead.append(weakref.ref(error))

    async def main() -> None:
        await Fallback(fn=substitute).call(body)
        assert [ref() for ref in dead] == [None]

    dead: list[weakref.ref[Big]] = []
    gc.disable()
    try:
        run_virtual(main)
    finally:
        gc.enable()


def test_as_a_decorator() -> None:
    @Fallback(on=OSError, value="stale").wrap
    async def fetch(url: str, *, fail: bool) -> str:
        if fail:
            raise OSError
        return url

    assert fetch.__name__ == "fetch"
    assert run_virtual(lambda: fetch("a", fail=False)) == "a"
    assert run_virtual(lambda: fetch("a", fail=True)) == "stale"


async def waits(error: Exception) -> str:
    return f"waited for {error!r}"


class Waiter:
    async def __call__(self, error: Exception) -> str:
        return await waits(error)


def decorated(fn: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    @functools.wraps(fn)
    def wrapper(error: Exception) -> Awaitable[str]:
        return fn(error)

    return wrapper


@pytest.mark.parametrize("fn", [waits, Waiter(), Waiter().__call__, functools.partial(waits), decorated(waits)])
def test_async_functions_of_every_kind(fn: Callable[[Any], Awaitable[str]]) -> None:
    assert result_of(Fallback(fn=fn), OSError("a")) == "waited for OSError('a')"


class Plain:
    def __call__(self, error: Exception) -> str:
        return "at once"


def test_an_object_that_returns_nothing_to_await_is_named() -> None:
    with pytest.raises(TypeError, match=r"^fn must be an async function, but .*Plain object.* returned 'at once'$"):
        result_of(Fallback(fn=Plain()), OSError())  # type: ignore[arg-type]


def generator(error: Exception) -> Any:
    yield error


async def async_generator(error: Exception) -> Any:
    yield error


@pytest.mark.parametrize("fn", [3, "waits", generator, async_generator, lambda error: "at once", Waiter, str], ids=repr)
def test_what_is_certainly_no_async_function(fn: Any) -> None:
    with pytest.raises(TypeError, match=f"^fn must be an async function, got {re.escape(repr(fn))}$"):
        Fallback(fn=fn)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "value or fn must be given, and not both"),
        ({"value": None, "fn": waits}, "value or fn must be given, and not both"),
        ({"value": 1, "on": 3}, "on must be an Exception type, a tuple of them or a predicate, got 3"),
        ({"value": 1, "on": BaseException}, "on must be an Exception type, a tuple of them or a predicate, got"),
        ({"value": 1, "on": ExceptionGroup}, "on must not name ExceptionGroup: a group matches if all its leaves do"),
        ({"value": 1, "on": waits}, "on must be a plain function, got the async function"),
        ({"value": 1, "name": 3}, "name must be a str, got 3"),
        ({"value": 1, "instruments": [3]}, "instruments must be Instrument objects, got 3"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        Fallback(**arguments)


def test_repr() -> None:
    assert repr(Fallback(value=None)) == "Fallback(on=<class 'Exception'>, value=None)"
    assert repr(Fallback(on=OSError, fn=waits)) == "Fallback(on=<class 'OSError'>, fn=waits)"
