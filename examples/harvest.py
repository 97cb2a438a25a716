"""Push ten thousand items through a service that limits, fails, stalls and hangs up: lose none, do none twice.

    python examples/harvest.py                  # the whole file, about half a minute
    python examples/harvest.py --items 1500     # a few seconds
    python examples/harvest.py --naive          # without the queue: what it is good for

It starts `harvest_server.py` (a real HTTP server in a process of its own), reads `harvest_items.csv` (names of Unicode
characters), posts every row, and writes the receipts to `harvest-results.jsonl`. The table at the end is no opinion of
this program: it is drawn from `harvest-ledger.jsonl`, where the *server* wrote down every attempt that reached it.

Ctrl-C stops the submitting and lets the running jobs finish; the next run goes on from there, and starts a new harvest
only when this one is complete. A second Ctrl-C ends at once.

What is promised: attempts are at-least-once, because an answer that was lost on its way cannot be told from a request
that never arrived. The effect is exactly-once because the server knows an item again by its code. The results have each
item once because a job writes its line when it has the receipt, and a later run skips the codes that are there.

- lost: no line in the results, or one with a receipt that the ledger does not know;
- doubled: two lines in the results, or work that the server did twice.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from itertools import islice
from pathlib import Path

import httpx
import trio
from harvest_verdict import judge, show
from journal import Journal, read

from trio_orchestrator import (
    Cooldown,
    Failures,
    FullJitter,
    Retry,
    RetryScheduled,
    http_retry_after,
    http_transient,
    open_task_queue,
)

HERE = Path(__file__).parent
Item = dict[str, str]  # a row of the input: code and name
Push = Callable[[Item], Awaitable[None]]


# ------------------------------------------------------------------------------------------------ the thirty lines


def retry_policy(causes: Counter[str]) -> Retry:
    """Return how one item is retried; every retry is counted by its cause."""

    def count(event: RetryScheduled) -> None:
        causes[cause_of(event.error)] += 1

    return Retry(
        on=http_transient,
        attempts=10,
        attempt_timeout=2,
        backoff=FullJitter(base=0.1, cap=5),
        retry_after=http_retry_after,
        on_retry=count,
    )


async def harvest(items: list[Item], push: Push, retry: Retry, *, concurrency: int, grace: float) -> bool:
    """Push all items and return True; on Ctrl-C stop early, give the running jobs `grace` seconds, return False."""
    async with trio.open_nursery() as nursery:
        submitting = trio.CancelScope()
        await nursery.start(on_ctrl_c, submitting, nursery.cancel_scope)
        async with open_task_queue(
            concurrency=concurrency,
            retry=retry,
            cooldown=Cooldown(ramp=0.2),  # the Retry-After of one job holds back the others
            failures=Failures.RECORD,  # what fails for good is no reason to stop: the verdict counts it as lost
            progress=True,
            expected=len(items),
            name="harvest",
        ) as queue:
            with submitting:
                for item in items:
                    await queue.submit(push, item, name=item["code"])  # waits while the queue is full
                await queue.wait_idle()
            if submitting.cancelled_caught:
                print("stopping: the running jobs may finish")
                await queue.close(grace=grace)
        nursery.cancel_scope.cancel()
    return not submitting.cancel_called


async def on_ctrl_c(*scopes: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    """Cancel the first scope at the first Ctrl-C, the second one at the second."""
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        for scope in scopes:
            await anext(signals)
            scope.cancel()


# -------------------------------------------------------------------------------------------------- without a queue


async def harvest_naively(items: list[Item], url: str, results: Journal, causes: Counter[str], seconds: float) -> None:
    """Start a task an item: no limit, no retry, nothing that holds back. For so many seconds at most."""
    tls = httpx.create_ssl_context()  # 20 ms each; else its cost would be all that one sees

    async def attempt(item: Item) -> None:
        try:
            async with httpx.AsyncClient(base_url=url, verify=tls) as client:
                await pusher(client, results)(item)
        except (httpx.HTTPError, OSError) as error:
            causes[cause_of(error)] += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for item in items:
                nursery.start_soon(attempt, item)


# --------------------------------------------------------------------------------------------- one item, one answer


def pusher(client: httpx.AsyncClient, results: Journal) -> Push:
    async def push(item: Item) -> None:
        response = await client.post(f"/items/{item['code']}", json=item)
        response.raise_for_status()
        # No checkpoint between the answer and its line: a cancellation cannot come in between.
        results.append(code=item["code"], receipt=response.json()["receipt"])

    return push


def cause_of(error: BaseException | None) -> str:
    match error:
        case httpx.HTTPStatusError():
            return str(error.response.status_code)
        case trio.TooSlowError():
            return "no answer"
        case httpx.RemoteProtocolError():
            return "cut"
        case _:
            return type(error).__name__


# --------------------------------------------------------------------------------------------------------- around it


def main() -> int:
    options = parse_arguments()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trio_orchestrator").setLevel(logging.INFO)  # progress as lines, where no terminal is
    return trio.run(run, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Push many items through a fallible service.")
    parser.add_argument("--input", type=Path, default=HERE / "harvest_items.csv", help="a CSV file: code,name")
    parser.add_argument("--items", type=int, default=10_000, help="how many rows of it")
    parser.add_argument("--concurrency", type=int, default=40, help="how many requests may be in flight")
    parser.add_argument("--state", type=Path, default=Path(), metavar="DIR", help="where results and ledger are kept")
    parser.add_argument("--fresh", action="store_true", help="start again instead of going on")
    parser.add_argument("--grace", type=float, default=5, help="seconds for the running jobs after Ctrl-C")
    parser.add_argument("--naive", action="store_true", help="a task an item: no queue, no limit, no retries")
    parser.add_argument("--seconds", type=float, default=20, help="how long --naive may take")
    parser.add_argument("--seed", type=int, default=0, help="which requests the server fails")
    parser.add_argument("--rate", type=float, default=330, help="how many requests a second the server allows")
    parser.add_argument("--url", help="use a server that runs already (it has its own seed and rate, and DIR's ledger)")
    return parser.parse_args()


async def run(options: argparse.Namespace) -> int:
    name = "harvest-naive" if options.naive else "harvest"
    results, ledger = options.state / f"{name}-results.jsonl", options.state / f"{name}-ledger.jsonl"
    items = read_items(options.input, options.items)
    if options.fresh or options.naive or not unfinished(items, results):
        results.unlink(missing_ok=True)
        if options.url is None:
            ledger.unlink(missing_ok=True)
    started_at = trio.current_time()
    causes: Counter[str] = Counter()
    complete = await push_all(unfinished(items, results), results, ledger, causes, options)
    left = len(unfinished(items, results))
    if left and not complete:
        print(f"stopped: {len(items) - left} of {len(items)} items are done, {left} are left; the next run goes on")
        return 130
    verdict = judge([item["code"] for item in items], results, ledger)
    limit = math.inf if options.naive else options.concurrency
    show(verdict, limit=limit, causes=causes, seconds=trio.current_time() - started_at)
    return 0 if options.naive or verdict.holds(options.concurrency) else 1


async def push_all(
    items: list[Item], results: Path, ledger: Path, causes: Counter[str], options: argparse.Namespace
) -> bool:
    """Push the items, with or without the queue; return False if Ctrl-C kept us from it."""
    async with open_service(ledger, options) as url:
        with closing(Journal(results)) as journal:
            if options.naive:
                await harvest_naively(items, url, journal, causes, options.seconds)
                return True
            async with open_client(url) as client:
                push, retry = pusher(client, journal), retry_policy(causes)
                return await harvest(items, push, retry, concurrency=options.concurrency, grace=options.grace)


def open_client(url: str) -> httpx.AsyncClient:
    """Return a client that leaves limits to the queue and time-outs to `attempt_timeout`.

    httpx looks at every idle connection for every request, so that keeping few is cheaper than keeping all.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncClient(base_url=url, timeout=None, limits=limits)


def read_items(path: Path, count: int) -> list[Item]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(islice(csv.DictReader(file), count))


def unfinished(items: list[Item], results: Path) -> list[Item]:
    done = {line["code"] for line in read(results)}
    return [item for item in items if item["code"] not in done]


@asynccontextmanager
async def open_service(ledger: Path, options: argparse.Namespace) -> AsyncIterator[str]:
    """Yield the URL of a server that runs for the length of the block.

    It has a session of its own, so Ctrl-C in a terminal does not reach it: it is there until the last job has finished.
    It ends when its standard input closes, which happens even if this process is killed.
    """
    if options.url is not None:
        yield options.url
        return
    program = [sys.executable, str(HERE / "harvest_server.py"), f"--ledger={ledger}"]
    program += [f"--seed={options.seed}", f"--rate={options.rate}"]
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(program, stdin=pipe, stdout=pipe, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.receive_some()).decode().strip()
        if not url:
            raise SystemExit("the server did not start")
        print(f"server {url}, process {process.pid}")
        yield url
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            await process.wait()


if __name__ == "__main__":
    sys.exit(main())
