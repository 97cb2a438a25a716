"""Traps 11 and 12: contexts, and what is kept alive."""

from __future__ import annotations

import gc
import weakref
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import trio
import trio.lowlevel

from trio_orchestrator import Failures, Retry, TaskQueue, open_task_queue
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(5))
variable: ContextVar[str] = ContextVar("variable", default="unset")
thing_in_context: ContextVar[object] = ContextVar("thing_in_context", default=None)


# ---------------------------------------------------------------------------------------------- T11: contexts


@schedules
def test_t11_a_job_has_the_context_of_its_submission_and_no_other(seed: int) -> None:
    seen: list[str] = []

    async def body(then: str) -> None:
        seen.append(variable.get())
        variable.set(then)
        await trio.sleep(1)
        assert variable.get() == then

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            for options in ({}, {"priority": -1}, {"attempt_timeout": 9, "priority": -2}):
                variable.set("submitted")
                await queue.submit(body, "by the job", **options)  # type: ignore[arg-type]
                variable.set("after")
            await queue.wait_idle()
            assert variable.get() == "after"
            await queue.submit(body, "by the last")  # on a worker that was parked
        assert seen == ["submitted", "submitted", "submitted", "after"]

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("own", [False, True])
def test_t11_every_attempt_starts_with_the_submitters_context(seed: int, own: bool) -> None:
    seen: list[str] = []

    async def body() -> None:
        seen.append(variable.get())
        variable.set("by an attempt")
        raise OSError

    async def main() -> None:
        retry = Retry(on=OSError, attempts=4, backoff=Constant(1))
        async with open_task_queue(failures=Failures.RECORD, retry=None if own else retry) as queue:
            variable.set("submitted")
            options: Any = {"retry": retry} if own else {}
            await queue.submit(body, **options)
            variable.set("after")

    run_virtual(main, seed=seed)
    assert seen == ["submitted"] * 4


def test_t11_a_parked_worker_is_back_in_the_context_of_its_queue() -> None:
    async def main() -> None:
        variable.set("of the queue")
        async with open_task_queue() as queue:
            await copy_context().run(lambda: (variable.set("of the job"), queue.submit(trio.sleep, 1))[1])
            await queue.wait_idle()
            await trio.testing.wait_all_tasks_blocked()
            (parked,) = queue._engine.parked
            assert parked.task is not None
            assert parked.task.context[variable] == "of the queue"

    run_virtual(main)


# --------------------------------------------------------------------------------- T12: what is kept alive


class _Thing:
    """Something whose death can be watched."""


class _Error(Exception):
    pass


async def _succeed(thing: object) -> None:
    await trio.sleep(1)


async def _fail(thing: object) -> None:
    await trio.sleep(1)
    raise _Error(thing)


async def _hang(thing: object) -> None:
    await trio.sleep_forever()


def _kept(body: Any, *, how: str = "", **options: Any) -> list[str]:
    """Return what is still alive when a job has ended, its handle is gone, and its worker is parked."""
    dead: dict[str, weakref.ref[Any]] = {}

    async def live(queue: TaskQueue) -> None:
        thing, value = _Thing(), _Thing()
        dead["argument"], dead["context"] = weakref.ref(thing), weakref.ref(value)
        token = thing_in_context.set(value)
        handle = await queue.submit(body, thing, **options)
        thing_in_context.reset(token)
        if how:
            await trio.sleep(0.5)
            handle.cancel() if how == "cancel" else queue.clear()
        try:
            await handle.wait()
        except Exception as error:
            dead["error"] = weakref.ref(error)

    async def main() -> list[str]:
        async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
            blocker = await queue.submit(trio.sleep_forever) if how == "clear" else None
            await live(queue)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            alive = [name for name, reference in dead.items() if reference() is not None]
            if blocker is not None:
                blocker.cancel()
            return alive

    return run_virtual(main)


_RETRY = Retry(on=_Error, attempts=3, backoff=Constant(1))


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (_succeed, {}),
        (_succeed, {"attempt_timeout": 5}),
        (_fail, {}),
        (_fail, {"timeout": 50, "name": "x"}),
        (_fail, {"retry": _RETRY}),
        (_hang, {"attempt_timeout": 2}),
        (_hang, {"attempt_timeout": 2, "retry": _RETRY}),
        (_hang, {"how": "cancel"}),
        (_hang, {"how": "cancel", "timeout": 50}),
        (_fail, {"how": "cancel", "retry": Retry(on=_Error, backoff=Constant(99))}),
        (_hang, {"how": "clear"}),
        (_hang, {"how": "clear", "priority": 2, "timeout": 50}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value).replace(" ", ""),
)
def test_t12_a_parked_worker_keeps_nothing_of_its_last_job_alive(body: Any, options: dict[str, Any]) -> None:
    assert _kept(body, **options) == []


def test_t12_a_failure_shows_the_users_frames_and_none_of_ours() -> None:
    async def deep() -> None:
        raise _Error

    async def body() -> None:
        await deep()

    async def main() -> list[str]:
        async with open_task_queue(failures=Failures.RECORD) as queue:
            handle = await queue.submit(body)
        names = []
        for _ in range(3):  # however often it is raised
            with pytest.raises(_Error) as caught:
                handle.result_nowait()
            names.append([entry.name for entry in caught.traceback])
        assert names[0] == names[1] == names[2]
        return names[0]

    names = run_virtual(main)
    assert names[-2:] == ["body", "deep"]
    assert set(names[:-2]) <= {"main", "result_nowait", "_deliver", "deliver"}
