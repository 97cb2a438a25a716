from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import httpx
import pytest
import redis.exceptions
import trio

from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.throttling import (
    AWS_THROTTLED,
    AWS_TRANSIENT,
    SOCKET_TRANSIENT,
    aws_throttled,
    aws_transient,
    http_throttled,
    redis_transient,
    socket_transient,
)
from trio_orchestrator.policies.verdict import FAILURE, SUCCESS, Judge
from trio_orchestrator.testing import run_virtual

REQUEST = httpx.Request("GET", "https://example.org")


class ClientError(Exception):
    """The shape of botocore's."""

    def __init__(self, code: object, status: int = 400) -> None:
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class Coded(Exception):
    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(status, headers=sent))


# ----------------------------------------------------------------------------------------------------------- AWS


@pytest.mark.parametrize("code", sorted(AWS_THROTTLED))
def test_what_aws_throttles(code: str) -> None:
    for error in (ClientError(code), Coded(code=code), Coded(error_code=code)):
        assert aws_throttled(error)
        assert aws_transient(error)


@pytest.mark.parametrize("code", sorted(AWS_TRANSIENT))
def test_what_passes_at_aws_without_being_a_throttle(code: str) -> None:
    assert aws_transient(ClientError(code))
    assert not aws_throttled(ClientError(code))


@pytest.mark.parametrize(
    "code", ["AccessDenied", "ValidationException", "ConditionalCheckFailedException", "NoSuchKey", "", None, 503, []]
)
def test_what_does_not_pass_at_aws(code: object) -> None:
    for error in (ClientError(code), Coded(code=code), Coded(error_code=code)):
        assert not aws_throttled(error)
        assert not aws_transient(error)


def test_a_code_is_read_without_its_namespace_and_its_uri() -> None:
    assert aws_throttled(Coded(code="com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"))
    assert aws_throttled(Coded(code="ThrottlingException:http://internal.amazon.com/coral/"))
    assert not aws_throttled(Coded(code="#Throttling#"))


@pytest.mark.parametrize("status", range(400, 600))
def test_the_status_decides_where_the_code_does_not(status: int) -> None:
    for error in (ClientError("InternalError", status), answered(status)):
        assert aws_throttled(error) is (status == 429)
        assert aws_transient(error) is (status in {429, 500, 502, 503, 504})


@pytest.mark.parametrize(
    "response", [None, {}, [], "text", {"Error": None}, {"Error": "text"}, {"Error": {}}, {"ResponseMetadata": 3}]
)
def test_a_response_of_another_shape_says_nothing(response: object) -> None:
    assert not aws_throttled(Coded(response=response))
    assert not aws_transient(Coded(response=response))


def test_transport_errors_pass_at_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    botocore = ModuleType("botocore.exceptions")
    kinds = [type(name, (Exception,), {}) for name in ("ConnectionError", "HTTPClientError", "ParamValidationError")]
    for kind in kinds:
        setattr(botocore, kind.__name__, kind)
    assert [aws_transient(kind()) for kind in kinds] == [False, False, False]  # they are nobody's
    monkeypatch.setitem(sys.modules, "botocore.exceptions", botocore)
    assert [aws_transient(kind()) for kind in kinds] == [True, True, False]
    assert [aws_throttled(kind()) for kind in kinds] == [False, False, False]
    assert aws_transient(httpx.ReadTimeout("", request=REQUEST))
    assert aws_transient(OSError(errno.ENETUNREACH, ""))


# --------------------------------------------------------------------------------------------------------- Redis


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ConnectionError("closed by server"),
        redis.exceptions.TimeoutError("timeout reading"),
        redis.exceptions.BusyLoadingError("loading the dataset in memory"),
        redis.exceptions.MaxConnectionsError("too many"),
        redis.exceptions.TryAgainError("multiple keys request during rehashing"),
        redis.exceptions.ClusterDownError("the cluster is down"),
        redis.exceptions.MasterDownError("link with master is down"),
        redis.exceptions.SlotNotCoveredError("slot 3"),
        redis.exceptions.ReadOnlyError("you can't write against a read only replica"),
        redis.exceptions.ResponseError("BUSY Redis is busy running a script"),
        redis.exceptions.ResponseError("NOREPLICAS not enough good replicas to write"),
        redis.exceptions.ResponseError("LOADING from inside a script"),
        ConnectionResetError(),
        trio.BrokenResourceError(),
    ],
    ids=repr,
)
def test_what_passes_at_redis(error: Exception) -> None:
    assert redis_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.AuthenticationError("invalid password"),
        redis.exceptions.AuthorizationError("no"),
        redis.exceptions.ExternalAuthProviderError("no"),
        redis.exceptions.NoPermissionError("no"),
        redis.exceptions.ResponseError("WRONGTYPE operation against a key"),
        redis.exceptions.ResponseError("BUSYGROUP consumer group name already exists"),
        redis.exceptions.ResponseError("BUSYKEY target key name already exists"),
        redis.exceptions.ResponseError(""),
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'"),
        redis.exceptions.MovedError("3999 127.0.0.1:6381"),
        redis.exceptions.AskError("3999 127.0.0.1:6381"),
        redis.exceptions.NoScriptError("no matching script"),
        redis.exceptions.WatchError("changed"),
        redis.exceptions.LockError("lost"),
        redis.exceptions.DataError("no"),
        ValueError("BUSY"),
        trio.TooSlowError(),
    ],
    ids=repr,
)
def test_what_does_not_pass_at_redis(error: Exception) -> None:
    assert not redis_transient(error)


