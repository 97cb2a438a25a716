"""One connection for as long as it lives: a reader, a writer, and nobody else at the socket. If one ends, all does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import hiredis
import redis.exceptions
import trio
from trio.lowlevel import (
    Abort,
    Task,
    checkpoint_if_cancelled,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.conversation import Conversation, Push
from trio_orchestrator.redis.error import LinkError, reason
from trio_orchestrator.redis.outbox import Outbox
from trio_orchestrator.redis.pipe import CHUNK, Pipe

Lost: TypeAlias = "Callable[[Connection, list[Call], list[Call]], None]"
"""Called once, in the step in which a connection is lost: with it, the calls that have not run, those that may have."""


@final
class ClosedHereError(EOFError):
    """The connection was not lost: its block was left."""


def ignore_push(_push: list[Any]) -> None:
    """Take no notice of a push message."""


def fail_calls(connection: Connection, unsent: list[Call], sent: list[Call]) -> None:
    """End all calls of a lost connection with its error."""
    for call in unsent:
        call.settle(connection.error(sent=False))
    for call in sent:
        call.settle(connection.error(sent=True))


@final
class Connection:
    """A connection, ready to speak once its `run` has started.

    Args:
        pipe: Its bytes. It is closed with the connection.
        address: Where it leads to, for its errors.
        reader: Turns bytes into replies.
        push: Called with each push message.
        lost: Called when it is lost; may be replaced.
        outbox: What it sends; may be replaced while nothing is in flight.
    """

    __slots__ = (
        "_hearing", "_parked", "_pipe", "_retiring", "_scope", "_within", "address", "cause",
        "conversation", "doubted", "heard_at", "held", "lost", "outbox", "sent_at", "trusted",
    )  # fmt: skip

    def __init__(
        self,
        pipe: Pipe,
        address: Address,
        reader: hiredis.Reader,
        push: Push = ignore_push,
        lost: Lost = fail_calls,
        outbox: Outbox | None = None,
    ) -> None:
        self._pipe = pipe
        self.lost: Lost = lost
        self._parked: Task | None = None
        self._scope = trio.CancelScope()
        self._retiring = False
        self._within = math.inf
        self.address: Address = address
        self.conversation: Conversation = Conversation(reader, push)
        self.conversation.look = self.look
        self._hearing = False
        self.outbox: Outbox = Outbox(math.inf, math.inf) if outbox is None else outbox
        self.held: bool = False
        """Whether nothing more is taken from the outbox."""
        self.doubted: bool = False
        """Whether the next bytes that come in are told to `trusted`."""
        self.trusted: Callable[[], None] = _nothing
        self.heard_at: float = trio.current_time()
        self.sent_at: float = self.heard_at
        """When a part of what is too big to be sent at once was last taken: a server that reads is not silent."""
        self.cause: BaseException | None = None
        """Why it was lost; None while it lives."""

    # ---------------------------------------------------------------------------------------------- calls

    @enable_ki_protection
    async def call(self, call: Call) -> Any:
        """Send a call and wait for its reply, or replies. The reply of one that is cancelled is thrown away.

        Raises:
            LinkError: The connection was lost.
            RedisError: The reply is an error (those inside a list of replies are returned).
        """
        await checkpoint_if_cancelled()
        if self.cause is not None:
            raise self.error(sent=False)
        call.begin()
        if not self.send_at_once(call) and self.outbox.add(call):
            self.kick()
        return await call.wait()

    def post(self, call: Call) -> None:
        """Send a call without waiting for its reply, which is thrown away. Sync."""
        call.posted = True
        call.started = trio.current_time()
        if not self.send_at_once(call) and self.outbox.add(call):
            self.kick()

    def send_at_once(self, call: Call) -> bool:
        """Send a call in this very step if nothing else is queued or in flight; return whether it was."""
        conversation = self.conversation
        if conversation.row or self.held or conversation.rest or len(self.outbox) or self.outbox.used:
            return False
        if not call.posted:
            self.outbox.count(call)
        conversation.write([call])
        self._send_now()
        if conversation.rest:
            self.kick()
        return True

    def kick(self) -> None:
        """Wake the writer, if it sleeps: something is queued."""
        if self._parked is not None:
            task, self._parked = self._parked, None
            reschedule(task)

    def _send_now(self) -> None:
        sent = self._pipe.send_now(self.conversation.rest)
        if sent:
            self.conversation.took(sent)

    # -------------------------------------------------------------------------------------------- its end

    def error(self, *, sent: bool) -> LinkError:
        """Return a fresh error that says what became of a call."""
        what = "the call was sent and may have run" if sent else "the call was not sent"
        why = "" if self.cause is None else reason(self.cause)
        error = LinkError(f"connection to {self.address} lost ({why}): {what}", sent=sent)
        error.__cause__ = None if isinstance(self.cause, trio.Cancelled) else self.cause
        return error

    def fail(self, cause: BaseException) -> None:
        """End the connection, and with it every call in flight. Sync; only the first cause counts."""
        if self.cause is None:
            self.cause = cause
            self._pipe.stop()
            self._scope.cancel(reason="the connection was lost")
            self.lost(self, *self.conversation.end())

    def retire(self, within: float) -> None:
        """Send nothing more, and end when what was sent has been answered, or after so many silent seconds. Sync."""
        self.held = self._retiring = True
        self._within = within
        self._stay()
        self._end_if_done()

    def _stay(self) -> None:
        self._scope.deadline = trio.current_time() + self._within

    def _end_if_done(self) -> None:
        if self._retiring and not self.conversation.row:
            self.fail(EOFError("retired"))

    # ------------------------------------------------------------------------------------------- its tasks

    @enable_ki_protection
    async def run(self) -> None:
        """Read and write until the connection is lost, or this is cancelled; then close it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
        finally:
            self.fail(ClosedHereError("closed"))
            with trio.CancelScope(shield=True) as scope:
                scope.cancel()
                await self._pipe.aclose()

    async def _read(self) -> None:
        try:
            while (data := await self._pipe.receive()) and self.cause is None:  # lost in this very step?
                self._hear(data)
        except (OSError, trio.BrokenResourceError, redis.exceptions.InvalidResponse) as error:
            self.fail(error)
        except Exception as error:  # raised by what makes replies of bytes: nobody knows whose reply is next
            self.fail(redis.exceptions.InvalidResponse(f"a reply could not be read: {error!r}"))
        else:
            self.fail(EOFError("closed by the server"))

    def look(self) -> None:
        """Hear what is here already: a waiter is about to give up. Sync.

        In a process that is too busy, deadlines pass in the same step in which the replies come.
        """
        if self._hearing or self.cause is not None:
            return
        try:
            if data := self._pipe.receive_now():
                self._hear(data)
        except Exception as error:  # as in the reader
            self.fail(redis.exceptions.InvalidResponse(f"a reply could not be read: {error!r}"))

    def _hear(self, data: bytes) -> None:
        self.heard_at = trio.current_time()
        self._hearing = True
        try:
            self.conversation.feed(data, self.outbox)
        finally:
            self._hearing = False
        if self.doubted:
            self.doubted = False
            self.trusted()
        if self._retiring:
            self._stay()
            self._end_if_done()

    @enable_ki_protection
    async def _write(self) -> None:
        try:
            while self.cause is None:  # it may have been woken to write in the very tick of the loss
                await self._write_some()
        except (OSError, trio.BrokenResourceError) as error:
            self.fail(error)

    async def _write_some(self) -> None:
        conversation = self.conversation
        if conversation.rest:
            await self._send()
        elif len(self.outbox) and not self.held:
            calls = self.outbox.take()
            if calls:
                conversation.write(calls)
                self._send_now()
        else:
            await self._park()

    async def _send(self) -> None:
        if self._pipe.exact:
            self.conversation.took(await self._pipe.send(self.conversation.rest))
        else:
            rest = self.conversation.rest[:CHUNK]
            self.conversation.took(len(rest))  # of a stream that breaks nobody knows how much
            await self._pipe.send(rest)
        if self.conversation.rest:
            self.sent_at = trio.current_time()
        if self._retiring:
            self._stay()

    async def _park(self) -> None:
        self._parked = current_task()
        await wait_task_rescheduled(self._unpark)

    def _unpark(self, _raise_cancel: object) -> Abort:
        self._parked = None
        return Abort.SUCCEEDED


def _nothing() -> None:
    """Be told, and do nothing."""
