"""What HTTP says about trying again: which failures pass by themselves, and how long the server wants to be left alone.

Works with `httpx`, `requests` and whatever else has `.response.status_code` and `.response.headers`; imports none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, final

import trio

from trio_orchestrator.algorithms.argument import plain_function
from trio_orchestrator.algorithms.retry_after import parse_http_date, parse_retry_after

TRANSIENT_STATUS: Final = frozenset((429, 500, 502, 503, 504))
"""Too many requests, internal error, bad gateway, unavailable, gateway time-out."""


def http_transient(error: Exception) -> bool:
    """Tell whether an HTTP failure may pass by itself: for `Retry(on=http_transient)`.

    True for a status of 429, 500, 502, 503 or 504 (`error.response.status_code`), for every `httpx.TransportError`
    (time-outs, broken connections, proxies) but `UnsupportedProtocol` and `LocalProtocolError`, which are mistakes of
    ours, and for `ConnectionError` and `trio.BrokenResourceError`.

    It does not know whether the request may be sent twice: that is for the caller to know.
    """
    if isinstance(error, (ConnectionError, trio.BrokenResourceError)):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in TRANSIENT_STATUS if status is not None else _is_transport_error(error)


def _is_transport_error(error: Exception) -> bool:
    httpx: Any = sys.modules.get("httpx")  # if nobody has imported it, the error is not one of its
    if not isinstance(error, getattr(httpx, "TransportError", ())):
        return False
    return not isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError))


@final
class HttpRetryAfter:
    """Reads `Retry-After` from an exception with a `.response`, or from a response: for `Retry(retry_after=...)`.

    A date in it is measured against the response's own `Date`, so that the clocks need not agree, or against `wall()`.

    Args:
        wall: Returns the wall-clock time in seconds since 1970. Only used for a date in a response without a date.

    Raises:
        TypeError: `wall` is not a plain function.
    """

    __slots__ = ("_wall",)

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        plain_function("wall", wall)
        self._wall = wall

    def __repr__(self) -> str:
        return "HttpRetryAfter()" if self._wall is time.time else f"HttpRetryAfter(wall={self._wall!r})"

    def __call__(self, failure: object) -> float | None:
        """Return the seconds to wait (0: at once), or None: no such header, or nonsense in it."""
        headers = getattr(getattr(failure, "response", failure), "headers", None)
        wish = _header(headers, "Retry-After")
        if wish is None:
            return None
        date = parse_http_date(_header(headers, "Date") or "")
        return parse_retry_after(wish, self._wall() if date is None else date)


def _header(headers: Any, name: str) -> str | None:
    """Look a header up, also in a plain dict."""
    if not hasattr(headers, "get"):
        return None
    value: object = headers.get(name, headers.get(name.lower()))
    return value if isinstance(value, str) else None


http_retry_after: Final = HttpRetryAfter()
"""`HttpRetryAfter()` on the system's clock."""
