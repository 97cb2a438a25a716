"""Traps 7 to 10: clean-up that takes its time, tokens at the moment of a cancel, shared limiters, queues in a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
import trio.lowlevel

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import Failures, JobHandle, JobState, TaskQueue, open_task_queue
from trio_orchestrator.testing import assert_no_tokens, run_virtual

SEEDS: Final = range(5)
schedules = pytest.mark.parametrize("seed", SEEDS)


# ------------------------------------------------------------------------------------------- T7: slow clean-up


@schedules
@pytest.mark.parametrize("how", ["cancel", "attempt_timeout", "timeout"])
def test_t07_a_shielded_clean_up_keeps_its_slot_to_the_second(seed: int, how: str) -> None:
    bodies = Bodies()
    options: dict[str, Any] = {} if how == "cancel" else {how: 2}

    async def main() -> None:
        async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
            first = await queue.submit(bodies.clean_up, 100, 5, **options)
            second = await queue.submit(bodies.sleep, 1)
            await trio.sleep(1.5)
            assert queue.statistics().overdue == 0
            if how == "cancel":
                await trio.sleep(0.5)
                first.cancel()
            await trio.sleep(4)
            s = queue.statistics()
            assert (s.running, s.waiting, s.overdue) == (1, 1, 1)
            assert first.state is JobState.RUNNING
            with trio.move_on_after(0.1) as impatient:
                await first.wait()
            assert impatient.cancelled_caught  # waiters settle when the body has left
        assert bodies.times == [0, 7]
        assert bodies.peak == 1
        assert first.state is (JobState.CANCELLED if how == "cancel" else JobState.FAILED)
        assert_over(queue, [first, second], bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t07_the_outcome_of_a_cancelled_job_is_what_its_body_made_of_it(seed: int) -> None:
    async def swallows() -> str:
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            pass
        return "swallowed"

    async def breaks() -> None:
        try:
            await trio.sleep(100)
        finally:
            raise ValueError("in the clean-up")

    async def groups() -> None:
        async def child() -> None:
            try:
                await trio.sleep(100)
            finally:
                raise ValueError("a child's")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            nursery.start_soon(trio.sleep, 100)
            await trio.sleep(100)

    async def main() -> None:
        async with open_task_queue(concurrency=4, failures=Failures.RECORD) as queue:
            handles: list[JobHandle[Any]] = [await queue.submit(fn) for fn in (swallows, breaks, groups)]
            handles.append(await queue.submit(trio.sleep, 100))
            await trio.sleep(1)
            for handle in handles:
                handle.cancel()
        assert trio.current_time() == 1
        assert handles[0].result_nowait() == "swallowed"
        with pytest.raises(ValueError, match="in the clean-up"):
            handles[1].result_nowait()
        with pytest.raises(ExceptionGroup) as caught:
            handles[2].result_nowait()
        assert [str(error) for error in caught.value.exceptions] == ["a child's"]
        assert handles[3].state is JobState.CANCELLED
        assert_over(queue, handles)

    run_virtual(main, seed=seed)


# --------------------------------------------------------------------------- T8: a token and a cancel in one tick


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("first", ["token", "cancel"])
def test_t08_a_token_granted_in_the_tick_of_a_cancel_is_given_back(seed: int, first: str) -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        bodies = Bodies()
        foreigner = object()
        limiter.acquire_on_behalf_of_nowait(foreigner)
        handles: list[JobHandle[Any]] = []
        queue: TaskQueue | None = None
        with trio.CancelScope() as scope:
            async with open_task_queue(limiter=limiter) as queue:
                handles += [queue.submit_nowait(bodies.sleep, 1) for _ in range(3)]
                await trio.sleep(1)
                assert limiter.statistics().tasks_waiting == 1
                acts: list[Callable[[], object]] = [lambda: limiter.release_on_behalf_of(foreigner), scope.cancel]
                for act in acts if first == "token" else reversed(acts):
                    act()
                await trio.sleep(100)
        assert queue is not None
        assert trio.current_time() == 1
        assert_no_tokens(limiter)
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("shared", [False, True])
def test_t08_tokens_that_come_and_go_from_outside_are_noticed(seed: int, shared: bool) -> None:
    async def main() -> None:
        bodies = Bodies()
        limiter = trio.CapacityLimiter(2) if shared else None
        async with open_task_queue(limiter=limiter, concurrency=None if shared else 2) as queue:
            tokens = queue.limiter
            tokens.total_tokens = 0
            handles = [queue.submit_nowait(bodies.sleep, 10) for _ in range(9)]
            await trio.sleep(1)
            assert bodies.started == 0
            tokens.total_tokens = 4
            await trio.sleep(1)
            assert bodies.times == [1, 1, 1, 1]  # all that now fit
            tokens.total_tokens = 0
            await trio.sleep(50)
            assert bodies.started == 4
            assert queue.statistics().running == 0
            tokens.total_tokens = 1
            await trio.sleep(15)
            assert bodies.times[4:] == [52, 62]
            tokens.total_tokens = 3
            await trio.lowlevel.checkpoint()
        assert bodies.times[6:] == [67, 67, 72]
        assert bodies.peak == 4
        assert_no_tokens(tokens)
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t08_a_foreign_borrower_in_the_line_gets_its_turn(seed: int) -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        bodies = Bodies()
        async with trio.open_nursery() as nursery, open_task_queue(limiter=limiter) as queue:
            handles = [queue.submit_nowait(bodies.sleep, 1) for _ in range(40)]

            async def foreigner() -> None:
                await trio.sleep(0.5)
                with trio.fail_after(17):
                    async with limiter:
                        await trio.sleep(5)

            nursery.start_soon(foreigner)
        assert_no_tokens(limiter)
        assert trio.current_time() == 45
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


# --------------------------------------------------------------------------------------- T9: two on one limiter


@schedules
@pytest.mark.parametrize("seconds", [0, 0.5])
def test_t09_a_queue_that_never_runs_dry_starves_no_other(seed: int, seconds: float) -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        bodies = Bodies()
        over = False
        async with (
            open_task_queue(limiter=limiter, name="greedy") as greedy,
            open_task_queue(limiter=limiter) as modest,
        ):

            async def again() -> None:
                with bodies.inside("greedy"):
                    await trio.sleep(seconds)
                if not over:
                    greedy.submit_nowait(again)

            for _ in range(3):
                greedy.submit_nowait(again)
            await trio.sleep(seconds)
            handles = [modest.submit_nowait(bodies.sleep, 0, "modest") for _ in range(3)]
            before = bodies.started
            await handles[0].wait()
            assert bodies.started - before <= 34, "the token is passed on after 16 jobs"
            await modest.wait_idle()
            over = True
        assert bodies.peak == 1
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("act", ["pause", "close", "cancel", "raise"])
def test_t09_a_queue_in_the_line_that_has_no_use_for_a_token_leaves_it(seed: int, act: str) -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        bodies = Bodies()
        resumed = trio.Event()
        done = trio.Event()
        queues: list[TaskQueue] = []

        async def other() -> None:
            with trio.CancelScope() as scope:
                try:
                    async with open_task_queue(limiter=limiter) as queue:
                        queues.append(queue)
                        queue.submit_nowait(bodies.sleep, 1, "other")
                        await trio.sleep(1)
                        match act:
                            case "pause":
                                queue.pause()
                                await resumed.wait()
                                queue.resume()
                            case "close":
                                await queue.close(grace=100)
                            case "cancel":
                                scope.cancel()
                                await trio.sleep(100)
                            case _:
                                raise ValueError(act)
                except ValueError:
                    pass
            assert_law(queues[0].statistics())
            done.set()

        async with trio.open_nursery() as nursery, open_task_queue(limiter=limiter) as queue:
            handles = [queue.submit_nowait(bodies.sleep, 2, "this") for _ in range(3)]
            await trio.lowlevel.checkpoint()
            nursery.start_soon(other)
            await trio.sleep(10)  # if the other sat on the token, these would not be done
            assert bodies.labels == ["this"] * 3
            assert bodies.times == [0, 2, 4]
            assert_no_tokens(limiter)
            resumed.set()
            await done.wait()
        assert bodies.labels[3:] == (["other"] if act == "pause" else [])
        assert_no_tokens(limiter)
        assert_over(queue, handles)

    run_virtual(main, seed=seed)


# ------------------------------------------------------------------------------------- T10: queues that know others


@schedules
def test_t10_a_job_that_submits_to_a_closed_queue_fails(seed: int) -> None:
    async def main() -> None:
        async with open_task_queue(failures=Failures.RECORD) as outer:
            async with open_task_queue() as inner:
                await inner.run(trio.sleep, 1)

            async def late() -> None:
                await inner.submit(trio.sleep, 1)

            handle = await outer.submit(late)
        with pytest.raises(trio.ClosedResourceError, match="closed: its block was left"):
            handle.result_nowait()
        assert_over(outer, [handle])

    run_virtual(main, seed=seed)


@schedules
def test_t10_an_inner_queue_whose_jobs_submit_to_the_full_outer_one_ends_by_itself(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, max_waiting=1, name="outer") as outer:

            async def inner_job() -> None:
                for _ in range(3):
                    await outer.submit(bodies.sleep, 1)  # from inside a job of the outer one: never waits

            async def outer_job() -> None:
                async with open_task_queue(concurrency=1, max_waiting=1, name="inner") as inner:
                    for _ in range(4):
                        await inner.submit(inner_job)

            await outer.submit(outer_job)
        assert bodies.returned == 12
        assert outer.statistics().over_admitted == 11
        assert_law(outer.statistics())

    run_virtual(main, seed=seed)


@schedules
def test_t10_a_ring_of_full_queues_can_be_cancelled(seed: int) -> None:
    async def main() -> None:
        async def send(to: int) -> None:
            for _ in range(3):
                await queues[to].submit(send, 1 - to)

        queues: list[TaskQueue] = []
        with trio.move_on_after(5) as scope:
            async with (
                open_task_queue(concurrency=1, max_waiting=1) as left,
                open_task_queue(concurrency=1, max_waiting=1) as right,
            ):
                queues += [left, right]
                for n in (0, 1):
                    await queues[n].submit(send, 1 - n)
                await trio.sleep(1)
                assert [queue.statistics().at_the_door for queue in queues] == [1, 1]
                await trio.sleep_forever()
        assert scope.cancelled_caught
        for queue in queues:
            assert_law(queue.statistics())
            assert queue.statistics().idle
            assert_no_tokens(queue.limiter)

    run_virtual(main, seed=seed)
