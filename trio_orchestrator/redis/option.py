"""What can be chosen for a client, with its defaults: the same for one server, for Sentinels and for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ssl import SSLContext
from typing import TypedDict, final

from redis.backoff import AbstractBackoff, FullJitterBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ReadOnlyError, ResponseError

from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.block import Hooks
from trio_orchestrator.redis.connector import LinkSettings
from trio_orchestrator.redis.server import CLOSE_WITHIN
from trio_orchestrator.redis.settings import Target, read_target
from trio_orchestrator.redis.wire import reader


class ClientOptions(TypedDict, total=False):
    """The options of `open_redis`, `open_sentinel` and `open_redis_cluster`. Times are in seconds."""

    username: str
    """Who this is."""
    password: str
    """With what password."""
    credential_provider: CredentialProvider
    """redis-py's, asked before each connection; instead of both."""
    db: int
    """The number of the database."""
    client_name: str
    """What `CLIENT LIST` shows."""
    tls: SSLContext
    """The context for `rediss://`; default one of the system's certificates and the URL's `ssl_` options."""
    decode_responses: bool
    """Whether replies are str instead of bytes. Default False."""
    encoding: str
    """Of str. Default UTF-8."""
    encoding_errors: str
    """What to do with bytes that are none. Default "strict"."""
    legacy_responses: bool
    """False for redis-py's unified shapes of answers. Default True, as in redis-py."""
    connect_timeout: float
    """Seconds for one attempt to connect, until the server is ready to answer: no longer loading its data, and in
    step with its master if it is a replica. Default 5.
    """
    command_timeout: float
    """Seconds until a call without an answer raises `CallTimeoutError`; `math.inf`: never. A shorter scope of the
    caller's ends it sooner. What blocks on purpose (`BLPOP`) has that added. Default 2.
    """
    keepalive: float
    """After so many idle seconds the server is asked whether it is there; so does the system (TCP keepalive).
    Default 10.
    """
    silent_after: float
    """After so many seconds without a byte from a server that owes an answer, a second connection is tried, and used
    if it is answered first; calls that were not sent wait for that. A call that timed out on a silent connection
    does the same. A slow script is not taken for a dead server: the first one speaks again. Default 2.
    """
    reconnect: AbstractBackoff
    """Seconds between attempts to connect: any of `redis.backoff`. Default `FullJitterBackoff(cap=3, base=0.1)`.
    There is no pause before the first attempt after a useful connection.
    """
    reconnect_on: Callable[[ResponseError], bool]
    """Of which error replies to conclude that another server is to be asked: connect again, and send the refused
    call once more. Default: `READONLY`.
    """
    wait: float
    """Seconds for which entering tries again to reach a server; 0: one attempt. Default 0."""
    close_within: float
    """Seconds that leaving may take to have posted commands answered. Default 1."""
    max_in_flight: float
    """How many calls may be queued or unanswered; further ones wait. Posted ones do not count. Default 10,000."""
    max_unsent: float
    """How many bytes may be queued; further calls wait. One call may be larger. Default 1 MiB."""
    max_dedicated: float
    """How many connections of their own blocking commands, `watch` and `dedicated` may have at once; further ones
    wait, first come, first served. Default 64.
    """
    allow_keys: bool
    """Whether `KEYS` may be sent, which blocks the server for as long as it has keys to look at. Default False."""
    instruments: Sequence[Instrument]
    """Hear every step of the connection: `redis_connected`, `redis_ready`, `redis_lost`, `redis_reconnecting`,
    `redis_failover`.
    """


def is_read_only(error: ResponseError) -> bool:
    """Return whether a server says that it is a replica, so that another one must be the master by now."""
    return isinstance(error, ReadOnlyError)


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """A client that is not open yet: its arguments, checked."""

    target: Target
    settings: LinkSettings
    wait: float
    close_within: float
    dedicated: float
    allowed: frozenset[str]


def read_plan(url: str | None, options: ClientOptions) -> Plan:
    """Check the arguments of a client.

    Raises:
        ValueError: The URL is malformed, or an argument out of range.
        TypeError: An argument is of the wrong type, or unknown.
    """
    return _plan(url, **options)


def _plan(
    url: str | None,
    *,
    wait: float = 0,
    close_within: float = CLOSE_WITHIN,
    max_dedicated: float = 64,
    allow_keys: bool = False,
    connect_timeout: float = 5,
    command_timeout: float = 2,
    keepalive: float = 10,
    silent_after: float = 2,
    reconnect: AbstractBackoff | None = None,
    reconnect_on: Callable[[ResponseError], bool] = is_read_only,
    max_in_flight: float = 10_000,
    max_unsent: float = 1 << 20,
    instruments: Sequence[Instrument] = (),
    tls: SSLContext | None = None,
    username: str | None = None,
    password: str | None = None,
    credential_provider: CredentialProvider | None = None,
    db: int | None = None,
    client_name: str | None = None,
    decode_responses: bool | None = None,
    encoding: str | None = None,
    encoding_errors: str | None = None,
    legacy_responses: bool | None = None,
) -> Plan:
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
    if reconnect is not None and not isinstance(reconnect, AbstractBackoff):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"reconnect must be one of redis.backoff, got {reconnect!r}")
    settings = LinkSettings(
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
    return Plan(
        target=target,
        settings=settings,
        wait=at_least("wait", wait, 0),
        close_within=at_least("close_within", close_within, 0),
        dedicated=count("max_dedicated", max_dedicated, 1),
        allowed=frozenset({"allow_keys"} if allow_keys else ()),
    )
