"""A real HTTP server on a free loopback port, scripted by path, which remembers what reached it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast, final

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

METHODS = ["GET", "POST", "PUT"]
Reply = Callable[[], Response]


def status(code: int, content: str = "", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: Response(content or f"body of {code}", status_code=code, headers=named)


def stream(code: int, parts: int, *, seconds: float = 0) -> Reply:
    async def body() -> AsyncIterator[bytes]:
        for number in range(parts):
            await trio.sleep(seconds)
            yield b"%d " % number

    return lambda: StreamingResponse(body(), status_code=code)


def hang() -> Response:
    return cast("Response", None)


@final
class Site:
    """`site.script["/path"] = [reply, ...]`: the next reply to each request, the last one for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.script: dict[str, list[Reply]] = {}
        self.bodies: list[bytes] = []
        self.times: list[float] = []
        self.connections: set[Any] = set()
        self.hung_up = trio.Event()  # somebody did, on a request that hung

    async def answer(self, request: Request) -> Response:
        self.times.append(trio.current_time())
        assert request.client is not None
        self.connections.add(request.client.port)
        self.bodies.append(await request.body())
        replies = self.script[request.url.path]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply is not hang:
            return reply()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.hung_up.set()
        return Response()

    def app(self) -> Starlette:
        async def nobody(request: Request, error: Exception) -> Response:
            return Response()

        route = Route("/{path:path}", self.answer, methods=METHODS)
        return Starlette(routes=[route], exception_handlers={ClientDisconnect: nobody})


@asynccontextmanager
async def served() -> AsyncGenerator[Site, None]:
    site, config = Site(), Config()
    config.bind = ["127.0.0.1:0"]
    config.loglevel = "CRITICAL"
    async with trio.open_nursery() as nursery:
        [site.url] = await nursery.start(serve, cast("Any", site.app()), config)
        yield site
        nursery.cancel_scope.cancel()


def line(connections: int = 1) -> httpx.AsyncHTTPTransport:
    """A pool of so many connections, in which a leaked one is missed at once."""
    return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=connections))


def busy(transport: httpx.AsyncHTTPTransport) -> list[str]:
    """Describe the connections of a pool that are neither idle nor closed."""
    pool = transport._pool
    return [repr(one) for one in pool.connections if not (one.is_idle() or one.is_closed())]
