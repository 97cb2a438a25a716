"""The fault proxy, between a small server of our own (or a real one) and plain Trio streams."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from trio_orchestrator.testing.injection import CancelAt, every_checkpoint
from trio_orchestrator.testing.proxy import FaultProxy, FaultProxyStatistics, open_fault_proxy
from trio_orchestrator.testing.server import RedisServer


class Echo:
    """A server that answers what it is told; `seen` is all that reached it, `chunks` as it came."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ends: list[str] = []
        self.port = 0

    @property
    def seen(self) -> bytes:
        return b"".join(self.chunks)

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async for data in stream:
                self.chunks.append(bytes(data))
                await stream.send_all(data)
            self.ends.append("closed")
        except trio.BrokenResourceError:
            self.ends.append("reset")


@asynccontextmanager
async def open_echo() -> AsyncIterator[Echo]:
    echo = Echo()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, echo.serve, 0)
        echo.port = listeners[0].socket.getsockname()[1]
        yield echo
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_proxied(seed: int = 0) -> AsyncIterator[tuple[Echo, FaultProxy]]:
    async with open_echo() as echo, open_fault_proxy(("127.0.0.1", echo.port), rng=random.Random(seed)) as proxy:
        yield echo, proxy


async def ask(stream: trio.SocketStream, data: bytes) -> bytes:
    await stream.send_all(data)
    return await receive(stream, len(data))


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    got = b""
    while len(got) < size and (data := await stream.receive_some(size - len(got))):
        got += data
    return got


async def eventually(holds: Callable[[], object]) -> None:
    """Sockets are the kernel's: what went in at one end comes out at the other soon, not now."""
    with trio.fail_after(5):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def nothing_comes(stream: trio.SocketStream, within: float = 0.02) -> bool:
    with trio.move_on_after(within):
        await stream.receive_some(1)
        return False
    return True


async def test_without_faults_everything_passes_and_is_counted() -> None:
    async with open_proxied() as (echo, proxy):
        big = random.Random(1).randbytes(1_000_000)
        async with await trio.open_tcp_stream(*proxy.address) as one, await trio.open_tcp_stream(*proxy.address) as two:
            assert await ask(one, b"hello") == b"hello"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.send_all, big)
                assert await receive(two, len(big)) == big
            assert proxy.statistics() == FaultProxyStatistics(
                accepted=2, open=2, unreachable=0, request_bytes=1_000_005, reply_bytes=1_000_005, swallowed_bytes=0
            )
        await eventually(lambda: proxy.statistics().open == 0)
        assert echo.ends == ["closed", "closed"]


