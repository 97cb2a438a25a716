"""Against a real server, with a pool of one connection: what is leaked, hangs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import pytest
import trio

from tests.transport.server import Site, busy, hang, line, served, status, stream
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.http import http_retry_after, http_transient
from trio_orchestrator.policies.rate import RateLimiter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.transport import HttpxTransport

RETRY = Retry(on=http_transient, attempts=3, backoff=Constant(0.01), retry_after=http_retry_after)


@pytest.fixture
async def site() -> AsyncGenerator[Site, None]:
    async with served() as site:
        yield site


async def test_the_server_sees_the_retries_on_one_connection(site: Site) -> None:
    site.script["/"] = [status(503), status(500), status(200)]
    pool = line()
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=pool), base_url=site.url) as client:
        response = await client.put("/", content=b"item")
        assert (response.status_code, response.text) == (200, "body of 200")
        assert site.bodies == [b"item"] * 3
        assert len(site.connections) == 1
        assert busy(pool) == []


async def test_retry_after_is_honoured_to_the_second(site: Site) -> None:
    site.script["/"] = [status(429, Retry_After="1"), status(200)]
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=line()), base_url=site.url) as client:
        assert (await client.get("/")).status_code == 200
    assert 1 <= site.times[1] - site.times[0] < 1.5


async def test_a_503_that_stays_is_a_response(site: Site) -> None:
    site.script["/"] = [status(503, "out of order", X_Reason="maintenance")]
    pool = line()
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=pool), base_url=site.url) as client:
        response = await client.get("/")
        assert (response.status_code, response.text) == (503, "out of order")
        assert response.headers["X-Reason"] == "maintenance"
        assert response.http_version == "HTTP/1.1"
        assert len(site.times) == 3
        assert busy(pool) == []


async def test_a_post_is_sent_once_and_with_a_key_again(site: Site) -> None:
    site.script["/"] = [status(503), status(503), status(200)]
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=line()), base_url=site.url) as client:
        assert (await client.post("/", content=b"once")).status_code == 503
        assert site.bodies == [b"once"]
        assert (await client.post("/", content=b"twice", headers={"Idempotency-Key": "1"})).status_code == 200
        assert site.bodies == [b"once", b"twice", b"twice"]


async def test_a_streamed_body_is_sent_once(site: Site) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    site.script["/"] = [status(503), status(200)]
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=line()), base_url=site.url) as client:
        assert (await client.put("/", content=parts())).status_code == 503
    assert site.bodies == [b"onetwo"]


async def test_pydantic_ai_2724_retries_do_not_eat_up_the_pool(site: Site) -> None:
    """`httpx.PoolTimeout` as soon as there were more attempts than connections."""
    site.script["/"] = [*[stream(429, 9)] * 12, status(200)]
    retry = Retry(on=http_transient, attempts=20, backoff=Constant(0))
    pool = line()
    transport = HttpxTransport(retry, transport=pool)
    async with httpx.AsyncClient(transport=transport, base_url=site.url, timeout=5) as client:
        assert (await client.get("/")).status_code == 200
        assert len(site.times) == 13
        assert len(site.connections) == 1
        assert busy(pool) == []


async def test_a_long_failure_streams_and_gives_its_connection_back(site: Site) -> None:
    site.script["/"] = [stream(503, 50), status(200)]
    pool = line()
    transport = HttpxTransport(RETRY, transport=pool, largest_body=20)
    async with httpx.AsyncClient(transport=transport, base_url=site.url) as client:
        response = await client.get("/")
        assert response.text == "".join(f"{number} " for number in range(50))
        assert busy(pool) == []
        assert (await client.get("/")).status_code == 200


async def test_a_success_streams(site: Site) -> None:
    site.script["/"] = [stream(200, 4, seconds=0.05)]
    async with (
        httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=line()), base_url=site.url) as client,
        client.stream("GET", "/") as response,
    ):
        started = trio.current_time()
        assert [part async for part in response.aiter_text()] == ["0 ", "1 ", "2 ", "3 "]
        assert trio.current_time() - started > 0.1


async def test_nobody_listens(site: Site) -> None:
    """A refused connection is repeated for every method, and comes out as httpx's own error."""
    await trio.lowlevel.checkpoint()
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=line())) as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.post("http://127.0.0.1:1/")
        assert caught.value.__notes__[0].startswith("gave up after 3 attempts")


async def test_httpx_2139_cancelled_in_flight_or_in_the_pause_the_pool_is_whole(site: Site) -> None:
    """`The connection pool was closed while 1 HTTP requests/responses were still in-flight.`"""
    site.script["/hang"] = [hang]
    site.script["/slow"] = [stream(503, 50, seconds=0.05)]
    site.script["/later"] = [status(429, Retry_After="60")]
    site.script["/"] = [status(200)]
    pool = line()
    async with httpx.AsyncClient(transport=HttpxTransport(RETRY, transport=pool), base_url=site.url) as client:
        for path in ("/hang", "/slow", "/later"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.get, path)
                await trio.sleep(0.15)
                nursery.cancel_scope.cancel()
            assert busy(pool) == []
            with trio.fail_after(2):
                assert (await client.get("/")).status_code == 200
    assert site.hung_up.is_set()


async def test_an_attempt_that_hangs_is_cut_and_repeated(site: Site) -> None:
    site.script["/"] = [hang, status(200)]
    pool = line()
    retry = Retry(on=http_transient, attempt_timeout=0.3, backoff=Constant(0))
    async with httpx.AsyncClient(transport=HttpxTransport(retry, transport=pool), base_url=site.url) as client:
        assert (await client.get("/")).status_code == 200
        assert busy(pool) == []
        with trio.fail_after(2):
            await site.hung_up.wait()


async def test_a_hundred_at_once_behind_one_cooldown(site: Site) -> None:
    site.script["/"] = [*[status(429, Retry_After="0.3")] * 3, status(200)]
    pool, statuses = line(connections=10), list[int]()
    transport = HttpxTransport(RETRY, transport=pool, cooldown=Cooldown(ramp=0.2))
    async with httpx.AsyncClient(transport=transport, base_url=site.url, timeout=20) as client:

        async def get() -> None:
            statuses.append((await client.get("/")).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(get)
        assert statuses == [200] * 100
        assert len(site.times) == 103
        assert len(site.connections) <= 10
        assert busy(pool) == []


async def test_a_ready_made_stack_and_a_rate_limiter_that_listens(site: Site) -> None:
    site.script["/"] = [status(503, RateLimit='"default";r=0;t=1'), status(200)]
    pool, limiter = line(), RateLimiter(100, burst=10)
    transport = HttpxTransport(Stack.http(), transport=pool, limiter=limiter)
    async with httpx.AsyncClient(transport=transport, base_url=site.url) as client:
        assert (await client.get("/")).status_code == 200
    assert site.times[1] - site.times[0] >= 0.9
    assert busy(pool) == []
