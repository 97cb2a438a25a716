"""Optimistic locking: read keys, decide, and write only if nobody has changed them meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from types import TracebackType
from typing import Any, TypeAlias, final

import trio
from redis.backoff import AbstractBackoff, FullJitterBackoff
from redis.exceptions import RedisError, WatchError

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.hold import Hold
from trio_orchestrator.redis.method import Commands
from trio_orchestrator.redis.pipeline import Buffer
from trio_orchestrator.redis.script import Script
from trio_orchestrator.redis.server import Server


@final
class Transaction(Commands):
    """Keys that are watched on a connection of one's own: `async with redis.watch("stock") as tx`.

        async with redis.watch("stock") as tx:
            left = int(await tx.get("stock"))  # read at once
            tx.multi()
            tx.set("stock", left - 1)  # queued
            await tx.execute()  # MULTI to EXEC in one write; WatchError if "stock" was changed meanwhile

    Before `multi` each command is executed at once. After it commands are queued until `execute`, and a wrong one is
    refused where it is queued. After `execute` nothing is watched, and commands are executed at once again: `watch`
    again to try again, or let `redis.transaction` do all that. Leaving without `execute` writes nothing. One
    transaction is for one task.

    Entering waits for a connection, and watches. Leaving does not block: the connection forgets what it watched, or is
    closed if a call was given up on it. A lost connection is never replaced: `LinkError` says by `sent` whether the
    EXEC may have run.

    Args:
        server: Whose keys.
        answers: How the client packs, and what it makes of replies.
        keys: What is watched from the beginning; it may be nothing.
    """

    def __init__(self, server: Server, answers: Answers, keys: tuple[Any, ...] = ()) -> None:
        """Made by `redis.watch()`."""
        super().__init__(answers)
        self._hold = Hold(server, transactional=True)
        self._buffer = Buffer(self._hold, answers)
        self._keys = keys
        self._queues = False

    async def __aenter__(self) -> Transaction:
        await self._hold.open()
        try:
            await self.watch(*self._keys)
        except BaseException:
            self._hold.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._buffer.take()
        self._queues = False
        self._hold.close()

    def __await__(self) -> Generator[Any, Any, Transaction]:
        """Wait for nothing, so that a queued command may be awaited like one that is executed at once. A checkpoint."""
        yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105 - it is awaited, by hand
        return self

    def __len__(self) -> int:
        """Return how many commands are queued."""
        return len(self._buffer)

    def __bool__(self) -> bool:
        """Return True, even if nothing is queued."""
        return True

    async def watch(self, *keys: Any) -> bool:  # type: ignore[override]
        """Watch keys (more of them, or again after `execute`): if one changes from now on, `execute` raises.

        Raises:
            RedisError: It is too late, since `multi` was called.
        """
        if self._queues or not keys:
            await trio.lowlevel.checkpoint()
        if self._queues:
            raise RedisError("Cannot issue a WATCH after a MULTI")
        if keys:
            call = Call(self._answers.pack(("WATCH", *keys)))
            self._hold.watching = True
            await self._hold.call(call)
        return True

    async def unwatch(self) -> bool:  # type: ignore[override]
        """Watch nothing any more."""
        if self._hold.watching:
            await self._hold.call(Call(self._answers.pack(("UNWATCH",))))
            self._hold.watching = False
        else:
            await trio.lowlevel.checkpoint()
        return True

    def multi(self) -> None:
        """Queue all commands from now on, until `execute`. Sync; nothing is sent by this.

        Raises:
            RedisError: They are queued already.
        """
        if self._queues:
            raise RedisError("Cannot issue nested calls to MULTI")
        self._queues = True

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command at once, to be awaited; after `multi`, queue it and return the transaction.

        Raises:
            RefusedCommandError: It would end or take over the transaction.
            DataError: An argument is of no known type.
        """
        if self._queues:
            self._buffer.add(args, options)
            return self
        return self._execute_now(args, options)

    async def _execute_now(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        kind = await admitted(self._hold, args)
        return await self._speak(lambda call: self._hold.call(call, kind.blocks(args)), kind, args, options)

    def execute_script(
        self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, resend: bool, readonly: bool
    ) -> Awaitable[Any]:
        """Execute a script at once, to be awaited; after `multi`, queue it, with its text in front of the MULTI."""
        if not self._queues:
            return super().execute_script(script, keys, args, resend=resend, readonly=readonly)
        self._buffer.add(script.command(keys, args, readonly=readonly), {}, script.script)
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute all that is queued, if nothing that is watched has changed; return the results in order.

        Cancelled before it is sent, nothing runs; after that it may run, and its replies are thrown away.

        Args:
            raise_on_error: Whether the first error of a command is raised, with its number in the message (the others
                have run all the same). Else each error stands in the list.

        Raises:
            WatchError: A watched key has changed. Nothing has run.
            ResponseError: An error reply. If a command was not accepted, nothing has run.
            LinkError: The connection was lost; `sent` says whether it may have run.
            CallTimeoutError: No answer in time; it may have run.
        """
        batch = self._buffer.take()
        self._queues = False
        if not batch and not self._hold.watching:
            await trio.lowlevel.checkpoint()
            return []
        return await self._buffer.run(batch, transaction=True, resend=False, raise_on_error=raise_on_error)

    async def reset(self) -> None:  # type: ignore[override]
        """Forget what is queued, and watch nothing any more."""
        self._buffer.take()
        self._queues = False
        await self.unwatch()


async def admitted(hold: Hold, args: tuple[Any, ...]) -> Any:
    """Return the kind of a command; where it is refused, a checkpoint."""
    try:
        return hold.admit(args)
    except RedisError:
        await trio.lowlevel.checkpoint()
        raise


Body: TypeAlias = Callable[[Transaction], Any]
"""What is to be done: reads, calls `multi`, queues. Sync or async."""


@final
class Retrying:
    """How a transaction is tried until nothing interferes.

    Args:
        attempts: The most attempts, >= 1; `inf`: until the time is up.
        within: No attempt begins later than so many seconds after the first.
        backoff: The pause after so many failures; the default is 0 to 1 ms, then 0 to 2, up to 0 to 250, at random.
        value_from_callable: Whether the result is what the body returns, rather than the results of the commands.
    """

    __slots__ = ("_attempts", "_backoff", "_value", "_within")

    def __init__(
        self, *, attempts: float, within: float, backoff: AbstractBackoff | None, value_from_callable: bool
    ) -> None:
        if not attempts >= 1:
            raise ValueError(f"attempts must be >= 1, got {attempts!r}")
        if not within >= 0:
            raise ValueError(f"within must be >= 0, got {within!r}")
        self._attempts = attempts
        self._within = within
        self._backoff = FullJitterBackoff(cap=0.25, base=0.0005) if backoff is None else backoff
        self._value = value_from_callable

    async def run(self, body: Body, tx: Transaction, keys: tuple[Any, ...]) -> Any:
        """Run the body, and execute what it has queued, again and again while somebody else is faster."""
        began_at, failures = trio.current_time(), 0
        while True:
            try:
                return await self._attempt(body, tx)
            except WatchError as error:
                conflict = error
            failures += 1
            pause = self._backoff.compute(failures)
            elapsed = trio.current_time() - began_at
            if failures >= self._attempts or elapsed + pause > self._within:
                conflict.add_note(f"gave up after {failures} attempts in {elapsed:.3g} s")
                raise conflict
            await trio.sleep(pause)
            await tx.reset()
            await tx.watch(*keys)

    async def _attempt(self, body: Body, tx: Transaction) -> Any:
        value = body(tx)
        if isawaitable(value) and value is not tx:
            value = await value
        results = await tx.execute()
        return value if self._value else results
