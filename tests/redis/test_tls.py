# mypy: disable-error-code="unused-awaitable"
"""The client over TLS: to a forwarder in front of the session's server, and to a server's own TLS if it has that."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import pytest
import trio
from redis.backoff import ConstantBackoff

from tests.redis.tls import TlsForwarder, open_tls_forwarder, open_tls_server, speaks_tls
from trio_orchestrator.redis import LinkError, Message, open_redis, open_sentinel
from trio_orchestrator.redis.pipe import CHUNK
from trio_orchestrator.testing import RedisServer, open_fault_proxy

OpenTls = Callable[..., AbstractAsyncContextManager[TlsForwarder]]
WAYS: Final = ("forwarder", "server") if speaks_tls() else ("forwarder",)


@pytest.fixture(params=WAYS)
def open_tls(request: pytest.FixtureRequest, clean_redis: RedisServer) -> OpenTls:
    """What opens a server that speaks TLS: `async with open_tls() as tls`."""
    return open_tls_server if request.param == "server" else partial(open_tls_forwarder, clean_redis.path)


def trusted(tls: TlsForwarder, port: int = 0, **more: str) -> str:
    """Return the URL for those who know the authority."""
    options = {"ssl_ca_certs": tls.ca_path, **more}
    return f"rediss://{tls.host}:{port or tls.port}?{'&'.join(f'{name}={value}' for name, value in options.items())}"


async def test_the_url_names_the_authority(open_tls: OpenTls) -> None:
    async with open_tls() as tls, open_redis(trusted(tls), db=1) as redis:
        assert await redis.set("a", "b") is True
        assert await redis.get("a") == b"b"


async def test_a_context_says_all(open_tls: OpenTls) -> None:
    async with open_tls() as tls, open_redis(tls.url, tls=ssl.create_default_context(cafile=tls.ca_path)) as redis:
        assert await redis.incr("n") == 1
        async with redis.sibling() as other:
            assert await other.incr("n") == 2


async def refused(url: str, connect_timeout: float = 5) -> LinkError:
    """Return why a server cannot be connected to."""
    with pytest.raises(LinkError) as caught:
        async with open_redis(url, connect_timeout=connect_timeout):
            raise AssertionError
    return caught.value


async def test_an_unknown_authority_is_refused_and_the_error_says_where_and_why(open_tls: OpenTls) -> None:
    async with open_tls() as tls, open_tls_forwarder(("127.0.0.1", 1)) as other:
        error = await refused(f"{tls.url}?ssl_ca_certs={other.ca_path}")
        assert str(error).startswith(f"cannot connect to 127.0.0.1:{tls.port}: [SSL: CERTIFICATE_VERIFY_FAILED]")
        assert "issuer certificate" in str(error) or "self-signed" in str(error)
        assert not error.sent
        assert error.__cause__ is not None
        assert isinstance(error.__cause__.__cause__, ssl.SSLCertVerificationError)
        async with open_redis(f"{tls.url}?ssl_cert_reqs=none") as redis:
            assert await redis.ping() is True


async def test_a_sentinel_of_an_unknown_authority_is_refused_and_the_error_says_where_and_why(
    open_tls: OpenTls,
) -> None:
    async with open_tls() as tls:
        with pytest.raises(LinkError) as caught:
            async with open_sentinel("mymaster", [tls.url]):
                raise AssertionError
        assert f"127.0.0.1:{tls.port}: [SSL: CERTIFICATE_VERIFY_FAILED]" in str(caught.value)


async def test_a_certificate_of_another_host_is_refused(open_tls: OpenTls) -> None:
    async with open_tls(identity="elsewhere.example.org") as tls:
        error = await refused(trusted(tls))
        assert str(error).startswith(f"cannot connect to 127.0.0.1:{tls.port}: [SSL: CERTIFICATE_VERIFY_FAILED]")
        assert "not valid for '127.0.0.1'" in str(error)
        async with open_redis(trusted(tls, ssl_check_hostname="false")) as redis:
            assert await redis.ping() is True


async def test_a_client_shows_its_certificate(open_tls: OpenTls) -> None:
    async with open_tls(client_certificate=True) as tls:
        # The refusal comes behind the client's first words, or is overtaken by the end of the connection.
        assert str(tls.port) in str(await refused(trusted(tls)))
        url = trusted(tls, ssl_certfile=tls.certificate_path, ssl_keyfile=tls.key_path)
        async with open_redis(url) as redis:
            assert await redis.ping() is True


async def test_neither_side_speaks_the_others_language(open_tls: OpenTls, clean_redis: RedisServer) -> None:
    async with open_tls() as tls:
        assert str(tls.port) in str(await refused(f"redis://{tls.host}:{tls.port}"))
    error = await refused(f"rediss://127.0.0.1:{clean_redis.port}", 0.1)  # it waits for the rest of a line
    assert str(error) == f"no answer from 127.0.0.1:{clean_redis.port} within 0.1 s"


async def test_big_values_and_many_commands(open_tls: OpenTls) -> None:
    big = os.urandom(1 << 20)
    async with open_tls() as tls, open_redis(trusted(tls)) as redis:
        async with redis.pipeline(transaction=True) as pipe:
            pipe.set("big", big)
            pipe.get("big")
            assert await pipe.execute() == [True, big]
        async with redis.pipeline() as pipe:
            for _ in range(2000):
                pipe.incr("n")
            assert await pipe.execute() == [*range(1, 2001)]
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(redis.incr, "n")
            nursery.start_soon(redis.get, "big")
        assert await redis.get("n") == b"2100"


async def test_connections_of_all_kinds(open_tls: OpenTls) -> None:
    async with open_tls() as tls, open_redis(trusted(tls)) as redis:
        async with redis.pubsub() as mine, redis.pubsub(shared=True) as shared:
            await mine.subscribe("channel")
            await shared.psubscribe("chan*")
            assert await redis.publish("channel", "data") == 2
            assert await mine.receive() == Message(b"channel", b"data")
            assert await shared.receive() == Message(b"channel", b"data", b"chan*", "pmessage")
        async with redis.dedicated() as own, redis.watch("a") as tx:
            assert await own.client_id() != await redis.client_id()
            tx.multi()
            tx.set("a", 1)
            assert await tx.execute() == [True]
        await redis.rpush("list", "element")
        assert await redis.blpop(["list"], timeout=1) == (b"list", b"element")


@pytest.mark.parametrize("size", [10_000, 1 << 19])
async def test_a_write_that_is_cut_in_its_middle_is_executed_once_at_most(open_tls: OpenTls, size: int) -> None:
    """Nobody knows how much of a write by TLS was sent: it counts as sent as soon as its last piece was handed over."""
    value, one_piece = os.urandom(size), size < CHUNK
    async with open_tls() as tls, open_fault_proxy((tls.host, tls.port)) as proxy:
        async with open_redis(trusted(tls, proxy.port), reconnect=ConstantBackoff(0.01)) as redis:
            proxy.requests.cut_after(5000)
            try:
                assert await redis.append("appended", value) == size
                assert not one_piece
            except LinkError as error:
                assert one_piece
                assert error.sent
            assert await redis.strlen("appended") == (0 if one_piece else size)
            proxy.requests.cut_after(100)
            assert await redis.mget(["none", "y" * size]) == [None, None]  # a read is repeated
            assert proxy.statistics().accepted == 3


async def test_cancelled_in_the_handshake_it_leaves_no_socket() -> None:
    heard, ended, left = trio.Event(), trio.Event(), trio.Event()

    async def mute(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            heard.set()
        ended.set()

    async def connect(port: int, scope: trio.CancelScope) -> None:
        with scope:
            async with open_redis(f"rediss://127.0.0.1:{port}"):
                raise AssertionError
        left.set()

    scope, before = trio.CancelScope(), len(os.listdir("/dev/fd"))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, mute, 0, host="127.0.0.1"))
        nursery.start_soon(connect, listeners[0].socket.getsockname()[1], scope)
        await heard.wait()
        scope.cancel()
        with trio.fail_after(5):
            await ended.wait()
            await left.wait()
        nursery.cancel_scope.cancel()
    assert scope.cancelled_caught
    assert len(os.listdir("/dev/fd")) == before
