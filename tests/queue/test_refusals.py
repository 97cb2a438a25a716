"""Who may be refused, and what a refusal says."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio

from trio_orchestrator import Gate, Overflow, Policy, QueueFullError, RejectedError, open_task_queue
from trio_orchestrator.testing import run_virtual


def test_a_job_is_refused_by_its_own_full_queue_if_that_rejects() -> None:
    """Only a wait would be a wait for itself; an error can be dealt with."""

    async def main() -> None:
        async with open_task_queue(concurrency=1, max_waiting=1, overflow=Overflow.REJECT) as queue:

            async def parent() -> str:
                await queue.submit(trio.sleep, 1)
                with pytest.raises(QueueFullError):
                    await queue.submit(trio.sleep, 1)
                return "refused"

            assert await queue.run(parent) == "refused"
            assert queue.statistics().over_admitted == 0

    run_virtual(main)


def test_an_older_refusal_while_one_job_goes_first_starts_no_second_one() -> None:
    async def main() -> None:
        gate = Gate()
        now = trio.current_time()
        gate.refused(math.inf)
        await trio.sleep(1)
        gate.passed(10, trio.current_time())  # one goes first, and is out
        assert gate.opens_at(trio.current_time()) == math.inf
        assert gate.refused(math.inf, first=False) == math.inf
        await trio.sleep(60)
        assert gate.opens_at(trio.current_time()) == math.inf, "a second one would go while the first is out"
        assert 0 < gate.refused(math.inf) <= 2  # the refusal of the first one itself: the second pause
        await trio.sleep(2)
        assert now + 61 < gate.opens_at(trio.current_time()) <= trio.current_time()

    run_virtual(main)


def test_only_one_job_is_out_while_older_ones_are_refused_late() -> None:
    """Three slow refusals of jobs that were let in before, while the first new one is out."""

    async def main() -> None:
        out: list[float] = []

        class Slow(Policy):
            async def call(self, fn: Callable[..., Awaitable[object]], *args: object) -> object:  # type: ignore[override]
                out.append(trio.current_time())
                await trio.sleep(len(out) * 3)
                raise RejectedError

        async with open_task_queue(concurrency=4, protect=Slow()) as queue:
            for _ in range(4):
                queue.submit_nowait(trio.sleep, 1)
            await trio.sleep(12)  # refused at 3, 6, 9 and 12 s; the first goes again after 4 s at the latest
            assert len(out) == 5, out
            await queue.close()

    for seed in range(10):
        run_virtual(main, seed=seed)
