"""A scripted line to a server, for virtual time: it counts what it is asked to send and what it has open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, final

import httpx
import trio

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.http import http_retry_after, http_transient
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.verdict import Judge, Verdict
from trio_orchestrator.transport import HttpxTransport

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
URL = "http://example.org/"


@final
class Answer:
    """What the server says: a status, headers, and a body in parts."""

    def __init__(self, status: int, *parts: bytes, body_seconds: float = 0, **headers: str) -> None:
        self.status = status
        self.parts = parts or (b"body of ", str(status).encode())
        self.body_seconds = body_seconds
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@final
class Body(httpx.AsyncByteStream):
    def __init__(self, line: Line, answer: Answer) -> None:
        self._line = line
        self._answer = answer
        self.read = 0
        line.open.append(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._answer.parts:
            await trio.sleep(self._answer.body_seconds)
            self.read += 1
            yield part

    async def aclose(self) -> None:
        if self in self._line.open:
            self._line.open.remove(self)
        await trio.lowlevel.checkpoint()


@final
class Line(httpx.AsyncBaseTransport):
    """Answers each request with the next outcome, the last one for ever: raises an exception, a number is a status."""

    def __init__(self, *outcomes: int | Exception | Answer, seconds: float = 0) -> None:
        self.outcomes = outcomes
        self.seconds = seconds
        self.starts: list[float] = []
        self.received: list[bytes] = []
        self.open: list[Body] = []
        self.entered = 0
        self.closed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.starts.append(trio.current_time())
        outcome = self.outcomes[min(len(self.starts), len(self.outcomes)) - 1]
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.received.append(b"".join([part async for part in request.stream]))
        await trio.sleep(self.seconds)
        if isinstance(outcome, Exception):
            raise outcome
        answer = Answer(outcome) if isinstance(outcome, int) else outcome
        return httpx.Response(answer.status, headers=answer.headers, stream=Body(self, answer))

    async def __aenter__(self) -> Line:
        self.entered += 1
        return self

    async def aclose(self) -> None:
        self.closed += 1


def every_second(**options: Any) -> Retry:
    """Repeat four times, a second apart, or when the server says so."""
    usual: dict[str, Any] = {"on": http_transient, "backoff": Constant(1), "retry_after": http_retry_after}
    return Retry(**usual | options)


def client(line: httpx.AsyncBaseTransport, policy: Policy | None = None, **options: Any) -> httpx.AsyncClient:
    transport = HttpxTransport(policy or every_second(), transport=line, **options)
    return httpx.AsyncClient(transport=transport, timeout=None)


@final
class Bare(Policy):
    """No policy at all."""

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        return await fn(*args)


@final
class Jury(Policy):
    """Keeps the verdicts, as a breaker or a limiter would."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.verdicts: list[Verdict] = []

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        try:
            result = await fn(*args)
        except BaseException as error:
            self._judge.report(error, self.verdicts.append)
            raise
        self.verdicts.append(self._judge.of_result(result))
        return result


@final
class Nest(Policy):
    """Outermost first."""

    def __init__(self, outer: Policy, inner: Policy) -> None:
        self._outer = outer
        self._inner = inner

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        return await self._outer.call(self._inner.call, fn, *args)


@final
class Copies(Policy):
    """Start so many copies, `apart` seconds from each other; the first that does not fail wins, or the last failure."""

    def __init__(self, copies: int, apart: float = 0) -> None:
        self._copies = copies
        self._apart = apart

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        results: list[T] = []
        errors: list[Exception] = []

        async def copy(delay: float) -> None:
            await trio.sleep(delay)
            try:
                results.append(await fn(*args))
                nursery.cancel_scope.cancel()
            except Exception as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(self._copies):
                nursery.start_soon(copy, number * self._apart)
        if results:
            return results[0]
        raise errors[-1]
