"""The dedicated connections of a client, in virtual time: whatever happens, each place comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from redis.exceptions import ResponseError
from trio.testing import wait_all_tasks_blocked

from tests.redis.scripted import open_client, open_scripted, virtual
from tests.redis.scripted_commands import teach
from trio_orchestrator.redis import Redis
from trio_orchestrator.redis.server import Server

REFUSED = ConnectionRefusedError("nobody listens")


async def blocks(redis: Redis) -> None:
    """Make a blocking call."""
    await redis.blpop("list", 0)


async def enters(redis: Redis) -> None:
    """Enter a block with a connection of its own."""
    async with redis.dedicated() as own:
        await own.echo("x")


async def watches(redis: Redis) -> None:
    """Enter a transaction."""
    async with redis.watch("key") as tx:
        await tx.get("key")


Way = Callable[[Redis], Awaitable[None]]
each_way = pytest.mark.parametrize("way", [blocks, enters, watches])


def odd(error: ResponseError) -> bool:
    """Tell nothing: a function of a user's with a mistake in it."""
    raise KeyError(str(error))


@pytest.mark.parametrize("way", [blocks, watches])
@virtual
async def test_a_function_of_the_users_that_raises_keeps_no_place(way: Way) -> None:
    async with open_scripted() as scripted, open_client(scripted, dedicated=1, reconnect_on=odd) as redis:
        teach(scripted)
        scripted.refuse = lambda words: "WRONGTYPE no" if words[0] in (b"BLPOP", b"WATCH") else None
        for _ in range(3):
            with pytest.raises(KeyError):
                await way(redis)
            assert redis.statistics().dedicated == 0


async def hold(server: Server, task_status: trio.TaskStatus[None]) -> None:
    """Keep a dedicated connection."""
    async with server.leases.lease():
        task_status.started()
        await trio.sleep_forever()


async def ends_closed(way: Way, redis: Redis, ends: list[float]) -> None:
    """Check that a call ends since the block was left; note when."""
    with pytest.raises(trio.ClosedResourceError, match="the block of the client was left"):
        await way(redis)
    ends.append(trio.current_time())


@each_way
@virtual
async def test_who_waits_for_a_place_is_told_that_the_block_was_left(way: Way) -> None:
    ends: list[float] = []
    async with open_scripted() as scripted, trio.open_nursery() as nursery:
        async with open_client(scripted, dedicated=1, command_timeout=30) as redis:
            await nursery.start(hold, redis._server)
            nursery.start_soon(ends_closed, way, redis, ends)
            await trio.sleep(1)
            assert redis.statistics().dedicated_waiting == 1
        await wait_all_tasks_blocked()
        assert (ends, redis.statistics().dedicated_waiting) == ([1], 0)
        nursery.cancel_scope.cancel()


@each_way
@pytest.mark.parametrize("full", [False, True])
@virtual
async def test_who_asks_after_the_block_is_told_at_once(full: bool, way: Way) -> None:
    async with open_scripted() as scripted, trio.open_nursery() as nursery:
        async with open_client(scripted, dedicated=1, command_timeout=30) as redis:
            await trio.sleep(1)
            if full:
                await nursery.start(hold, redis._server)
        ends: list[float] = []
        await ends_closed(way, redis, ends)
        assert ends == [1]
        assert scripted.dials == [0, 1][: 1 + full]
        nursery.cancel_scope.cancel()


@each_way
@pytest.mark.parametrize("down", [False, True])
@virtual
async def test_a_connection_that_is_being_made_ends_with_the_block(down: bool, way: Way) -> None:
    ends: list[float] = []
    async with open_scripted() as scripted, trio.open_nursery() as nursery:
        async with open_client(scripted, connect_timeout=20, command_timeout=30) as redis:
            scripted.connect_delay, scripted.down = (0, REFUSED) if down else (7, None)
            nursery.start_soon(ends_closed, way, redis, ends)
            await trio.sleep(1.5)
        await wait_all_tasks_blocked()
        assert (ends, redis.statistics().dedicated) == ([1.5], 0)


# ------------------------------------------------------------------------------------ what goes with them


@virtual
async def test_a_sibling_is_left_within_the_time_of_its_client() -> None:
    async with open_scripted() as scripted, open_client(scripted, close_within=0.25) as redis:
        async with redis.sibling() as other:
            scripted.session.stall()
            other.post("SET", "key", "value")
        assert trio.current_time() == 0.25


@virtual
async def test_a_sibling_cannot_be_opened_after_the_block() -> None:
    async with open_scripted() as scripted:
        async with open_client(scripted) as redis:
            sibling = redis.sibling()
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            async with sibling:
                raise AssertionError
        assert len(scripted.dials) == 1


@virtual
async def test_a_transaction_that_was_not_executed_may_be_entered_again() -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        teach(scripted)
        tx: Any = redis.watch("key")
        async with tx:
            tx.multi()
            tx.set("key", "1")
        async with tx:
            assert len(tx) == 0
            assert await tx.get("key") is None
            tx.multi()
            tx.set("key", "2")
            assert await tx.execute() == [True]
        assert scripted.data == {b"key": b"2"}
