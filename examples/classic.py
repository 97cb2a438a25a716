"""The classic demonstration of a task queue: five items, two at a time, and most calls fail.

    python examples/classic.py [--seed N]

The usual version of it has two faults, which this one shows the absence of:

- It is *idle during backoff*. While all that is left waits for a retry, nothing is queued and nothing runs, so its
  "wait until idle" returns and the statistics are printed too early. Here a job between two attempts is counted as
  retry-scheduled, and a queue with such a job is not idle.
- Its *`clear` forgets retries*. It empties the list of waiting tasks; those in backoff are in no list but in a timer,
  and come back after the clearing. Here `clear()` drops both, and whoever waits for such a job is told.
"""

from __future__ import annotations

import argparse
import random

import trio

from trio_orchestrator import Failures, FullJitter, Retry, open_task_queue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import JobFinished

ITEMS = range(101, 106)
FAILURES = 0.6


class Narrator(Instrument):
    """Print a line when a job has succeeded, or failed for good."""

    def job_finished(self, event: JobFinished) -> None:
        outcome = "done" if event.error is None else f"failed for good: {event.error}"
        print(f"{event.name}: {outcome} (attempts: {event.attempts})")


async def process(item: int, chance: random.Random) -> None:
    await trio.sleep(chance.uniform(0.05, 0.15))
    if chance.random() < FAILURES:
        raise ConnectionError(f"item {item} met a bad day")


async def main(seed: int) -> None:
    retry = Retry(
        on=ConnectionError,
        attempts=4,  # the first one and three retries
        backoff=FullJitter(base=0.1, cap=2),
        rng=random.Random(seed),
    )
    async with open_task_queue(
        concurrency=2, retry=retry, failures=Failures.RECORD, instruments=[Narrator()], name="classic"
    ) as queue:
        for item in ITEMS:
            await queue.submit(process, item, random.Random(f"{seed}/{item}"), name=f"item {item}")
        await queue.wait_idle()
        statistics = queue.statistics()
    for what in ("submitted", "succeeded", "failed", "retries", "waiting", "running", "retry_scheduled"):
        print(f"{what:<16}{getattr(statistics, what):>3}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The classic demonstration of a task queue.")
    parser.add_argument("--seed", type=int, default=1)
    trio.run(main, parser.parse_args().seed)
