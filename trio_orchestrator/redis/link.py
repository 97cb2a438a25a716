"""One server, one connection after another: calls in flight, calls held back while there is none, bounds of time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast, final

import trio
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, current_task, enable_ki_protection, wait_task_rescheduled

from trio_orchestrator.block import emit
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import ClosedHereError, Connection, ignore_push
from trio_orchestrator.redis.connector import Connector, LinkSettings, explained, may_pass
from trio_orchestrator.redis.conversation import Push
from trio_orchestrator.redis.deadline import Deadlines
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.figures import Counts
from trio_orchestrator.redis.figures import LinkStatistics as LinkStatistics
from trio_orchestrator.redis.outbox import Outbox
from trio_orchestrator.redis.wire import pack
from trio_orchestrator.redis_event import RedisFailover, RedisLost, RedisReady, RedisReconnecting

SETTLED = 1.0
"""A connection that has lived so many seconds, or has answered a call, is followed by an attempt without a pause."""

_PING = pack(("PING",))

_SCRIPTS = frozenset((b"EVAL", b"EVALSHA", b"FCALL"))


@final
class Link:
    """What calls go through. It must be run by a task of its own, and ends with that.

    Args:
        name: For events.
        connector: Makes its connections.
        settings: Bounds of time and number.
        push: Called with each push message.
        ready: Called with each new connection, in the step in which it is adopted.
        failed: Called with the error of each attempt to connect that failed.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        settings: LinkSettings,
        push: Push = ignore_push,
        ready: Callable[[Connection], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name: str = name
        self.connection: Connection | None = None
        self.outbox: Outbox = Outbox(settings.max_in_flight, settings.max_unsent)
        self.outbox.moved = self._kick
        self._connector = connector
        self._settings = settings
        self._timeout = settings.command_timeout
        self._push = push
        self._ready = ready
        self._failed = failed
        self._deadlines = Deadlines(self._timeout)
        self._trouble = trio.Event()
        self._search: trio.CancelScope | None = None
        self._first = trio.Event()
        self._refusal: Exception | None = None
        self._closing: BaseException | None = None
        self._nursery: trio.Nursery | None = None
        self._address: Address | None = None
        self._failure: Exception | None = None
        self._retired: Connection | None = None
        self._since: float | None = None
        self._attempts = 0
        self._hasty = False
        self._adopted_at = 0.0
        self._counts = Counts()
        hooks = settings.hooks
        self._on_ready = hooks.of("redis_ready")
        self._on_lost = hooks.of("redis_lost")
        self._on_reconnecting = hooks.of("redis_reconnecting")
        self._on_failover = hooks.of("redis_failover")

    # ---------------------------------------------------------------------------------------------- calls

    @enable_ki_protection
    async def call(self, call: Call) -> Any:
        """Send a call and wait for its reply, at most `command_timeout`. A cancelled one leaves the link as it was.

        Raises:
            CallTimeoutError: No reply came in time.
            LinkError: The connection was lost after the call was sent, so that it may have run.
            RedisError: The reply is an error (those inside a list of replies are returned).
            trio.ClosedResourceError: The block of the link was left.
        """
        if self._closing is not None:
            await checkpoint()
        connection = self.connection
        if connection is None or not connection.conversation.row:  # else it only queues, and is dropped unsent
            await checkpoint_if_cancelled()
        self._submit(call)
        await wait_task_rescheduled(call.give_up)
        answer = call.answer
        if isinstance(answer, Exception):
            return await self._again(call, answer)
        return answer

    async def _again(self, call: Call, error: Exception) -> Any:
        """Send a call once more if a server that is no longer the master refused it, so it never ran; else raise."""
        if not isinstance(error, ResponseError) or not self._settings.reconnect_on(error):
            raise error
        self.renew(call.conversation)
        if may_have_run_in_part(call.data) and not isinstance(error, ReadOnlyError):
            raise error
        again = Call(call.data)
        again.raw, again.resend = call.raw, call.resend
        with trio.move_on_at(call.started + self._timeout):
            self._submit(again)
            return await again.wait()
        raise self._late(again)

    @enable_ki_protection
    def post(self, call: Call) -> None:
        """Send a call behind everything that was sent before, without waiting for its reply. Sync.

        What is not sent when the connection is lost is sent first on the next one. It does not count against the bound
        on calls in flight.

        Raises:
            trio.ClosedResourceError: The block of the link was left.
        """
        if self._closing is not None:
            raise self._closed()
        call.posted = True
        call.started = trio.current_time()
        self._counts.calls += 1
        self._put(call)

    def _submit(self, call: Call) -> None:
        if self._closing is not None:
            raise self._closed()
        call.task = current_task()
        call.started = trio.current_time()
        self._counts.calls += 1
        if self._timeout < math.inf:
            self._deadlines.add(call)
        self._put(call)

    def _put(self, call: Call) -> None:
        connection = self.connection
        if connection is None:
            self.outbox.add(call)
        elif (connection.conversation.row or not connection.send_at_once(call)) and self.outbox.add(call):
            connection.kick()

    def _kick(self) -> None:
        if self.connection is not None:
            self.connection.kick()

    def _closed(self) -> trio.ClosedResourceError:
        return trio.ClosedResourceError(f"the block of {self.name} was left")

    # ----------------------------------------------------------------------------------- another connection

    def renew(self, conversation: object = None) -> None:
        """Resolve and connect again: what was sent is still answered, the rest goes to the new connection. Sync.

        Given a conversation, only if that is still the one of the link.
        """
        connection = self.connection
        if connection is not None and conversation in (None, connection.conversation):
            self._lose(connection)
            self._hasty = trio.current_time() - self._adopted_at <= SETTLED  # else one a round trip, if all refuse
            self._retired = connection
            connection.retire(min(self._timeout, self._settings.silent_after))

    def drop(self, cause: BaseException) -> None:
        """End the connection at once, and with it what was sent; then resolve and connect again. Sync."""
        if self._search is not None:  # it may be about to find the old one
            self._search.cancel(reason="another server is to be asked")
        if self.connection is not None:
            self.connection.fail(cause)

    def doubt(self) -> None:
        """Take the server for silent: connect a second time, and stay with whichever connection answers first. Sync."""
        connection = self.connection
        if connection is not None and not connection.doubted:
            connection.doubted = connection.held = True
            connection.trusted = self._trust
            self._trouble.set()

    def _trust(self) -> None:
        """The silent server has spoken."""
        self._since, connection = None, self.connection
        if connection is not None:
            connection.held = False
            connection.kick()
            if self._search is not None:
                self._search.cancel(reason="the first connection answers again")

    def _lose(self, connection: Connection) -> None:
        """Let go of a connection; the next one is looked for, after a pause if this one has hardly been of use."""
        if self.connection is connection:
            self.connection = None
            useful = connection.heard_at > self._adopted_at or trio.current_time() - self._adopted_at > SETTLED
            self._hasty = not useful
            connection.trusted = _nothing
            self._trouble.set()

    def _lost(self, connection: Connection, unsent: list[Call], sent: list[Call]) -> None:
        """Decide, for each call of a lost connection, whether it is sent again."""
        again, failed = unsent, list[Call]()
        for call in sent:
            call.tried = call.resend and call.task is not None
            (again if call.tried else failed).append(call)
        for call in again:
            call.restart()
        self._settle_failed(connection, failed)
        self._give_back(connection, again)
        self._let_go(connection)
        self._count_lost(connection, failed)

    def _settle_failed(self, connection: Connection, failed: list[Call]) -> None:
        for call in failed:
            self.outbox.left(call)
            call.settle(connection.error(sent=True))

    def _give_back(self, connection: Connection, again: list[Call]) -> None:
        self.outbox.put_back(again)
        self._lose(connection)
        self._kick()

    def _let_go(self, connection: Connection) -> None:
        """Let the next connection to the same server speak: what was sent on this one has been executed, or is lost."""
        if connection is self._retired:
            self._retired = None
            if self.connection is not None and not self.connection.doubted:
                self.connection.held = False
                self.connection.kick()

    def _count_lost(self, connection: Connection, failed: list[Call]) -> None:
        self._counts.lose(connection)
        if self._on_lost and connection.cause is not None and not isinstance(connection.cause, ClosedHereError):
            event = RedisLost(self.name, str(connection.address), connection.cause, len(failed), len(self.outbox))
            emit(self._on_lost, event)

    # --------------------------------------------------------------------------------------------- its task

    @enable_ki_protection
    async def run(self, *, patience: float) -> None:
        """Connect, serve, and connect again, until it is cancelled; then every call has ended.

        Args:
            patience: How long the first connection may be tried for, in seconds; 0: one attempt.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._time_out)
                nursery.start_soon(self._watch)
                await self._serve(trio.current_time() + patience)
                nursery.cancel_scope.cancel(reason="the first connection failed")
        finally:
            self._end()

    def _end(self) -> None:
        self._closing = self._closing or EOFError("closed")
        for call in self.outbox.clear():
            what = "the call was sent and may have run" if call.tried else "the call was not sent"
            call.settle(LinkError(f"{self.name} was closed: {what}", sent=call.tried))

    @property
    def refusal(self) -> Exception | None:
        """Why there was no first connection, so that it has ended; None if it has not."""
        return self._refusal

    async def wait_ready(self) -> None:
        """Wait for the first connection.

        Raises:
            AuthenticationError: The server does not know the user, or the password is wrong.
            RedisError: It could not be reached or is too old.
        """
        await self._first.wait()
        if self._refusal is not None:
            raise self._refusal

    async def flush(self) -> None:
        """Let nothing more in, and wait until the server has answered what was sent or posted before."""
        last = Call(_PING)
        self.outbox.put_back(())  # what was given up is dropped
        idle = not len(self.outbox) and (self.connection is None or not self.connection.conversation.row)
        if not idle:
            self._submit(last)
        self._closing = EOFError("closed")
        if idle:
            await checkpoint()
        else:
            await last.wait()

    async def _serve(self, patient_until: float) -> None:
        """Keep a connection, as long as one can be had."""
        while self._refusal is None:
            with trio.CancelScope() as self._search:
                await self._open(patient_until)
            self._search = None
            while self.connection is not None and not self.connection.doubted:
                self._trouble = trio.Event()
                await self._trouble.wait()

    async def _open(self, patient_until: float) -> None:
        """Connect, however many attempts that takes, and adopt the connection."""
        failures, nursery = 0, self._nursery
        if self._since is None:
            self._since, self._attempts = trio.current_time(), 0
        assert nursery is not None
        cast("Any", self._settings.reconnect).reset()  # it has no types
        await trio.sleep(self._settings.pause(0) if self._hasty else 0)
        while self._refusal is None:
            self._attempts += 1
            try:
                connection = await self._connector.connect(nursery, self._push)
            except (OSError, RedisError, trio.BrokenResourceError) as error:
                await self._pause(error, failures, patient_until)
                failures += 1
            else:
                self._adopt(connection)
                return

    async def _pause(self, error: Exception, failures: int, patient_until: float) -> None:
        """Wait before the next attempt, unless it is the first one that was to succeed at once."""
        self._failure, now = error, trio.current_time()
        delay = self._settings.pause(failures)
        if self._failed is not None:
            self._failed(error)
        if not self._first.is_set():
            delay = min(delay, max(0.0, patient_until - now))
        if not self._first.is_set() and not (may_pass(error) and now < patient_until):
            self._refusal = explained(error, self._connector.trying)
            self._first.set()
        elif self._on_reconnecting:
            event = RedisReconnecting(self.name, self._connector.trying, error, delay, failures + 1)
            emit(self._on_reconnecting, event)
        await trio.sleep(delay)

    def _adopt(self, connection: Connection) -> None:
        """Have all calls go through a new connection, unless the old one has spoken, or a failover come, meanwhile."""
        old, search = self.connection, self._search
        if search is not None and search.cancel_called:  # in this very step: the connection was ready already
            connection.fail(EOFError("it is needed no more"))
            return
        if old is not None:
            silent = trio.current_time() - old.heard_at
            old.fail(TimeoutError(f"silent for {silent:.3g} s, while another connection was answered"))
        connection.lost, connection.outbox = self._lost, self.outbox
        self.connection, self._hasty, self._adopted_at = connection, False, trio.current_time()
        self._failure = None
        self._counts.connections += 1
        retired = self._retired
        connection.held = retired is not None and retired.cause is None and retired.address == connection.address
        self._tell_ready(connection)
        self._first.set()
        if self._ready is not None:
            self._ready(connection)
        connection.kick()

    def _tell_ready(self, connection: Connection) -> None:
        old, self._address = self._address, connection.address
        since, self._since = self._since, None
        if old is not None and old != self._address:
            emit(self._on_failover, RedisFailover(self.name, str(old), str(self._address)))
        if self._on_ready:
            after = 0.0 if since is None else trio.current_time() - since
            emit(self._on_ready, RedisReady(self.name, str(self._address), after, self._attempts))

    # ------------------------------------------------------------------------------------------ its clocks

    @enable_ki_protection
    async def _time_out(self) -> None:
        """End each call that has waited for `command_timeout`. One task for all: they end in the order they began."""
        while True:
            await trio.sleep_until(self._deadlines.next_after(trio.current_time()))
            if self.connection is not None:
                self.connection.look()
            for call in self._deadlines.take_over(trio.current_time()):
                self._end_late(call)

    def _end_late(self, call: Call) -> None:
        self._counts.timed_out += 1
        error, connection = self._late(call), self.connection
        call.end_late(error)
        if error.sent and connection is not None and max(connection.heard_at, connection.sent_at) <= call.started:
            self.doubt()

    def _late(self, call: Call) -> CallTimeoutError:
        sent = call.tried or call.conversation is not None  # what is in the row leaves, though nobody waits for it
        error = CallTimeoutError(self._timeout, self._address or self.name, sent=sent)
        error.__cause__ = self._failure if self.connection is None else None
        return error

    @enable_ki_protection
    async def _watch(self) -> None:
        """Notice a server that is silent, and ask one that has had nothing to say for long."""
        while True:  # noqa: ASYNC110 - it waits for the clock
            await trio.sleep_until(self._look())

    def _look(self) -> float:
        """Look at the connection now; return when to look again. What starts later cannot be due before that."""
        now, connection = trio.current_time(), self.connection
        again = now + min(self._settings.silent_after, self._settings.keepalive)
        if connection is None or connection.held:  # it is doubted, or has nothing to say yet
            return again
        row = connection.conversation.row
        if not row:
            return min(again, self._ask(connection, now))
        silent_at = max(connection.heard_at, connection.sent_at, row[0].started) + self._settings.silent_after
        if silent_at <= now:
            self.doubt()
            return again
        return min(again, silent_at)

    def _ask(self, connection: Connection, now: float) -> float:
        due = connection.heard_at + self._settings.keepalive
        if due > now:
            return due
        if self._closing is None:
            self.post(Call(_PING))
        return math.inf

    def statistics(self) -> LinkStatistics:
        """Return the figures so far."""
        return self._counts.statistics(self.name, self.connection, self.outbox)


def may_have_run_in_part(data: bytes) -> bool:
    """Return whether a command is a script, whose error may be its own, after it has done something."""
    return data.split(b"\r\n", 3)[2].upper() in _SCRIPTS


def _nothing() -> None:
    """Be told, and do nothing."""
