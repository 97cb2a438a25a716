"""A failed response is received before it is repeated, up to a length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import httpx
import pytest
import trio

from tests.policies.service import notes
from tests.transport.line import URL, Answer, Jury, Line, Nest, client, every_second
from trio_orchestrator.policies.http import http_transient
from trio_orchestrator.policies.verdict import FAILURE, Judge
from trio_orchestrator.testing import run_virtual


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return run_virtual(main)


@pytest.mark.parametrize("told", [False, True], ids=["length unknown", "length told"])
def test_a_failure_with_a_long_body_is_not_repeated_and_streams(told: bool) -> None:
    length: dict[str, Any] = {"Content-Length": "12"} if told else {}
    line = Line(Answer(503, b"aaaa", b"bbbb", b"cccc", body_seconds=1, **length), 200)
    jury = Jury(Judge(http_transient))

    async def main() -> None:
        policy = Nest(every_second(), jury)
        async with client(line, policy, largest_body=5) as http, http.stream("GET", URL) as response:
            assert response.status_code == 503
            assert trio.current_time() == (0 if told else 2)
            assert len(line.open) == 1
            assert b"".join([part async for part in response.aiter_bytes()]) == b"aaaabbbbcccc"
            assert trio.current_time() == 3

    run(main)
    assert line.starts == [0]
    assert line.open == []
    assert jury.verdicts == [FAILURE]


def test_the_length_that_head_tells_is_not_that_of_a_body() -> None:
    line = Line(Answer(503, b"", Content_Length="12"), 200)
    assert run(lambda: client(line, largest_body=5).head(URL)).status_code == 200
    assert run(lambda: client(Line(Answer(503, b"12345", Content_Length="x"), 200), largest_body=5).get(URL))


@pytest.mark.parametrize(("most", "starts"), [(0, 1), (4, 1), (5, 2), (inf, 2)])
def test_the_longest_body_that_is_received(most: float, starts: int) -> None:
    line = Line(Answer(503, b"1234", b"5"), 200)
    run(lambda: client(line, largest_body=most).get(URL))
    assert len(line.starts) == starts
    assert line.open == []


def test_a_body_that_breaks_is_the_failure_of_the_attempt() -> None:
    closed: list[float] = []

    class Breaking(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"half"
            raise httpx.ReadError("cut")

        async def aclose(self) -> None:
            closed.append(trio.current_time())
            raise OSError("cannot even close it")

    class Broken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(503, stream=Breaking())

    async def main() -> None:
        with pytest.raises(httpx.ReadError, match="cut") as caught:
            await client(Broken(), every_second(attempts=2)).get(URL)
        assert notes(caught.value) == ["gave up after 2 attempts in 1 s: attempts"]

    run(main)
    assert closed == [0, 1]  # at once, and not when the call ends
