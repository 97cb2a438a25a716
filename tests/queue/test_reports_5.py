"""Public bug reports that stand beside others in their row, each as a test of ours."""

from __future__ import annotations

import pytest
import trio

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import (
    Constant,
    Cooldown,
    Gate,
    JobCancelledError,
    JobState,
    Retry,
    open_task_queue,
)
from trio_orchestrator.queue.handle import Waiters
from trio_orchestrator.testing import assert_no_tokens, run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


@schedules
def test_p_queue_168_a_job_that_is_aborted_twice_leaves_no_queue_hanging(seed: int) -> None:
    """A job whose signal fires twice, or before it starts, keeps the queue from becoming idle for ever."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1) as queue:
            handles = [await queue.submit(bodies.clean_up, 9, 1) for _ in range(3)]
            await trio.sleep(1)
            for handle in handles * 2:
                handle.cancel()
            with trio.fail_after(2):
                await queue.wait_idle()
            for handle in handles:
                handle.cancel()
                with pytest.raises(JobCancelledError):
                    await handle.wait()
            await queue.run(bodies.sleep, 1)
        assert queue.statistics().succeeded == 1
        assert bodies.started == 2

    run_virtual(main, seed=seed)


@schedules
def test_cockatiel_69_listeners_of_what_was_cancelled_are_forgotten(seed: int) -> None:
    """Each call leaves a listener behind on the signal that it was given."""

    async def main() -> None:
        gate = Gate()
        async with open_task_queue(concurrency=1) as queue:
            job = await queue.submit(trio.sleep, 100)
            gate.shut(50)
            for wait in (job.wait, gate.wait_open, queue.wait_idle):
                with trio.move_on_after(1):
                    async with trio.open_nursery() as nursery:
                        for _ in range(200):
                            nursery.start_soon(wait)
            assert isinstance(job._waiters, Waiters)
            assert not len(job._waiters)
            assert not gate._listeners
            for _ in range(200):
                queue.submit_nowait(trio.sleep, 0, gate=gate).cancel()
            assert not gate._listeners
            job.cancel()

    run_virtual(main, seed=seed)


@schedules
def test_multio_19_one_task_may_hold_several_slots_of_one_limiter(seed: int) -> None:
    """ "This borrower is already holding": queues nested in one task share a limiter."""

    async def main() -> None:
        limiter = trio.CapacityLimiter(3)
        async with (
            limiter,
            open_task_queue(limiter=limiter) as outer,
            open_task_queue(limiter=limiter) as inner,
        ):
            await outer.submit(inner.run, trio.sleep, 1)
            await inner.wait_idle()
            await outer.wait_idle()
            assert trio.current_time() == 1
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


@schedules
def test_fastapi_12066_what_ends_needs_no_slot_while_all_are_taken(seed: int) -> None:
    """Closing needs a token of the exhausted limiter, whose holders wait for the close."""

    async def main() -> None:
        bodies = Bodies()
        limiter = trio.CapacityLimiter(1)
        async with limiter:  # nobody else gets any
            async with open_task_queue(limiter=limiter) as queue:
                handles = [await queue.submit(bodies.sleep, 1) for _ in range(3)]
                handles[0].cancel()
                assert queue.clear() == 2
                await queue.wait_idle()
                assert await queue.close() == []
            assert bodies.started == 0
        assert_over(queue, handles, bodies)
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


class Overloaded(Exception):
    """The server asks to be left alone."""


@schedules
def test_semian_146_what_was_held_back_comes_in_steps_when_the_service_is_back(seed: int) -> None:
    """All waiters start in the instant in which the circuit closes, and bring the service down again."""
    limit, ramp = 20, 10.0

    async def main() -> None:
        starts: list[float] = []

        async def call() -> None:
            starts.append(trio.current_time())
            if len(starts) == 1:
                raise Overloaded
            await trio.sleep(0.1)

        retry = Retry(on=Overloaded, backoff=Constant(0), retry_after=lambda _: 30)
        async with open_task_queue(concurrency=limit, retry=retry, cooldown=Cooldown(ramp=ramp)) as queue:
            queue.submit_nowait(call)
            await trio.sleep(1)
            for _ in range(100):
                queue.submit_nowait(call)
        assert len(starts) == 102
        after = starts[1:]
        assert min(after) >= 30
        for at in sorted({start for start in after if start < 30 + ramp}):
            assert sum(start <= at for start in after) <= max(1, int(limit * (at - 30) / ramp + 1e-6)), at

    run_virtual(main, seed=seed)


@schedules
def test_aiolimiter_73_growing_wakes_as_many_as_fit_and_no_herd(seed: int) -> None:
    """All waiters wake whenever a place becomes free, and all but one go to sleep again."""

    async def main() -> None:
        woken: list[int] = []

        async def submit(n: int) -> None:
            await queue.submit(trio.sleep, 1)
            woken.append(n)

        async with open_task_queue(concurrency=1, max_waiting=1) as queue, trio.open_nursery() as nursery:
            await queue.submit(trio.sleep, 1)
            await trio.sleep(0.5)
            await queue.submit(trio.sleep, 1)
            for n in range(20):
                nursery.start_soon(submit, n)
                await trio.sleep(0.001)
            for second in range(20):
                await trio.sleep_until(second + 1.25)
                assert woken == list(range(second + 1))

    run_virtual(main, seed=seed)


@schedules
def test_trio_2258_a_service_that_waits_for_another_before_it_is_ready_ends_with_its_error(seed: int) -> None:
    """One task of a nursery fails while `nursery.start` waits for a service that waits for it: masked, or hung."""
    error = KeyError("why")

    async def first() -> None:
        await trio.sleep(2)
        raise error

    async def second(task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        async with open_task_queue() as queue:
            task_status.started(await queue.run(trio.sleep_forever))

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await nursery.start(second)
        assert caught.value.exceptions == (error,)
        assert trio.current_time() == 2

    run_virtual(main, seed=seed)


@schedules
def test_hypercorn_238_shutting_down_raises_nothing_of_its_own(seed: int) -> None:
    """Stopping a server ends in an `ExceptionGroup` of cancellations."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=3) as queue:
            handles = [await queue.submit(bodies.clean_up, 9, 1) for _ in range(5)]
            await trio.sleep(1)
            assert len(await queue.close(grace=1)) == 5
        assert {handle.state for handle in handles} == {JobState.CANCELLED}
        assert trio.current_time() == 3
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)
