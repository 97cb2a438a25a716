"""How many requests at once? A limiter finds out, against a real server that does not say.

    python examples/adaptive.py                                 # no limit, then two rules: about ten seconds
    python examples/adaptive.py --limit vegas --limit arc       # these rules
    python examples/adaptive.py --fixed 40                      # a limit that somebody has guessed
    python examples/adaptive.py --fixed 0 --limit aimd --seconds 10

It starts `adaptive_server.py` (a real HTTP server in a process of its own), which serves twelve requests at once in
100 ms each, lets 24 more wait, and answers 503 to the others. A hundred eager workers ask, each again as soon as it has
been answered, or 0.2 s after it was refused, and know nothing of that.

Without a limit, most of what they get is refusals, and what is served has waited behind everything else. A limiter lets
so many through as are good for the server: its `limit` finds a place where all slots are busy and few requests wait.
The rules differ in what they look at: `AIMD` and `ARC` grow until something is refused (`ARC`: or slows down),
`Gradient2`, `Vegas` and `EnvoyGradient` watch the latency.

The verdict at the end is not the limiter's: it is drawn from the ledger of the *server*, of the second half of each
run; the first half is for finding out.

- busy: the part of the time in which its slots were taken. Less than 75 %: the limit is too low.
- refused: the part of the requests that it had to turn away. More than 5 %: the limit is too high.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trio

from trio_orchestrator import (
    AIMD,
    ARC,
    AdaptiveLimiter,
    Bulkhead,
    EnvoyGradient,
    Gradient2,
    Limit,
    Policy,
    Vegas,
    http_transient,
)

SERVER = Path(__file__).with_name("adaptive_server.py")
SLOTS = 12
WORKERS = 100
PAUSE = 0.2  # seconds
ROW = 0.5

RULES: dict[str, Limit] = {
    "aimd": AIMD(initial=5),
    "arc": ARC(),
    "envoy": EnvoyGradient(),
    "gradient2": Gradient2(initial=5, minimum=5),
    "vegas": Vegas(initial=5),
}


@dataclass
class Tally:
    """What the workers have got."""

    answered: int = 0
    refused: int = 0
    seconds: list[float] = field(default_factory=list)
    """How long the answers took."""


@dataclass(frozen=True)
class Verdict:
    """What the server has written down of one contender."""

    name: str
    served: float
    """Requests a second."""
    busy: float
    refused: float
    waited: float
    """Seconds that a request waited for a slot, on average."""
    most_at_once: int

    @property
    def words(self) -> str:
        if self.refused > 0.05:
            return "overloads the server"
        return "leaves the server idle" if self.busy < 0.75 else "fits the server"


# --------------------------------------------------------------------------------------------------- the contenders


async def compete(
    clients: list[httpx.AsyncClient], name: str, policy: Policy, limit: Callable[[], float], seconds: float
) -> Verdict:
    """Let every client ask under a policy, show how it goes, and return what the server says of the second half."""
    print(f"\n{name}\n{'second':>8} {'limit':>6} {'served/s':>9} {'refused/s':>10} {'latency':>10}")
    begun_at, tally = trio.current_time(), Tally()
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(work, client, policy, tally, begun_at + seconds)
        await show(tally, limit, begun_at, until=begun_at + seconds / 2)
        await clients[0].post("/ledger")
        await show(tally, limit, begun_at, until=begun_at + seconds)
        page = (await clients[0].post("/ledger")).json()
    return judge(name, page)


async def work(client: httpx.AsyncClient, policy: Policy, tally: Tally, end: float) -> None:
    """Ask, and ask again."""

    async def ask() -> None:
        asked_at = trio.current_time()
        (await client.get("/work")).raise_for_status()
        tally.seconds.append(trio.current_time() - asked_at)

    with trio.move_on_at(end):
        while True:
            try:
                await policy.call(ask)
                tally.answered += 1
            except httpx.HTTPStatusError:
                tally.refused += 1
                await trio.sleep(PAUSE)


async def show(tally: Tally, limit: Callable[[], float], begun_at: float, *, until: float) -> None:
    """Print a row now and then."""
    then = trio.current_time()
    while then < until:
        answered, refused, known = tally.answered, tally.refused, len(tally.seconds)
        await trio.sleep_until(min(until, then + ROW))
        past, then = trio.current_time() - then, trio.current_time()
        times = sorted(tally.seconds[known:])
        latency = f"{1000 * times[len(times) // 2]:.0f} ms" if times else "-"
        served, failed = (tally.answered - answered) / past, (tally.refused - refused) / past
        print(f"{then - begun_at:>8.1f} {limit():>6.0f} {served:>9.0f} {failed:>10.0f} {latency:>10}", flush=True)


def judge(name: str, page: dict[str, float]) -> Verdict:
    """Read a page of the server's ledger."""
    asked = page["served"] + page["refused"]
    return Verdict(
        name=name,
        served=page["served"] / page["seconds"],
        busy=page["worked"] / (SLOTS * page["seconds"]),
        refused=page["refused"] / asked if asked else 0.0,
        waited=page["waited"] / page["served"] if page["served"] else 0.0,
        most_at_once=int(page["most_at_once"]),
    )


