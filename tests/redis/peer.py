"""redis-py's own client beside ours, on the same server, and the state in which a test of ours must leave things."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import redis
import trio

from trio_orchestrator.redis import Redis
from trio_orchestrator.testing.server import RedisServer


@contextmanager
def open_peer(server: RedisServer, **options: Any) -> Generator[Any, None, None]:
    """Open redis-py's sync client of a server."""
    with redis.Redis(host=server.host, port=server.port, **options) as peer:  # 8.0.0 cannot use a Unix socket
        yield peer


def forget(server: RedisServer, prefix: str) -> None:
    """Remove all keys that begin with a prefix."""
    for key in server.command("KEYS", f"{prefix}*"):
        server.command("DEL", key)


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is so, at most 5 s."""
    with trio.fail_after(5):
        while not true():  # noqa: ASYNC110 - what it waits for is in another process
            await trio.sleep(0.001)


def idle(client: Redis) -> int:
    """Fail if a connection of a client is still leased, or anything is in flight; return how many it keeps."""
    leases, statistics = client._server.leases, client.statistics()
    assert (leases.used, leases.waiting) == (0, 0)
    assert (statistics.in_flight, statistics.queued, statistics.waiting) == (0, 0, 0)
    assert all(connection.cause is None for connection in leases._idle)
    return len(leases._idle)
