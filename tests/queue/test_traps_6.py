"""Traps 16 and 17: whoever is called may call back, and many retries at one instant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, final

import pytest
import trio

from tests.queue.bodies import Bodies, Watch, assert_over
from trio_orchestrator import (
    Failures,
    Gate,
    JobHandle,
    KeyOrder,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.event import JobFinished, LimitChanged, QueueDropped, RetryScheduled
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(5))
HOUR = 3600.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Act = Callable[[TaskQueue, list[JobHandle[Any]], Bodies], object]


def _submit(queue: TaskQueue, handles: list[JobHandle[Any]], bodies: Bodies) -> None:
    if len(handles) < 12:
        handles.append(queue.submit_nowait(bodies.sleep, 1, priority=len(handles)))


def _resize(queue: TaskQueue, handles: list[JobHandle[Any]], bodies: Bodies) -> None:
    queue.concurrency = 3 if queue.statistics().waiting > 2 else 1


def _pause_and_resume(queue: TaskQueue, handles: list[JobHandle[Any]], bodies: Bodies) -> None:
    queue.pause()
    queue.resume(ramp=2)


def _reprioritise(queue: TaskQueue, handles: list[JobHandle[Any]], bodies: Bodies) -> None:
    for handle in handles:
        handle.priority = -handle.priority + 1


ACTS: dict[str, Act] = {
    "clear": lambda queue, handles, bodies: queue.clear(),
    "cancel all": lambda queue, handles, bodies: [handle.cancel("by a hook") for handle in tuple(handles)],
    "cancel the last": lambda queue, handles, bodies: handles[-1].cancel("by a hook"),
    "submit": _submit,
    "resize": _resize,
    "pause and resume": _pause_and_resume,
    "reprioritise": _reprioritise,
}
acts = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)


@final
class _Meddler(Instrument):
    """Does something to the queue in every hook."""

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None
        self.heard: list[str] = []

    def _meddle(self, event: object, /) -> None:
        self.heard.append(type(event).__name__)
        self.act()

    job_finished = queue_dropped = retry_scheduled = gave_up = limit_changed = gate_shut = gate_opened = _meddle


async def _jobs_of_many_kinds(queue: TaskQueue, bodies: Bodies) -> list[JobHandle[Any]]:
    handles: list[JobHandle[Any]] = []
    for n in range(2):
        handles += [
            await queue.submit(bodies.sleep, 1, n),
            await queue.submit(bodies.fail, 1, OSError(n), priority=1),
            await queue.submit(bodies.fail, 1, ValueError(n), key="k"),
            await queue.submit(bodies.clean_up, 9, 1, attempt_timeout=2, key="k"),
        ]
    return handles


# ---------------------------------------------------------------------------------------------- T16: call backs


@schedules
@acts
def test_t16_a_hook_may_do_anything_to_the_queue(seed: int, act: Act) -> None:
    async def main() -> None:
        bodies, watch, meddler = Bodies(), Watch(), _Meddler()
        async with open_task_queue(
            concurrency=2,
            per_key=1,
            retry=Retry(on=OSError, attempts=2, backoff=Constant(1), instruments=[watch, meddler]),
            failures=Failures.RECORD,
            instruments=[watch, meddler],
        ) as queue:
            watch.queue = queue
            handles = await _jobs_of_many_kinds(queue, bodies)
            meddler.act = lambda: act(queue, handles, bodies)
            await trio.sleep(1.5)
            queue.clear()
            queue.concurrency = 4
        watch.check()
        assert meddler.heard.count("JobFinished") == len(handles)
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
@acts
def test_t16_a_job_may_do_anything_to_its_queue(seed: int, act: Act) -> None:
    async def main() -> None:
        bodies, watch = Bodies(), Watch()
        async with open_task_queue(concurrency=2, per_key=1, failures=Failures.RECORD, instruments=[watch]) as queue:
            watch.queue = queue

            async def meddle() -> None:
                with bodies.inside():
                    await trio.sleep(0.5)
                    act(queue, handles, bodies)
                    await trio.sleep(0.5)

            handles = [await queue.submit(meddle)]
            handles += await _jobs_of_many_kinds(queue, bodies)
        watch.check()
        assert bodies.peak <= 3
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
@acts
def test_t16_a_waiter_may_do_anything_to_the_queue(seed: int, act: Act) -> None:
    async def main() -> None:
        bodies, watch = Bodies(), Watch()
        async with (
            trio.open_nursery() as nursery,
            open_task_queue(concurrency=2, per_key=1, failures=Failures.RECORD, instruments=[watch]) as queue,
        ):
            watch.queue = queue
            handles = await _jobs_of_many_kinds(queue, bodies)

            async def wait(handle: JobHandle[Any]) -> None:
                try:
                    await handle.wait()
                except Exception:
                    pass
                if not queue.statistics().idle:
                    act(queue, handles, bodies)

            for handle in tuple(handles):
                nursery.start_soon(wait, handle)
            await queue.wait_idle()
        watch.check()
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


def test_t16_a_hook_that_raises_is_logged_once_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instrument):
        def job_finished(self, event: JobFinished, /) -> None:
            raise ValueError("a broken hook")

    async def main() -> None:
        bodies, watch = Bodies(), Watch()
        async with open_task_queue(concurrency=2, instruments=[Broken(), watch]) as queue:
            handles = [await queue.submit(bodies.sleep, 1) for _ in range(5)]
        assert watch.heard == 5
        assert_over(queue, handles, bodies)

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    assert len(caplog.records) == 1
    assert "raised and was removed" in caplog.text
    assert "a broken hook" in caplog.text


def test_t16_a_drop_is_told_before_the_jobs_it_ends() -> None:
    heard: list[object] = []

    class Listener(Instrument):
        def queue_dropped(self, event: QueueDropped, /) -> None:
            heard.append((event.reason, event.count))

        def job_finished(self, event: JobFinished, /) -> None:
            heard.append(event.state)

        def limit_changed(self, event: LimitChanged, /) -> None:
            heard.append((event.old, event.new))

    async def main() -> None:
        async with open_task_queue(concurrency=1, instruments=[Listener()]) as queue:
            for _ in range(3):
                queue.submit_nowait(trio.sleep, 1)
            queue.clear("enough")
            queue.concurrency = 2
            queue.concurrency = 2

    run_virtual(main)
    assert heard == [("enough", 2), "dropped", "dropped", (1, 2), "succeeded"]


def test_t16_a_retry_hook_may_cancel_the_job_that_failed() -> None:
    async def main() -> None:
        bodies = Bodies()

        class Canceller(Instrument):
            def retry_scheduled(self, event: RetryScheduled, /) -> None:
                handle.cancel("no more")

        retry = Retry(on=OSError, attempts=9, backoff=Constant(1), instruments=[Canceller()])
        async with open_task_queue(retry=retry, failures=Failures.RECORD) as queue:
            handle = queue.submit_nowait(bodies.fail, 1, OSError("its own"))
            await trio.sleep(5)
            assert handle.attempts == 1
            with pytest.raises(OSError, match="its own"):
                handle.result_nowait()
        assert_over(queue, [handle], bodies)

    run_virtual(main)


# ------------------------------------------------------------------------------------- T17: many retries at once


@schedules
@pytest.mark.parametrize("options", [{}, {"priority": 2}, {"attempt_timeout": 50}], ids=str)
def test_t17_a_thousand_failures_of_one_instant_come_back_in_their_order(seed: int, options: dict[str, Any]) -> None:
    many = 1000 if not options and seed == 0 else 60

    async def main() -> None:
        order: list[object] = []
        healthy = False

        async def body(n: object) -> None:
            if not healthy:
                raise OSError
            order.append(n)

        retry = Retry(on=OSError, attempts=2, backoff=Constant(2))
        async with open_task_queue(concurrency=many, retry=retry, max_waiting=3 * many) as queue:
            for n in range(many):
                queue.submit_nowait(body, n, **options)
            await trio.sleep(1)
            assert queue.statistics().retry_scheduled == many
            queue.pause()
            for n in range(many):
                queue.submit_nowait(body, ("newcomer", n), **options)
            await trio.sleep(2)
            assert queue.statistics().waiting == 2 * many
            healthy = True
            queue.concurrency = 1
            queue.resume()
        assert order == [*range(many), *[("newcomer", n) for n in range(many)]]

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("strict", [False, True])
def test_t17_a_retry_whose_key_is_full_waits_for_it(seed: int, strict: bool) -> None:
    async def main() -> None:
        bodies = Bodies()
        attempts = 0

        async def flaky() -> None:
            nonlocal attempts
            attempts += 1
            with bodies.inside("flaky"):
                await trio.sleep(1)
                if attempts == 1:
                    raise OSError

        async with open_task_queue(
            concurrency=5,
            per_key=1,
            per_key_order=KeyOrder.STRICT if strict else KeyOrder.FREE,
            retry=Retry(on=OSError, backoff=Constant(1)),
        ) as queue:
            handles: list[JobHandle[Any]] = [await queue.submit(flaky, key="a")]
            handles += [await queue.submit(bodies.sleep, 5, n, key="a") for n in (1, 2)]
            handles.append(await queue.submit(bodies.sleep, 5, "other", key="b"))
        then = [(2, "flaky"), (3, 1), (8, 2)] if strict else [(1, 1), (6, "flaky"), (7, 2)]
        assert bodies.starts[2:] == then
        assert set(bodies.starts[:2]) == {(0, "flaky"), (0, "other")}
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t17_retries_that_fall_due_at_a_shut_gate_wait_and_keep_their_order(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        gate = Gate("server")
        healthy = False

        async def body(n: int) -> None:
            with bodies.inside(n):
                if not healthy:
                    raise OSError

        async with open_task_queue(concurrency=9, retry=Retry(on=OSError, backoff=Constant(2))) as queue:
            handles = [await queue.submit(body, n, gate=gate) for n in range(9)]
            await trio.sleep(1)
            healthy = True
            gate.shut(10)
            queue.concurrency = 1
            handles.append(await queue.submit(body, 9))  # another gate: it is not held back
            await trio.sleep(5)
            assert bodies.starts[9:] == [(1, 9)]
            assert (queue.statistics().waiting, queue.statistics().retry_scheduled) == (9, 0)
        assert bodies.starts[10:] == [(11, n) for n in range(9)]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)
