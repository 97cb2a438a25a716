"""The meter: every attempt is counted once, retries are found whoever makes them, windows expire when read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.service import AT_ONCE, FORMS, Form, Service
from trio_orchestrator import Failures, open_task_queue
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.traffic import Traffic
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.meter import CallMeter, Spacing, Watcher
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

NOTHING = Spacing(0.0, 0.0, 0.0, 0)


async def push(item: int) -> int:
    return item


async def fail(item: int) -> None:
    raise OSError(item)


def figures(meter: CallMeter, key: object = None) -> tuple[int, int, int]:
    found = meter.statistics(key)
    return found.calls, found.failures, found.retries


# ------------------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda meter: meter.call(push, 1), "push"),
        (lambda meter: meter.call(partial(push, 1)), "push"),
        (lambda meter: meter.wrap(push)(1), "push"),
        (lambda meter: meter.call(Service("fine")), "Service"),
        (lambda meter: meter.call(Timeout(3).call, push, 1), "push"),
        (lambda meter: meter.call(Timeout(3).call, Retry(on=OSError).call, partial(push, 1)), "push"),
        (lambda meter: Timeout(3).call(meter.call, push, 1), "push"),
    ],
    ids=["call", "partial", "wrap", "object", "outside", "outside two", "inside"],
)
def test_a_key_is_the_name_of_the_function_whatever_is_around_it(
    call: Callable[[CallMeter], Awaitable[object]], key: str
) -> None:
    meter = CallMeter()

    async def main() -> None:
        await call(meter)
        assert meter.keys() == (key,)
        assert figures(meter, key) == figures(meter) == (1, 0, 0)

    run_virtual(main)


def test_a_key_of_ones_own_sees_the_function_and_its_arguments() -> None:
    seen: list[tuple[object, tuple[object, ...]]] = []

    def key(fn: Callable[..., object], args: tuple[Any, ...]) -> object:
        seen.append((fn, args))
        return args[0]

    async def main() -> None:
        meter = CallMeter(key=key)
        await meter.call(push, 7)
        await meter.wrap(push)(8)
        await meter.call(Timeout(3).call, partial(push, 9))
        assert seen == [(push, (7,)), (push, (8,)), (push, (9,))]
        assert meter.keys() == (7, 8, 9)

    run_virtual(main)


async def hand_written(meter: CallMeter) -> None:
    with meter.guard():
        await trio.lowlevel.checkpoint()
    with meter.guard("other"):
        await trio.lowlevel.checkpoint()


def test_a_guard_is_named_after_who_asks() -> None:
    async def main() -> None:
        meter = CallMeter()
        await hand_written(meter)
        assert meter.keys() == ("hand_written", "other")

    run_virtual(main)


def test_the_key_called_the_longest_time_ago_makes_room() -> None:
    async def main() -> None:
        meter = CallMeter(key=lambda fn, args: args[0], max_keys=3)
        for item in (1, 2, 3, 1, 4):
            await meter.call(push, item)
        assert meter.keys() == (3, 1, 4)
        assert figures(meter, 2) == (0, 0, 0)
        assert figures(meter, 1) == (2, 0, 0)

    run_virtual(main)


# --------------------------------------------------------------------------------------------------- retries


async def by_hand(retry: Retry, fn: Callable[[], Awaitable[Any]]) -> Any:
    """What people write who do not know better: as many attempts, and the same pause."""
    for _ in range(int(retry.attempts) - 1):
        with suppress(OSError):
            return await fn()
        await trio.sleep(2)
    return await fn()


@pytest.mark.parametrize("form", [*FORMS, by_hand], ids=lambda form: form.__name__)
@pytest.mark.parametrize("listens", [False, True])
def test_retries_are_counted_once_whoever_makes_them(form: Form, listens: bool) -> None:
    meter = CallMeter()
    retry = Retry(on=OSError, attempts=4, backoff=Constant(2), instruments=[meter] if listens else ())
    service = Service(OSError("a"), seconds=1)

    async def main() -> None:
        with pytest.raises(OSError, match="a"):
            await form(retry, meter.wrap(service))
        found = meter.statistics()
        assert (found.calls, found.failures, found.retries) == (4, 4, 3)
        assert found.ratio == 0.75
        assert found.spacing == Spacing(2.0, 2.0, 2.0, 3)
        assert (found.per_second, found.per_minute) == (4 / 60, 4)

    run_virtual(main)


@pytest.mark.parametrize("which", ["wrap", "protect"])
@pytest.mark.parametrize("twice", [False, True])
def test_retries_of_a_queue_are_counted_once(which: str, twice: bool) -> None:
    meter = CallMeter()
    retry = Retry(on=OSError, attempts=4, backoff=Constant(2), instruments=[meter] if twice else ())

    async def main() -> None:
        protect = meter if which == "protect" else None
        fn = fail if protect else meter.wrap(fail)
        async with open_task_queue(
            concurrency=3, retry=retry, failures=Failures.RECORD, instruments=[meter], protect=protect
        ) as queue:
            for item in range(10):
                await queue.submit(fn, item)
        assert figures(meter) == (40, 40, 30)
        assert meter.statistics().spacing == Spacing(2.0, 2.0, 2.0, 30)
        assert len(meter.keys()) == 1

    run_virtual(main)


def test_a_queue_whose_attempts_time_out_repeats_them() -> None:
    meter = CallMeter()
    retry = Retry(on=trio.TooSlowError, attempts=3, backoff=Constant(2), attempt_timeout=1)

    async def main() -> None:
        async with open_task_queue(concurrency=3, retry=retry, failures=Failures.RECORD, instruments=[meter]) as queue:
            await queue.submit(meter.wrap(trio.sleep), 10)
        assert figures(meter) == (3, 3, 2)

    run_virtual(main)


def test_tasks_that_fail_once_each_repeat_nothing() -> None:
    async def main() -> None:
        meter = CallMeter()

        async def once(item: int) -> None:
            with suppress(OSError):
                await meter.call(fail, item)

        async with trio.open_nursery() as nursery:
            for item in range(100):
                nursery.start_soon(once, item)
        assert figures(meter) == (100, 100, 0)

    run_virtual(main)


def test_a_success_in_between_means_that_nothing_is_repeated() -> None:
    async def main() -> None:
        meter = CallMeter()
        service = Service(OSError(), "fine", OSError(), OSError(), "fine")
        for _ in range(5):
            with suppress(OSError):
                await meter.call(service)
        assert figures(meter) == (5, 3, 3)  # the second, the fourth, the fifth
        with suppress(OSError):
            await meter.call(fail, 1)
        await meter.call(service)
        assert figures(meter) == (7, 4, 3)  # another key has failed

    run_virtual(main)


def test_after_a_window_nothing_is_repeated_any_more() -> None:
    async def main() -> None:
        meter = CallMeter(window=10)
        for pause in (9.75, 10.0):
            with suppress(OSError):
                await meter.call(fail, 1)
            await trio.sleep(pause)
        assert meter.statistics().spacing == NOTHING
        with suppress(OSError):
            await meter.call(fail, 1)
        assert figures(meter) == (1, 1, 0)

    run_virtual(main)


def test_only_the_latest_eight_failing_keys_of_a_task_are_remembered() -> None:
    async def main() -> None:
        meter = CallMeter(key=lambda fn, args: args[0])
        for _ in range(2):
            for item in range(9):
                with suppress(OSError):
                    await meter.call(fail, item)
        assert figures(meter) == (18, 18, 0)
        for item in reversed(range(9)):
            with suppress(OSError):
                await meter.call(fail, item)
        assert figures(meter) == (27, 27, 8)

    run_virtual(main)


def test_an_announced_retry_of_something_else_is_not_taken_for_ours() -> None:
    async def main() -> None:
        meter = CallMeter()
        retry = Retry(on=OSError, backoff=AT_ONCE, instruments=[meter])
        with pytest.raises(OSError, match="1"):
            await retry.call(fail, 1)
        assert figures(meter) == (0, 0, 0)

    run_virtual(main)


def test_a_failure_is_repeated_once_however_often_that_is_announced() -> None:
    async def main() -> None:
        meter = CallMeter()
        for fn in (meter.wrap(fail), fail):
            with pytest.raises(OSError, match="1"):
                await Retry(on=OSError, attempts=2, backoff=AT_ONCE, instruments=[meter]).call(fn, 1)
        assert figures(meter) == (2, 2, 2)  # the last failure was repeated, by another function
        with pytest.raises(OSError, match="1"):
            await Retry(on=OSError, attempts=9, backoff=AT_ONCE, instruments=[meter]).call(fail, 1)
        assert figures(meter) == (2, 2, 2)

    run_virtual(main)


# -------------------------------------------------------------------------------------------------- verdicts


def test_a_time_out_of_ours_is_a_failure_and_another_one_is_not() -> None:
    async def main() -> None:
        meter = CallMeter()
        with pytest.raises(trio.TooSlowError):
            await Timeout(1).call(meter.call, trio.sleep, 5)
        assert figures(meter) == (1, 1, 0)
        with trio.move_on_after(1):
            await meter.call(trio.sleep, 5)
        assert figures(meter) == (2, 1, 1)
        with pytest.raises(trio.TooSlowError):
            await Retry(on=trio.TooSlowError, attempts=3, attempt_timeout=1, backoff=AT_ONCE).call(
                meter.call, trio.sleep, 5
            )
        assert figures(meter) == (5, 4, 4)

    run_virtual(main)


def test_what_is_a_failure_can_be_said() -> None:
    async def main() -> None:
        meter = CallMeter(on=OSError, classify=lambda result: result == "bad")
        for outcome in (OSError(), ValueError(), "bad", RejectedError(), "fine"):
            with suppress(Exception):
                await meter.call(Service(outcome))
        assert figures(meter) == (5, 2, 3)  # after the OSError, after the bad result, after the refusal
        with meter.guard("by hand") as attempt:
            attempt.failed()
        assert figures(meter, "by hand") == (1, 1, 0)

    run_virtual(main)


def test_a_classify_that_raises_fails_the_call() -> None:
    async def main() -> None:
        meter = CallMeter(classify=lambda result: bool(1 / 0))
        with pytest.raises(ZeroDivisionError):
            await meter.call(push, 1)
        assert figures(meter) == (1, 1, 0)

    run_virtual(main)


def test_results_and_errors_pass_untouched() -> None:
    async def main() -> None:
        meter, error = CallMeter(), OSError("mine")
        assert await meter.call(push, 7) == 7
        with pytest.raises(OSError, match="mine") as caught:
            await meter.call(Service(error))
        assert caught.value is error
        assert error.__context__ is error.__cause__ is None

    run_virtual(main)


def test_cancelled_at_every_checkpoint_every_attempt_is_counted_and_none_has_failed() -> None:
    async def scenario(injector: CancelAt) -> None:
        meter, starts = CallMeter(), list[float]()

        async def body() -> None:
            starts.append(trio.current_time())
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)
            raise OSError

        ended = 0
        with injector.watch():
            for _ in range(3):
                with suppress(OSError):
                    try:
                        await meter.call(body)
                    except OSError:
                        ended += 1
                        raise
        assert figures(meter) == (len(starts), ended, max(0, len(starts) - 1))

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 6


def test_a_hundred_callers_at_once() -> None:
    async def main() -> None:
        meter = CallMeter()

        async def caller(item: int) -> None:
            for _ in range(3):
                with suppress(OSError):
                    await meter.call(Service(OSError() if item % 2 else "fine", seconds=1))

        async with trio.open_nursery() as nursery:
            for item in range(100):
                nursery.start_soon(caller, item)
        assert figures(meter) == (300, 150, 100)
        await trio.sleep(60)
        assert figures(meter) == (0, 0, 0)
        assert meter.keys() == ()

    run_virtual(main)


# ------------------------------------------------------------------------------------------------- watching


class Ledger(Watcher):
    def __init__(self) -> None:
        self.seen: list[tuple[str, object, float]] = []
        self.rows: list[int] = []

    def attempted(self, key: object, traffic: Traffic, now: float) -> None:
        self.seen.append(("attempted", key, now))

    def failed(self, key: object, traffic: Traffic, now: float, times: tuple[float, ...]) -> None:
        self.seen.append(("failed", key, now))
        self.rows.append(len(times))


@given(
    outcomes=st.lists(st.sampled_from([OSError("a"), OSError("b"), ValueError("a"), "fine"]), max_size=30),
    remember=st.integers(1, 12),
)
def test_failures_of_one_type_and_text_make_a_row(outcomes: list[Any], remember: int) -> None:
    ledger, rows, row, last = Ledger(), list[int](), 0, None
    for outcome in outcomes:
        row = row + 1 if outcome is last and isinstance(outcome, Exception) else 1
        last = outcome
        if isinstance(outcome, Exception):
            rows.append(min(row, remember))

    async def main() -> None:
        meter = CallMeter()
        meter.watch(ledger, remember=remember)
        service = Service(*outcomes)
        for _ in outcomes:
            with suppress(Exception):
                await meter.call(service)
        meter.forget(ledger)
        with suppress(OSError):
            await meter.call(fail, 1)

    run_virtual(main)
    assert ledger.rows == rows
    assert len(ledger.seen) == len(outcomes) + len(rows)


class Shy(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not for you")


def test_an_error_that_cannot_show_itself_is_told_by_its_type() -> None:
    async def main() -> None:
        ledger, meter = Ledger(), CallMeter()
        meter.watch(ledger, remember=5)
        for _ in range(2):
            with suppress(Shy):
                await meter.call(Service(Shy()))
        assert ledger.rows == [1, 2]

    run_virtual(main)


# ------------------------------------------------------------------------------------------------- figures


def test_what_is_usual_is_what_has_left_the_window() -> None:
    async def main() -> None:
        meter = CallMeter(window=60)
        for _ in range(300):
            await meter.call(push, 1)
            await trio.sleep(1)
        assert meter.statistics("push").usual_per_second == pytest.approx(1)
        assert meter.statistics().per_second == pytest.approx(1, rel=0.05)
        assert repr(meter) == "<CallMeter 'meter' window 60 s, 1 keys>"

    run_virtual(main)


def test_spacing_is_of_the_retries_in_the_window() -> None:
    async def main() -> None:
        meter = CallMeter(window=100)
        for pause in range(10):
            with suppress(OSError):
                await meter.call(fail, 1)
            await trio.sleep(pause)
        assert meter.statistics().spacing == Spacing(0.0, 4.0, 8.0, 9)

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"window": 0}, ValueError, "window must be > 0 and finite, got 0"),
        ({"window": float("inf")}, ValueError, "window must be > 0 and finite, got inf"),
        ({"window": True}, TypeError, "window must be a number, got True"),
        ({"key": "push"}, TypeError, "key must be a plain function, got 'push'"),
        ({"key": push}, TypeError, "key must be a plain function, got the async function .*"),
        ({"on": KeyboardInterrupt}, TypeError, "on must .*"),
        ({"classify": push}, TypeError, "classify must be a plain function, got the async function .*"),
        ({"usual_over": 0}, ValueError, "usual_over must be > 0 and finite, got 0"),
        ({"max_keys": 0}, ValueError, "max_keys must be >= 1, got 0"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        CallMeter(**options)


@pytest.mark.parametrize("look", ["call", "statistics", "keys", "traffic_of"])
def test_in_another_run_it_begins_anew(look: str) -> None:
    """What was counted by the clock of an earlier run would stay until that time is reached."""
    meter = CallMeter()

    async def first() -> None:
        await trio.sleep(5000)
        for item in range(50):
            await meter.call(push, item)
        assert meter.keys() == ("push",)

    async def second() -> None:
        if look == "call":
            await meter.call(push, 1)
            assert figures(meter) == (1, 0, 0)
        elif look == "statistics":
            assert (figures(meter), meter.statistics().usual_per_second) == ((0, 0, 0), 0)
        elif look == "keys":
            assert meter.keys() == ()
        else:
            assert meter.traffic_of("push") is None

    run_virtual(first)
    run_virtual(second)
