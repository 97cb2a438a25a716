"""How a connection comes about: find the server, dial, say hello, wait until it is ready; within one bound of time."""

from __future__ import annotations

import logging
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

_logger = logging.getLogger("trio_orchestrator")

_MANY = 64
"""No more failures than so many are told to the backoff: 2 ** failures has to be a float."""

_INSTEAD = 3.0

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

    def pause(self, failures: int) -> float:
        """Return the seconds after so many failures in a row, from 0 on. A backoff that errs is logged and replaced."""
        try:
            delay = float(self.reconnect.compute(min(failures, _MANY)))
            if delay >= 0:
                return delay
            problem = f"was {delay}"
        except Exception as error:
            problem = f"raised {error!r}"
        _logger.error("the pause that reconnect=%r computes %s; it is %g s instead", self.reconnect, problem, _INSTEAD)
        return _INSTEAD


@final
class Connector:
    """Makes connections to one server, wherever it is by then.

    Args:
        name: For events.
        resolve: Tells where the server is, before each attempt.
        dial: Connects to that address.
        handshake: The first words.
        settings: Bounds of time.
        still: Tells whether the server at an address is to be used still, asked once a connection to it is ready.
    """

    def __init__(
        self,
        name: str,
        resolve: Resolve,
        dial: Dial,
        handshake: Handshake,
        settings: LinkSettings,
        still: Callable[[Address], bool] = lambda _address: True,
    ) -> None:
        self.trying: str = name
        """The address that was last tried, for errors."""
        self._name = name
        self._resolve = resolve
        self._dial = dial
        self._handshake = handshake
        self._settings = settings
        self._still = still
        self._on_connected = settings.hooks.of("redis_connected")

    def undecoded(self, name: str) -> Connector:
        """Return a connector to the same server whose replies and pushes stay bytes."""
        settings = replace(self._settings, reader=reader)
        return Connector(name, self._resolve, self._dial, self._handshake, settings, self._still)

    async def connect(self, nursery: trio.Nursery, push: Push = ignore_push) -> Connection:
        """Make one connection, which runs in `nursery` and is ready. A cancelled attempt leaves nothing behind.

        Raises:
            LinkError: It took longer than `connect_timeout`, or the connection broke meanwhile.
            OSError: It cannot be connected to.
            RedisError: The server refuses it.
        """
        timeout = self._settings.connect_timeout
        with trio.move_on_after(timeout):
            try:
                return await self._connected(nursery, push)
            except (AttributeError, LookupError, TypeError, ValueError) as error:  # no host; an answer of another kind
                raise LinkError(f"{self.trying} cannot be spoken with as a Redis server: {error!r}") from error
        raise LinkError(f"no answer from {self.trying} within {timeout:g} s")

    async def _connected(self, nursery: trio.Nursery, push: Push) -> Connection:
        while True:
            address = await self._resolve()
            self.trying = str(address)
            connection = await self._greeted(await self._dialled(address, push), nursery)
            if self._still(address):  # no checkpoint from here to the step in which the connection is adopted
                return connection
            connection.fail(EOFError("another server is to be asked"))

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