async def test_a_half_closed_stream_still_gets_its_answer() -> None:
    async with open_proxied() as (_, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            await stream.send_all(b"last words")
            await stream.send_eof()
            assert await receive(stream, 100) == b"last words"


async def test_a_delay_is_latency_in_each_direction_and_not_bandwidth() -> None:
    async with open_proxied() as (_, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            proxy.requests.delay = 0.03
            start = time.monotonic()
            sent = [b"%02d" % number for number in range(20)]
            for number, data in enumerate(sent):
                await stream.send_all(data)
                await eventually(lambda arrived=2 * number + 2: proxy.requests.arrived == arrived)  # type: ignore[misc]
            assert await receive(stream, 40) == b"".join(sent)  # one after the other it would be 20 delays
            assert 0.03 <= time.monotonic() - start < 0.5
            proxy.replies.delay = 0.03
            start = time.monotonic()
            assert await ask(stream, b"x") == b"x"
            assert 0.06 <= time.monotonic() - start < 0.5


async def test_what_is_sent_together_is_one_chunk_and_each_answered_question_is_another() -> None:
    async with open_proxied() as (_, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            for number in range(1, 6):
                assert await ask(stream, b"x" * 100) == b"x" * 100
                assert (proxy.requests.chunks, proxy.replies.chunks) == (number, number)
        await eventually(lambda: proxy.statistics().open == 0)
        assert (proxy.requests.chunks, proxy.replies.chunks) == (5, 5)  # the end of a stream is none


async def test_an_earlier_byte_comes_first_also_when_the_delay_shrinks() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            proxy.requests.delay = 0.03
            await stream.send_all(b"slow")
            await eventually(lambda: proxy.requests.arrived == 4)
            proxy.requests.delay = 0
            await stream.send_all(b"fast")
            assert await receive(stream, 8) == b"slowfast"
            assert echo.seen == b"slowfast"


async def test_single_bytes_come_one_by_one() -> None:
    async with open_proxied() as (echo, proxy):
        proxy.requests.piece = 1
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"0123456789" * 10) == b"0123456789" * 10
        assert len(echo.chunks) > 50


async def test_drawn_pieces_are_reproducible_and_within_their_range() -> None:
    async def sizes(seed: int) -> list[int]:
        async with open_proxied(seed) as (echo, proxy):
            proxy.requests.piece = (2, 5)
            async with await trio.open_tcp_stream(*proxy.address) as stream:
                assert await ask(stream, b"x" * 200) == b"x" * 200
            assert len(echo.chunks) > 20
            return [proxy.requests._next_size(100) for _ in range(50)]

    one, again, other = await sizes(1), await sizes(1), await sizes(2)
    assert set(one) == {2, 3, 4, 5}
    assert (one == again, one == other) == (True, False)


@pytest.mark.parametrize("way", ["requests", "replies"])
async def test_what_is_held_is_not_lost(way: str) -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            direction = getattr(proxy, way)
            direction.held = True
            await stream.send_all(b"patience")
            if way == "replies":
                await eventually(lambda: echo.seen == b"patience")
            assert await nothing_comes(stream)
            assert echo.seen == (b"" if way == "requests" else b"patience")
            direction.held = False
            assert await receive(stream, 8) == b"patience"
            await stream.send_all(b"!")
            assert await receive(stream, 1) == b"!"


async def test_what_is_held_makes_the_sender_wait_in_the_end() -> None:
    async with open_proxied() as (_, proxy):
        proxy.requests.held = True
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            with trio.move_on_after(0.1) as scope:
                await stream.send_all(bytes(50_000_000))
            assert scope.cancelled_caught
            assert proxy.requests.arrived < 1_000_000


async def test_half_open_requests_never_arrive_and_nobody_is_told() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"a") == b"a"
            proxy.requests.dead = True
            await stream.send_all(b"lost")
            await eventually(lambda: proxy.statistics().swallowed_bytes == 4)
            assert await nothing_comes(stream)
            assert echo.seen == b"a"
        await trio.sleep(0.01)
        assert (echo.ends, proxy.statistics().open) == ([], 1)


async def test_half_open_replies_never_arrive_though_the_request_was_executed() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            proxy.replies.dead = True
            await stream.send_all(b"done")
            await eventually(lambda: proxy.statistics().swallowed_bytes == 4)
            assert await nothing_comes(stream)
            assert echo.seen == b"done"
            proxy.mend()
            assert await ask(stream, b"back") == b"back"


async def test_a_black_hole_accepts_and_says_nothing() -> None:
    async with open_proxied() as (echo, proxy):
        proxy.black_hole()
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            await stream.send_all(b"anybody?")
            await eventually(lambda: proxy.statistics().swallowed_bytes == 8)
            assert await nothing_comes(stream)
            assert (echo.seen, proxy.statistics().open) == (b"", 1)


async def test_the_next_reply_is_dropped_after_the_request_was_executed() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"a") == b"a"
            proxy.drop_next_reply()
            with pytest.raises(trio.BrokenResourceError):
                await ask(stream, b"b")
            assert (echo.seen, proxy.replies.swallowed) == (b"ab", 1)
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"c") == b"c"


@pytest.mark.parametrize("n", [1, 3, 7])
async def test_a_short_write_lets_just_so_many_bytes_pass(n: int) -> None:
    async with open_proxied() as (echo, proxy):
        proxy.requests.cut_after(n, reset=False)
        proxy.replies.held = True
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            await stream.send_all(b"12345678")
            assert await receive(stream, 1) == b""
        await eventually(lambda: echo.ends)
        assert echo.seen == b"12345678"[:n]
        assert proxy.statistics().request_bytes == n


async def test_a_cut_counts_all_connections_happens_once_and_can_be_taken_back() -> None:
    async with open_proxied() as (_, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as one, await trio.open_tcp_stream(*proxy.address) as two:
            proxy.replies.cut_after(3)
            proxy.replies.cut_after(math.inf)
            assert await ask(one, b"1234") == b"1234"
            proxy.replies.cut_after(3)
            assert await ask(one, b"12") == b"12"
            with pytest.raises(trio.BrokenResourceError):
                await ask(two, b"34")
                await two.receive_some(1)
            assert await ask(one, b"still here") == b"still here"


async def test_reset_breaks_both_sides_of_all_connections_at_once() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as one, await trio.open_tcp_stream(*proxy.address) as two:
            for stream in (one, two):
                assert await ask(stream, b"a") == b"a"
            assert (proxy.reset(), proxy.statistics().open, proxy.reset()) == (2, 0, 0)
            for stream in (one, two):
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some(1)
        await eventually(lambda: len(echo.ends) == 2)
        assert echo.ends == ["reset", "reset"]


async def test_close_ends_both_sides_in_good_order() -> None:
    async with open_proxied() as (echo, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"a") == b"a"
            assert proxy.close_connections() == 1
            assert await stream.receive_some(1) == b""
        await eventually(lambda: echo.ends == ["closed"])


async def test_refused_connections_fail_at_once_and_open_ones_live_on() -> None:
    async with open_proxied() as (_, proxy):
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"a") == b"a"
            for _ in range(3):
                proxy.refusing = True
                with pytest.raises(OSError, match="connect"):
                    await trio.open_tcp_stream(*proxy.address)
                assert (proxy.refusing, await ask(stream, b"b")) == (True, b"b")
                proxy.refusing = False
                async with await trio.open_tcp_stream(*proxy.address) as other:
                    assert await ask(other, b"c") == b"c"


