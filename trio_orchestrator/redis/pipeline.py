"""Many commands in one write, and their replies in one read."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from types import CoroutineType, TracebackType
from typing import Any, final

import trio
from redis.client import EMPTY_RESPONSE

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.batch import Batch, PipelineHost, Queued, raise_first
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.connector import LinkSettings
from trio_orchestrator.redis.error import RefusedCommandError
from trio_orchestrator.redis.key import named
from trio_orchestrator.redis.link import Link
from trio_orchestrator.redis.method import Commands
from trio_orchestrator.redis.script import Script


@final
class LinkHost:
    """Executes batches on a link that others use too: what blocks, or changes the connection, is refused.

    Args:
        link: What the batches go through.
        settings: Of the link.
        allowed: The options of the client that let some commands pass.
    """

    __slots__ = ("_allowed", "_link", "_settings")

    def __init__(self, link: Link, settings: LinkSettings, allowed: frozenset[str] = frozenset()) -> None:
        self._link = link
        self._settings = settings
        self._allowed = allowed

    def admit(self, args: tuple[Any, ...]) -> Kind:
        """Return the kind of a command.

        Raises:
            RefusedCommandError: It cannot share a connection with others.
        """
        kind = kind_of_call(args)
        if kind.route is not Route.SHARED or kind.timeout_of is not None:
            check_shared(kind, args, self._allowed)
        return kind

    async def run_batch(self, batch: Sequence[Queued], *, transaction: bool, resend: bool) -> list[Any]:
        """Send a batch as one call; once more if a server that is no longer the master refused all of it."""
        call = Batch(batch, transaction=transaction, resend=resend)
        await self._link.call(call)
        refused = call.refusals(self._settings.reconnect_on)
        if refused:
            self._link.renew(call.conversation)
        if refused == len(batch) and batch and not call.may_have_run():
            return await self._once_more(call)
        return call.replies()

    async def _once_more(self, call: Batch) -> list[Any]:
        """Send a batch again of which nothing ran, within the time that it has left."""
        again = Batch(call.batch, transaction=call.transaction, resend=call.resend)
        with trio.move_on_at(call.started + self._settings.command_timeout):
            await self._link.call(again)
            return again.replies()
        raise self._link._late(again)


def check_shared(kind: Kind, args: tuple[Any, ...], allowed: frozenset[str]) -> None:
    """Raise if a command may not be in a batch on a shared connection."""
    route = kind.route_for(args)
    if route is Route.REFUSED and kind.option not in allowed:
        raise kind.refusal(args[0])
    if route is Route.DEDICATED:
        why = "blocks" if kind.timeout_of else "must overtake what blocks"
        advice = "execute it without a pipeline, or in one of `async with redis.dedicated() as d`"
        raise RefusedCommandError(f"{named(args)[0]} is refused in a pipeline: it {why}; {advice}")


@final
class Buffer:
    """Commands that wait to be sent together, and how their replies become results.

    Args:
        host: Who executes them.
        answers: How the client packs, and what it makes of replies.
    """

    __slots__ = ("_answers", "_host", "_queue")

    def __init__(self, host: PipelineHost, answers: Answers) -> None:
        self._host = host
        self._answers = answers
        self._queue: list[Queued] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, args: tuple[Any, ...], options: dict[str, Any], script: str | bytes | None = None) -> None:
        """Check and pack a command, and queue it.

        Raises:
            DataError: It is refused, or an argument is of no known type; it is not queued.
        """
        kind, answers = self._host.admit(args), self._answers
        raw = bool(options) and answers.is_raw(options)
        self._queue.append(Queued(args, options, kind, answers.pack(args), raw, script))

    def take(self) -> list[Queued]:
        """Remove and return what is queued."""
        queue, self._queue = self._queue, []
        return queue

    async def run(self, batch: Sequence[Queued], *, transaction: bool, resend: bool, raise_on_error: bool) -> list[Any]:
        """Execute a batch; return what redis-py's methods return, in order."""
        replies = await self._replies(batch, transaction, resend)
        if raise_on_error:
            raise_first(batch, replies)
        if transaction and self._answers.encoder.decode_responses and any(item.raw for item in batch):
            replies = [reply if item.raw else self._decoded(reply) for item, reply in zip(batch, replies, strict=True)]
        return await self._shaped(batch, replies)

    async def _replies(self, batch: Sequence[Queued], transaction: bool, resend: bool) -> list[Any]:
        sent = [item for item in batch if EMPTY_RESPONSE not in item.options]
        if sent or not batch:
            replies = await self._host.run_batch(sent, transaction=transaction, resend=resend)
        else:
            await trio.lowlevel.checkpoint()
            replies = []
        if len(sent) == len(batch):
            return replies
        answered = iter(replies)  # MGET of nothing is not sent: the server would only refuse it
        return [item.options[EMPTY_RESPONSE] if EMPTY_RESPONSE in item.options else next(answered) for item in batch]

    async def _shaped(self, batch: Sequence[Queued], replies: Sequence[Any]) -> list[Any]:
        shape = self._answers.shape
        results: list[Any] = []
        for item, reply in zip(batch, replies, strict=True):
            result = reply if isinstance(reply, Exception) else shape(item.args[0], reply, item.options)
            results.append(await result if type(result) is CoroutineType else result)
        return results

    def _decoded(self, reply: Any) -> Any:
        """Return a reply, decoded, that came undecoded because it stood beside one that must not be."""
        decode = self._decoded
        kind = reply.__class__
        if kind is list:
            return [decode(item) for item in reply]
        if kind is set:
            return {decode(item) for item in reply}
        if kind is dict:
            return {decode(key): decode(value) for key, value in reply.items()}
        return self._answers.encoder.decode(reply)


