"""One call's way through a cluster: from node to node until it is answered, or until its time is over."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, final

import redis.exceptions
import trio
from redis.backoff import AbstractBackoff, EqualJitterBackoff
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)

from trio_orchestrator.redis.batch import Batch
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.link import may_have_run_in_part
from trio_orchestrator.redis.node import Node
from trio_orchestrator.redis.router import FAILURES, Aim, Router
from trio_orchestrator.redis.wire import pack

Speak: TypeAlias = Callable[[Node, Call], Awaitable[Any]]
"""Sends a call to a node, and returns or raises what it is answered."""

BACKOFF: Final[AbstractBackoff] = EqualJitterBackoff(cap=0.25, base=0.01)
"""Seconds until a call is sent again to a node that cannot answer it yet."""

MOMENT: Final = 0.01
"""Seconds that must be left for sending a call again."""

DETOURS: Final = 5
"""So many redirections are followed at once; further ones only after a pause, since two nodes disagree."""

ASKING: Final = pack(("ASKING",))
"""What has the next command of its connection accepted for a slot that is being taken over."""

_PASSING: Final = (TryAgainError, ClusterDownError, BusyLoadingError, SlotNotCoveredError)


@final
class Asked(Call):
    """`ASKING` and a call in one write: nothing can come between, and the answer is that of the call."""

    want = 0

    def __init__(self, data: bytes) -> None:
        super().__init__(ASKING + data)
        self._first = True

    def restart(self) -> None:
        """Forget the connection, since it is sent again."""
        super().restart()
        self._first = True

    def take(self, reply: Any) -> bool:
        """Take a reply; return whether it was the last, which is the answer."""
        first, self._first = self._first, False
        self.answer = reply
        return not first


async def speak_shared(node: Node, call: Call) -> Any:
    """Send a call over the link that all share."""
    return await node.link.call(call)


async def travel(
    router: Router,
    call: Call,
    aim: Aim,
    *,
    reads: bool = False,
    speak: Speak = speak_shared,
    within: float | None = None,
) -> Any:
    """Send a call to where it belongs, wherever that turns out to be, and return its answer.

    Args:
        router: Knows the way.
        call: What to send.
        aim: Where to.
        reads: Whether it only reads, so that a replica may answer if the client allows that.
        speak: How it is sent to a node.
        within: Seconds for the whole way; default `command_timeout`.

    Raises:
        CallTimeoutError: No answer within that time.
        LinkError: A connection was lost after the call was sent, so that it may have run.
        RedisError: The answer is an error; one that might have passed (TRYAGAIN) did not within the time.
        SlotNotCoveredError: Nobody is known to serve the slot.
        trio.ClosedResourceError: The block was left.
    """
    node = None
    try:
        node = router.locate(aim, reads=reads)
        return await speak(node, call)
    except FAILURES as error:
        failure = error
    return await Journey(router, call, aim, speak, within).go_on(node, failure)


@final
class Journey:
    """The rest of the way, from the moment the first node has not given an answer.

    Args:
        router: Knows the way.
        call: What was sent; it is sent again as another, equal call.
        aim: Where to.
        speak: How it is sent to a node.
        within: Seconds for the whole way, from when the call was first sent; None: `command_timeout`.
    """

    __slots__ = (
        "_aim",
        "_call",
        "_deadline",
        "_detours",
        "_failures",
        "_renewed",
        "_router",
        "_sent",
        "_speak",
        "_within",
    )

    def __init__(self, router: Router, call: Call, aim: Aim, speak: Speak, within: float | None = None) -> None:
        self._router = router
        self._call = self._sent = call
        self._aim = aim
        self._speak = speak
        self._within = router.settings.command_timeout if within is None else within
        self._deadline = (call.started or trio.current_time()) + self._within
        self._detours = self._failures = 0
        self._renewed = False

    async def go_on(self, node: Node | None, error: Exception) -> Any:
        """Follow what a node has said instead of an answer, again and again, until there is an answer."""
        while True:
            aim, asking = await self._next(node, error)
            node = None
            try:
                node = self._router.locate(aim)
                self._sent = _again(self._call, asking)
                return await self._attempt(node, error)
            except FAILURES as failure:
                error = failure

    async def _attempt(self, node: Node, before: Exception) -> Any:
        """Send the call; if the time is over meanwhile, raise that, or what was before if it was not even sent."""
        call = self._sent
        with trio.move_on_at(self._deadline):
            return await self._speak(node, call)
        sent = call.conversation is not None and call.conversation.has_sent(call)
        if sent or isinstance(before, AskError):
            raise CallTimeoutError(self._within, node.address, sent=sent) from before
        raise before

    async def _next(self, node: Node | None, error: Exception) -> tuple[Aim, bool]:
        """Return where the call goes next, and whether as an ASK; raise the error if it goes nowhere."""
        if node is not None and isinstance(error, AskError):
            return await self._redirected(node, error)
        self._check(node, error)
        if isinstance(error, ResponseError) and not isinstance(error, _PASSING):
            await self._renew(error)
        elif node is None or not node.reads:  # what a replica cannot answer goes to its master at once
            await self._rest(error)
        return self._aim, False

    async def _redirected(self, node: Node, error: AskError) -> tuple[Aim, bool]:
        self._detours += 1
        other = self._router.learn(error, node).address
        asking = not isinstance(error, MovedError)
        if asking and isinstance(self._call, Batch):  # inside MULTI, ASKING would only be queued
            await self._rest(error)
            return self._aim, False
        if self._detours > DETOURS:
            await self._rest(error)
        return other, asking

    def _check(self, node: Node | None, error: Exception) -> None:
        """Raise the error, or a better one, unless the call has certainly not run, or may run again."""
        if node is not None and node.link.refusal is not None and not _is_passing(node.link.refusal):
            raise copy.copy(node.link.refusal)
        if not self._may_repeat(node, error):
            raise error

    def _may_repeat(self, node: Node | None, error: Exception) -> bool:
        if isinstance(error, _PASSING):
            return True
        if isinstance(error, LinkError):
            return self._call.resend or not error.sent
        if isinstance(error, trio.ClosedResourceError):
            return node is not None and not self._router.fleet.closed
        if isinstance(error, ResponseError) and not self._renewed and self._router.settings.reconnect_on(error):
            self._renewed = True
            if isinstance(error, ReadOnlyError) or not may_have_run_in_part(self._call.data):
                return True
            self._router.refresh_soon()
        return False

    async def _renew(self, error: Exception) -> None:
        """Wait for a new map: somebody else is the master by now."""
        self._router.counts.retried += 1
        number = self._router.refresh_soon()
        with trio.move_on_at(self._deadline):
            await self._router.wait_refreshed(number)
            return
        raise error

    async def _rest(self, error: Exception) -> None:
        """Wait, longer each time, but not beyond a change of the map; raise the error if the time is over."""
        self._router.counts.retried += 1
        migrating = isinstance(error, (TryAgainError, AskError))
        if not migrating:
            self._router.refresh_soon()
        delay = BACKOFF.compute(self._failures)
        self._failures += 1
        if trio.current_time() + delay + MOMENT >= self._deadline:
            await trio.lowlevel.checkpoint()
            raise _final(error)
        with trio.move_on_after(delay):
            if migrating:
                await trio.sleep_forever()
            await self._router.changed.wait()


def _final(error: Exception) -> Exception:
    """Return what is raised when the time is over: not that a block was left which the caller knows nothing of."""
    if not isinstance(error, trio.ClosedResourceError):
        return error
    return LinkError("the node has left the cluster, and no other serves the slot: the call was not sent")


def _again(call: Call, asking: bool) -> Call:
    """Return a call like one that has been answered."""
    if isinstance(call, Batch):
        return Batch(call.batch, transaction=call.transaction, resend=call.resend)
    again = Asked(call.data) if asking else Call(call.data)
    again.raw, again.resend = call.raw, call.resend
    return again


def _is_passing(refusal: Exception) -> bool:
    transient = isinstance(refusal, (OSError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError))
    return transient and not isinstance(refusal, redis.exceptions.AuthenticationError)