# --------------------------------------------------------------------------------------------------------- around it


async def run(options: argparse.Namespace) -> None:
    verdicts: list[Verdict] = []
    async with open_server() as url, open_clients(url) as clients:
        if options.fixed:
            bulkhead = Bulkhead(options.fixed)
            name = f"fixed {options.fixed}"
            verdicts.append(await compete(clients, name, bulkhead, lambda: options.fixed, options.seconds))
        for name in options.limit or ("gradient2", "aimd"):
            limiter = AdaptiveLimiter(limit=RULES[name], on=http_transient, name=name)
            verdicts.append(await compete(clients, name, limiter, lambda: limiter.limit, options.seconds))  # noqa: B023
    print(f"\nWhat the server says, with {SLOTS} slots:")
    print(f"{'':<10} {'served/s':>9} {'busy':>6} {'refused':>8} {'waited':>8} {'most at once':>13}")
    for verdict in verdicts:
        print(
            f"{verdict.name:<10} {verdict.served:>9.0f} {verdict.busy:>6.0%} {verdict.refused:>8.1%}"
            f" {1000 * verdict.waited:>5.0f} ms {verdict.most_at_once:>13}  {verdict.words}"
        )


@asynccontextmanager
async def open_server() -> AsyncIterator[str]:
    """Yield the URL of a server that runs for the length of the block.

    It ends when its standard input closes, which happens even if this process is killed.
    """
    pipe = subprocess.PIPE
    program = [sys.executable, str(SERVER), f"--slots={SLOTS}"]
    process = await trio.lowlevel.open_process(program, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.receive_some()).decode().strip()
        if not url:
            raise SystemExit("the server did not start")
        yield url
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            await process.wait()


@asynccontextmanager
async def open_clients(url: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Yield a client for each worker: httpx looks at every connection of a pool for every request."""
    async with AsyncExitStack() as stack:
        # No TLS here, and to set it up costs 20 ms each.
        clients = [httpx.AsyncClient(base_url=url, timeout=30, verify=False) for _ in range(WORKERS)]
        for client in clients:
            await stack.enter_async_context(client)
            await client.post("/ledger")  # now it is connected: that shall cost nobody anything later
        yield clients


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Find out how many requests at once are good for a server.")
    parser.add_argument("--limit", action="append", choices=RULES, help="a rule; may be repeated")
    parser.add_argument("--fixed", type=int, default=WORKERS, help="a limit that nobody moves, to compare; 0: none")
    parser.add_argument("--seconds", type=float, default=3, help="how long each of them has")
    trio.run(run, parser.parse_args())
