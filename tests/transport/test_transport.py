"""What becomes of a request, on a scripted line and a virtual clock."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio

from tests.policies.service import Ear, notes
from tests.transport.line import URL, Answer, Bare, Copies, Jury, Line, Nest, T, Ts, client, every_second
from trio_orchestrator.abc import Policy
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.event import GaveUp, RetryScheduled
from trio_orchestrator.policies.failure import is_exhausted
from trio_orchestrator.policies.http import http_transient
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, SUCCESS, Judge
from trio_orchestrator.testing import run_virtual

REQUEST = httpx.Request("GET", URL)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return run_virtual(main)


# ----------------------------------------------------------------------------------------------------- repeating


def test_a_response_that_may_pass_is_repeated_and_the_good_one_comes_out() -> None:
    line = Line(503, 429, 200, seconds=0.5)

    async def main() -> None:
        response = await client(line).get(URL)
        assert (response.status_code, response.text) == (200, "body of 200")
        assert trio.current_time() == 3.5

    run(main)
    assert line.starts == [0, 1.5, 3]
    assert line.open == []


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 404, 409, 501, 505])
def test_what_does_not_pass_is_not_repeated(status: int) -> None:
    line = Line(status, 200)
    assert run(lambda: client(line).get(URL)).status_code == status
    assert line.starts == [0]
    assert line.open == []


def test_the_statuses_are_a_matter_of_choice() -> None:
    line = Line(404, 503)
    assert run(lambda: client(line, Retry(on=httpx.HTTPStatusError), status=[404]).get(URL)).status_code == 503
    assert len(line.starts) == 2


def test_aiohttp_retry_52_when_it_is_in_vain_the_last_response_comes_out() -> None:
    """No exception, and not the first one; with its body and its headers."""
    line = Line(500, 502, 504, Answer(503, b"out of ", b"order", X_Reason="maintenance"))

    async def main() -> None:
        response = await client(line).get(URL)
        assert (response.status_code, response.text) == (503, "out of order")
        assert response.headers["X-Reason"] == "maintenance"
        assert response.request.url == URL
        assert response.is_closed
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            response.raise_for_status()

    run(main)
    assert line.starts == [0, 1, 2, 3]
    assert line.open == []


def test_its_body_may_be_compressed_and_streamed_as_it_came() -> None:
    packed = gzip.compress(b"out of order")
    line = Line(Answer(503, packed[:9], packed[9:], Content_Encoding="gzip"))

    async def main() -> None:
        async with client(line) as http:
            assert (await http.get(URL)).text == "out of order"
            async with http.stream("GET", URL) as response:
                assert b"".join([part async for part in response.aiter_raw()]) == packed
            async with http.stream("GET", URL) as response:
                assert b"".join([part async for part in response.aiter_bytes()]) == b"out of order"

    run(main)
    assert line.open == []


def test_a_body_that_cannot_be_unpacked_is_not_our_problem() -> None:
    line = Line(Answer(503, b"no gzip at all", Content_Encoding="gzip"), 200)
    assert run(lambda: client(line).get(URL)).status_code == 200


def test_kiota_python_564_a_response_is_closed_before_the_pause() -> None:
    """It kept its connection for good, and a small pool was soon empty."""
    line = Line(503, 200)
    open_in_the_pause: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client(line).get, URL)
            await trio.sleep(0.5)
            open_in_the_pause.append(len(line.open))

    run(main)
    assert open_in_the_pause == [0]
    assert line.starts == [0, 1]


def test_urllib3_future_346_a_hook_can_read_the_body_of_the_refusal() -> None:
    """How long to wait is sometimes only in the body, which was gone by then."""

    def from_the_body(failure: Any) -> float | None:
        return float(failure.response.read()) if isinstance(failure, httpx.HTTPStatusError) else None

    line = Line(Answer(503, b"2", b".5"), Answer(503, b"7"), 200)
    assert run(lambda: client(line, every_second(retry_after=from_the_body)).get(URL)).status_code == 200
    assert line.starts == [0, 2.5, 9.5]


def test_a_body_that_a_hook_has_read_is_still_there_for_the_client() -> None:
    line = Line(Answer(503, b"out of order"))

    async def main() -> None:
        retry = every_second(retry_after=lambda failure: len(failure.response.read()) and None)
        async with client(line, retry) as http, http.stream("GET", URL) as response:
            assert b"".join([part async for part in response.aiter_raw()]) == b"out of order"

    run(main)


def test_madsci_280_retry_after_is_honoured() -> None:
    date: dict[str, Any] = {"Date": "Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2015 07:28:09 GMT"}
    line = Line(Answer(429, Retry_After="5"), Answer(503, Retry_After="0"), Answer(503, **date), 200)
    assert run(lambda: client(line).get(URL)).status_code == 200
    assert line.starts == [0, 5, 6, 15]


def test_the_body_of_a_success_streams() -> None:
    line = Line(Answer(200, b"a", b"b", b"c", body_seconds=1))

    async def main() -> None:
        async with client(line) as http, http.stream("GET", URL) as response:
            assert trio.current_time() == 0
            assert [body.read for body in line.open] == [0]
            parts = [(part, trio.current_time()) async for part in response.aiter_bytes()]
            assert parts == [(b"a", 1), (b"b", 2), (b"c", 3)]
        assert line.open == []

    run(main)
    assert line.starts == [0]


def test_httpx_retries_29_what_goes_wrong_in_the_body_is_the_readers() -> None:
    """The policy ends when the headers are there; nothing is repeated behind the back of the one who reads."""
    line = Line(Answer(200, b"a", b"b", body_seconds=2), 200)

    async def main() -> None:
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(3):
                await client(line, Nest(Timeout(1), every_second())).get(URL)
        assert trio.current_time() == 3

    run(main)
    assert line.starts == [0]
    assert line.open == []


def test_a_redirect_is_another_call() -> None:
    line = Line(503, Answer(302, Location="/there"), 503, 200)
    jury = Jury(Judge(http_transient))

    async def main() -> None:
        response = await client(line, Nest(every_second(), jury)).get(URL, follow_redirects=True)
        assert (response.status_code, str(response.url)) == (200, f"{URL}there")

    run(main)
    assert line.starts == [0, 1, 1, 2]
    assert jury.verdicts == [FAILURE, SUCCESS, FAILURE, SUCCESS]


# -------------------------------------------------------------------------------------------- what comes out bare


@pytest.mark.parametrize("error", [httpx.ReadError("cut"), httpx.ConnectTimeout("slow"), OSError("x")], ids=repr)
def test_transport_errors_come_out_bare(error: Exception) -> None:
    line = Line(error)
    context = error.__context__ = ValueError()

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await client(line).get(URL)
        assert caught.value is error
        assert error.__context__ is context

    run(main)
    passes = isinstance(error, httpx.TransportError)
    assert len(line.starts) == (4 if passes else 1)
    assert is_exhausted(error) is passes
    assert notes(error) == (["gave up after 4 attempts in 3 s: attempts"] if passes else [])


class Closed(Policy):
    """A policy that refuses everything."""

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        raise RejectedError("closed", retry_after=3)


def test_a_refusal_comes_out_bare_and_is_a_checkpoint() -> None:
    line = Line(200)

    async def main() -> None:
        http = client(line, Closed())
        with pytest.raises(RejectedError, match="closed") as caught:
            await http.get(URL)
        assert caught.value.retry_after == 3
        with trio.CancelScope() as scope:
            scope.cancel()
            await http.get(URL)
        assert scope.cancelled_caught

    run(main)
    assert line.starts == []


def test_a_time_limit_of_the_policy_comes_out_as_too_slow() -> None:
    line = Line(200, seconds=5)

    async def main() -> None:
        with pytest.raises(trio.TooSlowError, match="timeout=2 s"):
            await client(line, Timeout(2)).get(URL)
        assert trio.current_time() == 2

    run(main)


def test_the_failure_of_another_request_is_not_taken_for_a_response() -> None:
    """A policy that raises what it once caught (a breaker's cause, a cache) raises, as far as we are concerned."""
    kept: list[Exception] = []

    class Keeper(Policy):
        async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
            if kept:
                raise kept[0]
            try:
                return await fn(*args)
            except Exception as error:
                kept.append(error)
                raise

    async def main() -> None:
        http = client(Line(503), Keeper())
        assert (await http.get(URL)).status_code == 503
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await http.get(URL)
        assert caught.value is kept[0]

    run(main)


# ------------------------------------------------------------------------------------------- one retry is enough


def test_a_retry_around_the_client_does_not_multiply_the_attempts() -> None:
    """Two layers of four attempts would be sixteen."""
    line = Line(503)

    async def main() -> None:
        http = client(line)

        async def fetch() -> httpx.Response:
            return (await http.get(URL)).raise_for_status()

        with pytest.raises(httpx.HTTPStatusError) as caught:
            await every_second().call(fetch)
        assert is_exhausted(caught.value)

    run(main)
    assert len(line.starts) == 4


@pytest.mark.parametrize("policy", [Bare(), Jury(Judge(http_transient)), Retry(on=OSError)], ids=type)
def test_without_a_retry_that_gave_up_the_one_around_the_client_repeats(policy: Any) -> None:
    line = Line(503)

    async def main() -> None:
        http = client(line, policy)

        async def fetch() -> httpx.Response:
            return (await http.get(URL)).raise_for_status()

        with pytest.raises(httpx.HTTPStatusError):
            await every_second().call(fetch)

    run(main)
    assert line.starts == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------- in use by all


def test_events_name_the_method_and_the_host_but_not_the_secrets() -> None:
    ear = Ear()
    line = Line(503)
    run(lambda: client(line, every_second(instruments=[ear], attempts=2)).get("http://user:pass@example.org/?key=k"))
    assert [(type(event), event.name) for event in ear.heard] == [
        (RetryScheduled, "GET example.org"),
        (GaveUp, "GET example.org"),
    ]


def test_a_hundred_requests_at_once_do_not_mix() -> None:
    line = Line(*[503] * 100, *[429] * 100, *[200] * 100, seconds=0.5)
    statuses: list[int] = []

    async def main() -> None:
        async with client(line) as http, trio.open_nursery() as nursery:

            async def get(number: int) -> None:
                response = await http.put(URL, content=str(number).encode())
                statuses.append(response.status_code)

            for number in range(100):
                nursery.start_soon(get, number)
        assert trio.current_time() == 3.5

    run(main)
    assert statuses == [200] * 100
    assert line.starts == [0] * 100 + [1.5] * 100 + [3] * 100
    assert sorted(line.received) == sorted(3 * [str(number).encode() for number in range(100)])
    assert line.open == []


def test_refused_results_are_closed_when_the_call_ends() -> None:
    line = Line(404, 404, 200)

    async def main() -> None:
        retry = every_second(on_result=lambda response: response.status_code == 404)
        async with client(line, retry) as http, http.stream("GET", URL) as response:
            assert response.status_code == 200
            assert len(line.open) == 1

    run(main)
    assert line.starts == [0, 1, 2]
    assert line.open == []


def test_the_losers_of_a_hedge_are_closed_though_they_answered() -> None:
    line = Line(200, seconds=1)

    async def main() -> None:
        async with client(line, Copies(5)) as http, http.stream("GET", URL) as response:
            assert len(line.open) == 1
            assert await response.aread() == b"body of 200"

    run(main)
    assert line.starts == [0] * 5
    assert line.open == []


def test_the_verdicts_are_those_of_the_service() -> None:
    jury = Jury(Judge(http_transient))
    line = Line(503, httpx.ReadError(""), 404, seconds=1)

    async def main() -> None:
        http = client(line, Nest(every_second(), jury))
        assert (await http.get(URL)).status_code == 404
        with trio.move_on_after(0.5):
            await http.get(URL)

    run(main)
    assert jury.verdicts == [FAILURE, FAILURE, SUCCESS, NEUTRAL]
