"""Policies for every request of an `httpx.AsyncClient`, below its redirects, cookies and authentication.

Needs httpx (`pip install trio_orchestrator[http]`), and is the only module that does; it is imported when it is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar, cast, final

import httpx
import trio

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.argument import at_least, plain_function
from trio_orchestrator.algorithms.rate_limit_headers import parse_rate_limit
from trio_orchestrator.algorithms.retry_after import parse_http_date
from trio_orchestrator.exchange import Exchange, Refused, copied, length_of, receive
from trio_orchestrator.policies.http import TRANSIENT_STATUS, HttpRetryAfter
from trio_orchestrator.queue.gates import Cooldown, Gate

T = TypeVar("T")

IDEMPOTENT: Final = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"))
"""The methods that may be sent twice (RFC 9110, 9.2.2)."""

_KEYS: Final = ("Idempotency-Key", "X-Idempotency-Key")
_THROTTLED: Final = (429, 503)


class Pacer(Protocol):
    """What the transport asks of a rate limiter: `RateLimiter` has it."""

    async def acquire(self) -> object:
        """Wait until one more request may be sent."""
        ...

    def hold(self, seconds: float, /) -> object:
        """Let nothing through for so long from now. Sync."""
        ...

    def observe(self, remaining: float, reset_after: float, /) -> object:
        """Learn that the server lets through so many more, in so many seconds. Sync."""
        ...


@final
class HttpxTransport(httpx.AsyncBaseTransport):
    """Send every request of an httpx client through a policy: `httpx.AsyncClient(transport=HttpxTransport(retry))`.

    One call of the policy is one request: a redirect is another one. It ends when the headers are there, and so do the
    time limits in it; the body of a successful response streams as ever, and what goes wrong in it is the reader's.

    **What fails.** A response with a `status` that may pass by itself is a failure for the policy: an
    `httpx.HTTPStatusError` with `.response`, whose body has been received (`error.response.read()`), and whose
    connection is free again. If the policy lets it out, the client gets the *response*, as from any transport, with the
    whole of its body. Every other error passes bare: httpx's own, a `RejectedError`, a `trio.TooSlowError`.

    **What is sent twice.** Only requests with a method in `retry_methods`, or with an `Idempotency-Key`, and only those
    whose body is at hand: not a stream (call `await request.aread()` first) and not a multipart form. Any other is sent
    once, however often the policy calls: its failure counts for breakers and limiters, and no retry repeats it. A
    request that found no connection was not sent. A response whose body is longer than `largest_body` is not repeated
    either.

    **What the server wishes.** With `cooldown`, a 429 or 503 with `Retry-After` shuts the gate of the request's `key`,
    and requests wait there: first before they enter the policy, where no time limit of it runs, and then before each
    attempt. If the gate opens only after the deadline of an attempt, that is refused at once, with a `RejectedError`.
    With `limiter`, each attempt takes its turn, a `Retry-After` holds it, and the `RateLimit-...` headers of every
    response tell it how much is left.

    If a `Retry` has given up on the response, what its `raise_for_status()` raises is marked as repeated in vain, so
    that a second `Retry` around the client does not multiply the attempts.

    Time limits, retries and pools of httpx remain those of the inner transport; the client's own `verify`, `http2`,
    `limits` and `proxy` are ignored when it is given a transport.

    Args:
        policy: What surrounds each request; a `Stack` of several, for example.
        transport: What sends the requests. Belongs to this one, and is entered and closed with it. Default: a new
            `httpx.AsyncHTTPTransport()`.
        cooldown: Gates that `Retry-After` shuts. May be shared with queues and other clients.
        limiter: Paces the attempts, e.g. a `RateLimiter`.
        key: A plain function from a request to the key of its gate. Default: the host.
        retry_methods: The methods that may be sent twice.
        status: The statuses that are failures.
        largest_body: Bytes of a failed response that are received before it is repeated; `math.inf` for all.
        wall: Returns the wall-clock time in seconds since 1970. Only used for dates in a response without a `Date`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `largest_body` is negative or NaN.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        cooldown: Cooldown | None = None,
        limiter: Pacer | None = None,
        key: Callable[[httpx.Request], Hashable] | None = None,
        retry_methods: Iterable[str] = IDEMPOTENT,
        status: Iterable[int] = TRANSIENT_STATUS,
        largest_body: float = 1 << 20,
        wall: Callable[[], float] = time.time,
    ) -> None:
        _check_parts(policy, transport, cooldown, limiter)
        plain_function("key", _host if key is None else key)
        plain_function("wall", wall)
        self._policy = policy
        self._cooldown = cooldown
        self._limiter = limiter
        self._key = _host if key is None else key
        self._methods = frozenset(method.upper() for method in _several("retry_methods", retry_methods, str))
        self._status = _several("status", status, int)
        self._largest_body = at_least("largest_body", largest_body, 0)
        self._retry_after = HttpRetryAfter(wall)
        self._wall = wall
        self._inner = httpx.AsyncHTTPTransport() if transport is None else transport

    def __repr__(self) -> str:
        return f"HttpxTransport({self._policy!r}, transport={self._inner!r})"

    async def __aenter__(self) -> Self:
        """Enter the inner transport."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Leave the inner transport, which closes it."""
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close the inner transport. As cancellable as that is."""
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` under the policy; return the response, with its body still to be read.

        Always a checkpoint. Cancelling it cancels the attempt, the pause or the wait; no response stays open.

        Raises:
            httpx.TransportError: What the last attempt raised.
            RejectedError: The policy refused the request, or its server is to be left alone.
            trio.TooSlowError: A time limit of the policy ended it.
        """
        exchange = Exchange(self._send, request, once=not self._may_repeat(request), gate=self._gate(request))
        await exchange.enter()
        try:
            answer = await self._answer(exchange)
        except BaseException:
            await exchange.close_all_but(None)
            raise
        await exchange.close_all_but(answer)
        return answer

    async def _answer(self, exchange: Exchange) -> httpx.Response:
        try:
            return await self._policy.call(exchange)
        except Exception as error:
            return exchange.settle(error)

    def _may_repeat(self, request: httpx.Request) -> bool:
        known = request.method in self._methods or any(key in request.headers for key in _KEYS)
        return known and isinstance(request.stream, httpx.ByteStream)

    def _gate(self, request: httpx.Request) -> Gate | None:
        return None if self._cooldown is None else self._cooldown.gate(self._key(request))

    async def _send(self, exchange: Exchange) -> httpx.Response:
        """Send the request once; raise an `httpx.HTTPStatusError` for a response that is a failure."""
        if self._limiter is not None:
            await self._limiter.acquire()
        await exchange.begin()
        try:
            response = await self._inner.handle_async_request(exchange.request)
            response.request = exchange.request
            stream = cast("httpx.AsyncByteStream", response.stream)
            exchange.open.append(stream)
            self._heed(response, exchange.gate)
            if response.status_code in self._status:
                await self._refuse(exchange, response, stream)
        except Exception as error:
            exchange.failed(error)
            raise
        finally:
            exchange.end()
        return response

    async def _refuse(self, exchange: Exchange, response: httpx.Response, stream: httpx.AsyncByteStream) -> None:
        if not exchange.once:
            response = copied(httpx.Response, response, await self._receive(exchange, response, stream))
        raise Refused(exchange.request, response)

    async def _receive(
        self, exchange: Exchange, response: httpx.Response, stream: httpx.AsyncByteStream
    ) -> httpx.AsyncByteStream:
        """Return the body, received; if that is too long the exchange is not repeated, and the rest is to come."""
        try:
            body = await receive(stream, length_of(response), self._largest_body)
        except BaseException:
            await exchange.close(stream)
            raise
        if isinstance(body, httpx.ByteStream):
            await exchange.close(stream)
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            exchange.once = True
            exchange.open[exchange.open.index(stream)] = body
        return body

    def _heed(self, response: httpx.Response, gate: Gate | None) -> None:
        """Take to heart what the server says of its limits."""
        pause = self._retry_after(response) if response.status_code in _THROTTLED else None
        if pause and gate is not None:
            gate.shut(pause)
        if self._limiter is None:
            return
        state = parse_rate_limit(response.headers, self._time_of(response))
        if state is not None and state.reset_after < math.inf:
            self._limiter.observe(state.remaining, state.reset_after)
        if pause:
            self._limiter.hold(pause)

    def _time_of(self, response: httpx.Response) -> float:
        date = parse_http_date(response.headers.get("Date", ""))
        return self._wall() if date is None else date


# -------------------------------------------------------------------------------------------------------- arguments


def _host(request: httpx.Request) -> Hashable:
    return request.url.host


def _check_parts(policy: object, transport: object, cooldown: object, limiter: object) -> None:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy such as Retry(on=http_transient), got {policy!r}")
    if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
        raise TypeError(f"transport must be an httpx.AsyncBaseTransport, got {transport!r}")
    if cooldown is not None and not isinstance(cooldown, Cooldown):
        raise TypeError(f"cooldown must be a Cooldown, got {cooldown!r}")
    if limiter is not None and not all(hasattr(limiter, name) for name in ("acquire", "hold", "observe")):
        raise TypeError(f"limiter must have acquire(), hold() and observe(), as a RateLimiter has, got {limiter!r}")


def _several(name: str, values: Iterable[T], kind: type[T]) -> frozenset[T]:
    if isinstance(values, str) or not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be several of type {kind.__name__}, got {values!r}")
    found = frozenset(values)
    if not all(isinstance(value, kind) and not isinstance(value, bool) for value in found):
        raise TypeError(f"{name} must be several of type {kind.__name__}, got {values!r}")
    return found
