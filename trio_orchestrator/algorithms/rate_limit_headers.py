"""Read what a server says of its rate limit: how much is left, and when there will be more.

Three dialects are spoken, and often two at once; the first that makes sense counts:

* `RateLimit: "hourly";r=50;t=30` with `RateLimit-Policy: "hourly";q=100;w=3600` (from draft 08 of
  draft-ietf-httpapi-ratelimit-headers on), and before that `RateLimit: limit=100, remaining=50, reset=30` (draft 07);
* `RateLimit-Limit`, `-Remaining` and `-Reset` (drafts up to 06);
* `X-RateLimit-...` (GitHub) and `X-Rate-Limit-...` (Twitter), where the reset may be a moment and not a duration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from trio_orchestrator.algorithms.retry_after import parse_http_date

_CLASSIC: Final = ("RateLimit-", "X-RateLimit-", "X-Rate-Limit-")
_LONGEST: Final = 4096  # characters of a field; no honest one comes near it
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,9})?|\d{16,19}", re.ASCII)
_EPOCH: Final = 1e9  # 2001; as a duration it would be 31 years
_UNITS: Final = ((1e18, 1e9), (1e15, 1e6), (1e12, 1e3), (_EPOCH, 1.0))  # ns, us, ms, s since 1970


@final
class RateLimitState(NamedTuple):
    """What is left of a server's rate limit."""

    limit: float
    """How much there is in a whole window; `math.inf` if the server does not say."""
    remaining: float
    """How much is left of it now."""
    reset_after: float
    """Seconds until there is more; `math.inf` if the server does not say."""


def parse_rate_limit(headers: Mapping[str, str], now: float) -> RateLimitState | None:
    """Return the state of the rate limit that `headers` tell, or None if they tell none, or nonsense.

    Of several limits the one with the least left counts; of those, the one that takes longest to recover. A server that
    gives no time for a limit, but the window of its policy, is taken to mean the whole window.

    A reset of 1,000,000,000 or more is a moment in seconds since 1970; one that is a thousand, a million or a milliard
    times as large is that moment in a smaller unit. A moment that has passed, and a reset of 0, give 0.0. Nothing
    negative or infinite is ever returned but the `math.inf` of what was not told.

    Args:
        headers: Of a response: `httpx.Headers`, or a dict with names as here or in lower case.
        now: The present wall-clock time of whoever wrote them, in seconds since 1970.
    """
    return _structured(headers) or next(filter(None, (_classic(headers, prefix, now) for prefix in _CLASSIC)), None)


def _field(headers: Mapping[str, str], name: str) -> str | None:
    value: object = headers.get(name, headers.get(name.lower()))
    return value.strip() if isinstance(value, str) and len(value) <= _LONGEST else None


def _amount(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


# -------------------------------------------------------------------------------------------- structured fields


def _structured(headers: Mapping[str, str]) -> RateLimitState | None:
    text = _field(headers, "RateLimit")
    if text is None:
        return None
    if (state := _dictionary(text)) is not None:
        return state
    policies = dict(_items(_field(headers, "RateLimit-Policy") or ""))
    states = [_state(item, policies.get(name, {})) for name, item in _items(text)]
    return min((state for state in states if state is not None), key=_tightness, default=None)


def _tightness(state: RateLimitState) -> tuple[float, float]:
    return state.remaining, -state.reset_after


def _state(item: dict[str, str], policy: dict[str, str]) -> RateLimitState | None:
    remaining = _amount(item.get("r"))
    if remaining is None:
        return None
    limit, reset = _amount(policy.get("q")), _amount(item.get("t", policy.get("w")))
    return RateLimitState(math.inf if limit is None else limit, remaining, math.inf if reset is None else reset)


def _dictionary(text: str) -> RateLimitState | None:
    """Read draft 07: `limit=100, remaining=50, reset=30`."""
    members = dict(_pair(member) for member in _split(text, ","))
    remaining, limit, reset = (_amount(members.get(name)) for name in ("remaining", "limit", "reset"))
    if remaining is None:
        return None
    return RateLimitState(math.inf if limit is None else limit, remaining, math.inf if reset is None else reset)


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    """Read a list of `name;parameter=value;...` (RFC 9651, as far as it is used here)."""
    members = [parts for member in _split(text, ",") if (parts := _split(member, ";"))]
    return [(name.strip('"'), dict(_pair(part) for part in parameters)) for name, *parameters in members]


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _split(text: str, separator: str) -> list[str]:
    """Split at `separator` where it is not in double quotes; empty parts are left out."""
    parts = re.findall(rf'(?:[^{separator}"]|"(?:[^"\\]|\\.)*")+', text)
    return [part.strip() for part in parts if part.strip()]


# ----------------------------------------------------------------------------------------------- classic fields


def _classic(headers: Mapping[str, str], prefix: str, now: float) -> RateLimitState | None:
    remaining = _amount(_field(headers, prefix + "Remaining"))
    if remaining is None:
        return None
    limit = _first(_field(headers, prefix + "Limit"))
    return RateLimitState(
        math.inf if limit is None else limit, remaining, _reset(_field(headers, prefix + "Reset"), now)
    )


def _first(text: str | None) -> float | None:
    """Read `100`, and what drafts up to 05 write: `100, 100;w=60, 1000;w=3600`."""
    return None if text is None else _amount(re.split("[,;]", text, maxsplit=1)[0].strip())


def _reset(text: str | None, now: float) -> float:
    amount = _amount(text)
    moment = parse_http_date(text or "") if amount is None else _moment(amount)
    if moment is not None:
        return max(0.0, moment - now)
    return math.inf if amount is None else amount


def _moment(amount: float) -> float | None:
    """Return the moment that `amount` means, in seconds since 1970, or None: it is a duration."""
    return next((amount / unit for least, unit in _UNITS if amount >= least), None)
