"""One connection's two streams of bytes: which of ours went out, and whose reply comes next. No socket, no clock.

The rule that makes it right: a call enters the row of those who are owed a reply in the same step in which its bytes
enter the buffer, and nothing ever takes it out but its reply. A waiter that gave up leaves its place, so that the row
stays in step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, final

import hiredis
import redis.exceptions

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.outbox import Outbox
from trio_orchestrator.redis.wire import NOTHING

Push = Callable[[list[Any]], None]


@final
class Conversation:
    """The order of one connection: bytes out, replies in.

    Args:
        reader: Turns bytes into replies.
        push: Called with each push message, wherever it stands between the replies.
    """

    __slots__ = ("_push", "_reader", "_rest", "heard", "look", "row", "taken", "written")

    def __init__(self, reader: hiredis.Reader, push: Push) -> None:
        self._reader = reader
        self._push = push
        self._rest = memoryview(b"")
        self.look: Callable[[], None] = _nothing
        """Called before a waiter gives up: its reply may have come by now."""
        self.row: deque[Call] = deque()
        """The calls that are owed a reply, oldest first; the newest may not have left yet."""
        self.written: int = 0
        """So many bytes were written into the buffer."""
        self.taken: int = 0
        """So many of them were taken by the socket."""
        self.heard: int = 0
        """So many bytes came in."""

    def write(self, calls: list[Call]) -> None:
        """Add calls to the row and their bytes to the buffer."""
        end = self.written
        for call in calls:
            end += len(call.data)
            call.end = end
            call.conversation = self
        self.row.extend(calls)
        self.written = end
        data = calls[0].data if len(calls) == 1 else b"".join([call.data for call in calls])
        self._rest = memoryview(data) if not self._rest else memoryview(b"".join((self._rest, data)))

    @property
    def rest(self) -> memoryview:
        """What the socket has not taken yet."""
        return self._rest

    def took(self, count: int) -> None:
        """Note that the socket took so many bytes."""
        self.taken += count
        self._rest = self._rest[count:] if count < len(self._rest) else memoryview(b"")

    def feed(self, data: bytes, outbox: Outbox) -> None:
        """Take bytes in; settle each call whose reply is complete.

        Raises:
            InvalidResponse: These are not RESP, or a reply that nobody is owed: the connection is out of step.
        """
        self.heard += len(data)
        reader = self._reader
        reader.feed(data)
        row = self.row
        while True:
            try:
                reply = reader.gets(False) if row and row[0].raw else reader.gets()
            except UnicodeDecodeError as error:  # the reply has been read all the same: that is all its caller gets
                reply = error
            if reply is NOTHING:
                return
            if type(reply) is hiredis.PushNotification:
                self._push(reply)
                continue
            if not row:
                raise redis.exceptions.InvalidResponse(f"a reply that nobody asked for: {reply!r:.100}")
            call = row[0]
            if call.want != 1:
                if not call.take(reply):
                    continue
                reply = call.answer
            row.popleft()
            outbox.left(call)
            call.settle(reply)

    def end(self) -> tuple[list[Call], list[Call]]:
        """Empty the row of a lost connection; return the calls that certainly have not run, and those that may have.

        Of what was posted only the first kind counts: the rest has been sent, which is all that was promised.
        """
        unsent: list[Call] = []
        sent: list[Call] = []
        for call in self.row:
            (sent if self.has_sent(call) else unsent).append(call)
        self.row.clear()
        return unsent, sent

    def has_sent(self, call: Call) -> bool:
        """Return whether a call of the row may have run: all of its bytes are gone; of one that runs in parts, some."""
        return self.taken >= (call.end if call.atomic else call.end - len(call.data) + 1)


def _nothing() -> None:
    """Look nowhere."""
