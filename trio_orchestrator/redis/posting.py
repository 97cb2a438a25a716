"""Calls to a cluster that nobody waits for, and that find their way all the same."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final

import trio
from redis.exceptions import AskError, MovedError, SlotNotCoveredError

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.journey import ASKING, DETOURS
from trio_orchestrator.redis.node import Node
from trio_orchestrator.redis.router import Aim, Router


@final
class Posted(Call):
    """A call that is posted, and posted again to where its node sends it. Other errors are thrown away.

    Args:
        data: The command.
        aim: Where to.
        router: Knows the way.
        detours: How many it has made.
        asking: Whether it is to go as an ASK.
    """

    def __init__(self, data: bytes, aim: Aim, router: Router, detours: int = 0, *, asking: bool = False) -> None:
        super().__init__(ASKING + data if asking else data)
        self.want = 0 if asking else 1
        self._due = 2
        self._plain = data
        self._aim = aim
        self._router = router
        self._detours = detours
        self._node: Node | None = None

    def post(self, node: Node) -> None:
        """Post it. Sync.

        Raises:
            trio.ClosedResourceError: The block was left.
        """
        self._node = node
        node.link.post(self)

    def restart(self) -> None:
        """Forget the connection, since it is sent again."""
        super().restart()
        self._due = 2

    def take(self, reply: Any) -> bool:
        """Take the replies to ASKING and to the command, which is the answer."""
        self.answer = reply
        self._due -= 1
        return self._due == 0

    def settle(self, answer: Any) -> None:
        """Follow a redirection; go elsewhere if the node could not be reached."""
        if self._node is None or self._detours >= DETOURS:
            return
        with suppress(trio.ClosedResourceError, SlotNotCoveredError):
            if isinstance(answer, AskError):
                self._redo(self._router.learn(answer, self._node), asking=not isinstance(answer, MovedError))
            elif isinstance(answer, LinkError) and not answer.sent:
                self._redo(self._router.locate(self._aim), asking=False)

    def _redo(self, node: Node, *, asking: bool) -> None:
        Posted(self._plain, self._aim, self._router, self._detours + 1, asking=asking).post(node)
