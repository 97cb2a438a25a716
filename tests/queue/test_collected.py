"""Slots that a heavy job has collected are not kept for it while its gate is shut."""

from __future__ import annotations

import pytest
import trio

from trio_orchestrator import Gate, open_task_queue
from trio_orchestrator.testing import assert_no_tokens, run_virtual


@pytest.mark.parametrize("seed", range(5))
def test_a_gate_that_shuts_frees_what_was_collected_for_a_job_behind_it(seed: int) -> None:
    async def main() -> None:
        starts: dict[str, float] = {}

        async def body(name: str, seconds: float) -> None:
            starts[name] = trio.current_time()
            await trio.sleep(seconds)

        async with open_task_queue(concurrency=2) as queue:
            gate = Gate("outage")
            queue.submit_nowait(body, "long", 10)
            await trio.sleep(1)
            queue.submit_nowait(body, "heavy", 1, weight=2, gate=gate)
            queue.submit_nowait(body, "light", 1)
            await trio.sleep(1)
            assert list(starts) == ["long"], "the free slot is collected for the heavy one"
            gate.shut(100)
            await trio.testing.wait_all_tasks_blocked()
            assert starts == {"long": 0, "light": 2}
        assert starts["heavy"] == 102
        assert_no_tokens(queue.limiter)

    run_virtual(main, seed=seed)
