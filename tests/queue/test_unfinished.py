"""What `close()` lists: all that a second run has to do again, and nothing else."""

from __future__ import annotations

import pytest
import trio

from trio_orchestrator import Constant, Failures, JobState, Policy, RejectedError, Retry, open_task_queue
from trio_orchestrator.testing import run_virtual


@pytest.mark.parametrize("seed", range(4))
def test_close_lists_what_a_second_run_has_to_do_again(seed: int) -> None:
    async def main() -> None:
        async def fails(error: Exception) -> None:
            await trio.sleep(2)
            raise error

        async def swallows() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                return

        retry = Retry(on=OSError, attempts=3, backoff=Constant(10))
        async with open_task_queue(concurrency=6, retry=retry, failures=Failures.RECORD) as queue:
            jobs = {
                "pausing": queue.submit_nowait(fails, OSError()),
                "would be repeated": queue.submit_nowait(fails, OSError()),
                "failed for good": queue.submit_nowait(fails, ValueError()),
                "done in time": queue.submit_nowait(trio.sleep, 3),
                "cut short": queue.submit_nowait(trio.sleep_forever),
                "done all the same": queue.submit_nowait(swallows),
                "never started": queue.submit_nowait(trio.sleep, 1, delay=60),
            }
            jobs["would be repeated"].cancel()
            jobs["would be repeated"] = queue.submit_nowait(fails, OSError(), delay=1)
            await trio.sleep(2.5)
            assert jobs["pausing"].state is JobState.RETRY_SCHEDULED
            unfinished = await queue.close(grace=2)
            assert trio.current_time() == 4.5
            names = {name for name, job in jobs.items() if job in unfinished}
            assert names == {"pausing", "would be repeated", "cut short", "never started"}
            assert len(unfinished) == 4
            assert await queue.close() == []

    run_virtual(main, seed=seed)


def test_a_job_that_is_refused_while_the_queue_closes_is_unfinished() -> None:
    class Refusing(Policy):
        async def call(self, *_: object) -> object:  # type: ignore[override]
            await trio.sleep(1)
            raise RejectedError

    async def main() -> None:
        async with open_task_queue(protect=Refusing()) as queue:
            job = queue.submit_nowait(trio.sleep, 1)
            await trio.sleep(0.5)
            assert await queue.close(grace=5) == [job]
            assert job.state is JobState.CANCELLED

    run_virtual(main)
