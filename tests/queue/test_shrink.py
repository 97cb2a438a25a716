"""The limit of the instant: no body starts above it, also if it shrank after the job had been picked."""

from __future__ import annotations

import pytest
import trio

from trio_orchestrator import open_task_queue
from trio_orchestrator.testing import assert_no_tokens, run_virtual


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("running", [0, 2])
def test_a_limit_that_shrinks_between_pick_and_start_holds_the_picked_back(
    seed: int, shared: bool, running: int
) -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(4)
        inside, order = 0, []

        async def body(number: int) -> None:
            nonlocal inside
            inside += 1
            assert inside <= limiter.total_tokens, "it starts above the limit"
            order.append(number)
            await trio.sleep(1)
            inside -= 1

        async with open_task_queue(limiter=limiter if shared else None, concurrency=None if shared else 4) as queue:
            limiter = queue.limiter
            handles = [queue.submit_nowait(body, number) for number in range(running)]
            await trio.testing.wait_all_tasks_blocked()
            handles += [queue.submit_nowait(body, number) for number in range(running, 8)]
            limiter.total_tokens = max(1, running)  # in the tick in which the others were picked
            assert queue.statistics().running == 4
            await trio.testing.wait_all_tasks_blocked()
            assert queue.statistics().running == inside == max(1, running)
            await queue.wait_idle()
        assert [handle.attempts for handle in handles] == [1] * 8
        if limiter.total_tokens == 1:  # one of the four picked was let start; which one is the scheduler's choice
            assert order[0] < 4
            assert order[1:] == sorted(order[1:]), "those that were put back have lost their place"
        assert_no_tokens(limiter)

    run_virtual(main, seed=seed)


def test_a_limit_that_shrinks_while_a_worker_is_between_two_jobs() -> None:
    async def main(seed: int) -> None:
        inside = started = 0

        async def body() -> None:
            nonlocal inside, started
            inside += 1
            started += 1
            assert inside <= queue.concurrency, "it starts above the limit"
            await trio.sleep(1)
            inside -= 1

        async with open_task_queue(concurrency=3) as queue:
            for _ in range(12):
                queue.submit_nowait(body)
            await trio.sleep(1)  # in this instant three bodies end, and their workers take the next
            queue.concurrency = 1
            await queue.wait_idle()
        assert started == 12

    for seed in range(40):
        run_virtual(main, seed, seed=seed)
