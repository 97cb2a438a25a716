"""A dedicated connection for the length of a block, and what is executed on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import trio
from redis.exceptions import ResponseError

from trio_orchestrator.redis.batch import Batch, Queued
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.command import Kind, Route, kind_of, kind_of_call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.error import RefusedCommandError
from trio_orchestrator.redis.key import named
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.wire import pack

_TRANSACTIONAL: Final = kind_of("MULTI")
_UNWATCH: Final = pack(("UNWATCH",))


@final
class Hold:
    """One leased connection. It goes back to the others when it is as good as new, else it is closed.

    Args:
        server: Whose connection.
        transactional: Whether MULTI, EXEC, WATCH and their like are refused, because the holder sends them itself.
    """

    __slots__ = ("_connection", "_dirty", "_server", "_transactional", "watching")

    def __init__(self, server: Server, *, transactional: bool = False) -> None:
        self._server = server
        self._connection: Connection | None = None
        self._dirty = False
        self._transactional = transactional
        self.watching: bool = False
        """Whether keys are watched on it."""

    async def open(self) -> None:
        """Wait for a connection: first come, first served."""
        if self._connection is not None:
            raise RuntimeError("it must be entered once only")
        self._connection = await self._server.leases.take(self)

    def close(self) -> None:
        """Give the connection back; it is closed if a call was given up on it, or something stays behind. Sync."""
        connection, self._connection = self.connection, None
        if self.watching and not self._dirty and connection.cause is None:
            connection.post(Call(_UNWATCH))
        self._server.leases.give_back(self, connection, clean=not self._dirty)
        self.watching = self._dirty = False

    @property
    def connection(self) -> Connection:
        """The connection.

        Raises:
            trio.ClosedResourceError: The block was not entered, or was left.
        """
        if self._connection is None:
            raise trio.ClosedResourceError("a dedicated connection must be used inside its block")
        return self._connection

    def admit(self, args: tuple[Any, ...]) -> Kind:
        """Return the kind of a command; note whether it leaves something on the connection.

        Raises:
            RefusedCommandError: Not even a connection of one's own takes it.
        """
        kind = kind_of_call(args)
        if kind.route is Route.REFUSED:
            self._check(kind, args)
        self._dirty = self._dirty or kind.stateful
        return kind

    def _check(self, kind: Kind, args: tuple[Any, ...]) -> None:
        if kind.refused_on_dedicated:
            raise kind.refusal(args[0])
        if self._transactional and kind is _TRANSACTIONAL:
            advice = "use the methods `watch`, `multi`, `execute` and `reset`"
            raise RefusedCommandError(f"{named(args)[0]} is refused: it is for the transaction to send; {advice}")

    def taint(self) -> None:
        """Have the connection closed at the end."""
        self._dirty = True

    async def call(self, call: Call, blocks: float | None = None) -> Any:
        """Call on the connection; what the server may take on purpose is added to the time-out."""
        try:
            return await self._server.call_patiently(self.connection, call, blocks)
        except ResponseError as error:
            self._look_at(error)
            raise

    async def run_batch(self, batch: Sequence[Queued], *, transaction: bool, resend: bool) -> list[Any]:
        """Send a batch as one call, once: what the connection knows, and what it watches, would be gone with it."""
        call = Batch(batch, transaction=transaction, resend=resend)
        await self.call(call, sum(item.kind.blocks(item.args) or 0.0 for item in batch))
        if transaction and not isinstance(call.answer[-1], Exception):
            self.watching = False
        if call.refusals(self._server.settings.reconnect_on):
            self._renew()
        return call.replies()

    def _look_at(self, error: ResponseError) -> None:
        if self._server.settings.reconnect_on(error):
            self._renew()

    def _renew(self) -> None:
        """Another server is to be asked: this one is no longer the master."""
        self._dirty = True
        self._server.renew()
