"""Whatever the server does and the policy tries: a small model says how often it is sent, when, and what comes out."""

from __future__ import annotations

from typing import Any

import httpx
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.line import URL, Answer, Copies, Line, Nest, client, every_second
from trio_orchestrator.abc import Policy
from trio_orchestrator.policies.http import TRANSIENT_STATUS
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

Outcome = int | type[httpx.TransportError]

UNSENT: tuple[type[httpx.TransportError], ...] = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
OUR_MISTAKES = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)
statuses = st.sampled_from([200, 204, 302, 404, 429, 500, 502, 503, 504])
errors = st.sampled_from([*UNSENT, *OUR_MISTAKES, httpx.ReadTimeout, httpx.WriteError, httpx.RemoteProtocolError])
outcomes: st.SearchStrategy[list[Outcome]] = st.lists(statuses | errors, min_size=1, max_size=6)
requests: st.SearchStrategy[tuple[str, bool]] = st.tuples(
    st.sampled_from(["GET", "PUT", "POST", "PATCH"]), st.booleans()
)


def repeated(outcome: Outcome, once: bool) -> bool:
    if isinstance(outcome, int):
        return outcome in TRANSIENT_STATUS and not once
    return outcome not in OUR_MISTAKES and (not once or outcome in UNSENT)


def predicted(script: list[Outcome], attempts: int, once: bool) -> list[Outcome]:
    """Return the outcomes that the client meets, the last of which comes out."""
    met: list[Outcome] = []
    for number in range(attempts):
        met.append(script[min(number, len(script) - 1)])
        if not repeated(met[-1], once):
            break
    return met


def line_of(script: list[Outcome], **options: Any) -> Line:
    return Line(*(outcome if isinstance(outcome, int) else outcome("") for outcome in script), **options)


async def outcome_of(http: httpx.AsyncClient, method: str, keyed: bool) -> Outcome | type[Exception]:
    headers = {"Idempotency-Key": "1"} if keyed else {}
    try:
        async with http.stream(method, URL, content=b"content", headers=headers) as response:
            assert b"".join([part async for part in response.aiter_raw()]) == f"body of {response.status_code}".encode()
            return response.status_code
    except Exception as error:
        return type(error)


@given(outcomes, requests, st.integers(1, 5))
def test_what_is_sent_and_what_comes_out(script: list[Outcome], request: tuple[str, bool], attempts: int) -> None:
    method, keyed = request
    met = predicted(script, attempts, once=method in {"POST", "PATCH"} and not keyed)
    line = line_of(script)

    async def main() -> None:
        assert await outcome_of(client(line, every_second(attempts=attempts)), method, keyed) == met[-1]

    run_virtual(main)
    assert line.starts == list(range(len(met)))
    assert line.received == [b"content"] * len(met)
    assert line.open == []


seconds_of = st.floats(0.1, 9)
policies: st.SearchStrategy[Policy] = st.recursive(
    st.builds(Timeout, seconds_of)
    | st.builds(Copies, st.integers(1, 3), st.floats(0, 3))
    | st.builds(
        every_second, attempts=st.integers(1, 4), attempt_timeout=st.floats(0.1, 9), retry_exhausted=st.booleans()
    )
    | st.builds(every_second, on=st.just(lambda error: True), retry_exhausted=st.booleans()),
    lambda inner: st.builds(Nest, inner, inner),
    max_leaves=4,
)


def slow(outcome: Outcome) -> Answer | Exception:
    if isinstance(outcome, int):
        return Answer(outcome, b"body of ", str(outcome).encode(), body_seconds=0.25)
    return outcome("")


@given(outcomes, requests, policies, st.floats(0, 3), st.integers(0, 3), st.integers(0, 1000))
def test_no_policy_sends_once_what_may_not_be_sent_twice_or_leaves_anything_open(
    script: list[Outcome], request: tuple[str, bool], policy: Policy, seconds: float, longest: int, seed: int
) -> None:
    method, keyed = request
    answers = [
        Answer(x, b"body of ", str(x).encode(), body_seconds=0.25) if isinstance(x, int) else x("") for x in script
    ]
    line = Line(*answers, seconds=seconds)
    sent = [x for x in script if x not in UNSENT]

    async def main() -> None:
        http = client(line, policy, largest_body=(longest or 9) * 3)
        outcome = await outcome_of(http, method, keyed)
        assert outcome in {*script, trio.TooSlowError}
        assert line.open == []
        starts = len(line.starts)
        await trio.sleep(100)
        assert len(line.starts) == starts

    run_virtual(main, seed=seed)
    if method in {"POST", "PATCH"} and not keyed and len(script) == len(sent):
        assert len(line.starts) == 1
