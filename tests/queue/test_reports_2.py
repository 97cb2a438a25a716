"""Public bug reports about limiters, each as a test of ours: bounds, memory, turns and transfers."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest
import trio

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    JobState,
    open_map,
    open_task_queue,
)
from trio_orchestrator.testing import assert_no_tokens, run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


# ------------------------------------------------------------------------------- a limit that limits, and memory


@schedules
def test_ragflow_7330_a_thousand_jobs_never_run_above_the_limit_nor_leave_the_source_early(seed: int) -> None:
    """`async with limiter: nursery.start_soon(...)` gives the token back before the task has begun."""

    async def main() -> None:
        bodies = Bodies()
        taken = 0
        most_out = 0

        async def source() -> AsyncIterator[int]:
            nonlocal taken, most_out
            for n in range(1000):
                taken += 1
                most_out = max(most_out, taken - bodies.returned)
                yield n

        async with open_task_queue(concurrency=7, max_waiting=10) as queue:
            async for n in source():
                await queue.submit(bodies.sleep, 1, n)
        assert (bodies.peak, bodies.returned) == (7, 1000)
        assert most_out <= 7 + 10 + 1  # one is at the door
        assert trio.current_time() == math.ceil(1000 / 7)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("ordered", [True, False])
def test_ragflow_7700_a_map_takes_no_more_from_its_source_than_its_bounds(seed: int, ordered: bool) -> None:
    async def main() -> None:
        bodies = Bodies()
        taken: list[int] = []

        async def source() -> AsyncGenerator[int, None]:
            while True:
                taken.append(len(taken))
                yield taken[-1]

        async with open_map(bodies.sleep, iter([1] * 3), concurrency=2) as few:
            assert [one.error async for one in few] == [None] * 3
        bodies = Bodies()

        async def one_second(n: int) -> object:
            return await bodies.sleep(1 + n % 3, n)

        async with open_map(one_second, source(), concurrency=4, ordered=ordered, buffer=3) as outcomes:
            seen = 0
            async for _ in outcomes:
                seen += 1
                assert len(taken) <= seen + 4 + 3
                await trio.sleep(0.25)
                if seen == 100:
                    break
        assert bodies.peak <= 4
        assert bodies.running == 0

    run_virtual(main, seed=seed)


@schedules
def test_ragflow_7872_short_jobs_keep_their_pace_beside_jobs_of_an_hour(seed: int) -> None:
    """Long jobs take the whole of the shared limit."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=4, per_key=2) as queue:
            handles = [await queue.submit(bodies.sleep, 3600, "long", key="long") for _ in range(6)]
            waits: list[float] = []
            for _ in range(20):
                begin = trio.current_time()
                handles.append(await queue.submit(bodies.sleep, 1, "short"))
                await handles[-1].wait()
                waits.append(trio.current_time() - begin)
                await trio.sleep(100)
        assert waits == [1] * 20
        assert [at for at, label in bodies.starts if label == "long"] == [0, 0, 3600, 3600, 7200, 7200]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


def test_trio_2770_a_waiting_job_costs_hundreds_of_bytes_and_no_task() -> None:
    """A task for each of ten million rows takes minutes and gigabytes before the first request."""
    n = 20_000

    async def main() -> tuple[float, int]:
        async with open_task_queue(concurrency=1, max_waiting=math.inf) as queue:
            queue.pause()
            gc.collect()
            tasks = trio.lowlevel.current_statistics().tasks_living
            tracemalloc.start()
            for i in range(n):
                queue.submit_nowait(trio.sleep, i)
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            tasks = trio.lowlevel.current_statistics().tasks_living - tasks
            queue.clear()
            return size / n, tasks

    size, tasks = trio.run(main)
    assert tasks == 0
    assert size < 400  # Trio's task is several thousand


@schedules
@pytest.mark.parametrize("where", ["wait", "door", "idle", "limiter"])
def test_trio_548_thousands_of_cancelled_waiters_leave_nothing(seed: int, where: str) -> None:
    """A cancelled waiter stays pinned in the limiter."""

    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        async with open_task_queue(limiter=limiter, max_waiting=1) as queue:
            first = await queue.submit(trio.sleep, 1000)
            second = await queue.submit(trio.sleep, 1)
            waits: dict[str, Callable[[], Awaitable[object]]] = {
                "wait": second.wait,
                "door": lambda: queue.submit(trio.sleep, 1),
                "idle": queue.wait_idle,
                "limiter": limiter.acquire,
            }

            async def give_up() -> None:
                with trio.move_on_after(0.5):
                    await waits[where]()

            for _ in range(4):
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(give_up)
            engine = queue._engine
            assert not engine.door
            assert not getattr(second, "_waiters", None)
            assert limiter.statistics().tasks_waiting <= 1  # the queue's own
            first.cancel()
        assert second.state is JobState.SUCCEEDED
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


# ----------------------------------------------------------------------------------------- turns and transfers


