"""Read a `Retry-After` header (RFC 9110, 10.2.3): seconds, or the HTTP date of the moment; and that of AWS."""

from __future__ import annotations

import math
import re
from email.utils import mktime_tz, parsedate_tz

_SECONDS = re.compile(r"\d+(\.\d+)?", re.ASCII)
_MILLISECONDS = re.compile(r"\d+", re.ASCII)
_LIMITS = ((1, 9999), (1, 12), (1, 31), (0, 23), (0, 59), (0, 60))
AWS_STRETCH = 5.0
"""How many seconds `x-amz-retry-after` may add to a pause."""


def parse_retry_after(text: str, now: float) -> float | None:
    """Return how many seconds from `now` on the header `text` asks to wait, or None if it makes no sense.

    0, and a date that has passed, mean "at once" and give 0.0. Negative numbers, infinite ones and anything that is
    neither are nonsense. Decimals are accepted, though the RFC knows only whole seconds.

    Args:
        text: The value of the header.
        now: The present wall-clock time of whoever wrote the header, in seconds since 1970.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
        return seconds if seconds < math.inf else None
    moment = parse_http_date(text)
    return None if moment is None else max(0.0, moment - now)


def parse_http_date(text: str) -> float | None:
    """Return an HTTP date, in any of its three forms, in seconds since 1970; None if it is none."""
    parts = parsedate_tz(text)
    if parts is None or not all(low <= part <= high for (low, high), part in zip(_LIMITS, parts[:6], strict=True)):
        return None
    return float(mktime_tz(parts))  # without a zone it is taken for GMT, which is what HTTP means


def aws_retry_after(text: str, backoff: float) -> float:
    """Return the pause when the header `x-amz-retry-after` has this text: `max(t, min(r, t + 5))`, in seconds.

    The rule of the AWS SDKs' retry mode of 2026 (`AWS_NEW_RETRIES_2026`): the service may lengthen a pause by 5 s at
    most, and cannot shorten it. What is no whole number of milliseconds >= 0 changes nothing.

    Args:
        text: The value of the header, `r`, in milliseconds.
        backoff: The pause that was drawn, `t`, in seconds.
    """
    text = text.strip()
    if not _MILLISECONDS.fullmatch(text):
        return backoff
    return max(backoff, min(float(text) / 1000, backoff + AWS_STRETCH))
