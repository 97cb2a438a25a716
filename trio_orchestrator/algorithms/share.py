"""The share of calls to refuse while the other side accepts few of them."""

from __future__ import annotations


def refused_share(requests: int, accepts: int, k: float, most: float = 1.0) -> float:
    """Return `max(0, (requests - k * accepts) / (requests + 1))`, in [0, 1), or `most` if that is less.

    The rule of "Site Reliability Engineering" (2016), chapter 21: at most about `k` requests are let through for each
    one that is accepted. The `+ 1` lets some through even if none ever is.

    Args:
        requests: How many calls there were of late, the refused ones included.
        accepts: How many of them were accepted; <= `requests`.
        k: At least 1.
        most: The highest share, in [0, 1].
    """
    return min(most, max(0.0, (requests - k * accepts) / (requests + 1)))
