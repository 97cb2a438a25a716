"""Opening a client: its arguments, its block, and what its entry and its exit promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from ssl import SSLContext

import trio
from redis.backoff import AbstractBackoff, FullJitterBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ReadOnlyError, ResponseError

from trio_orchestrator.abc import Instrument
from trio_orchestrator.block import Hooks, open_block
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.pipe import SocketDial
from trio_orchestrator.redis.server import Server
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
    max_in_flight: int,
    max_unsent: int,
    instruments: Sequence[Instrument],
) -> LinkSettings:
    """Return what holds for all links of a client."""
    return LinkSettings(
        connect_timeout=connect_timeout,
        command_timeout=command_timeout,
        keepalive=keepalive,
        silent_after=silent_after,
        reconnect=FullJitterBackoff(cap=3, base=0.1) if reconnect is None else reconnect,
        reconnect_on=reconnect_on,
        max_in_flight=max_in_flight,
        max_unsent=max_unsent,
        reader=partial(reader, target.reader_encoding, target.encoding_errors),
        hooks=Hooks(instruments),
    )


async def _open(
    target: Target, settings: LinkSettings, *, wait: float, close_within: float, dedicated: float, allow_keys: bool
) -> AsyncGenerator[Redis, None]:
    async def resolve() -> Address:
        return target.address

    handshake = Handshake(target.credentials, target.database, target.name)
    dial = SocketDial(target.tls, settings.keepalive)
    name = f"redis at {target.address}"
    server = Server(name, Connector(name, resolve, dial, handshake, settings), settings, dedicated=dedicated)

    async def close(_error: BaseException | None) -> None:
        await server.flush(close_within)
        server.stop()

    async with open_block(close) as block:
        block.nursery.start_soon(server.run, wait, name=name)
        await server.link.wait_ready()
        yield Redis(server, Answers(target), allow_keys=allow_keys)


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
    close_within: float = 1,
    max_in_flight: int = 10_000,
    max_unsent: int = 1 << 20,
    max_dedicated: int = 64,
    allow_keys: bool = False,
    instruments: Sequence[Instrument] = (),
) -> AbstractAsyncContextManager[Redis]:
    """Open a client of one Redis or Valkey server for the length of a block."""
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
    return _opened(
        target, settings, wait=wait, close_within=close_within, dedicated=max_dedicated, allow_keys=allow_keys
    )
