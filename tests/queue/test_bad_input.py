"""Every argument of the queue and its parts, with what it refuses and the words in which it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from math import inf, nan
from typing import Any, TypeAlias

import pytest
import trio

from tests.queue.timeline import Timeline, pauses
from trio_orchestrator import (
    Cooldown,
    Failures,
    Gate,
    JobState,
    Retry,
    TaskQueue,
    map_all,
    open_map,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument, Policy
from trio_orchestrator.testing import run_virtual

Row: TypeAlias = tuple[object, type[Exception], str]


class Shown:
    """A value with a short repr, that is nothing in particular."""

    def __repr__(self) -> str:
        return "<shown>"


SHOWN = Shown()


def number(name: str, rule: str, *bad: float, finite: bool = False) -> dict[str, list[Row]]:
    """Return the rows of a number: its illegal values, and what is no number."""
    ending = " and finite" if finite else ""
    rows: list[Row] = [(value, ValueError, f"{name} must be {rule}{ending}, got {value!r}") for value in (*bad, nan)]
    rows += [(value, TypeError, f"{name} must be a number, got {value!r}") for value in ("x", None, True)]
    return {name: rows}


def whole(name: str, least: int) -> dict[str, list[Row]]:
    """Return the rows of a count: a whole number or infinity."""
    rows: list[Row] = [(value, ValueError, f"{name} must be >= {least}, got {value!r}") for value in (least - 1, -inf)]
    rows += [(value, ValueError, f"{name} must be a whole number or math.inf, got {value!r}") for value in (nan, 1.5)]
    rows += [(value, TypeError, f"{name} must be a number, got {value!r}") for value in ("x", True)]
    return {name: rows}


def kind(name: str, wanted: str, *bad: object) -> dict[str, list[Row]]:
    """Return the rows of what has to be of a kind."""
    return {name: [(value, TypeError, f"{name} must be {wanted}, got {value!r}") for value in (*bad, SHOWN)]}


def slots(least: int) -> dict[str, list[Row]]:
    """Return the rows of a number of slots."""
    rows: list[Row] = [(value, ValueError, f"concurrency must be >= {least}, got {value}") for value in (least - 1, -7)]
    odd = (nan, -inf, 1.5, True, "3")
    return {"concurrency": rows + [(v, TypeError, f"concurrency must be an int or math.inf, got {v!r}") for v in odd]}


TIMES = number("attempt_timeout", "> 0", 0, -1) | number("timeout", "> 0", 0, -1) | number("start_within", "> 0", 0, -1)
RNG = kind("rng", "have random() and uniform()", 5)
RNG = {"rng": [(value, error, text.replace("must be have", "must have")) for value, error, text in RNG["rng"]]}

QUEUE: dict[str, list[Row]] = (
    slots(1)
    | TIMES
    | RNG
    | kind("limiter", "a CapacityLimiter", 5)
    | kind("retry", "a Retry", 3)
    | kind("protect", "a Policy", 3, Policy)
    | kind("cooldown", "a Cooldown", 1.0)
    | whole("max_waiting", 1)
    | kind("overflow", "an Overflow", "wait", None, Failures.RAISE)
    | kind("failures", "a Failures", "raise", None)
    | number("ageing", "> 0", 0, -1)
    | whole("per_key", 1)
    | kind("per_key_order", "a KeyOrder", "strict", None)
    | whole("bypass", 0)
    | kind("name", "a str", 3, None, b"x")
    | {"expected": [row for row in number("expected", ">= 0", -1, -inf)["expected"] if row[0] is not None]}
    | kind("progress", "a bool or a rich.progress.Progress", None, 1)
    | {
        "instruments": [
            (value, TypeError, f"instruments must be Instrument objects, got {shown!r}")
            for value, shown in ((5, 5), (None, None), ([SHOWN], SHOWN), ([Instrument], Instrument))
        ]
    }
)
JOB: dict[str, list[Row]] = (
    TIMES
    | number("priority", "finite", inf, -inf)
    | number("delay", ">= 0", -1, inf, finite=True)
    | number("start_at", "finite", inf, -inf)
    | whole("weight", 1)
    | kind("retry", "a Retry or None", 3)
    | kind("gate", "a Gate", None, Gate)
    | kind("name", "a str", 3, None)
    | kind("tags", "an iterable of str", "abc", 3, None, [SHOWN], [b"x"])
)
UNHASHABLE: list[object] = [[], {}, {1}]
JOB["key"] = [(value, TypeError, f"key must be hashable, got {value!r}") for value in UNHASHABLE]
JOB["weight"].append((inf, ValueError, "weight must be finite, got inf"))
JOB["colour"] = [
    (SHOWN, TypeError, "colour is no option of a job; pass arguments of the function by functools.partial"),
]
RAMP = number("ramp", ">= 0", -1, inf, -inf, finite=True)
GATE = RAMP | RNG | kind("name", "a str", 3, None)
MAP = {name: QUEUE[name] for name in ("attempt_timeout", "cooldown", "limiter", "name", "protect", "retry", "timeout")}
MAP |= slots(1) | {name: QUEUE[name] for name in ("instruments", "progress")}
FN: list[Row] = [(value, TypeError, f"fn must be an async function, got {value!r}") for value in (SHOWN, None, "x")]
ITEMS: list[Row] = [
    (value, TypeError, f"items must be an iterable or an async iterable, got {value!r}") for value in (SHOWN, None)
]
REASON = kind("reason", "a str or an Exception", None, KeyError)["reason"]

Call = Callable[[TaskQueue, str, Any], object]


def _set(queue: TaskQueue, name: str, value: Any) -> None:
    queue.concurrency = value


def _prioritise(queue: TaskQueue, name: str, value: Any) -> None:
    queue.submit_nowait(trio.sleep, 0).priority = value


TABLES: list[tuple[str, Call, dict[str, list[Row]]]] = [
    ("open_task_queue", lambda _, name, value: open_task_queue(**{name: value}), QUEUE),
    ("submit_nowait", lambda queue, name, value: queue.submit_nowait(trio.sleep, 0, **{name: value}), JOB),
    ("submit", lambda queue, name, value: queue.submit(trio.sleep, 0, **{name: value}), JOB),
    ("run", lambda queue, name, value: queue.run(trio.sleep, 0, **{name: value}), {"priority": JOB["priority"]}),
    ("submit_nowait", lambda queue, _, value: queue.submit_nowait(value), {"fn": FN}),
    ("map_all", lambda _, __, value: map_all(value, []), {"fn": FN}),
    ("map_all", lambda _, __, value: map_all(trio.sleep, value), {"items": ITEMS}),
    ("map_all", lambda _, name, value: map_all(trio.sleep, [], **{name: value}), MAP),
    ("open_map", lambda _, __, value: open_map(value, []), {"fn": FN}),
    ("open_map", lambda _, __, value: open_map(trio.sleep, value), {"items": ITEMS}),
    ("open_map", lambda _, name, value: open_map(trio.sleep, [], **{name: value}), MAP | whole("buffer", 0)),
    ("Gate", lambda _, name, value: Gate(**{name: value}), GATE),
    ("Gate.shut", lambda _, __, value: Gate().shut(value), number("seconds", ">= 0", -1, inf, finite=True)),
    ("Gate.wait_open", lambda _, __, value: Gate().wait_open(limit=value), number("limit", "> 0", 0, -1)),
    ("Cooldown", lambda _, name, value: Cooldown(**{name: value}), RAMP | RNG),
    ("resume", lambda queue, _, value: queue.resume(value), RAMP),
    ("clear", lambda queue, _, value: queue.clear(value), {"reason": REASON}),
    ("close", lambda queue, _, value: queue.close(grace=value), number("grace", ">= 0", -1, -inf)),
    ("wait_below", lambda queue, _, value: queue.wait_below(value), whole("bound", 1)),
    ("concurrency", _set, slots(0)),
    ("priority", _prioritise, {"priority": JOB["priority"]}),
    ("group", lambda queue, name, value: queue.group(**{name: value}), {"failures": QUEUE["failures"]}),
]
ROWS = [
    pytest.param(call, name, value, error, message, id=f"{where}-{name}-{value!r}")
    for where, call, table in TABLES
    for name, rows in table.items()
    for value, error, message in rows
]


@pytest.mark.parametrize(("call", "name", "value", "error", "message"), ROWS)
def test_what_is_refused_and_how(call: Call, name: str, value: Any, error: type[Exception], message: str) -> None:
    async def main() -> None:
        async with open_task_queue(failures=Failures.RECORD) as queue:
            with pytest.raises(error) as caught:
                result = call(queue, name, value)  # what is opened has to complain here, not on entering
                if isawaitable(result):
                    await result
            assert type(caught.value) is error
            assert str(caught.value) == message
            statistics = queue.statistics()
            assert statistics.submitted == (call is _prioritise)
            assert (statistics.limit, statistics.paused) == (3, False)
            assert await queue.run(Timeline().work, "fine") == "fine"

    run_virtual(main)


def in_a_queue(call: Callable[[TaskQueue], Awaitable[object]], error: type[Exception], message: str) -> None:
    """Have a call raise exactly that."""

    async def main() -> None:
        async with open_task_queue(retry=Retry(on=Exception), failures=Failures.RECORD) as queue:
            with pytest.raises(error) as caught:
                await call(queue)
            assert str(caught.value) == message

    run_virtual(main)


def test_a_coroutine_object_is_refused_and_does_not_warn() -> None:
    coroutine = trio.sleep
    text = "fn must be an async function, got a coroutine object: pass the function and its arguments"
    in_a_queue(lambda queue: queue.submit(coroutine(1)), TypeError, text)  # type: ignore[arg-type]
    in_a_queue(lambda queue: queue.run(coroutine(1)), TypeError, text)  # type: ignore[arg-type]
    in_a_queue(lambda _: map_all(coroutine(1), []), TypeError, text)  # type: ignore[call-overload]


@pytest.mark.parametrize("function", [lambda: 3, dict, partial(int, "3")])
@pytest.mark.parametrize("options", [{}, {"timeout": 9}, {"retry": pauses(1, on=TypeError)}])
def test_a_plain_function_fails_its_job_and_is_not_repeated(function: Any, options: Any) -> None:
    async def main() -> None:
        async with open_task_queue(retry=Retry(on=Exception)) as queue:
            job = queue.submit_nowait(function, **options)
            with pytest.raises(
                TypeError, match=r"returned no awaitable: pass an async function, or use submit_sync for a plain one$"
            ):
                await job.wait()
            assert (job.state, job.attempts) == (JobState.FAILED, 1)

    run_virtual(main)


def test_wrong_arguments_fail_the_job_and_are_not_repeated() -> None:
    async def main() -> None:
        async with open_task_queue(retry=Retry(on=Exception)) as queue:
            job = queue.submit_nowait(trio.sleep, 1, 2, 3)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"sleep\(\) takes 1 positional argument but 3 were given"):
                await job.wait()
            assert job.attempts == 1

    run_virtual(main)


def test_submit_sync_wants_a_plain_function() -> None:
    def call(value: Any, **options: Any) -> Callable[[TaskQueue], Awaitable[object]]:
        return lambda queue: queue.submit_sync(value, **options)

    in_a_queue(call(SHOWN), TypeError, "fn must be a plain function, got <shown>")
    in_a_queue(call(trio.sleep), TypeError, f"fn must be a plain function, got the async function {trio.sleep!r}")
    in_a_queue(call(dict, thread_limiter=3), TypeError, "thread_limiter must be a CapacityLimiter, got 3")
    in_a_queue(call(dict, priority=nan), ValueError, "priority must be finite, got nan")


def test_what_excludes_each_other() -> None:
    with pytest.raises(TypeError, match=r"^concurrency must not be given together with limiter"):
        open_task_queue(concurrency=3, limiter=trio.CapacityLimiter(1))
    in_a_queue(
        lambda queue: queue.submit(trio.sleep, 1, delay=1, start_at=1),
        TypeError,
        "delay and start_at exclude each other",
    )

    async def main() -> None:
        async with open_task_queue(limiter=trio.CapacityLimiter(5)) as queue:
            with pytest.raises(ValueError, match=r"^weight must be 1 in a queue with limiter=, got 2"):
                queue.submit_nowait(trio.sleep, 1, weight=2)
            with pytest.raises(AttributeError, match=r"^concurrency cannot be set in a queue with limiter="):
                queue.concurrency = 3

    run_virtual(main)


def test_legal_extremes_are_taken() -> None:
    async def main() -> None:
        async with open_task_queue(
            concurrency=inf,
            max_waiting=inf,
            ageing=inf,
            per_key=inf,
            bypass=inf,
            attempt_timeout=inf,
            timeout=inf,
            start_within=inf,
            instruments=iter([Instrument()]),  # type: ignore[arg-type]
        ) as queue:
            queue.submit_nowait(trio.sleep, 0, priority=-1e308, weight=10**9, start_at=-1e308, timeout=inf)
            queue.submit_nowait(trio.sleep, 0, delay=0, key=None, retry=None, tags=[], name="")
            await queue.wait_below(inf)
            queue.resume(0)
            assert await queue.close(grace=inf) == []

    run_virtual(main)