async def test_a_reset_of_one_side_reaches_the_other() -> None:
    async with open_proxied() as (echo, outer), open_fault_proxy(outer.address) as inner:
        async with await trio.open_tcp_stream(*inner.address) as stream:
            assert await ask(stream, b"a") == b"a"
            outer.reset()
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        await eventually(lambda: echo.ends == ["reset"] and inner.statistics().open == 0)


async def test_a_target_that_is_away_resets_the_client_and_may_come_back() -> None:
    async with open_echo() as echo, open_fault_proxy("/nowhere/at/all") as proxy:
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        assert (proxy.statistics().unreachable, proxy.statistics().open) == (1, 0)
        proxy.target = ("127.0.0.1", echo.port)
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            assert await ask(stream, b"a") == b"a"


async def test_in_front_of_a_real_server_on_a_unix_socket(clean_redis: RedisServer) -> None:
    async with open_fault_proxy(clean_redis.path) as proxy:
        async with await trio.open_tcp_stream(*proxy.address) as stream:
            await stream.send_all(b"INCR n\r\n")
            assert await receive(stream, 4) == b":1\r\n"
            proxy.drop_next_reply()
            await stream.send_all(b"INCR n\r\n")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
    assert clean_redis.command("GET", "n") == "2"


async def test_the_end_of_the_block_ends_everything_in_it() -> None:
    async with open_echo() as echo:
        async with open_fault_proxy(("127.0.0.1", echo.port)) as proxy:
            stream = await trio.open_tcp_stream(*proxy.address)
            assert await ask(stream, b"a") == b"a"
        assert proxy.statistics().open == 0
        async with stream:
            assert await stream.receive_some(1) == b""
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*proxy.address)
        with pytest.raises(trio.ClosedResourceError):
            proxy.refusing = False


async def test_an_error_of_the_block_comes_out_bare() -> None:
    boom = ValueError("boom")
    with pytest.raises(ValueError) as caught:
        async with open_fault_proxy("/nowhere"):
            raise boom
    assert caught.value is boom
    assert boom.__context__ is None


async def test_cancelled_from_above_it_serves_until_its_block_has_left() -> None:
    farewell = []
    async with open_echo() as echo:
        with trio.CancelScope() as scope:
            async with open_fault_proxy(("127.0.0.1", echo.port)) as proxy:
                async with await trio.open_tcp_stream(*proxy.address) as stream:
                    try:
                        scope.cancel()
                        await trio.sleep_forever()
                    finally:
                        with trio.CancelScope(shield=True):
                            farewell.append(await ask(stream, b"bye"))
    assert (scope.cancelled_caught, farewell) == (True, [b"bye"])


def _faults() -> list[Callable[[FaultProxy], object]]:
    def hold(proxy: FaultProxy) -> None:
        proxy.replies.held = True

    def slow(proxy: FaultProxy) -> None:
        proxy.requests.delay = 0.001

    return [lambda proxy: None, hold, slow, FaultProxy.black_hole, FaultProxy.drop_next_reply]


@pytest.mark.parametrize("fault", _faults())
def test_cancelled_anywhere_it_leaves_no_socket(fault: Callable[[FaultProxy], object]) -> None:
    async def scenario(cancel: CancelAt) -> list[FaultProxy]:
        made = []
        async with open_echo() as echo:
            with cancel.watch(), trio.move_on_after(0.003):
                async with open_fault_proxy(("127.0.0.1", echo.port)) as proxy:
                    made.append(proxy)
                    fault(proxy)
                    async with await trio.open_tcp_stream(*proxy.address) as stream:
                        with suppress(trio.BrokenResourceError):
                            await ask(stream, b"hello")
        return made

    def check(n: int | None, made: list[FaultProxy]) -> None:
        for proxy in made:
            assert proxy.statistics().open == 0
            assert proxy._reserved.fileno() == -1
            assert proxy._listener is None

    every_checkpoint(scenario, check)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda proxy: setattr(proxy.requests, "delay", -1), "delay must be >= 0"),
        (lambda proxy: setattr(proxy.requests, "delay", math.inf), "delay must be >= 0 and finite"),
        (lambda proxy: setattr(proxy.requests, "piece", 0), "piece must be >= 1"),
        (lambda proxy: setattr(proxy.requests, "piece", (0, 2)), r"piece\[0\] must be >= 1"),
        (lambda proxy: setattr(proxy.requests, "piece", (3, 2)), r"piece\[1\] must be >= 3"),
        (lambda proxy: proxy.requests.cut_after(-1), "n must be >= 0"),
    ],
)
async def test_bad_values_are_refused(change: Callable[[FaultProxy], object], complaint: str) -> None:
    async with open_fault_proxy("/nowhere") as proxy:
        with pytest.raises(ValueError, match=complaint):
            change(proxy)


def test_a_source_of_chance_must_draw() -> None:
    with pytest.raises(TypeError, match="rng must"):
        open_fault_proxy("/nowhere", rng=3)  # type: ignore[arg-type]
