"""How a connection comes about: find the server, dial, say hello, wait until it is ready; within one bound of time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import hiredis
import trio
from redis.backoff import AbstractBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connection import Connection, ignore_push
from trio_orchestrator.redis.conversation import Push
from trio_orchestrator.redis.error import LinkError, reason
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.pipe import Dial
from trio_orchestrator.redis.wire import reader
from trio_orchestrator.redis_event import RedisConnected

Resolve: TypeAlias = Callable[[], Awaitable[Address]]
"""Asked before each attempt to connect."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What holds for all links and connections of one client. Seconds."""

    connect_timeout: float
    command_timeout: float
    keepalive: float
    silent_after: float
    reconnect: AbstractBackoff
    reconnect_on: Callable[[ResponseError], bool]
    max_in_flight: float
    max_unsent: float
    reader: Callable[[], hiredis.Reader]
    hooks: Hooks


@final
class Connector:
    """Makes connections to one server, wherever it is by then.

    Args:
        name: For events.
        resolve: Tells where the server is, before each attempt.
        dial: Connects to that address.
        handshake: The first words.
        settings: Bounds of time.
    """

    def __init__(self, name: str, resolve: Resolve, dial: Dial, handshake: Handshake, settings: LinkSettings) -> None:
        self.trying: str = name
        """The address that was last tried, for errors."""
        self._name = name
        self._resolve = resolve
        self._dial = dial
        self._handshake = handshake
        self._settings = settings
        self._on_connected = settings.hooks.of("redis_connected")

    def undecoded(self, name: str) -> Connector:
        """Return a connector to the same server whose replies and pushes stay bytes."""
        settings = replace(self._settings, reader=reader)
        return Connector(name, self._resolve, self._dial, self._handshake, settings)

    async def connect(self, nursery: trio.Nursery, push: Push = ignore_push) -> Connection:
        """Make one connection, which runs in `nursery` and is ready. A cancelled attempt leaves nothing behind.

        Raises:
            LinkError: It took longer than `connect_timeout`, or the connection broke meanwhile.
            OSError: It cannot be connected to.
            RedisError: The server refuses it.
        """
        timeout = self._settings.connect_timeout
        with trio.move_on_after(timeout):
            address = await self._resolve()
            self.trying = str(address)
            return await self._greeted(await self._dialled(address, push), nursery)
        raise LinkError(f"no answer from {self.trying} within {timeout:g} s")

    async def _dialled(self, address: Address, push: Push) -> Connection:
        connection = Connection(await self._dial(address), address, self._settings.reader(), push)
        if self._on_connected:
            emit(self._on_connected, RedisConnected(self._name, self.trying))
        return connection

    async def _greeted(self, connection: Connection, nursery: trio.Nursery) -> Connection:
        try:
            nursery.start_soon(connection.run)
        except RuntimeError as error:  # the block was left meanwhile
            connection.fail(error)
            await connection.run()  # closes it
            raise trio.ClosedResourceError(f"the block of {self._name} was left") from None
        try:
            await self._handshake.greet(connection)
            if connection.cause is not None:
                raise connection.error(sent=False)
        except BaseException as error:
            connection.fail(error)
            raise
        return connection


def may_pass(error: Exception) -> bool:
    """Return whether an attempt to connect that failed is worth another."""
    transient = isinstance(error, (OSError, RedisConnectionError, RedisTimeoutError, trio.BrokenResourceError))
    return transient and not isinstance(error, AuthenticationError)


def explained(error: Exception, where: str) -> Exception:
    """Return what is raised to those who wanted the connection; what the system says becomes its cause."""
    if isinstance(error, RedisError):
        return error
    explanation = LinkError(f"cannot connect to {where}: {reason(error)}")
    explanation.__cause__ = error
    return explanation
