"""What may not be sent twice is not, whatever the policy does; and its failure is a failure all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

from tests.policies.service import Ear
from tests.transport.line import URL, Answer, Copies, Jury, Line, Nest, client, every_second
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.event import GaveUp, RetryScheduled
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.failure import is_exhausted
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.http import http_transient
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policies.verdict import FAILURE, SUCCESS, Judge
from trio_orchestrator.testing import run_virtual

KEY = {"Idempotency-Key": "8e03978e"}


async def parts() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


def sent(line: Line, policy: Policy | None = None, method: str = "POST", **arguments: Any) -> Any:
    """Return the status, or the exception, of one request."""

    async def main() -> int | Exception:
        try:
            return (await client(line, policy).request(method, URL, **arguments)).status_code
        except Exception as error:
            return error

    return run_virtual(main)


# ------------------------------------------------------------------------------------------------ which are they


@pytest.mark.parametrize("method", ["POST", "PATCH", "CONNECT", "PURGE"])
def test_aioduct_79_a_method_that_is_not_idempotent_is_sent_once(method: str) -> None:
    line = Line(503, 200)
    assert sent(line, method=method) == 503
    assert line.starts == [0]
    assert line.open == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
def test_an_idempotent_method_is_repeated(method: str) -> None:
    line = Line(503, 200)
    assert sent(line, method=method) == 200
    assert line.starts == [0, 1]


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "X-Idempotency-Key"])
def test_a_key_makes_every_method_idempotent(name: str) -> None:
    line = Line(503, httpx.ReadError(""), 200)
    assert sent(line, content=b"body", headers={name: "8e03978e"}) == 200
    assert line.received == [b"body"] * 3


def test_the_methods_are_a_matter_of_choice() -> None:
    async def main() -> None:
        http = client(line, retry_methods=["post"])
        assert (await http.post(URL)).status_code == 200
        assert (await http.get(URL)).status_code == 503

    line = Line(503, 200, 503, 200)
    run_virtual(main)
    assert line.starts == [0, 1, 1]


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_got_1382_a_body_that_is_a_stream_is_sent_once(method: str) -> None:
    """The second request had none."""
    line = Line(503, 200)
    assert sent(line, method=method, content=parts(), headers=KEY) == 503
    assert line.received == [b"onetwo"]


def test_aioduct_162_nor_is_an_empty_body_sent_in_its_place_after_a_broken_connection() -> None:
    line = Line(httpx.ReadError("cut"), 200)
    assert isinstance(sent(line, method="PUT", content=parts()), httpx.ReadError)
    assert line.received == [b"onetwo"]


def test_a_form_with_files_is_sent_once() -> None:
    line = Line(503, 200)
    assert sent(line, method="PUT", files={"file": b"content"}) == 503


def test_a_stream_that_was_read_beforehand_is_repeated() -> None:
    line = Line(503, 200)

    async def main() -> None:
        request = httpx.Request("PUT", URL, content=parts())
        await request.aread()
        assert (await client(line).send(request)).status_code == 200

    run_virtual(main)
    assert line.received == [b"onetwo"] * 2


# ------------------------------------------------------------------------------------------------- how they fail


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_panoramicdata_odata_43_a_post_is_not_repeated_because_a_proxy_stopped_waiting(status: int) -> None:
    """One POST that starts two minutes of work was six."""
    line = Line(Answer(status, b"sorry", Retry_After="1"), 200)

    async def main() -> None:
        response = await client(line).post(URL)
        assert (response.status_code, response.text) == (status, "sorry")
        assert trio.current_time() == 0

    run_virtual(main)
    assert line.starts == [0]
    assert line.open == []


def test_the_response_of_what_is_sent_once_streams_though_it_is_a_failure() -> None:
    line = Line(Answer(503, b"a", b"b", body_seconds=1))

    async def main() -> None:
        async with client(line) as http, http.stream("POST", URL) as response:
            assert trio.current_time() == 0
            assert [part async for part in response.aiter_bytes()] == [b"a", b"b"]

    run_virtual(main)
    assert line.open == []


@pytest.mark.parametrize("kind", [httpx.ReadTimeout, httpx.WriteError, httpx.RemoteProtocolError])
def test_a_broken_connection_ends_it_bare_and_without_a_mark(kind: type[httpx.TransportError]) -> None:
    error = kind("")
    line = Line(error, 200)
    assert sent(line) is error
    assert line.starts == [0]
    assert not is_exhausted(error)
    assert vars(error).keys() <= {"_request"}


@pytest.mark.parametrize("error", [httpx.ConnectError(""), httpx.ConnectTimeout(""), httpx.PoolTimeout("")], ids=repr)
def test_what_found_no_connection_was_not_sent(error: Exception) -> None:
    line = Line(error, error, 503, 200)
    assert sent(line) == 503
    assert line.starts == [0, 1, 2]
    in_vain = Line(error)
    assert sent(in_vain) is error
    assert len(in_vain.starts) == 4
    assert is_exhausted(error)


@pytest.mark.parametrize("outcome", [503, httpx.ReadError("")], ids=repr)
def test_a_retry_around_the_client_may_repeat_it(outcome: Any) -> None:
    """Who writes that retry knows what it repeats; ours only does not do so by itself."""
    line = Line(outcome, outcome, 200)

    async def main() -> None:
        http = client(line)

        async def push() -> httpx.Response:
            return (await http.post(URL)).raise_for_status()

        assert (await every_second().call(push)).status_code == 200

    run_virtual(main)
    assert line.starts == [0, 1, 2]


@pytest.mark.parametrize("outcome", [503, httpx.ReadError("")], ids=repr)
def test_its_failure_counts_for_a_breaker(outcome: Any) -> None:
    jury = Jury(Judge(http_transient))
    sent(Line(outcome), Nest(every_second(), jury))
    sent(Line(404), Nest(every_second(), jury))
    assert jury.verdicts == [FAILURE, SUCCESS]


# ---------------------------------------------------------------------------------------- policies that try hard


def everything(error: Exception) -> bool:
    return True


def test_a_retry_that_repeats_what_another_gave_up_does_not_send_it_twice() -> None:
    error = httpx.ReadError("")
    for outcome in (503, error):
        ear, line = Ear(), Line(outcome, 200)
        retry = Retry(on=everything, retry_exhausted=True, backoff=Constant(1), instruments=[ear])
        assert sent(line, retry) == outcome
        assert line.starts == [0]
        assert [type(event) for event in ear.heard] == [RetryScheduled, GaveUp]  # one pause in vain, and no more


def test_our_own_hedge_and_breaker() -> None:
    line = Line(503, seconds=1)
    breaker = CircuitBreaker(trip=Consecutive(3), on=http_transient)

    async def main() -> None:
        http = client(line, Nest(Hedge(after=0.3), breaker))
        for number in range(3):
            assert (await http.post(URL)).status_code == 503
            assert len(line.starts) == number + 1
        with pytest.raises(CircuitOpenError):
            await http.post(URL)
        assert len(line.starts) == 3

    run_virtual(main)
    assert line.open == []


@pytest.mark.parametrize(
    "policy",
    [every_second(attempt_timeout=2), Nest(Retry(on=everything, backoff=Constant(1)), Timeout(2))],
    ids=["attempt_timeout", "Timeout"],
)
def test_an_attempt_that_took_too_long_is_not_sent_again(policy: Policy) -> None:
    line = Line(200, seconds=10)
    error = sent(line, policy)
    assert isinstance(error, trio.TooSlowError)
    assert line.starts == [0]


def test_and_is_one_failure_for_a_breaker() -> None:
    jury = Jury(Judge(http_transient))
    assert isinstance(sent(Line(200, seconds=10), Nest(every_second(attempt_timeout=2), jury)), trio.TooSlowError)
    assert [verdict.value for verdict in jury.verdicts] == ["failure", "neutral"]


@pytest.mark.parametrize("apart", [0, 0.5, 1, 3])
@pytest.mark.parametrize("outcome", [200, 503], ids=repr)
def test_a_hedge_does_not_send_it_twice_and_does_not_spoil_it(outcome: int, apart: float) -> None:
    line = Line(outcome, 418, seconds=1)
    assert sent(line, Copies(3, apart)) == outcome
    assert line.starts == [0]
    assert line.open == []


def test_a_copy_sends_it_if_the_first_found_no_connection() -> None:
    line = Line(httpx.ConnectError(""), 200, seconds=1)
    assert sent(line, Copies(3)) == 200
    assert line.starts == [0, 1]
