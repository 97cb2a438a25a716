"""Traps 11 to 15: contexts, what is kept alive, ramps, the alarm, tombstones."""

from __future__ import annotations

import gc
import math
import weakref
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any, Final

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import Failures, JobState, Overflow, Retry, TaskQueue, open_task_queue
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.queue.alarm import Alarm
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(8))
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
        with pytest.raises(_Error):
            handle.result_nowait()
        for _ in range(3):  # however often it is raised
            with pytest.raises(_Error) as caught:
                handle.result_nowait()
        names = [entry.name for entry in caught.traceback]
        return names[names.index("body") - 1 :]

    names = run_virtual(main)
    assert names[1:] == ["body", "deep"]
    assert names[0] in ("deliver", "result_nowait", "_deliver")


# ------------------------------------------------------------------------------------------------ T13: ramps


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    limit=st.integers(1, 12),
    ramp=st.floats(1e-9, 1e9),
    begin=st.floats(0, 1e9),
    service=st.floats(0, 2),
)
def test_t13_a_ramp_moves_time_at_every_step_and_lets_no_more_run_than_it_says(
    seed: int, limit: int, ramp: float, begin: float, service: float
) -> None:
    async def main() -> None:
        bodies = Bodies()
        start = begin
        async with open_task_queue(concurrency=limit) as queue:
            queue.pause()

            async def body() -> None:
                with bodies.inside():
                    elapsed = trio.current_time() - start
                    if elapsed < ramp:
                        assert bodies.running <= max(1, math.floor(limit * elapsed / ramp * (1 + 1e-8)))
                    await trio.sleep(service * ramp)

            handles = [queue.submit_nowait(body) for _ in range(2 * limit)]
            await trio.sleep(begin)
            start = trio.current_time()
            queue.resume(ramp=ramp)
        assert bodies.peak <= limit
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed, max_jumps=1000)


@pytest.mark.parametrize("limit", [0, 1, 3, math.inf])
def test_t13_a_ramp_at_the_edges(limit: float) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=2) as queue:
            queue.pause()
            handles = [queue.submit_nowait(bodies.sleep, 100) for _ in range(4)]
            queue.concurrency = limit if limit == math.inf else int(limit)
            queue.resume(ramp=10)
            await trio.sleep(5)
            assert bodies.started == min(limit, 1)
            await trio.sleep(5.5)
            assert bodies.started == min(limit, 4)
            queue.concurrency = 4
            await trio.lowlevel.checkpoint()
            queue.resume(ramp=10)  # not paused: nothing happens
        assert bodies.times[-1] in (10, 10.5, 100)
        assert_over(queue, handles, bodies)

    run_virtual(main, max_jumps=1000)


@schedules
def test_t13_a_ramp_goes_step_by_step(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=4) as queue:
            queue.pause()
            handles = [queue.submit_nowait(bodies.sleep, 100) for _ in range(5)]
            await trio.sleep(1)
            queue.resume(ramp=8)
        assert bodies.times == [1, 5, 7, 9, 101]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


# -------------------------------------------------------------------------------------------- T14: the alarm


@schedules
def test_t14_the_alarm_hears_of_an_earlier_time_and_of_one_that_is_gone(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=9) as queue:
            late = await queue.submit(bodies.sleep, 0, 50, delay=50)
            await trio.sleep(1)
            early = await queue.submit(bodies.sleep, 0, 10, start_at=10)
            head = await queue.submit(bodies.sleep, 0, 5, delay=4)
            now = await queue.submit(bodies.sleep, 0, 1, delay=0)
            past = await queue.submit(bodies.sleep, 0, 1, start_at=0.5)
            head.cancel()  # the head of the heap: the alarm wakes for nothing, or not at all
            handles = [late, early, head, now, past]
            await trio.sleep(9)  # the alarm and we wake in the same tick
            handles.append(await queue.submit(bodies.sleep, 0, 12, delay=2))
            handles.append(await queue.submit(bodies.sleep, 0, 10, delay=0))
            await trio.sleep(5)
            assert queue.clear() == 1
        assert bodies.starts == [(1, 1), (1, 1), (10, 10), (10, 10), (12, 12)]
        assert trio.current_time() == 15
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


