"""What passes by itself, for services that say so in their own way: AWS, Redis, sockets, HTTP.

Plain predicates, for the `on=` of a retry, a breaker or a limiter: `Retry(on=aws_transient)`. They look at one error
(of a group, the policies show them each leaf), import none of the libraries whose errors they know, and do not know
whether the call may be made twice.

`..._transient` is everything that may pass by itself; `..._throttled` is the part of it that says *you are too fast*:
what a limiter should slow down for, and what a retry should wait longer for.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final, cast

import trio

from trio_orchestrator.policies.failure import leaves
from trio_orchestrator.policies.http import TRANSIENT_STATUS, http_retry_after, http_transient

# ----------------------------------------------------------------------------------------------------------- AWS

AWS_THROTTLED: Final = frozenset(
    (
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    )
)
"""The error codes that botocore's standard retry mode calls throttling (`botocore/retries/standard.py`)."""

AWS_TRANSIENT: Final = frozenset(
    (
        "IDPCommunicationError",
        "RequestTimeout",
        "RequestTimeoutException",
    )
)
"""Those that it calls transient; the first is special to STS (`botocore/retries/special.py`)."""

_BOTOCORE_TRANSIENT: Final = ("ConnectionError", "HTTPClientError")


def aws_throttled(error: Exception) -> bool:
    """Tell whether AWS says that we are too fast: one of `AWS_THROTTLED`, or a status of 429.

    The code is read from `error.response["Error"]["Code"]` (botocore, aiobotocore), or else from `error.code` or
    `error.error_code`, without a namespace before `#` and a URI after `:`; the status from
    `error.response["ResponseMetadata"]["HTTPStatusCode"]`, or `error.response.status_code`.
    """
    return _aws_code(error) in AWS_THROTTLED or _aws_status(error) == 429


def aws_transient(error: Exception) -> bool:
    """Tell whether a call of AWS may succeed if it is repeated, as botocore's standard retry mode does.

    True for whatever `aws_throttled` covers, for `AWS_TRANSIENT`, for a status of 500, 502, 503 or 504, for botocore's
    `ConnectionError` and `HTTPClientError`, and for `http_transient` and `socket_transient` errors.
    """
    return (
        aws_throttled(error)
        or _aws_code(error) in AWS_TRANSIENT
        or _aws_status(error) in TRANSIENT_STATUS
        or _is_named(error, ("botocore.exceptions",), _BOTOCORE_TRANSIENT)
        or http_transient(error)
        or socket_transient(error)
    )


def _aws_code(error: Exception) -> str | None:
    for code in (_at(error, "Error", "Code"), getattr(error, "code", None), getattr(error, "error_code", None)):
        if isinstance(code, str):
            return code.rpartition("#")[2].partition(":")[0]
    return None


def _aws_status(error: Exception) -> object:
    status = _at(error, "ResponseMetadata", "HTTPStatusCode")
    return getattr(getattr(error, "response", None), "status_code", None) if status is None else status


def _at(error: Exception, *path: str) -> object:
    """Look into the nested dicts of `error.response`; None if they are none, or hold nothing hashable there."""
    found: object = getattr(error, "response", None)
    for key in path:
        found = cast("Mapping[str, object]", found).get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, (str, int)) else None


# --------------------------------------------------------------------------------------------------------- Redis

_REDIS: Final = ("redis.exceptions", "valkey.exceptions")

_REDIS_TRANSIENT: Final = (
    "ConnectionError",  # with BusyLoadingError (LOADING), MaxConnectionsError, and "max number of clients reached"
    "TimeoutError",
    "ClusterDownError",  # with MasterDownError (MASTERDOWN)
    "SlotNotCoveredError",
    "TryAgainError",  # keys of one command are on both sides of a resharding
    "ReadOnlyError",  # a failover: the address will lead to the new master
)
"""redis-py's own list for a cluster (`RedisCluster.ERRORS_ALLOW_RETRY`), and what passes with a failover."""

_REDIS_LASTING: Final = ("AuthenticationError", "AuthorizationError", "ExternalAuthProviderError")
"""Subclasses of `ConnectionError` that say nothing of the connection."""

_REDIS_REPLIES: Final = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN")
"""Error prefixes of the Redis protocol, where redis-py has no class for them, or a script wraps them."""


def redis_transient(error: Exception) -> bool:
    """Tell whether a Redis or Valkey command may succeed if it is repeated.

    True for redis-py's `ConnectionError` (so for `BusyLoadingError` and `MaxConnectionsError`), `TimeoutError`,
    `ClusterDownError`, `MasterDownError`, `SlotNotCoveredError`, `TryAgainError` and `ReadOnlyError`, for a
    `ResponseError` that begins with `BUSY`, `NOREPLICAS` or the name of one of these states, and for
    `socket_transient` errors. False for refused credentials, though redis-py calls them connection errors, and for
    every other reply: `MOVED` and `ASK` are for a cluster client to follow.
    """
    if _is_named(error, _REDIS, _REDIS_LASTING):
        return False
    if _is_named(error, _REDIS, ("ResponseError",)) and str(error).partition(" ")[0] in _REDIS_REPLIES:
        return True
    return _is_named(error, _REDIS, _REDIS_TRANSIENT) or socket_transient(error)


# ------------------------------------------------------------------------------------------------------- sockets

SOCKET_TRANSIENT: Final = frozenset(
    (
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ESHUTDOWN,
        errno.ETIMEDOUT,
    )
)
"""What the other side, or the way to it, does to a connection (POSIX.1-2017, `connect`, `send` and `recv`)."""


def socket_transient(error: Exception) -> bool:
    """Tell whether a connection may work if it is tried again.

    True for `ConnectionError`, `TimeoutError`, `trio.BrokenResourceError`, for an `OSError` with one of the numbers in
    `SOCKET_TRANSIENT`, for a name server that did not answer (`socket.gaierror` with `EAI_AGAIN`), and for the
    numberless `OSError` of `trio.open_tcp_stream` if every address failed in such a way. False for other `OSError`s
    (files, permissions, unknown names), `trio.ClosedResourceError` (our own side closed it) and `trio.TooSlowError` (a
    limit of yours).
    """
    if _broken(error):
        return True
    if not isinstance(error, OSError) or error.errno is not None or error.__cause__ is None:
        return False
    return all(map(_broken, leaves(error.__cause__)))  # the attempts of happy eyeballs: Trio keeps them there


def _broken(error: object) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, trio.BrokenResourceError)):
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return isinstance(error, OSError) and error.errno in SOCKET_TRANSIENT


# ---------------------------------------------------------------------------------------------------------- HTTP


def http_throttled(error: Exception) -> bool:
    """Tell whether an HTTP server says that we are too fast: 429, or 503 with a `Retry-After` that makes sense.

    The status is `error.response.status_code`.
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status == 429 or (status == 503 and http_retry_after(error) is not None)


# -------------------------------------------------------------------------------------------------- by their names


def _is_named(error: Exception, modules: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Tell whether `error` is an instance of one of the classes with these names, in modules that are loaded.

    If nobody has imported a library, the error is not one of its.
    """
    loaded: list[Any] = [sys.modules[module] for module in modules if module in sys.modules]
    classes = (getattr(module, name, None) for module in loaded for name in names)
    return isinstance(error, tuple(found for found in classes if isinstance(found, type)))
