"""One request of an httpx client on its way through a policy, which may send it several times."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeAlias, cast, final

import httpx
import trio

from trio_orchestrator.block import raise_untouched
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.failure import is_exhausted, mark_exhausted, mark_timeout, unmark_exhausted
from trio_orchestrator.queue.gates import Gate

Send: TypeAlias = "Callable[[Exchange], Awaitable[httpx.Response]]"

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_PATIENCE: Final = 5.0  # seconds for saying goodbye, where nobody can cancel it
_logger = logging.getLogger("trio_orchestrator")


@final
class Exchange:
    """One request on its way through the policy, which calls it once an attempt. Belongs to one request."""

    __slots__ = ("__qualname__", "_admitted", "_failure", "_send", "_sending", "gate", "once", "open", "request")

    def __init__(self, send: Send, request: httpx.Request, *, once: bool, gate: Gate | None) -> None:
        self.request: httpx.Request = request
        self.once: bool = once
        self.gate: Gate | None = gate
        self.open: list[httpx.AsyncByteStream] = []
        self._send = send
        self._admitted = False  # it has passed the gate, and that attempt is still to come
        self._sending: trio.Event | None = None  # set when the last attempt to send it has ended
        self._failure: Exception | None = None
        self.__qualname__ = f"{request.method} {request.url.host}"  # its name in events

    async def enter(self) -> None:
        """Wait until the server wants to hear of us again. Always a checkpoint."""
        if self.gate is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.gate.wait_open()
            self._admitted = True

    async def __call__(self) -> httpx.Response:
        """Make one attempt."""
        if self.gate is not None:
            await self._pass(self.gate)
        return await self._send(self)

    async def _pass(self, gate: Gate) -> None:
        now, opens_at = trio.current_time(), gate.opens_at(trio.current_time())
        admitted, self._admitted = self._admitted, False
        if admitted and gate._until <= now:  # has passed, and it was not shut since; that of a ramp was counted
            return
        if opens_at > trio.current_effective_deadline():
            raise RejectedError(f"{gate.name}: shut for {opens_at - now:.3g} s", retry_after=opens_at - now)
        await gate.wait_open()

    async def begin(self) -> None:
        """Say that the request is sent now. If it may be sent only once and was, wait for the end of that, and raise.

        A hedge may call again while the first call is under way; what comes of that must not be spoilt.
        """
        while self.once and (sending := self._sending) is not None:
            await sending.wait()
            if self._sending is sending:
                raise _SentBeforeError
        self._sending = trio.Event()

    def failed(self, error: Exception) -> None:
        """Note why sending it failed, and see to it that no retry repeats what may not be sent twice."""
        if isinstance(error, _UNSENT) and self._sending is not None:
            self._sending.set()
            self._sending = None
        elif self.once:
            self._failure = error
            mark_exhausted(error)

    def end(self) -> None:
        """Say that the attempt has ended, in whatever way."""
        if self._sending is not None:
            self._sending.set()

    def settle(self, error: Exception) -> httpx.Response:
        """Turn what the policy raised into the response it stands for, or raise it, or what it hides."""
        if isinstance(error, _SentBeforeError):
            error = self._failure if self._failure is not None else _cut_short()
        if isinstance(error, Refused) and error.request is self.request:
            return self._answer(error)
        if error is self._failure:
            unmark_exhausted(error)  # one attempt is not in vain: an outer retry may know better
        try:
            raise_untouched(error)
        finally:
            del error  # no cycle through the traceback

    def _answer(self, refused: Refused) -> httpx.Response:
        kind = _GivenUp if is_exhausted(refused) and refused is not self._failure else httpx.Response
        return copied(kind, refused.response, refused.response.stream)

    async def close_all_but(self, answer: httpx.Response | None) -> None:
        """Close what came back and is not handed over: refused results, the copies of a hedge."""
        self._failure = None
        kept = None if answer is None else answer.stream
        for stream in tuple(self.open):
            if stream is not kept:
                await self.close(stream)

    async def close(self, stream: httpx.AsyncByteStream) -> None:
        """Close a response, also when cancelled, within some seconds."""
        self.open.remove(stream)
        with trio.move_on_after(_PATIENCE, shield=True):
            try:
                await stream.aclose()
            except Exception:
                _logger.warning("a response of %s could not be closed", self.__qualname__, exc_info=True)


# ---------------------------------------------------------------------------------------------------------- errors


@final
class Refused(httpx.HTTPStatusError):
    """A response that is a failure, for the eyes of the policy."""

    def __init__(self, request: httpx.Request, response: httpx.Response) -> None:
        text = f"{response.status_code} {response.reason_phrase} for {request.method} {request.url}"
        super().__init__(text, request=request, response=response)


@final
class _SentBeforeError(RejectedError):
    """The policy called again for what may be sent only once. Never leaves the transport."""

    permanent = True


def _cut_short() -> trio.TooSlowError:
    return mark_timeout(trio.TooSlowError("the request was cut short, and may not be sent twice"))


@final
class _GivenUp(httpx.Response):
    """A response that was repeated in vain, and says so to an outer retry."""

    def raise_for_status(self) -> httpx.Response:
        """Raise as every response does, with that mark on the error."""
        try:
            return super().raise_for_status()
        except httpx.HTTPStatusError as error:
            mark_exhausted(error)
            raise


# ---------------------------------------------------------------------------------------------------------- bodies


@final
class _Long(httpx.AsyncByteStream):
    """A body of which the head has been received."""

    def __init__(self, head: Sequence[bytes], rest: AsyncIterator[bytes], stream: httpx.AsyncByteStream) -> None:
        self._head = head
        self._rest = rest
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._head:
            yield part
        async for part in self._rest:
            yield part

    async def aclose(self) -> None:
        try:
            rest: object = self._rest
            if isinstance(rest, AsyncGenerator):  # else it would be left to the garbage collector
                await cast("AsyncGenerator[bytes, None]", rest).aclose()
        finally:
            await self._stream.aclose()


async def receive(stream: httpx.AsyncByteStream, length: float, most: float) -> httpx.AsyncByteStream:
    """Return the body at hand; or, if it has more than `most` bytes, what continues it. As cancellable as `stream`."""
    if length > most:
        return stream
    parts, head, size = aiter(stream), list[bytes](), 0
    async for part in parts:
        head.append(part)
        size += len(part)
        if size > most:
            return _Long(head, parts, stream)
    return httpx.ByteStream(b"".join(head))


def length_of(response: httpx.Response) -> float:
    """Return how long the body says it is; 0 if it does not, or if there is none."""
    text = response.headers.get("Content-Length", "")
    return float(text) if text.isdecimal() and response.request.method != "HEAD" else 0


def copied(
    kind: type[httpx.Response], response: httpx.Response, stream: httpx.AsyncByteStream | httpx.SyncByteStream
) -> httpx.Response:
    """Return an unread response that differs in its body."""
    return kind(
        response.status_code,
        headers=response.headers,
        stream=stream,
        request=response.request,
        extensions=response.extensions,
    )
