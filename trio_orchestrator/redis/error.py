"""What this transport raises beside redis-py's own errors. Each is also the one of redis-py that says the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, final

import redis.exceptions
import trio


class _PlainError(Exception):
    """An error whose repr is that of Python's, with its message: redis-py's names a category only."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@final
class LinkError(_PlainError, redis.exceptions.ConnectionError):
    """A call was ended by the loss of its connection, or could not be connected for.

    It is *not* an answer of the server. A call that was never sent, and one that only reads, is sent again by itself.
    """

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent: bool = sent
        """Whether the call was sent, so that it may have run. False: it certainly has not."""


@final
class CallTimeoutError(_PlainError, redis.exceptions.TimeoutError, trio.TooSlowError):
    """No answer within `command_timeout`. It ends the waiting, not the command: the server may still run it."""

    def __init__(self, after: float, address: object, *, sent: bool) -> None:
        state = "which was sent and may have run" if sent else "which was never sent"
        super().__init__(f"no answer from {address} within {after:g} s to a call {state}")
        self.after: float = after
        """The time-out, in seconds."""
        self.sent: bool = sent
        """Whether the call was sent, so that it may have run. False: it certainly has not."""


@final
class RefusedCommandError(_PlainError, redis.exceptions.DataError):
    """The command would change, block or hand over the connection that it would share with others. Nothing was sent."""


@final
class CrossSlotError(_PlainError, redis.exceptions.ClusterCrossSlotError):
    """The keys of one command live in several slots of the cluster. Nothing was sent."""

    def __init__(self, keys: Iterable[object], slots: Iterable[int] = ()) -> None:
        self.keys: tuple[object, ...] = tuple(keys)
        """The keys, as they were given."""
        self.slots: tuple[int, ...] = tuple(slots)
        """Their slots, in the same order."""
        where = ", ".join(f"{key!r} in {slot}" for key, slot in zip(self.keys, self.slots, strict=False))
        super().__init__(f"keys must be in one slot (give them a common {{tag}}), got {where or self.keys!r}")


def reason(error: BaseException) -> str:
    """Return what the system says about a connection: Trio has that in the cause where its own words do not tell."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        causes = cast("BaseExceptionGroup[BaseException]", cause).exceptions
        return "; ".join(dict.fromkeys(map(reason, causes)))
    return str(error) or (type(error).__name__ if cause is None else reason(cause))