@final
class Pipeline(Commands):
    """Commands that are sent together: `async with redis.pipeline() as pipe`. **Not a transaction by default**.

    That is the opposite of redis-py. Without `transaction=True` the commands are executed in order, but those of others
    may come between them, and an error, or a lost connection, leaves those before it done. With it, MULTI and EXEC go
    around them, in the same write: all of them or none, with nothing between.

        async with redis.pipeline() as pipe:
            pipe.incr("hits")
            pipe.expire("hits", 60)
            hits, _ = await pipe.execute()

    Each command method queues, and returns the pipeline (which may also be awaited, to no effect). A wrong command is
    refused where it is queued: nothing of it stays. Leaving the block without `execute` sends nothing. After `execute`
    it can be used again. One pipeline is for one task.

    A pipeline is one call on the link: one write, one place in the window (however long it is), one `command_timeout`
    for all. Commands of others wait behind a long one: some 10,000 commands, or 1 MiB, are a good measure.

    Args:
        host: Who executes it.
        answers: How the client packs, and what it makes of replies.
        transaction: Whether MULTI and EXEC go around it.
        resend: Whether it may run twice, so that it is sent again after a lost connection. One that only reads is.
    """

    def __init__(
        self, host: PipelineHost, answers: Answers, *, transaction: bool = False, resend: bool = False
    ) -> None:
        """Made by `redis.pipeline()`."""
        super().__init__(answers)
        self._buffer = Buffer(host, answers)
        self._resend = resend
        self.is_transaction: bool = transaction

    def __len__(self) -> int:
        """Return how many commands are queued."""
        return len(self._buffer)

    def __bool__(self) -> bool:
        """Return True, even if nothing is queued."""
        return True

    async def __aenter__(self) -> Pipeline:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._buffer.take()

    def __await__(self) -> Generator[Any, Any, Pipeline]:
        """Wait for nothing: `await pipe.get("a")` queues, as it does in redis-py. A checkpoint."""
        yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105 - it is awaited, by hand
        return self

    def execute_command(self, *args: Any, **options: Any) -> Pipeline:
        """Queue any command, its name first; all methods come down to this. Sync.

        Raises:
            RefusedCommandError: It blocks, or cannot share a connection with others.
            DataError: An argument is of no known type.
        """
        self._buffer.add(args, options)
        return self

    def execute_script(
        self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, resend: bool, readonly: bool
    ) -> Awaitable[Any]:
        """Queue a script. Its text goes in front, in the same write, since the server may not have it. Sync."""
        options = {"resend": True} if resend else {}
        self._buffer.add(script.command(keys, args, readonly=readonly), options, script.script)
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all that is queued in one write; return the results in order. What was queued is gone, whatever happens.

        Cancelled before it is sent, nothing runs; after that it runs, and its replies are thrown away.

        Args:
            raise_on_error: Whether the first error is raised, with the number of its command in the message. The other
                commands have run all the same. Else each error stands in the list.

        Raises:
            ResponseError: An error reply. A transaction may also not have been executed at all, since one of its
                commands was not accepted: that is then the error, with the server's EXECABORT as its cause.
            LinkError: The connection was lost after some or all was sent, so that it may have run (`sent`).
            CallTimeoutError: Not all answers came within `command_timeout`.
        """
        batch = self._buffer.take()
        if not batch:
            await trio.lowlevel.checkpoint()
            return []
        return await self._buffer.run(
            batch, transaction=self.is_transaction, resend=self._resend, raise_on_error=raise_on_error
        )

    async def reset(self) -> None:  # type: ignore[override]
        """Forget what is queued."""
        self._buffer.take()
        await trio.lowlevel.checkpoint()