@schedules
def test_anyio_1170_nobody_slips_in_before_those_at_the_door(seed: int) -> None:
    """A non-blocking acquire succeeds between a release and the waiter that was woken by it."""

    async def main() -> None:
        bodies = Bodies()
        async with trio.open_nursery() as nursery, open_task_queue(concurrency=1, max_waiting=1) as queue:
            queue.submit_nowait(bodies.sleep, 1, "first")
            queue.submit_nowait(bodies.sleep, 1, "second")

            async def at_the_door(n: int) -> None:
                await queue.submit(bodies.sleep, 1, n)

            for n in range(3):
                nursery.start_soon(at_the_door, n)
                await trio.testing.wait_all_tasks_blocked()
            tried = 0
            while tried < 200:
                tried += 1
                try:
                    queue.submit_nowait(bodies.sleep, 1, "barger")
                    break
                except trio.WouldBlock:
                    await trio.sleep(0.0625)
        assert bodies.labels == ["first", "second", 0, 1, 2, "barger"]

    run_virtual(main, seed=seed)


@schedules
def test_anyio_1170_a_queue_takes_no_token_before_a_foreign_waiter(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        limiter = trio.CapacityLimiter(1)
        async with trio.open_nursery() as nursery, open_task_queue(limiter=limiter) as queue:
            await queue.submit(bodies.sleep, 1)

            async def foreigner() -> None:
                async with limiter:
                    await bodies.sleep(1, "foreign")

            nursery.start_soon(foreigner)
            await trio.sleep(0.5)
            for _ in range(3):
                await queue.submit(bodies.sleep, 1)
        assert bodies.labels == [None, "foreign", None, None, None]
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("private", [True, False])
def test_anyio_1223_growing_while_over_subscribed_admits_no_more_than_fit(seed: int, private: bool) -> None:
    """Raising the total while more are borrowed than there are over-grants."""

    async def main() -> None:
        bodies = Bodies()
        limiter = None if private else trio.CapacityLimiter(6)
        async with open_task_queue(limiter=limiter, concurrency=6 if private else None) as queue:

            def resize(n: int) -> None:
                if private:
                    queue.concurrency = n
                else:
                    queue.limiter.total_tokens = n

            handles = [await queue.submit(bodies.sleep, 10) for _ in range(20)]
            await trio.sleep(1)
            resize(2)
            await trio.sleep(1)
            resize(4)
            await trio.sleep(1)
            assert (bodies.started, bodies.running) == (6, 6)
            resize(7)
            await trio.sleep(1)
            assert (bodies.started, bodies.running) == (7, 7)
            resize(3)
            await trio.sleep(7)  # six have ended at 10; one that began at 3 runs
            assert bodies.running == 3
        assert bodies.peak == 7
        assert_no_tokens(queue.limiter)
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_anyio_646_growing_wakes_all_that_now_fit_and_leaves_no_stale_waiter(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1) as queue:
            handles = [await queue.submit(bodies.sleep, 5) for _ in range(3)]
            await trio.sleep(1)
            queue.concurrency = 3
            await trio.sleep(0.5)
            assert bodies.times == [0, 1, 1]
            assert queue.limiter.statistics().tasks_waiting == 0
            handles.append(await queue.submit(bodies.sleep, 5))
        assert bodies.times == [0, 1, 1, 5]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_ragflow_7871_resizing_up_and_down_under_load_keeps_the_limit_of_the_instant(seed: int) -> None:
    """A capacity that is changed at run time is set wrongly."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=5) as queue:

            async def body() -> None:
                before = bodies.running
                with bodies.inside():
                    assert before < queue.concurrency
                    await trio.sleep(1)

            handles = [await queue.submit(body) for _ in range(60)]
            for limit in (2, 9, 1, 4, 0, 3, 7):
                await trio.sleep(0.75)
                queue.concurrency = limit
        assert bodies.returned == 60
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_prefect_10632_one_limiter_may_be_used_again_inside_a_job(seed: int) -> None:
    """ "This borrower is already holding one of this CapacityLimiter's tokens"."""

    async def main() -> None:
        bodies = Bodies()
        limiter = trio.CapacityLimiter(2)
        async with open_task_queue(limiter=limiter) as queue:

            async def job() -> None:
                async with limiter:  # the task's own token
                    pass
                async with open_task_queue(limiter=limiter) as inner:
                    await inner.run(bodies.sleep, 1)
                child = await queue.submit(bodies.sleep, 1)
                await child.wait()

            await queue.run(job)
        assert bodies.returned == 2
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


@schedules
def test_two_jobs_with_equal_keys_are_two_borrowers(seed: int) -> None:
    """Trio lets two waiters for one borrower in on one token, since it compares borrowers by `==`."""

    async def main() -> None:
        bodies = Bodies()
        limiter = trio.CapacityLimiter(1)
        async with open_task_queue(limiter=limiter) as one, open_task_queue(limiter=limiter) as two:
            for queue in (one, two):
                for _ in range(3):
                    await queue.submit(bodies.sleep, 1, key="X", name="X")
        assert bodies.peak == 1
        assert trio.current_time() == 6
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


@schedules
def test_fastapi_5122_a_clean_up_needs_no_slot(seed: int) -> None:
    """Releasing a resource needs a token of the limiter that its users have exhausted."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, max_waiting=1) as queue:

            async def job(n: int) -> None:
                try:
                    await trio.sleep(1)
                finally:
                    await queue.submit(bodies.sleep, 1, "released", priority=1)
                    queue.concurrency = 1
                    queue.statistics()

            for n in range(3):
                await queue.submit(job, n)
        assert bodies.labels == ["released"] * 3
        assert queue.statistics().over_admitted >= 1
        assert_law(queue.statistics())

    run_virtual(main, seed=seed)
