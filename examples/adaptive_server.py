"""An HTTP service that can do so much and no more, and the ledger that says what was asked of it.

    python examples/adaptive_server.py [--slots N] [--work SECONDS] [--line N]

It prints its URL and ends when its standard input closes (Ctrl-D in a terminal), so it never outlives whoever started
it. `GET /work` takes `--work` seconds in one of `--slots` slots. While all of them are taken, up to `--line` requests
wait for one, first come, first served; whoever comes then is answered 503.

`POST /ledger` returns what happened since the last time, and turns the page.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass, field

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass
class Page:
    """One page of the ledger."""

    begun_at: float = field(default_factory=trio.current_time)
    served: int = 0
    refused: int = 0
    most_at_once: int = 0
    """Requests in the house: in a slot, waiting for one, or being refused."""
    worked: float = 0.0
    """Seconds in which slots were taken, of all slots together."""
    waited: float = 0.0
    """Seconds for which those who were served had waited for a slot."""


class Service:
    """So many slots, a line of bounded length, and a ledger."""

    def __init__(self, slots: int, work: float, line: int) -> None:
        self._slots = trio.CapacityLimiter(slots)
        self._work = work
        self._room = slots + line
        self._present = 0
        self._page = Page()
        self._seen_at = self._page.begun_at

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/work", self.work, methods=["GET"]), Route("/ledger", self.turn, methods=["POST"])]
        )

    async def work(self, request: Request) -> Response:
        self._present += 1
        self._page.most_at_once = max(self._page.most_at_once, self._present)
        try:
            if self._present > self._room:
                self._page.refused += 1
                return Response("too many", status_code=503)
            await self._serve()
            return Response("done")
        finally:
            self._present -= 1

    async def _serve(self) -> None:
        came_at = trio.current_time()
        async with self._slots:
            self._count(self._taken - 1)
            waited = trio.current_time() - came_at
            try:
                await trio.sleep(self._work)
            finally:
                self._count(self._taken)
        self._page.waited += waited
        self._page.served += 1

    @property
    def _taken(self) -> int:
        return self._slots.borrowed_tokens

    def _count(self, taken: int) -> None:
        """Add the time for which so many slots were taken; called when that changes."""
        now = trio.current_time()
        self._page.worked += taken * (now - self._seen_at)
        self._seen_at = now

    async def turn(self, request: Request) -> Response:
        self._count(self._taken)
        page, self._page = self._page, Page(begun_at=self._seen_at)
        return JSONResponse({**asdict(page), "seconds": self._seen_at - page.begun_at})


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
    parser = argparse.ArgumentParser(description="A service of limited capacity, with a ledger.")
    parser.add_argument("--slots", type=int, default=12, help="how many requests it serves at once")
    parser.add_argument("--work", type=float, default=0.1, help="seconds that one takes")
    parser.add_argument("--line", type=int, default=24, help="how many may wait before it says 503")
    options = parser.parse_args()
    service = Service(options.slots, options.work, options.line)
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, service.app(), config())
        print(urls[0], flush=True)
        await stdin_closed()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
