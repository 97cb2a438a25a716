"""Opening a client: its block, and what its entry and its exit promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.connector import Connector
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.option import ClientOptions, Plan, read_plan
from trio_orchestrator.redis.pipe import Dial, SocketDial
from trio_orchestrator.redis.sentinel import Sentinels
from trio_orchestrator.redis.server import Server, open_server
from trio_orchestrator.redis.settings import Target, read_target


def _handshake(target: Target, role: str = "") -> Handshake:
    return Handshake(target.credentials, target.database, target.name, role)


async def _open(plan: Plan) -> AsyncGenerator[Redis, None]:
    target, settings = plan.target, plan.settings

    async def resolve() -> Address:
        return target.address

    name = f"redis at {target.address}"
    connector = Connector(name, resolve, SocketDial(target.tls, settings.keepalive), _handshake(target), settings)
    server = Server(name, connector, settings, dedicated=plan.dedicated)
    async with open_server(server, plan.wait, plan.close_within):
        yield Redis(server, Answers(target), allowed=plan.allowed)


_opened = asynccontextmanager(_open)


def open_redis(url: str | None = None, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Redis]:
    """Open a client of one Redis or Valkey server for the length of a block.

    `async with open_redis("redis://localhost:6379/0") as redis: await redis.set("greeting", "hello")`

    Entering connects, and raises if that cannot be done. Whatever happens to the connection later is repaired beside
    the block, while calls wait, each no longer than `command_timeout`; there is no number of attempts, the time is the
    bound. Leaving lets no more calls in, waits until what was posted has been answered, at most `close_within`, and
    ends every task and connection. What is cancelled from above can still speak inside the block, in shielded clean-up.

    A call that was not sent when the connection was lost, or only reads, is sent again by itself. A write that was sent
    is not: it raises `LinkError`, whose `sent` says that it may have run.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, as redis-py reads it. Without one: the environment's
            `REDIS_URL`, else `REDIS_HOST`, `REDIS_PORT`, `REDIS_USERNAME`, `REDIS_PASSWORD`, `REDIS_DB`. What is given
            by name counts more than what stands in the URL.
        options: See `ClientOptions`, where each has its default.

    Raises:
        ValueError: The URL is malformed, or an argument out of range.
        LinkError: The server cannot be reached; names host, port and cause.
        AuthenticationError: The server does not know the user, or the password is wrong.
        RedisError: The server refuses something else, or is older than Redis 7.0 or Valkey 7.2.
    """
    return _opened(read_plan(url, options))


async def _open_sentinel(
    master: str, plan: Plan, targets: Sequence[Target], dial: Dial | None = None
) -> AsyncGenerator[Redis, None]:
    target, settings = plan.target, plan.settings
    name, handshake = f"master {master!r}", _handshake(target, "master")
    sentinels = Sentinels(master, targets, settings, dial)
    own = dial or SocketDial(target.tls, settings.keepalive)
    connector = Connector(name, sentinels.resolve, own, handshake, settings, sentinels.is_current)
    server = Server(name, connector, settings, dedicated=plan.dedicated, beside=sentinels.run)
    sentinels.moved = server.drop
    async with open_server(server, plan.wait, plan.close_within):
        yield Redis(server, Answers(target), allowed=plan.allowed)


open_planned_sentinel: Callable[..., AbstractAsyncContextManager[Redis]] = asynccontextmanager(_open_sentinel)
"""Do what `open_sentinel` does, with arguments that are checked, and with another way to connect if there is `dial`."""


def open_sentinel(
    master: str,
    sentinels: Sequence[str],
    *,
    sentinel_username: str | None = None,
    sentinel_password: str | None = None,
    **options: Unpack[ClientOptions],
) -> AbstractAsyncContextManager[Redis]:
    """Open a client of whatever server the Sentinels name as the master, for the length of a block.

    `async with open_sentinel("mymaster", ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"]) as redis:`

    It keeps one subscription on every Sentinel that can be reached, those that the given ones know of included. A
    replica's promotion, a `+switch-master`, a lost connection, a `READONLY` refusal and a server whose `ROLE` is not
    master each have the master looked for again, and no call goes out before the new one has said `ROLE master`. Of
    differing answers that of the latest epoch counts, even if who gave it cannot be reached any more: it is given up
    when most Sentinels have been saying something else for 5 s. Calls meanwhile wait, each no longer than
    `command_timeout`: let that be longer than a failover.

    What this cannot see: an old master that was cut off, and comes back while this process reaches no Sentinel that
    knows better, answers OK to writes that will be lost. So will be what was written in the moments before a promotion
    that the replica had not received. Give the servers `min-replicas-to-write 1`, and fence what must not be lost.

    A user of the Sentinels needs `+hello +ping +client|setinfo +subscribe +sentinel|master +sentinel|sentinels
    +sentinel|myid +sentinel|get-master-addr-by-name` and `allchannels`; one that may not subscribe is not used.

    Args:
        master: The name by which the Sentinels know it.
        sentinels: Their URLs, one at least: `redis://host:26379`, or `rediss://`.
        sentinel_username: Who this is to the Sentinels, where their URLs do not say it.
        sentinel_password: With what password.
        options: As for `open_redis`; users, database and TLS are those of the master.

    Raises:
        ValueError: A URL is malformed, or an argument out of range.
        LinkError: No Sentinel can be reached, or none knows a master that is up and says so.
        AuthenticationError: The master does not know the user, or the password is wrong.
        RedisError: The master refuses something else, or is too old.
    """
    if isinstance(sentinels, str) or not sentinels:
        raise ValueError(f"sentinels must be a list of URLs, one at least, got {sentinels!r}")
    targets = [read_target(url, username=sentinel_username, password=sentinel_password) for url in sentinels]
    return open_planned_sentinel(master, read_plan("redis://", options), targets)
