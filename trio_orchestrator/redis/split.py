"""A batch of commands, split among the nodes of a cluster, and its replies put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import trio
from redis.exceptions import AskError, BusyLoadingError, ClusterDownError, ReadOnlyError, ResponseError, TryAgainError

from trio_orchestrator.redis.batch import Batch, Queued
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.error import LinkError, RefusedCommandError
from trio_orchestrator.redis.fanout import Target, fanout_of
from trio_orchestrator.redis.journey import Journey, speak_shared, travel
from trio_orchestrator.redis.key import keys_of, named
from trio_orchestrator.redis.link import may_have_run_in_part
from trio_orchestrator.redis.node import Node
from trio_orchestrator.redis.pipeline import check_shared
from trio_orchestrator.redis.router import FAILURES, Aim, Router
from trio_orchestrator.redis.slot import one_slot, slot_of
from trio_orchestrator.redis.wire import pack

_NOT_RUN = (AskError, TryAgainError, ClusterDownError, BusyLoadingError)


@final
class ClusterHost:
    """Executes batches on a cluster.

    Without a transaction the commands go to their nodes, in one write each, at the same time; the order holds within a
    node. What a node sends elsewhere is repeated one by one, in order. A transaction is for one slot.

    Args:
        router: Knows the way.
        allowed: The options of the client that let some commands pass.
    """

    __slots__ = ("_allowed", "_router")

    def __init__(self, router: Router, allowed: frozenset[str]) -> None:
        self._router = router
        self._allowed = allowed

    def admit(self, args: tuple[Any, ...]) -> Kind:
        """Return the kind of a command.

        Raises:
            CrossSlotError: Its keys are in several slots.
            RefusedCommandError: It cannot share a connection with others, or is for several nodes.
        """
        kind = kind_of_call(args)
        if kind.route is not Route.SHARED or kind.timeout_of is not None:
            check_shared(kind, args, self._allowed)
        keys = keys_of(args)
        if len(keys) > 1:
            one_slot(keys)
        elif not keys and fanout_of(args).target in (Target.MASTERS, Target.NODES):
            why = "it is for several nodes; execute it without a pipeline"
            raise RefusedCommandError(f"{named(args)[0]} is refused in a cluster's pipeline: {why}")
        return kind

    async def run_batch(self, batch: Sequence[Queued], *, transaction: bool, resend: bool) -> list[Any]:
        """Send a batch, and return its replies in order.

        Raises:
            CrossSlotError: The keys of a transaction are in several slots; nothing was sent.
        """
        if transaction:
            return await self._run_transaction(batch, resend)
        return await _Split(self._router, batch, [self._aim(item.args) for item in batch], resend).run()

    def _aim(self, args: tuple[Any, ...]) -> Aim:
        keys = keys_of(args)
        if keys:
            return slot_of(keys[0])
        slot = fanout_of(args).slot_in(args)
        return self._router.home if slot is None else slot

    async def _run_transaction(self, batch: Sequence[Queued], resend: bool) -> list[Any]:
        keys = [key for item in batch for key in keys_of(item.args)]
        try:
            aim: Aim = one_slot(keys) if keys else self._aim(batch[0].args)
        except FAILURES:
            await trio.lowlevel.checkpoint()
            raise
        replies: list[Any] = await travel(
            self._router, Batch(batch, transaction=True, resend=resend), aim, speak=_speak_transaction
        )
        return replies


async def _speak_transaction(node: Node, call: Call) -> list[Any]:
    assert isinstance(call, Batch)
    await node.link.call(call)
    return call.replies()


@final
class _Split:
    """One batch on its way."""

    def __init__(self, router: Router, batch: Sequence[Queued], aims: Sequence[Aim], resend: bool) -> None:
        self._router = router
        self._batch = batch
        self._aims = aims
        self._resend = resend
        self._began_at = trio.current_time()
        self._replies: list[Any] = [None] * len(batch)
        self._nodes: list[Node | None] = [None] * len(batch)
        self._failures: list[Exception] = []

    async def run(self) -> list[Any]:
        parts = self._parts()
        if len(parts) == 1:
            ((node, places),) = parts.items()
            await self._run_part(node, places)
        else:
            async with trio.open_nursery() as nursery:
                for node, places in parts.items():
                    nursery.start_soon(self._run_part, node, places)
        for failure in self._failures:
            raise failure
        await self._repeat()
        return self._replies

    def _parts(self) -> dict[Node, list[int]]:
        """Return which commands go to which node; those whose slot nobody is known to serve to none yet."""
        parts: dict[Node, list[int]] = {}
        found: dict[Aim, Node] = {}
        for place, aim in enumerate(self._aims):
            node = found.get(aim)
            if node is None:
                try:
                    node = found[aim] = self._router.locate(aim)
                except FAILURES as error:
                    self._replies[place] = error
                    continue
            self._nodes[place] = node
            parts.setdefault(node, []).append(place)
        return parts

    async def _run_part(self, node: Node, places: list[int]) -> None:
        call = Batch([self._batch[place] for place in places], resend=self._resend)
        try:
            await node.link.call(call)
            replies = call.replies()
        except FAILURES as error:
            if not self._may_repeat(error, call):
                self._failures.append(error)
                return
            replies = [error] * len(places)
        for place, reply in zip(places, replies, strict=True):
            self._replies[place] = reply

    def _may_repeat(self, error: Exception, call: Call) -> bool:
        if isinstance(error, LinkError):
            return call.resend or not error.sent
        return isinstance(error, trio.ClosedResourceError) and not self._router.fleet.closed

    async def _repeat(self) -> None:
        """Send again, one by one and in order, what was not executed where it was sent first."""
        for place, reply in enumerate(self._replies):
            if isinstance(reply, Exception) and self._has_not_run(reply, self._batch[place]):
                self._replies[place] = await self._repeated(place, reply)

    def _has_not_run(self, reply: Exception, item: Queued) -> bool:
        return isinstance(reply, _NOT_RUN) or not isinstance(reply, ResponseError) or self._is_renewed(reply, item)

    def _is_renewed(self, reply: ResponseError, item: Queued) -> bool:
        elsewhere = self._router.settings.reconnect_on(reply)
        return elsewhere and (isinstance(reply, ReadOnlyError) or not may_have_run_in_part(item.data))

    async def _repeated(self, place: int, error: Exception) -> Any:
        item = self._batch[place]
        call = Call(_complete(item))
        call.raw, call.resend = item.raw, self._resend or item.kind.reads
        call.started = self._began_at
        try:
            return await Journey(self._router, call, self._aims[place], speak_shared).go_on(self._nodes[place], error)
        except ResponseError as refusal:
            return refusal


def _complete(item: Queued) -> bytes:
    """Return the command as it can be sent alone: a script with its text."""
    if item.script is None:
        return item.data
    name = "EVAL_RO" if named(item.args)[0].endswith("_RO") else "EVAL"
    return pack((name, item.script, *item.args[2:]))
