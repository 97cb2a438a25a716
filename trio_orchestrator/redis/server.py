"""Everything that speaks with one server: the shared link, the dedicated connections, the event connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import trio
from redis.exceptions import RedisError

from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.lease import Leases
from trio_orchestrator.redis.link import Link


@final
class Server:
    """One server's link and connections, which live as long as `run`, whatever is cancelled outside.

    Args:
        name: For events.
        connector: Makes the connections.
        settings: Bounds of time and number.
        dedicated: How many dedicated connections there may be.
    """

    def __init__(self, name: str, connector: Connector, settings: LinkSettings, *, dedicated: float) -> None:
        self.name: str = name
        self.settings: LinkSettings = settings
        self.connector: Connector = connector
        self.link: Link = Link(name, connector, settings)
        self.leases: Leases = Leases(connector, dedicated)
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None

    async def run(self, patience: float = math.inf) -> None:
        """Keep everything going until `stop`. Cancelling from outside does not end it: what is inside may still speak.

        Args:
            patience: How long the first connection may be tried for, in seconds; 0: one attempt.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.leases.open(nursery)
                await self.link.run(patience=patience)

    def add_link(self, name: str, connector: Connector | None = None) -> Link:
        """Open another link to the server, for what must not wait behind the traffic of the first. Sync."""
        if self._nursery is None:
            raise trio.ClosedResourceError(f"the block of {self.name} was left")
        link = Link(name, connector or self.connector, self.settings)
        self._nursery.start_soon(_forever(link))
        return link

    async def flush(self, within: float) -> None:
        """Let nothing more in; wait at most so many seconds until what was posted has been answered. Cannot be cancelled."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + within):
            try:
                await self.link.flush()
            except (RedisError, trio.ClosedResourceError):
                return  # what could not be said by now is left to the time to live of what it was about

    def stop(self) -> None:
        """End everything at once. Sync."""
        self._nursery = None
        self._scope.cancel(reason="the block of the client was left")


def _forever(link: Link) -> Callable[[], object]:
    async def run() -> None:
        await link.run(patience=math.inf)

    return run
