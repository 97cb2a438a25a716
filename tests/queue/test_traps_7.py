"""Trap 18: nothing spins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, final

import pytest
import trio

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    Failures,
    Gate,
    JobDroppedError,
    JobHandle,
    JobState,
    RejectedError,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import SchedulerPasses, run_virtual

schedules = pytest.mark.parametrize("seed", range(5))
HOUR = 3600.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


# -------------------------------------------------------------------------------------------- T18: nothing spins


@final
class _Refusing(Policy):
    def __init__(self, retry_after: float) -> None:
        self.refusal = RejectedError(retry_after=retry_after)
        self.refused = 0

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        self.refused += 1
        raise self.refusal


async def _still(queue: TaskQueue, passes: SchedulerPasses, seconds: float = HOUR) -> int:
    """Return how many passes of the scheduler there are in an hour in which nothing can start."""
    await trio.testing.wait_all_tasks_blocked()
    assert_law(queue.statistics())
    assert queue.statistics().waiting + queue.statistics().retry_scheduled
    before = passes.count
    await trio.sleep(seconds)
    return passes.count - before - 1  # our own


def _paused(queue: TaskQueue) -> None:
    queue.pause()
    for n in range(5):
        queue.submit_nowait(trio.sleep, 1, priority=n, timeout=9 * HOUR)


def _limit_of_0(queue: TaskQueue) -> None:
    queue.concurrency = 0
    for _ in range(5):
        queue.submit_nowait(trio.sleep, 1)


def _limit_of_0_from_outside(queue: TaskQueue) -> None:
    queue.limiter.total_tokens = 0
    for _ in range(5):
        queue.submit_nowait(trio.sleep, 1)


def _keys_blocked(queue: TaskQueue) -> None:
    for key in "ab":
        for _ in range(5):
            queue.submit_nowait(trio.sleep, 2 * HOUR, key=key)


def _delayed(queue: TaskQueue) -> None:
    for _ in range(5):
        queue.submit_nowait(trio.sleep, 1, delay=2 * HOUR)


def _gate_shut(queue: TaskQueue) -> None:
    gate = Gate(ramp=HOUR)
    gate.shut(2 * HOUR)
    for _ in range(5):
        queue.submit_nowait(trio.sleep, 1, gate=gate)


def _heavy_in_wait(queue: TaskQueue) -> None:
    queue.submit_nowait(trio.sleep, 2 * HOUR)
    for _ in range(3):
        queue.submit_nowait(trio.sleep, 1, weight=9)


async def _fails() -> None:
    raise OSError


def _all_retry_scheduled(queue: TaskQueue) -> None:
    for _ in range(50):
        queue.submit_nowait(_fails)


def _closing(queue: TaskQueue) -> None:
    _paused(queue)
    queue._engine.refuse_outsiders("its block was left")


def _debt(queue: TaskQueue) -> None:
    for _ in range(8):
        queue.submit_nowait(trio.sleep, 2 * HOUR)
    queue.concurrency = 1


STILL: list[Callable[[TaskQueue], None]] = [
    _paused,
    _limit_of_0,
    _limit_of_0_from_outside,
    _keys_blocked,
    _delayed,
    _gate_shut,
    _heavy_in_wait,
    _all_retry_scheduled,
    _closing,
    _debt,
]


@schedules
@pytest.mark.parametrize("prepare", STILL, ids=lambda prepare: prepare.__name__)
def test_t18_an_hour_in_which_nothing_can_start_costs_nothing(seed: int, prepare: Callable[[TaskQueue], None]) -> None:
    passes = SchedulerPasses()

    async def main() -> None:
        retry = Retry(on=OSError, backoff=Constant(2 * HOUR))
        async with open_task_queue(concurrency=4, per_key=1, retry=retry, failures=Failures.RECORD) as queue:
            prepare(queue)
            with trio.move_on_after(0.1):
                await queue.wait_idle()
            assert await _still(queue, passes) == 0
            await queue.close()

    run_virtual(main, seed=seed, instruments=[passes])


@schedules
@pytest.mark.parametrize("retry_after", [2 * HOUR, float("inf")])
def test_t18_nothing_spins_against_an_open_circuit(seed: int, retry_after: float) -> None:
    passes = SchedulerPasses()
    circuit = _Refusing(retry_after)

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=4, protect=circuit) as queue:
            handles = [queue.submit_nowait(bodies.sleep, 1) for _ in range(50)]
            spent = await _still(queue, passes)
            assert bodies.started == 0
            if retry_after < float("inf"):
                assert (circuit.refused, spent) == (4, 0)
            else:  # one job goes first, after at most 1, 2, 4 ... 30 s
                assert 100 < circuit.refused < 600
                assert spent <= 4 * circuit.refused
            assert {handle.attempts for handle in handles} == {0}
            await queue.close()
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed, instruments=[passes])


def test_t18_a_probe_that_hangs_lets_nothing_spin_and_its_end_settles_the_gate() -> None:
    passes = SchedulerPasses()

    async def main() -> None:
        bodies = Bodies()
        gate = Gate("probed")
        async with open_task_queue(concurrency=4) as queue:
            gate.refused(float("inf"))
            handles = [queue.submit_nowait(bodies.sleep, 2 * HOUR, gate=gate) for _ in range(5)]
            await trio.sleep(2)
            assert bodies.started == 1
            assert await _still(queue, passes) == 0
            handles[0].cancel("neutral: another one goes first")
            await trio.sleep(1)
            assert (bodies.started, bodies.running) == (2, 1)
        assert [handle.state for handle in handles] == [JobState.CANCELLED] + 4 * [JobState.SUCCEEDED]
        assert len(set(bodies.times[2:])) <= 2  # the success opened it for all
        assert_over(queue, handles, bodies)

    run_virtual(main, instruments=[passes])


def test_t18_clearing_a_still_queue_ends_every_wait() -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, retry=Retry(on=OSError, backoff=Constant(HOUR))) as queue:
            handles: list[JobHandle[Any]] = [await queue.submit(_fails)]
            await trio.sleep(1)
            queue.pause()
            handles.append(await queue.submit(trio.sleep, 1))
            handles.append(await queue.submit(trio.sleep, 1, delay=HOUR))
            ended: list[type[Exception]] = []

            async def wait(handle: JobHandle[Any]) -> None:
                with pytest.raises(JobDroppedError) as caught:
                    await handle.wait()
                ended.append(type(caught.value))

            async with trio.open_nursery() as nursery:
                for handle in handles:
                    nursery.start_soon(wait, handle)
                await trio.sleep(1)
                assert queue.clear() == 3
            assert len(ended) == 3
            await queue.wait_idle()
        assert_over(queue, handles)

    run_virtual(main)
