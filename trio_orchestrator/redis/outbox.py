"""What is to be sent: calls in order, bounded by a window, in front of one connection after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import final

from trio_orchestrator.redis.call import Call

BATCH = 1 << 18
"""So many bytes are joined for one write, or one call if that is longer."""

_SHORT = 64


@final
class Outbox:
    """Calls that wait to be sent, first come, first served.

    A call has a place in the window from its admission until its reply, whether or not anybody still waits: else calls
    that were given up would pile up while the server is stalled. Those beyond the window wait in line, which has no
    bound but that of the tasks that wait. What is posted goes by the window.

    Args:
        calls: So many calls may be queued or in flight.
        size: So many bytes may be queued; one call may go over it.
    """

    __slots__ = ("_calls", "_line", "_longest", "_ready", "_size", "moved", "size", "used")

    def __init__(self, calls: float, size: float) -> None:
        self._calls = calls
        self._size = size
        self._ready: deque[Call] = deque()
        self._line: deque[Call] = deque()
        self._longest = _SHORT
        self.moved: Callable[[], None] | None = None
        """Called when some of those in line were queued: whoever sends may be asleep."""
        self.used: int = 0
        """How many calls have a place in the window."""
        self.size: int = 0
        """How many bytes are queued."""

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many calls wait in line for a place."""
        return sum(call.task is not None for call in self._line)

    def has_room(self) -> bool:
        """Return whether a call would be admitted at once."""
        return self.used < self._calls and self.size < self._size and not self._line

    def add(self, call: Call) -> bool:
        """Queue a call, or put it in line; return whether it was queued."""
        if not call.posted:
            if not self.has_room():
                self._line_up(call)
                return False
            self.count(call)
        self._ready.append(call)
        self.size += len(call.data)
        return True

    def _line_up(self, call: Call) -> None:
        """Put a call in line. Those that were given up leave it whenever it has doubled: a stall may last."""
        line = self._line
        line.append(call)
        if len(line) > self._longest:
            self._line = deque(call for call in line if call.task is not None)
            self._longest = max(_SHORT, 2 * len(self._line))

    def count(self, call: Call) -> None:
        """Give a call its place in the window."""
        call.counted = True
        self.used += 1

    def left(self, call: Call) -> None:
        """Take a call's place back: it was answered, dropped or failed. Those in line move up."""
        if call.counted:
            call.counted = False
            self.used -= 1
            if self._line:
                self._move_up()

    def _move_up(self) -> None:
        line = self._line
        while line and self.used < self._calls and self.size < self._size:
            call = line.popleft()
            if call.task is not None:
                self.count(call)
                self._ready.append(call)
                self.size += len(call.data)
        if self.moved is not None and self._ready:
            self.moved()

    def take(self) -> list[Call]:
        """Remove and return the next calls to write, a batch of them. Those given up meanwhile are dropped unsent."""
        calls: list[Call] = []
        size = 0
        ready = self._ready
        while ready and size < BATCH:
            call = ready.popleft()
            self.size -= len(call.data)
            if call.task is not None or call.posted:
                calls.append(call)
                size += len(call.data)
            else:
                self.left(call)
        if self._line:
            self._move_up()
        return calls

    def put_back(self, calls: Iterable[Call]) -> None:
        """Queue again, in front and in order, what a lost connection did not send; what is posted is first."""
        calls = [*calls, *self._ready]
        posted = [call for call in calls if call.posted]
        waited = [call for call in calls if not call.posted and call.task is not None]
        self._ready = deque(posted + waited)
        self.size = sum(len(call.data) for call in self._ready)
        for call in calls:
            if not call.posted and call.task is None:
                self.left(call)

    def clear(self) -> list[Call]:
        """Remove and return all calls, those in line as well."""
        calls = [*self._ready, *self._line]
        self._ready.clear()
        self._line.clear()
        self.size = 0
        for call in calls:
            self.left(call)
        return calls
