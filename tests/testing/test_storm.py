"""`no_storm`: it fails a retry without a pause, exactly at its bound; it hangs on nothing and hides nothing."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator import Failures, open_task_queue
from trio_orchestrator.algorithms.backoff import Constant, FullJitter
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.storm import StormAlarm
from trio_orchestrator.testing import CancelAt, NoStorm, cancelled_everywhere, no_storm, run_virtual

Fn = Callable[[], Awaitable[None]]
AT_ONCE = Constant(0)
POLITE = FullJitter(base=1.0, cap=30.0)


async def push() -> None:
    raise OSError("down")


async def by_retry(fn: Fn, retry: Retry) -> None:
    with suppress(OSError):
        await retry.call(fn)


async def by_loop(fn: Fn, retry: Retry) -> None:
    with suppress(OSError):
        async for attempt in retry:
            with attempt:
                await fn()


async def by_queue(fn: Fn, retry: Retry) -> None:
    async with open_task_queue(concurrency=3, retry=retry, failures=Failures.RECORD) as queue:
        await queue.submit(fn)


async def by_hand(fn: Fn, retry: Retry) -> None:
    for attempt in range(1, int(retry.attempts) + 1):
        with suppress(OSError):
            await fn()
        await trio.sleep(retry._backoff(attempt, random))


WAYS = pytest.mark.parametrize("way", [by_retry, by_loop, by_queue, by_hand], ids=lambda way: way.__name__)


@WAYS
def test_a_retry_without_a_pause_fails_and_one_with_backoff_passes(way: Callable[[Fn, Retry], Awaitable[None]]) -> None:
    async def main(retry: Retry) -> int:
        with no_storm(calls=5, within=1) as storm:
            await way(storm.watch(push), retry)
        return storm.count("push")

    with pytest.raises(AssertionError, match=r"^'push' was attempted 6 times in 0 s, more than 5 within 1 s; called"):
        run_virtual(main, Retry(on=OSError, attempts=10, backoff=AT_ONCE))
    assert run_virtual(main, Retry(on=OSError, attempts=10, backoff=Constant(0.25))) == 10
    assert run_virtual(main, Retry(on=OSError, attempts=4, backoff=POLITE)) == 4


@WAYS
def test_whatever_passes_a_meter_is_seen(way: Callable[[Fn, Retry], Awaitable[None]]) -> None:
    async def main(meter: CallMeter, retry: Retry) -> None:
        with no_storm(calls=5, within=1, meter=meter):
            await way(meter.wrap(push), retry)
        await way(meter.wrap(push), retry)  # not any more

    with pytest.raises(AssertionError, match=r"^'push' was attempted 6 times"):
        run_virtual(main, CallMeter(), Retry(on=OSError, attempts=10, backoff=AT_ONCE))
    run_virtual(main, CallMeter(), Retry(on=OSError, attempts=10, backoff=Constant(0.25)))
    run_virtual(main, StormAlarm(calls=1000).meter, Retry(on=OSError, attempts=5, backoff=AT_ONCE))


def test_devlake_1528_retries_that_are_sent_directly_fail_a_test_and_scheduled_ones_do_not() -> None:
    async def main(retry: Retry) -> None:
        with no_storm(calls=10, within=1) as storm:
            async with open_task_queue(concurrency=5, retry=retry, failures=Failures.RECORD) as queue:
                for _ in range(5):
                    await queue.submit(storm.watch(push))

    with pytest.raises(AssertionError, match=r"^'push' was attempted 11 times in 0 s"):
        run_virtual(main, Retry(on=OSError, attempts=4, backoff=AT_ONCE))
    run_virtual(main, Retry(on=OSError, attempts=4, backoff=Constant(0.5)))


def complaint(pauses: list[float], calls: int, within: float) -> str | None:
    async def main() -> str | None:
        try:
            with no_storm(calls=calls, within=within) as storm:
                for pause in pauses:
                    await trio.sleep(pause)
                    storm.attempt("it")
        except AssertionError as error:
            return str(error)
        return None

    return run_virtual(main)


@given(
    pauses=st.lists(st.integers(0, 8).map(lambda eighths: eighths / 8), max_size=25),
    calls=st.integers(0, 6),
    within=st.integers(1, 24).map(lambda eighths: eighths / 8),
)
def test_windows_are_exact(pauses: list[float], calls: int, within: float) -> None:
    times = [sum(pauses[: number + 1]) for number in range(len(pauses))]
    stormy = any(sum(start <= time < start + within for time in times) > calls for start in times)
    assert (complaint(pauses, calls, within) is not None) is stormy


def test_the_last_of_them_may_come_exactly_when_the_window_is_over() -> None:
    assert complaint([0.0, 0.5, 0.5], 2, 1.0) is None
    assert complaint([0.0, 0.5, 0.4999], 2, 1.0) is not None
    assert complaint([100.0, 100.0, 100.0], 2, inf) is not None
    assert complaint([0.0] + [0.2] * 50, 5, 1.0) is None  # a sum of floats is not quite that of the numbers


def test_the_message_tells_what_from_where_how_often_and_when() -> None:
    found: list[str] = []

    async def hammer(fn: Fn) -> None:
        while True:
            with suppress(OSError):
                await fn()
            await trio.sleep(0.125)

    async def main() -> None:
        with pytest.raises(AssertionError) as caught, no_storm(calls=3, within=1) as storm:
            await hammer(storm.watch(push))
        found.append(str(caught.value))
        assert trio.current_time() == 0.375  # it did not go on

    run_virtual(main)
    line = inspect.getsourcelines(hammer)[1] + 3
    assert found == [
        "'push' was attempted 4 times in 0.375 s, more than 3 within 1 s; called from"
        f" {__file__}:{line} ({hammer.__qualname__}); at 0, 0.125, 0.25, 0.375"
    ]


def test_each_function_is_counted_by_itself_and_in_all_tasks() -> None:
    async def fine() -> None:
        pass

    async def main(functions: int) -> None:
        with no_storm(calls=5, within=1) as storm:
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(storm.watch(fine, key=number % functions))

    run_virtual(main, 2)
    with pytest.raises(AssertionError, match=r"^0 was attempted 6 times"):
        run_virtual(main, 1)


def test_a_watched_function_is_the_same_but_for_being_seen() -> None:
    async def add(a: int, *, b: int = 2) -> int:
        """Add."""
        return a + b

    async def main() -> None:
        with no_storm() as storm:
            watched = storm.watch(add)
            assert await watched(1, b=3) == 4
            assert (watched.__name__, watched.__doc__) == ("add", "Add.")
            assert inspect.signature(watched) == inspect.signature(add)
            assert storm.count(add.__qualname__) == 1
            assert storm.complaint is None

    run_virtual(main)


@pytest.mark.parametrize("error", [OSError("mine"), ExceptionGroup("", [OSError()])], ids=repr)
def test_a_storm_is_told_in_place_of_the_error_that_came_of_it(error: Exception) -> None:
    async def main() -> None:
        with pytest.raises(AssertionError) as caught, no_storm(calls=0) as storm:
            storm.attempt("it")
            raise error
        assert caught.value.__cause__ is error

    run_virtual(main)


def test_a_storm_is_told_in_place_of_a_cancellation() -> None:
    async def main() -> None:
        with (
            pytest.raises(AssertionError, match="'it' was attempted"),
            trio.move_on_after(1),
            no_storm(calls=0) as storm,
        ):
            storm.attempt("it")
            await trio.sleep(5)

    run_virtual(main)


class Quit(BaseException):
    pass


@pytest.mark.parametrize("error", [Quit(), BaseExceptionGroup("", [Quit(), OSError()])], ids=repr)
def test_what_must_end_the_program_does(error: BaseException) -> None:
    async def main() -> None:
        try:
            with no_storm(calls=0) as storm:
                storm.attempt("it")
                raise error
        except BaseException as caught:
            assert caught is error

    run_virtual(main)


def test_without_a_storm_errors_pass_untouched() -> None:
    async def main() -> None:
        error = OSError("mine")
        with pytest.raises(OSError, match="mine") as caught, no_storm():
            raise error
        assert caught.value is error
        assert error.__context__ is error.__cause__ is None

    run_virtual(main)


def test_cancelled_at_every_checkpoint_it_gives_way() -> None:
    async def scenario(injector: CancelAt) -> None:
        ended: list[str] = []
        meter = CallMeter()
        with injector.watch():
            with no_storm(calls=5, within=1, meter=meter) as storm:
                for _ in range(3):
                    await storm.watch(trio.lowlevel.checkpoint)()
                await trio.sleep(1)
            ended.append("passed")
        assert ended == ([] if injector.fired else ["passed"])
        assert meter._watchers == ()

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 4


def test_around_a_run_and_around_several_of_them() -> None:
    async def polite(storm: NoStorm) -> None:
        for _ in range(5):
            storm.attempt("it")
            await trio.sleep(1)

    async def hammer(storm: NoStorm) -> None:
        for _ in range(100):
            storm.attempt("it")

    with no_storm(calls=1, within=1) as storm:
        for _ in range(3):
            run_virtual(polite, storm)
    assert storm.count("it") == 15
    with pytest.raises(AssertionError, match="'it' was attempted 2 times"), no_storm(calls=1, within=1) as storm:
        run_virtual(hammer, storm)
    assert storm.count("it") == 100  # there was nothing that it could cancel


def test_a_hand_written_loop_around_a_shielded_call_is_stopped_where_it_can_be() -> None:
    async def main() -> None:
        passed: list[float] = []
        with pytest.raises(AssertionError), no_storm(calls=1, within=1) as storm:
            with trio.CancelScope(shield=True):
                for _ in range(5):
                    storm.attempt("it")
                    await trio.sleep(0.25)
            passed.append(trio.current_time())
            await trio.sleep(10)
        assert passed == [1.25]
        assert trio.current_time() == 1.25

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"calls": -1}, ValueError, "calls must be >= 0 and finite, got -1"),
        ({"calls": inf}, ValueError, "calls must be >= 0 and finite, got inf"),
        ({"calls": 1.5}, ValueError, "calls must be a whole number or math.inf, got 1.5"),
        ({"calls": True}, TypeError, "calls must be a number, got True"),
        ({"within": 0}, ValueError, "within must be > 0, got 0"),
        ({"meter": 5}, TypeError, "meter must be a CallMeter, got 5"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"), no_storm(**options):
        pytest.fail("it was entered")
