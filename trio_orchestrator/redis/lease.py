"""Connections of one's own, for what blocks or changes its connection: leased, closed on cancel, bounded in number."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import final

import trio
from redis.exceptions import RedisError, ResponseError
from trio.lowlevel import enable_ki_protection

from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.connector import Connector, LinkSettings, explained, may_pass


@final
class Leases:
    """The dedicated connections to one server. Those who wait for one get it in the order in which they came.

    Args:
        connector: Makes the connections.
        settings: Bounds of time.
        most: How many there may be at once.
    """

    __slots__ = ("_connector", "_era", "_idle", "_leased", "_limiter", "_nursery", "_searches", "_settings", "_waits")

    def __init__(self, connector: Connector, settings: LinkSettings, most: float) -> None:
        self._connector = connector
        self._settings = settings
        self._era = 0
        self._idle: list[Connection] = []
        self._leased: set[Connection] = set()
        self._limiter = trio.CapacityLimiter(most)
        self._nursery: trio.Nursery | None = None
        self._searches: set[trio.CancelScope] = set()
        self._waits: set[trio.CancelScope] = set()

    def open(self, nursery: trio.Nursery) -> None:
        """Have connections run in `nursery`."""
        self._nursery = nursery

    def close(self) -> None:
        """Make no more connections; who waits for one, or for a place, gets `ClosedResourceError`. Sync."""
        self._nursery = None
        for scope in self._waits:
            scope.cancel(reason="the block of the client was left")

    def lease(self) -> Lease:
        """Return a lease, to be entered."""
        return Lease(self)

    def drop(self, cause: BaseException) -> None:
        """End all connections, those that are leased now as well, since another server is to be asked. Sync."""
        for connection in [*self._leased]:
            connection.fail(cause)
        self.renew()

    def renew(self) -> None:
        """Close the idle connections, and those being made, since another server is to be asked. Sync."""
        self._era += 1
        for search in self._searches:
            search.cancel(reason="another server is to be asked")
        while self._idle:
            self._idle.pop().fail(EOFError("another server is to be asked"))

    def is_good(self, error: BaseException | None) -> bool:
        """Return whether what ended a lease leaves its connection as good as new: nothing, or a refusal."""
        return error is None or (isinstance(error, ResponseError) and not self._settings.reconnect_on(error))

    async def take(self, token: object) -> Connection:
        """Wait for a place, and return a connection: the one that was given back last, or a new one.

        Raises:
            LinkError: The server could not be reached for `connect_timeout`.
            trio.ClosedResourceError: The block of the client was left.
        """
        with self._until_closed():
            await self._limiter.acquire_on_behalf_of(token)
            try:
                connection = self._used() or await self._connected()
                self._leased.add(connection)
                return connection
            except BaseException:
                self._limiter.release_on_behalf_of(token)
                raise

    @contextmanager
    def _until_closed(self) -> Generator[None, None, None]:
        with trio.CancelScope() as scope:
            if self._nursery is None:
                scope.cancel(reason="the block of the client was left")
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise _closed()

    def _used(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.cause is None:
                return connection
        return None

    async def _connected(self) -> Connection:
        """Connect, trying again for as long as one attempt may take; a server that restarts is waited for."""
        until, failures = trio.current_time() + self._settings.connect_timeout, 0
        while self._nursery is not None:
            try:
                connection = await self._search(self._nursery)
                if connection is not None:
                    return connection
                continue
            except (OSError, RedisError, trio.BrokenResourceError) as error:
                delay = self._settings.pause(failures)
                if not may_pass(error) or trio.current_time() + delay >= until:
                    raise explained(error, self._connector.trying) from error.__cause__
            failures += 1
            await trio.sleep(delay)
        raise _closed()

    async def _search(self, nursery: trio.Nursery) -> Connection | None:
        """Connect; return None if another server is to be asked since."""
        era = self._era
        with trio.CancelScope() as search:
            self._searches.add(search)
            try:
                connection = await self._connector.connect(nursery)
            finally:
                self._searches.discard(search)
            if era == self._era:
                return connection
            connection.fail(EOFError("another server is to be asked"))
        return None

    def give_back(self, token: object, connection: Connection, *, clean: bool) -> None:
        """Take a connection back; it is closed unless it is as good as new. Sync."""
        self._leased.discard(connection)
        if clean and connection.cause is None and all(call.posted for call in connection.conversation.row):
            self._idle.append(connection)
        else:
            connection.fail(EOFError("given back in the middle of something"))
        self._limiter.release_on_behalf_of(token)

    @property
    def used(self) -> int:
        """How many are leased now."""
        return self._limiter.borrowed_tokens

    @property
    def idle(self) -> int:
        """How many wait for the next who wants one."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """How many tasks wait for one."""
        return self._limiter.statistics().tasks_waiting


@final
class Lease:
    """A connection of one's own: `async with leases.lease() as connection`.

    Entering waits for a place and may connect. Leaving does not block: the connection goes back, or is closed if the
    block ends with anything but a refusal by the server, or if `dirty` was set.
    """

    __slots__ = ("_connection", "_leases", "dirty")

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.dirty: bool = False
        """Whether something was left on the connection that the next one should not find."""

    @enable_ki_protection
    async def __aenter__(self) -> Connection:
        self._connection = await self._leases.take(self)
        return self._connection

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clean = False
        try:
            clean = not self.dirty and self._leases.is_good(error)
        finally:  # it asks a function of the user's
            self._leases.give_back(self, self._connection, clean=clean)


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("the block of the client was left")
