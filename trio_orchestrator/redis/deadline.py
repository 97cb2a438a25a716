"""When calls end that nobody has answered: all within the same time, so in the order in which they began."""

from __future__ import annotations

from collections import deque
from typing import Final, final

from trio_orchestrator.redis.call import Call

_SHORT: Final = 64


@final
class Deadlines:
    """Calls that wait, oldest first. Those that do not wait any more leave it, at the latest when it has doubled.

    Args:
        timeout: So many seconds after its start a call is over.
    """

    __slots__ = ("_calls", "_longest", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._calls: deque[Call] = deque()
        self._longest: int = _SHORT

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Add a call that starts now."""
        calls = self._calls
        while calls and calls[0].task is None:
            calls.popleft()
        calls.append(call)
        if len(calls) > self._longest:
            self._calls = deque(call for call in calls if call.task is not None)
            self._longest = max(_SHORT, 2 * len(self._calls))

    def next_after(self, now: float) -> float:
        """Return when the next one is over; for none, when one that starts now would be."""
        calls = self._calls
        while calls and calls[0].task is None:
            calls.popleft()
        return (calls[0].started if calls else now) + self._timeout

    def take_over(self, now: float) -> list[Call]:
        """Remove and return the calls that are over."""
        calls, over = self._calls, list[Call]()
        while calls and (calls[0].task is None or calls[0].started + self._timeout <= now):
            call = calls.popleft()
            if call.task is not None:
                over.append(call)
        return over