def test_t14_cancelled_entries_of_the_alarm_are_compacted() -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, max_waiting=math.inf) as queue:
            heap = queue._engine.alarm._heap
            keeper = queue.submit_nowait(trio.sleep, 0, delay=5)
            for n in range(2000):
                queue.submit_nowait(trio.sleep, 0, delay=10 + n % 7, timeout=1000, start_within=500).cancel()
                assert len(heap) < 300
            handles = [queue.submit_nowait(trio.sleep, 0, timeout=1000) for _ in range(2000)]
            await trio.sleep(1)
            assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
            assert len(heap) < 300
        assert keeper.state is JobState.SUCCEEDED
        assert trio.current_time() == 5

    run_virtual(main)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_t14_everything_fires_once_at_its_time_in_order(seed: int) -> None:
    random = Random(seed)
    fired: list[tuple[float, float]] = []

    async def main() -> None:
        alarm = Alarm(lambda jobs: None)
        expected: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            timers = []
            for _ in range(30):
                due = trio.current_time() + random.choice([-1, 0, 0.5, 1, 3, 7])
                timers.append((due, alarm.call_at(due, lambda due=due: fired.append((due, trio.current_time())))))  # type: ignore[misc]
                if random.random() < 0.3:
                    _, gone = timers.pop(random.randrange(len(timers)))
                    alarm.cancel(gone)
                    alarm.cancel(gone)
                if random.random() < 0.3:
                    await trio.sleep(random.choice([0, 0.5, 1]))
            expected = [due for due, _ in timers]
            await trio.sleep(10)
            assert len(alarm) == 0
            nursery.cancel_scope.cancel()
        assert set(expected) <= {due for due, _ in fired}
        assert all(at >= due for due, at in fired)
        assert [at for _, at in fired] == sorted(at for _, at in fired)

    run_virtual(main, seed=seed)


# ----------------------------------------------------------------------------------------- T15: tombstones


_FEW: Final = 400


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"key": "k"}, {"delay": 9}], ids=str)
@pytest.mark.parametrize("order", ["first", "last", "random"])
def test_t15_jobs_cancelled_while_paused_leave_no_tombstones(options: Any, order: str) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, per_key=1, max_waiting=math.inf) as queue:
            schedule = queue._engine.schedule
            queue.pause()
            for _ in range(3):
                handles = [queue.submit_nowait(trio.sleep, 0, **options) for _ in range(1000)]
                if order == "random":
                    Random(0).shuffle(handles)
                for handle in handles if order == "first" else reversed(handles):
                    handle.cancel()
                size = (
                    len(schedule.fifo) + sum(len(heap) for heap in schedule._heaps()) + len(queue._engine.alarm._heap)
                )
                assert size < _FEW
                assert queue.statistics().waiting == 0
            queue.resume()

    run_virtual(main)


def test_t15_priorities_changed_a_hundred_times_a_job_leave_no_tombstones() -> None:
    async def main() -> None:
        random = Random(5)
        async with open_task_queue(concurrency=1) as queue:
            schedule = queue._engine.schedule
            queue.pause()
            order: list[int] = []

            async def body(n: int) -> None:
                order.append(n)

            handles = [queue.submit_nowait(body, n) for n in range(50)]
            for _ in range(5000):
                handles[random.randrange(50)].priority = random.randrange(10)
            size = len(schedule.fifo) + sum(len(heap) for heap in schedule._heaps())
            assert size < _FEW
            s = queue.statistics()
            assert (s.submitted, s.waiting) == (50, 50)
            queue.resume()
        assert sorted(order) == list(range(50))
        priorities = [handles[n].priority for n in order]
        assert priorities == sorted(priorities, reverse=True)
        assert_over(queue, handles)

    run_virtual(main)


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_t15_a_queue_that_drops_remembers_no_ended_jobs(overflow: Overflow) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, overflow=overflow, max_waiting=10) as queue:
            first = await queue.submit(trio.sleep, 0, delay=1e6)  # waits at the head all the time
            gone: list[weakref.ref[_Thing]] = []
            for _ in range(1000):
                thing = _Thing()
                gone.append(weakref.ref(thing))
                await queue.submit(trio.sleep, 0, name=str(id(thing)))
                del thing
                await queue.wait_below(5)
            held = queue._engine.victims
            assert held is not None
            remembered = len(getattr(held, "_jobs", getattr(held, "_heap", ())))
            assert remembered < _FEW
            first.cancel()

    run_virtual(main)
