"""Going through everything: all items, their shapes, and loops that are left in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from redis.exceptions import ResponseError

from tests.redis.peer import forget, idle, open_peer
from trio_orchestrator.redis import open_redis
from trio_orchestrator.redis.scan import Scan
from trio_orchestrator.testing.server import RedisServer


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    forget(redis_server, "it:")
    with open_peer(redis_server) as peer:
        peer.mset({f"it:k{number}": number for number in range(50)})
        peer.hset("it:h", mapping={f"f{number}": number for number in range(1000)})
        peer.sadd("it:s", *(f"m{number}" for number in range(1000)))
        peer.zadd("it:z", {f"m{number}": number + 0.5 for number in range(1000)})
    yield redis_server
    forget(redis_server, "it:")


ITERATORS: dict[str, Callable[[Any], Any]] = {
    "keys": lambda client: client.scan_iter("it:*", count=7),
    "keys of a type": lambda client: client.scan_iter(match="it:*", _type="string"),
    "no keys": lambda client: client.scan_iter("it:none"),
    "set": lambda client: client.sscan_iter("it:s", match="m1*", count=20),
    "hash": lambda client: client.hscan_iter("it:h", count=10),
    "fields": lambda client: client.hscan_iter("it:h", match="f1*", no_values=True),
    "sorted set": lambda client: client.zscan_iter("it:z"),
    "sorted set as int": lambda client: client.zscan_iter("it:z", score_cast_func=lambda score: int(float(score))),
    "no hash": lambda client: client.hscan_iter("it:none"),
}


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("name", ITERATORS)
async def test_the_items_are_those_of_redis_py(server: RedisServer, name: str, decode: bool) -> None:
    with open_peer(server, decode_responses=decode) as peer:
        try:
            expected = set(ITERATORS[name](peer))
        except ResponseError as refusal:  # no NOVALUES before Redis 7.4: then not by ours either
            async with open_redis(server.url) as redis:
                with pytest.raises(ResponseError, match=str(refusal)):
                    await anext(ITERATORS[name](redis))
            return
    async with open_redis(server.url, decode_responses=decode) as redis:
        scan = ITERATORS[name](redis)
        assert {item async for item in scan} == expected
        assert [item async for item in scan] == []  # once through


async def test_a_loop_may_be_left(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        for make in (make for name, make in ITERATORS.items() if name != "fields"):  # which Redis 7.0 refuses
            async for _ in make(redis):
                break
        assert idle(redis) == 0


async def test_it_goes_on_where_it_was_cancelled(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        scan, found, caught = redis.hscan_iter("it:h", count=10), [], 0
        while True:
            with trio.move_on_after(0.0001) as scope:
                async for item in scan:
                    found.append(item)
                break
            caught += scope.cancelled_caught
        assert caught
        assert len(found) == 1000 == len(set(found))


async def test_each_step_is_a_checkpoint() -> None:
    pages = iter([(5, "ab"), (6, ""), (0, "c")])

    async def page(cursor: int) -> tuple[int, Iterable[str]]:
        await trio.lowlevel.checkpoint()
        return next(pages)

    scan: Scan[str] = Scan(page)
    items = []
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            items.append(await anext(scan))
    assert items == ["a", "b", "c"]
    with trio.testing.assert_checkpoints(), pytest.raises(StopAsyncIteration):
        await anext(scan)
