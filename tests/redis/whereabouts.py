"""Where a scripted server is: for links that ask before each attempt to connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from tests.redis.scripted import ScriptedServer, link_settings
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connector import Connector
from trio_orchestrator.redis.handshake import Handshake

OLD, NEW = Address("old", 1), Address("new", 2)


class Whereabouts:
    """Where the server is, for links that ask before each attempt; both addresses lead to the same scripted server."""

    def __init__(self) -> None:
        self.address = OLD
        self.still: Callable[[Address], bool] = lambda _address: True

    def connector(self, scripted: ScriptedServer, **options: Any) -> Connector:
        """Return what makes connections there."""

        async def resolve() -> Address:
            await trio.lowlevel.checkpoint()
            return self.address

        async def nobody() -> tuple[str, ...]:
            await trio.lowlevel.checkpoint()
            return ()

        settings = link_settings(**options)
        return Connector("server", resolve, scripted.dial, Handshake(nobody), settings, lambda at: self.still(at))