def test_the_errors_of_valkey_are_known_by_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = ModuleType("valkey.exceptions")
    broken = type("ConnectionError", (Exception,), {})
    vars(valkey)["ConnectionError"] = broken
    assert not redis_transient(broken())
    monkeypatch.setitem(sys.modules, "valkey.exceptions", valkey)
    assert redis_transient(broken())


# ------------------------------------------------------------------------------------------------------- sockets


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_the_numbers_of_a_broken_connection(number: int) -> None:
    assert socket_transient(OSError(number, os.strerror(number))) is (number in SOCKET_TRANSIENT)


def test_the_exceptions_of_a_broken_connection() -> None:
    for error in (ConnectionAbortedError(), BrokenPipeError(), TimeoutError(), trio.BrokenResourceError()):
        assert socket_transient(error)
    assert socket_transient(socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution"))


@pytest.mark.parametrize(
    "error",
    [
        OSError("no number"),
        OSError(errno.ENOENT, "no such file"),
        PermissionError(errno.EACCES, "no"),
        socket.gaierror(socket.EAI_NONAME, "name or service not known"),
        trio.ClosedResourceError(),
        trio.TooSlowError(),
        ValueError(),
    ],
    ids=repr,
)
def test_what_is_no_broken_connection(error: Exception) -> None:
    assert not socket_transient(error)


def out_of_eyeballs(*attempts: Exception) -> OSError:
    error = OSError("all attempts to connect to example.org:80 failed")
    error.__cause__ = ExceptionGroup("", attempts)
    return error


def test_a_connection_that_failed_at_every_address_passes_if_every_failure_does() -> None:
    refused, missing = ConnectionRefusedError(errno.ECONNREFUSED, ""), OSError(errno.EADDRNOTAVAIL, "")
    assert socket_transient(out_of_eyeballs(refused, OSError(errno.ENETUNREACH, "")))
    assert not socket_transient(out_of_eyeballs(refused, missing))
    reset = ConnectionResetError("closed by the other side")
    reset.__cause__ = ValueError()
    assert socket_transient(reset)
    circle = OSError("all attempts failed")
    circle.__cause__ = circle
    assert not socket_transient(circle)
    circle.__cause__ = ExceptionGroup("", [circle])
    assert not socket_transient(circle)


async def test_trios_own_refused_connection_passes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        with pytest.raises(OSError) as caught:
            await trio.open_tcp_stream("127.0.0.1", taken.getsockname()[1])
    assert type(caught.value) is OSError
    assert caught.value.errno is None
    assert socket_transient(caught.value)


# ---------------------------------------------------------------------------------------------------------- HTTP


@pytest.mark.parametrize("status", range(400, 600))
def test_only_two_statuses_say_too_fast(status: int) -> None:
    assert http_throttled(answered(status)) is (status == 429)
    assert http_throttled(answered(status, Retry_After="3")) is (status in {429, 503})
    assert http_throttled(answered(status, Retry_After="soon")) is (status == 429)


def test_what_is_no_response_says_nothing_of_speed() -> None:
    for error in (ValueError(), Coded(response=None), Coded(response=SimpleNamespace(status_code="429"))):
        assert not http_throttled(error)


# --------------------------------------------------------------------------------------------------------- in use


@pytest.mark.parametrize(
    ("on", "passes", "stays"),
    [
        (aws_transient, ClientError("SlowDown"), ClientError("AccessDenied")),
        (aws_throttled, ClientError("Throttling"), ClientError("RequestTimeout")),
        (redis_transient, redis.exceptions.ConnectionError(), redis.exceptions.AuthenticationError()),
        (socket_transient, ConnectionResetError(), FileNotFoundError(errno.ENOENT, "")),
        (http_throttled, answered(429), answered(500)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_policy_takes_them_for_on_and_shows_them_the_leaves_of_a_group(
    on: object, passes: Exception, stays: Exception
) -> None:
    calls: list[Exception] = []

    async def fail(error: Exception) -> None:
        calls.append(error)
        raise error

    async def main() -> None:
        retry = Retry(on=on, attempts=2, backoff=Constant(1))  # type: ignore[arg-type]
        for error in (passes, ExceptionGroup("", [passes, passes]), stays, ExceptionGroup("", [passes, stays])):
            with pytest.raises(type(error)):
                await retry.call(fail, error)

    run_virtual(main)
    assert len(calls) == 2 + 2 + 1 + 1
    assert calls[0] is calls[1] is passes
    judge = Judge(on)  # type: ignore[arg-type]
    assert [judge.of_error(error) for error in (passes, stays)] == [FAILURE, SUCCESS]


def test_no_library_is_imported() -> None:
    code = (
        "import sys\n"
        "from trio_orchestrator.policies import throttling as t\n"
        "for tell in (t.aws_throttled, t.aws_transient, t.redis_transient, t.socket_transient, t.http_throttled):\n"
        "    assert not tell(ValueError())\n"
        "assert not {'httpx', 'redis', 'botocore', 'valkey'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
