"""Opening a client: its arguments, its block, and what its entry and its exit promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from ssl import SSLContext

from redis.backoff import AbstractBackoff, FullJitterBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ReadOnlyError, ResponseError

from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.block import Hooks
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.pipe import SocketDial
from trio_orchestrator.redis.server import CLOSE_WITHIN, Server, open_server
from trio_orchestrator.redis.settings import Target, read_target
from trio_orchestrator.redis.wire import reader


def is_read_only(error: ResponseError) -> bool:
    """Return whether a server says that it is a replica, so that another one must be the master by now."""
    return isinstance(error, ReadOnlyError)


def make_settings(
    target: Target,
    *,
    connect_timeout: float,
    command_timeout: float,
    keepalive: float,
    silent_after: float,
    reconnect: AbstractBackoff | None,
    reconnect_on: Callable[[ResponseError], bool],
    max_in_flight: float,
    max_unsent: float,
    instruments: Sequence[Instrument],
) -> LinkSettings:
    """Return what holds for all links of a client, or raise."""
    if reconnect is not None and not isinstance(reconnect, AbstractBackoff):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"reconnect must be one of redis.backoff, got {reconnect!r}")
    return LinkSettings(
        connect_timeout=above("connect_timeout", connect_timeout, 0),
        command_timeout=above("command_timeout", command_timeout, 0),
        keepalive=above("keepalive", keepalive, 0),
        silent_after=above("silent_after", silent_after, 0),
        reconnect=FullJitterBackoff(cap=3, base=0.1) if reconnect is None else reconnect,
        reconnect_on=reconnect_on,
        max_in_flight=count("max_in_flight", max_in_flight, 1),
        max_unsent=count("max_unsent", max_unsent, 1),
        reader=partial(reader, target.reader_encoding, target.encoding_errors),
        hooks=Hooks(instruments),
    )


async def _open(
    target: Target, settings: LinkSettings, wait: float, close_within: float, dedicated: float, allowed: frozenset[str]
) -> AsyncGenerator[Redis, None]:
    async def resolve() -> Address:
        return target.address

    handshake = Handshake(target.credentials, target.database, target.name)
    dial = SocketDial(target.tls, settings.keepalive)
    name = f"redis at {target.address}"
    server = Server(name, Connector(name, resolve, dial, handshake, settings), settings, dedicated=dedicated)
    async with open_server(server, wait, close_within):
        yield Redis(server, Answers(target), allowed=allowed)


_opened = asynccontextmanager(_open)


def open_redis(
    url: str | None = None,
    *,
    username: str | None = None,
    password: str | None = None,
    credential_provider: CredentialProvider | None = None,
    db: int | None = None,
    client_name: str | None = None,
    tls: SSLContext | None = None,
    decode_responses: bool | None = None,
    encoding: str | None = None,
    encoding_errors: str | None = None,
    legacy_responses: bool | None = None,
    connect_timeout: float = 5,
    command_timeout: float = 2,
    keepalive: float = 10,
    silent_after: float = 2,
    reconnect: AbstractBackoff | None = None,
    reconnect_on: Callable[[ResponseError], bool] = is_read_only,
    wait: float = 0,
    close_within: float = CLOSE_WITHIN,
    max_in_flight: float = 10_000,
    max_unsent: float = 1 << 20,
    max_dedicated: float = 64,
    allow_keys: bool = False,
    instruments: Sequence[Instrument] = (),
) -> AbstractAsyncContextManager[Redis]:
    """Open a client of one Redis or Valkey server for the length of a block.

    `async with open_redis("redis://localhost:6379/0") as redis: await redis.set("greeting", "hello")`

    Entering connects, and raises if that cannot be done. Whatever happens to the connection later is repaired beside the
    block, while calls wait, each no longer than `command_timeout`; none is counted or limited in its attempts, the time is
    the bound. Leaving lets no more calls in, waits until what was posted has been answered, at most `close_within`, and
    ends every task and connection. What is cancelled from above can still speak inside the block, in shielded clean-up.

    A call that was not sent when the connection was lost, or only reads, is sent again by itself. A write that was sent is
    not: it raises `LinkError`, whose `sent` says that it may have run.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, as redis-py reads it. Without one: the environment's `REDIS_URL`,
            else `REDIS_HOST`, `REDIS_PORT`, `REDIS_USERNAME`, `REDIS_PASSWORD`, `REDIS_DB`. What is given by name below
            counts more than what stands in the URL.
        username: Who this is.
        password: With what password.
        credential_provider: redis-py's, asked before each connection; instead of both.
        db: The number of the database.
        client_name: What `CLIENT LIST` shows.
        tls: The context for `rediss://`; default one of the system's certificates and the URL's `ssl_` options.
        decode_responses: Whether replies are str instead of bytes. Default False.
        encoding: Of str. Default UTF-8.
        encoding_errors: What to do with bytes that are none. Default "strict".
        legacy_responses: False for redis-py's unified shapes of answers. Default True, as in redis-py.
        connect_timeout: Seconds for one attempt to connect, until the server is ready to answer: no longer loading its
            data, and in step with its master if it is a replica.
        command_timeout: Seconds until a call without an answer raises `CallTimeoutError`; `math.inf`: never. A shorter
            scope of the caller's ends it sooner. What blocks on purpose (`BLPOP`) has that added.
        keepalive: After so many idle seconds the server is asked whether it is there; so does the system (TCP keepalive).
        silent_after: After so many seconds without a byte from a server that owes an answer, a second connection is
            tried, and used if it is answered first; calls that were not sent wait for that. A call that timed out on a
            silent connection does the same. A slow script is not taken for a dead server: the first one speaks again.
        reconnect: Seconds between attempts to connect: any of `redis.backoff`. Default
            `FullJitterBackoff(cap=3, base=0.1)`. There is no pause before the first attempt after a useful connection.
        reconnect_on: Of which error replies to conclude that another server is to be asked: connect again, and send the
            refused call once more. Default: `READONLY`.
        wait: Seconds for which entering tries again to reach a server; 0: one attempt.
        close_within: Seconds that leaving may take to have posted commands answered.
        max_in_flight: How many calls may be queued or unanswered; further ones wait. Posted ones do not count.
        max_unsent: How many bytes may be queued; further calls wait. One call may be larger.
        max_dedicated: How many connections of their own blocking commands, `watch` and `dedicated` may have at once;
            further ones wait, first come, first served.
        allow_keys: Whether `KEYS` may be sent, which blocks the server for as long as it has keys to look at.
        instruments: Hear every step of the connection: `redis_connected`, `redis_ready`, `redis_lost`,
            `redis_reconnecting`, `redis_failover`.

    Raises:
        ValueError: The URL is malformed, or an argument out of range.
        LinkError: The server cannot be reached; names host, port and cause.
        AuthenticationError: The server does not know the user, or the password is wrong.
        RedisError: The server refuses something else, or is older than Redis 7.0 or Valkey 7.2.
    """
    target = read_target(
        url,
        username=username,
        password=password,
        credential_provider=credential_provider,
        db=db,
        client_name=client_name,
        tls_context=tls,
        decode_responses=decode_responses,
        encoding=encoding,
        encoding_errors=encoding_errors,
        legacy_responses=legacy_responses,
    )
    settings = make_settings(
        target,
        connect_timeout=connect_timeout,
        command_timeout=command_timeout,
        keepalive=keepalive,
        silent_after=silent_after,
        reconnect=reconnect,
        reconnect_on=reconnect_on,
        max_in_flight=max_in_flight,
        max_unsent=max_unsent,
        instruments=instruments,
    )
    at_least("wait", wait, 0)
    at_least("close_within", close_within, 0)
    dedicated = count("max_dedicated", max_dedicated, 1)
    return _opened(target, settings, wait, close_within, dedicated, frozenset({"allow_keys"} if allow_keys else ()))
