"""Ten calls to a flaky service, three at a time. What fails waits for its retry outside the slots."""

from __future__ import annotations

import logging
import random

import trio

from trio_orchestrator import FullJitter, LogInstrument, Retry, open_task_queue


async def fetch(number: int) -> None:
    await trio.sleep(0.1)
    if random.random() < 0.3:
        raise ConnectionError(f"no answer for {number}")
    print(f"fetched {number}")


async def main() -> None:
    retry = Retry(on=ConnectionError, attempts=10, backoff=FullJitter(base=0.2, cap=2))
    async with open_task_queue(concurrency=3, retry=retry, instruments=[LogInstrument()]) as queue:
        for number in range(10):
            await queue.submit(fetch, number)
    print("all done")  # leaving the block has waited for every job, retries included


logging.basicConfig(format="%(message)s")  # LogInstrument writes a line a retry
trio.run(main)
