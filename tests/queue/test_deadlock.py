"""A wait that could never end is an error, and not a hang."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_orchestrator import JobHandle, KeyOrder, open_task_queue
from trio_orchestrator.testing import run_virtual


def test_a_job_that_waits_for_itself_is_told() -> None:
    async def main() -> None:
        async with open_task_queue() as queue:

            async def body() -> str:
                with pytest.raises(RuntimeError, match=r"^deadlock: the job 'narcissus' waits for itself$"):
                    await handle.wait()
                return "free"

            handle: JobHandle[str] = queue.submit_nowait(body, name="narcissus")
            assert await handle.wait() == "free"

    run_virtual(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_deadlock_through_a_running_job_is_found_by_the_last_to_wait(seed: int) -> None:
    """One runs and waits for a job that waits for a slot; the other waits for the one."""

    async def main() -> None:
        async with open_task_queue(concurrency=2) as queue:
            handles: dict[str, JobHandle[Any]] = {}

            async def waits_for(other: str, after: float) -> None:
                await trio.sleep(after)
                await handles[other].wait()

            handles["first"] = queue.submit_nowait(waits_for, "third", 1)
            handles["second"] = queue.submit_nowait(waits_for, "first", 2)
            handles["third"] = queue.submit_nowait(trio.sleep, 1)
            with pytest.raises(RuntimeError, match=r"^deadlock: no slot is free, and all 2 running jobs"):
                await handles["second"].wait()
            assert trio.current_time() == 2
            await handles["first"].wait()  # the slot that the second gave back was all it took

    run_virtual(main, seed=seed)


def test_strict_order_of_keys_needs_a_limit_for_them() -> None:
    with pytest.raises(ValueError, match=r"^per_key_order=STRICT needs per_key$"):
        open_task_queue(per_key_order=KeyOrder.STRICT)
