"""A fallible, rate-limited HTTP service on a free loopback port, and the ledger that says what really happened.

    python examples/harvest_server.py [--ledger FILE] [--seed N] [--rate N]

It prints its URL and ends when its standard input closes (Ctrl-D in a terminal), so it never outlives whoever started
it. `POST /items/{code}` registers an item and answers with its receipt number, but

- above `--rate` requests a second it answers 429 with `Retry-After`,
- it has outages, in which it answers 503: fifty requests of each thousand, or what comes in half a second,
- some answers are slow, some connections are cut (before the work or, worse, after it), some hang for ever.

Which item meets which fate in which attempt depends on the seed alone, not on time or order.

The ledger has one line an attempt: how it was answered, how many requests were in flight, and the receipt if this
attempt did the work. An attempt may reach us more than once however careful the client is: an answer that was lost on
the way back looks to it like work that never was done. So attempts are at-least-once, and the *effect* is made
exactly-once here, by id: an item with a receipt gets the same receipt again and no second one. The ledger is also our
database: a restarted server reads it and goes on.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections import Counter
from pathlib import Path

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from journal import Journal, read
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

FATES = {"slow": 0.02, "cut": 0.01, "cut after the work": 0.01, "hung": 0.004}
REFUSALS = ("429", "503")  # no attempt at the work: they change nobody's fate


class TokenBucket:
    """Let `rate` requests a second through, and as many at once after a quiet second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._filled_at = -math.inf

    def take(self, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        self._tokens = min(self._rate, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return 0


class Outages:
    """After each so many requests, refuse the next fifty, or those of half a second.

    They begin by count and not by time, so that a slow machine has as many of them; but no outage waits for requests to
    get over with it.
    """

    def __init__(self, first: int = 150, every: int = 1000) -> None:
        self._next = first
        self._every = every
        self._left = 0
        self._until = -math.inf

    def strike(self, now: float) -> bool:
        """Count a request, and return whether it meets an outage."""
        self._next -= 1
        if self._next == 0:
            self._next, self._left, self._until = self._every, 50, now + 0.5
        if now >= self._until or self._left == 0:
            return False
        self._left -= 1
        return True


class Ledger:
    """Who asked, how it was answered, who got a receipt: one line an attempt, never changed."""

    def __init__(self, path: Path) -> None:
        self.receipts: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self._journal = Journal(path)
        for line in read(path):
            self.attempts[line["code"]] += line["answer"] not in REFUSALS
            if line["receipt"] is not None:
                self.receipts[line["code"]] = line["receipt"]

    def record(self, code: str, answer: str, in_flight: int, *, work: bool = False) -> None:
        """Write one attempt down; with `work`, and if nobody has done it yet, also its receipt."""
        receipt = len(self.receipts) + 1 if work and code not in self.receipts else None
        if receipt is not None:
            self.receipts[code] = receipt
        self._journal.append(code=code, answer=answer, in_flight=in_flight, receipt=receipt)


class Cut(Response):
    """Promise a body, then drop the connection in the middle of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


class Service:
    """The one endpoint, its bad days, and the number of requests it has in its hands."""

    def __init__(self, ledger: Ledger, *, seed: int, rate: float) -> None:
        self._ledger = ledger
        self._seed = seed
        self._bucket = TokenBucket(rate)
        self._outages = Outages()
        self._in_flight = 0

    def app(self) -> Starlette:
        routes = [Route("/items/{code}", self.register, methods=["POST"])]
        return Starlette(routes=routes, exception_handlers={ClientDisconnect: answer_nobody})

    async def register(self, request: Request) -> Response:
        await request.body()  # takes more steps than a hang-up does: who gave up before is out before this one is in
        self._in_flight += 1
        try:
            return await self._answer(request, request.path_params["code"], self._in_flight)
        finally:
            self._in_flight -= 1  # before the answer is sent: once it has it, the client may rightly come again

    async def _answer(self, request: Request, code: str, in_flight: int) -> Response:
        refused = self._refuse(code, in_flight)
        if refused is not None:
            return refused
        fate, latency = self._fate(code)
        if await gone(request, within=latency):
            self._ledger.record(code, "hung" if fate == "hung" else "gone", in_flight)
            return Response()  # to nobody
        if fate == "cut":
            self._ledger.record(code, "cut", in_flight)
            return Cut()
        self._ledger.record(code, "cut" if fate == "cut after the work" else "ok", in_flight, work=True)
        return Cut() if fate == "cut after the work" else JSONResponse({"receipt": self._ledger.receipts[code]})

    def _refuse(self, code: str, in_flight: int) -> Response | None:
        now = trio.current_time()
        if self._outages.strike(now):
            self._ledger.record(code, "503", in_flight)
            return Response(status_code=503)
        wait = self._bucket.take(now)
        if wait > 0:
            self._ledger.record(code, "429", in_flight)
            return Response(status_code=429, headers={"Retry-After": str(math.ceil(wait))})
        return None

    def _fate(self, code: str) -> tuple[str, float]:
        """Say what becomes of this attempt and how long it takes, in seconds."""
        chance = random.Random(f"{self._seed}/{code}/{self._ledger.attempts[code]}")
        self._ledger.attempts[code] += 1
        [fate] = chance.choices([*FATES, "well"], [*FATES.values(), 1 - sum(FATES.values())])
        latency = {"slow": chance.uniform(0.3, 0.9), "hung": math.inf}.get(fate, chance.uniform(0.01, 0.05))
        return fate, latency


async def answer_nobody(request: Request, error: Exception) -> Response:
    return Response()


async def gone(request: Request, *, within: float) -> bool:
    """Wait so many seconds, or less if the client hangs up; return whether it did."""
    with trio.move_on_after(within):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return True
    return False


async def stdin_closed() -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for _ in stdin:
            pass


def config() -> Config:
    settings = Config()
    settings.bind = ["127.0.0.1:0"]
    settings.loglevel = "WARNING"
    settings.backlog = 1000
    settings.keep_alive_max_requests = 1_000_000
    return settings


async def main() -> None:
    parser = argparse.ArgumentParser(description="A fallible, rate-limited service with a ledger.")
    parser.add_argument("--ledger", type=Path, default=Path("harvest-ledger.jsonl"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=330, help="requests a second before it says 429")
    options = parser.parse_args()
    service = Service(Ledger(options.ledger), seed=options.seed, rate=options.rate)
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, service.app(), config())
        print(urls[0], flush=True)
        await stdin_closed()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
