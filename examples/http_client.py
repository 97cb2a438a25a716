"""An `httpx` client with policies, against a real server that has a bad day: what the server saw, what the user got.

    python examples/http_client.py        (four seconds)

The client is `httpx.AsyncClient(transport=HttpxTransport(Stack.http()))` and nothing else: the code that uses it does
not know of retries. The server is a real one, Starlette on Hypercorn, on a port of its own.

- it refuses connections, because it does not run yet;
- it is busy: 503, and `Retry-After: 1`;
- it hangs, once;
- it is busy when an order is posted, which must not be sent twice (unless it has an `Idempotency-Key`);
- it is broken: 500 for everything, while sixty users come.

The figures under "server" are the server's own.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from trio_orchestrator import CircuitOpenError, Stack
from trio_orchestrator.transport import HttpxTransport

USERS = 60
IDEMPOTENT = {"Idempotency-Key": "order 66"}


class Service:
    """A server with a bad day. Counts what reaches it, by path."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def app(self) -> Starlette:
        paths = {"/": self.well, "/busy": self.busy, "/hangs": self.hangs, "/broken": self.broken}
        orders = [Route(path, self.busy, methods=["POST"]) for path in ("/order", "/order-with-key")]
        return Starlette(routes=[*(Route(path, answer) for path, answer in paths.items()), *orders])

    def _first(self, request: Request) -> bool:
        self.seen[request.url.path] += 1
        return self.seen[request.url.path] == 1

    async def well(self, request: Request) -> Response:
        self._first(request)
        return PlainTextResponse("welcome")

    async def busy(self, request: Request) -> Response:
        if self._first(request):
            return Response(status_code=503, headers={"Retry-After": "1"})
        return PlainTextResponse("thank you for waiting")

    async def hangs(self, request: Request) -> Response:
        if self._first(request):
            while (await request.receive())["type"] != "http.disconnect":
                pass
        return PlainTextResponse("here I am")

    async def broken(self, request: Request) -> Response:
        self._first(request)
        return Response(status_code=500)


async def ask(client: httpx.AsyncClient, method: str, path: str, **options: dict[str, str]) -> str:
    """Send a request as anybody would, and say what came of it."""
    began_at = trio.current_time()
    try:
        response = await client.request(method, path, **options)  # type: ignore[arg-type]
    except CircuitOpenError:
        return "refused: the circuit is open"
    except httpx.TransportError as error:
        return type(error).__name__
    return f"{response.status_code} {response.text}".strip() + f", after {trio.current_time() - began_at:.1f} s"


def show(what: str, seen: int, got: str) -> None:
    print(f"{what:<30} {seen:>7}  {got}", flush=True)


async def bad_day(client: httpx.AsyncClient, service: Service) -> None:
    """Meet four troubles at once."""
    troubles = {
        "busy": ("GET", "/busy", {}),
        "hangs, once": ("GET", "/hangs", {}),
        "busy, an order": ("POST", "/order", {}),
        "busy, an order with a key": ("POST", "/order-with-key", IDEMPOTENT),
    }
    got: dict[str, str] = {}

    async def user(method: str, path: str, headers: dict[str, str]) -> None:
        got[path] = await ask(client, method, path, headers=headers)

    async with trio.open_nursery() as nursery:
        for trouble in troubles.values():
            nursery.start_soon(user, *trouble)
    for what, (_, path, _) in troubles.items():
        show(what, service.seen[path], got[path])


async def outage(client: httpx.AsyncClient, service: Service) -> None:
    """Let many users come while everything fails."""
    got: Counter[str] = Counter()

    async def user() -> None:
        got[(await ask(client, "GET", "/broken")).partition(",")[0]] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(USERS):
            nursery.start_soon(user)
            await trio.sleep(0.02)
    answers = ", ".join(f"{count} x {answer}" for answer, count in sorted(got.items()))
    show(f"broken, {USERS} users", service.seen["/broken"], answers)


async def main() -> None:
    service = Service()
    print(f"{'the server':<30} {'server':>7}  the user got")
    with socket.socket() as port:  # taken, but nobody listens
        port.bind(("127.0.0.1", 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_later, service, port)
            async with open_client(port) as client:
                got = await ask(client, "GET", "/")
                show("does not run yet", service.seen["/"], got)
                await bad_day(client, service)
            async with open_client(port) as client:
                await outage(client, service)
            nursery.cancel_scope.cancel()


async def start_later(service: Service, port: socket.socket) -> None:
    await trio.sleep(0.1)
    settings = Config()
    settings.bind = [f"fd://{port.dup().detach()}"]  # which it closes
    settings.loglevel = "WARNING"
    await serve(service.app(), settings)  # type: ignore[arg-type]  # Hypercorn's types do not know Starlette's


@asynccontextmanager
async def open_client(port: socket.socket) -> AsyncIterator[httpx.AsyncClient]:
    """Yield the client of this example: a stack of its own, since each service has its own state."""
    stack = Stack.http(attempts=8, attempt_timeout=1)
    host, number = port.getsockname()
    async with httpx.AsyncClient(transport=HttpxTransport(stack), base_url=f"http://{host}:{number}") as client:
        yield client


if __name__ == "__main__":
    trio.run(main)
