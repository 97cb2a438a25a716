from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
import trio

from trio_orchestrator.policies.http import HttpRetryAfter, http_retry_after, http_transient

REQUEST = httpx.Request("GET", "https://example.org")


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(status, headers=sent))


@pytest.mark.parametrize("status", range(400, 600))
def test_five_statuses_pass_by_themselves(status: int) -> None:
    assert http_transient(answered(status)) is (status in {429, 500, 502, 503, 504})


def test_transport_errors_pass_but_our_own_mistakes_do_not() -> None:
    for kind in (httpx.ConnectError, httpx.ReadTimeout, httpx.PoolTimeout, httpx.RemoteProtocolError, httpx.ProxyError):
        assert http_transient(kind("", request=REQUEST))
    for mistake in (httpx.UnsupportedProtocol, httpx.LocalProtocolError):
        assert not http_transient(mistake("", request=REQUEST))
    assert not http_transient(httpx.DecodingError("", request=REQUEST))
    assert not http_transient(httpx.TooManyRedirects("", request=REQUEST))


def test_broken_connections_pass_and_other_errors_do_not() -> None:
    assert http_transient(ConnectionResetError())
    assert http_transient(trio.BrokenResourceError())
    assert not http_transient(ValueError())
    assert not http_transient(OSError())
    assert not http_transient(trio.ClosedResourceError())


def test_the_errors_of_other_libraries_are_read_by_their_status() -> None:
    class HTTPError(Exception):
        def __init__(self, response: object) -> None:
            self.response = response

    assert http_transient(HTTPError(SimpleNamespace(status_code=503)))
    assert not http_transient(HTTPError(SimpleNamespace(status_code=404)))
    assert not http_transient(HTTPError(None))


def test_no_http_library_is_imported() -> None:
    code = (
        "import sys; from trio_orchestrator.policies.http import http_transient, http_retry_after\n"
        "assert not http_transient(ValueError()) and http_retry_after(ValueError()) is None\n"
        "assert not {'httpx', 'requests', 'aiohttp'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
LATER = "Wed, 21 Oct 2015 07:29:30 GMT"


def wall() -> float:
    return 1_445_412_480.0 + 60


def test_seconds_are_read_from_an_error_and_from_a_response() -> None:
    error = answered(503, Retry_After="120")
    assert http_retry_after(error) == 120
    assert http_retry_after(error.response) == 120
    assert http_retry_after(answered(429, Retry_After="0")) == 0


def test_a_date_is_measured_against_the_responses_own_date() -> None:
    assert HttpRetryAfter(wall)(answered(503, Retry_After=LATER, Date=DATE)) == 90
    assert HttpRetryAfter(wall)(answered(503, Retry_After=DATE, Date=LATER)) == 0


def test_a_date_without_a_date_is_measured_against_the_wall_clock() -> None:
    assert HttpRetryAfter(wall)(answered(503, Retry_After=LATER)) == 30
    assert HttpRetryAfter(wall)(answered(503, Retry_After=LATER, Date="nonsense")) == 30


def test_a_header_is_found_in_a_plain_dict_too() -> None:
    assert http_retry_after(SimpleNamespace(headers={"retry-after": "3"})) == 3
    assert http_retry_after(SimpleNamespace(headers={"Retry-After": "3"})) == 3


@pytest.mark.parametrize(
    "failure",
    [
        ValueError(),
        None,
        "text",
        answered(503),
        answered(503, Retry_After="soon"),
        SimpleNamespace(headers=None),
        SimpleNamespace(headers={"Retry-After": 3}),
        SimpleNamespace(response=None),
    ],
    ids=repr,
)
def test_no_header_or_nonsense_is_no_wish(failure: object) -> None:
    assert http_retry_after(failure) is None


def test_wall_must_be_a_plain_function() -> None:
    with pytest.raises(TypeError) as caught:
        HttpRetryAfter(3.0)  # type: ignore[arg-type]
    assert str(caught.value) == "wall must be a plain function, got 3.0"
