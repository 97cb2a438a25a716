"""Everything that speaks with one server: the shared link, the dedicated connections, the event connection."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

import trio
from redis.exceptions import RedisError, ResponseError

from trio_orchestrator.block import open_block
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.lease import Leases
from trio_orchestrator.redis.link import Link

CLOSE_WITHIN: Final = 1.0
"""Seconds that leaving a block may take to have what was posted answered."""


@final
class Server:
    """One server's link and connections, which live as long as `run`, whatever is cancelled outside.

    Args:
        name: For events.
        connector: Makes the connections.
        settings: Bounds of time and number.
        dedicated: How many dedicated connections there may be.
        beside: What else is to run as long.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        settings: LinkSettings,
        *,
        dedicated: float,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name: str = name
        self.settings: LinkSettings = settings
        self.connector: Connector = connector
        self.link: Link = Link(name, connector, settings)
        self.leases: Leases = Leases(connector, settings, dedicated)
        self._beside = beside
        self._event_links: dict[EventLink, None] = {}
        self._events: EventLink | None = None
        self._twins: list[Server] = []
        self.close_within: float = CLOSE_WITHIN
        """Seconds that leaving its block may take."""
        self._dedicated = dedicated
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None

    def twin(self) -> Server:
        """Return another one for the same server, not yet run; it moves with this one until it is forgotten.

        Raises:
            trio.ClosedResourceError: The block of this one was left.
        """
        if self._nursery is None:
            raise trio.ClosedResourceError(f"the block of {self.name} was left")
        twin = Server(self.name, self.connector, self.settings, dedicated=self._dedicated)
        twin.close_within = self.close_within
        self._twins.append(twin)
        return twin

    async def run(self, patience: float = math.inf) -> None:
        """Keep everything going until `stop`. Cancelling from outside does not end it: what is inside may still speak.

        Args:
            patience: How long the first connection may be tried for, in seconds; 0: one attempt.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.leases.open(nursery)
                if self._beside is not None:
                    nursery.start_soon(self._beside)
                await self.link.run(patience=patience)

    def forget(self, twin: Server) -> None:
        """Let go of a twin. Sync."""
        self._twins.remove(twin)

    @property
    def events(self) -> EventLink:
        """The event connection that all share: opened at the first need, closed with the server."""
        if self._events is None or self._events.closed:
            self._events = self.add_event_link(f"events of {self.name}")
        return self._events

    @property
    def event_links(self) -> list[EventLink]:
        """Those that are open now."""
        return list(self._event_links)

    def add_event_link(self, name: str) -> EventLink:
        """Open an event connection of somebody's own; it is closed by `close`, or with the server. Sync."""
        if self._nursery is None:
            raise trio.ClosedResourceError(f"the block of {self.name} was left")
        link = EventLink(name, self.connector, self.settings)
        self._event_links[link] = None
        self._nursery.start_soon(self._run_events, link, name=name)
        return link

    async def _run_events(self, link: EventLink) -> None:
        try:
            await link.run()
        finally:
            del self._event_links[link]

    def drop(self, cause: BaseException) -> None:
        """End all connections at once; they are made again, to wherever the server is by then. Sync."""
        self.link.drop(cause)
        for events in self._event_links:
            events.drop(cause)
        self.leases.drop(cause)
        for twin in self._twins:
            twin.drop(cause)

    def renew(self) -> None:
        """Have another server looked for: what was sent is still answered, by the old one. Sync."""
        self.link.renew()
        self.leases.renew()

    async def call_apart(self, call: Call, *, blocks: float | None, stateful: bool) -> Any:
        """Call on a connection of its own; what the server may take on purpose is added to `command_timeout`.

        The time counts from here, so it bounds the wait for a connection as well.
        """
        after = self.settings.command_timeout + (blocks or 0.0)
        with trio.move_on_after(after):
            try:
                return await self._leased_call(call, stateful)
            except ResponseError as error:
                if not self.settings.reconnect_on(error):
                    raise
            self.renew()
            call.restart()  # it never ran: the server, no longer a master, refused it
            return await self._leased_call(call, stateful)
        raise CallTimeoutError(after, self.name, sent=call.conversation is not None)

    async def _leased_call(self, call: Call, stateful: bool) -> Any:
        """Call on a leased connection; on another one if it had died unnoticed, so that the call was not sent."""
        idle = self.leases.idle
        while True:
            try:
                return await self._call_once(call, stateful)
            except LinkError as error:
                if error.sent or call.conversation is None or not idle:
                    raise
            idle -= 1
            call.restart()

    async def _call_once(self, call: Call, stateful: bool) -> Any:
        lease = self.leases.lease()
        async with lease as connection:
            lease.dirty = stateful
            return await connection.call(call)

    async def call_patiently(self, connection: Connection, call: Call, blocks: float | None) -> Any:
        """Call on a dedicated connection; what the server may take on purpose is added to `command_timeout`."""
        after = self.settings.command_timeout + (blocks or 0.0)
        with trio.move_on_after(after):
            return await connection.call(call)
        raise CallTimeoutError(after, connection.address, sent=True)

    async def flush(self, within: float) -> None:
        """Let nothing more in; wait at most so long until what was posted has been answered. Cannot be cancelled."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + within):
            try:
                await self.link.flush()
            except (RedisError, trio.ClosedResourceError):
                return  # what could not be said by now is left to the time to live of what it was about

    def stop(self) -> None:
        """End everything at once. Sync."""
        self._nursery = None
        self.leases.close()
        self._scope.cancel(reason="the block of the client was left")


async def _open_server(server: Server, wait: float, close_within: float) -> AsyncGenerator[Server, None]:
    server.close_within = close_within

    async def close(_error: BaseException | None) -> None:
        await server.flush(close_within)
        server.stop()

    async with open_block(close) as block:
        block.nursery.start_soon(server.run, wait, name=server.name)
        await server.link.wait_ready()
        yield server


open_server: Callable[[Server, float, float], AbstractAsyncContextManager[Server]] = asynccontextmanager(_open_server)
"""Connect to a server for the length of a block: `async with open_server(server, wait, close_within)`.

Entering waits for the first connection, or raises why there is none after `wait` seconds. Leaving lets nothing more in,
waits for what was posted, at most `close_within` seconds, and ends all connections; it cannot be cancelled meanwhile.
"""
