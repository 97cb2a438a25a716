# mypy: disable-error-code="unused-awaitable, comparison-overlap"
"""Optimistic locking: what is read, what is queued, who wins, and what is left on the connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from redis.backoff import NoBackoff
from redis.exceptions import DataError, ReadOnlyError, RedisError, ResponseError, WatchError

from tests.redis.peer import forget, idle, open_peer
from tests.redis.scripted import open_client, open_scripted
from trio_orchestrator.redis import open_redis
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.transaction import Transaction
from trio_orchestrator.testing.server import RedisServer


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    forget(redis_server, "tx:")
    yield redis_server
    forget(redis_server, "tx:")


async def test_it_reads_at_once_and_writes_together(server: RedisServer) -> None:
    async with open_redis(server.url, decode_responses=True) as redis:
        await redis.set("tx:stock", 7)
        async with redis.watch("tx:stock") as tx:
            left = int(await tx.get("tx:stock") or 0)
            tx.multi()
            assert await tx.set("tx:stock", left - 1) is tx
            tx.hset("tx:log", mapping={"left": left - 1})
            tx.hgetall("tx:log")
            assert (len(tx), bool(tx)) == (3, True)
            assert server.command("GET", "tx:stock") == "7"
            assert await tx.execute() == [True, 1, {"left": "6"}]
            assert await tx.get("tx:stock") == "6"  # at once again
            assert await tx.execute() == []
        assert idle(redis) == 1


async def test_a_change_by_somebody_else_is_noticed(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        async with redis.watch("tx:a", "tx:b") as tx:
            await redis.set("tx:b", 1)
            tx.multi()
            tx.set("tx:a", 1)
            with pytest.raises(WatchError):
                await tx.execute()
            assert await redis.get("tx:a") is None
            assert not tx._hold.watching
            await tx.watch("tx:b")  # and try again, on the same connection
            tx.multi()
            tx.set("tx:a", 2)
            assert await tx.execute() == [True]
        assert idle(redis) == 1


async def test_reads_alone_can_be_confirmed(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.watch("tx:a") as tx:
        assert await tx.execute() == []
        await tx.watch("tx:a")
        await redis.set("tx:a", 1)
        with pytest.raises(WatchError):
            await tx.execute()


async def test_its_own_write_before_multi_is_a_change(server: RedisServer) -> None:
    """As with redis-py."""
    async with open_redis(server.url) as redis, redis.watch("tx:a") as tx:
        await tx.set("tx:a", 1)
        tx.multi()
        with pytest.raises(WatchError):
            await tx.execute()


async def test_the_next_one_on_the_connection_does_not_watch(server: RedisServer) -> None:
    async with open_redis(server.url, max_dedicated=1) as redis:
        with pytest.raises(ValueError, match="sold out"):
            async with redis.watch("tx:a"):
                raise ValueError("sold out")
        async with redis.watch("tx:a") as tx:
            tx.multi()
            tx.set("tx:b", 1)  # never executed
        async with redis.watch("tx:c") as tx:
            await redis.set("tx:a", 1)
            tx.multi()
            tx.set("tx:c", 1)
            assert await tx.execute() == [True]
            assert await tx.exists("tx:b") == 0
        assert idle(redis) == 1  # one connection has served them all
        assert (
            " watch=0" in (clients := server.command("CLIENT", "LIST")) or " watch=" not in clients
        )  # Redis 7.0 does not say
        assert not re.search(r" watch=[1-9]", server.command("CLIENT", "LIST"))  # Redis 7.0 does not say


async def test_unwatch_and_reset(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.watch("tx:a") as tx:
        assert await tx.unwatch()
        assert await tx.unwatch()
        await redis.set("tx:a", 1)
        tx.multi()
        tx.set("tx:a", 2)
        assert await tx.execute() == [True]
        tx.multi()
        tx.set("tx:a", 3)
        await tx.reset()
        assert await tx.get("tx:a") == b"2"


async def test_what_would_take_it_over_is_refused(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.watch("tx:a") as tx:
        for name in ("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SUBSCRIBE", "SELECT", "MONITOR"):
            with pytest.raises(DataError, match=f"{name} is refused"):
                await tx.execute_command(name, "tx:a")
        tx.multi()
        with pytest.raises(RedisError, match="nested"):
            tx.multi()
        with pytest.raises(RedisError, match="WATCH after a MULTI"):
            await tx.watch("tx:b")
        with pytest.raises(DataError, match="EXEC is refused"):
            tx.execute_command("EXEC")
        with pytest.raises(DataError, match="arguments must be"):
            tx.set("tx:a", object())  # type: ignore[arg-type]
        tx.set("tx:a", 1)
        assert await tx.execute() == [True]


async def test_errors_of_commands(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.watch("tx:a") as tx:
        tx.multi()
        tx.set("tx:a", 1)
        tx.lpush("tx:a", 1)
        with pytest.raises(ResponseError, match=r"Command # 2 \(LPUSH tx:a 1\)"):
            await tx.execute()
        await tx.watch("tx:a")
        tx.multi()
        tx.execute_command("NOSUCH")
        with pytest.raises(ResponseError, match=r"Command # 1 \(NOSUCH\)"):
            await tx.execute()
        await redis.set("tx:a", 2)
        tx.multi()
        tx.get("tx:a")
        assert await tx.execute() == [b"2"]  # what was discarded does not watch


async def test_outside_of_its_block(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        tx = redis.watch("tx:a")
        with pytest.raises(trio.ClosedResourceError, match="inside its block"):
            await tx.get("tx:a")
        async with tx:
            with pytest.raises(RuntimeError, match="once"):
                await tx.__aenter__()
        with pytest.raises(trio.ClosedResourceError):
            await tx.get("tx:a")
        assert idle(redis) == 1


async def test_cancelled_anywhere_nothing_leaks(server: RedisServer) -> None:
    async with open_redis(server.url, max_dedicated=2) as redis:
        caught = 0
        for number in range(40):
            with trio.move_on_after(number * 0.00003) as scope:
                async with redis.watch("tx:a") as tx:
                    await tx.get("tx:a")
                    tx.multi()
                    tx.set("tx:a", number)
                    tx.get("tx:a")
                    assert await tx.execute() == [True, b"%d" % number]
            caught += scope.cancelled_caught
            assert idle(redis) <= 1
        assert caught
        async with redis.watch("tx:a") as tx, redis.watch("tx:a") as other:
            assert await tx.get("tx:a") == await other.get("tx:a")


# ---------------------------------------------------------------------------------------- transaction(body)


def taken(tx: Transaction) -> Any:
    """Take one of the stock."""

    async def take() -> int:
        left = int(await tx.get("tx:stock") or 0)
        tx.multi()
        tx.set("tx:stock", left - 1)
        return left

    return take()


async def test_many_tasks_take_from_one_stock(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        await redis.set("tx:stock", 30)
        seen: list[int] = []

        async def take(times: int) -> None:
            for _ in range(times):
                seen.append(await redis.transaction(taken, "tx:stock", value_from_callable=True))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(take, 3)
        assert sorted(seen) == list(range(1, 31))  # each was taken once
        assert await redis.get("tx:stock") == b"0"
        assert idle(redis) <= 10


async def test_the_results_are_those_of_redis_py(server: RedisServer) -> None:
    def body(pipe: Any) -> str:
        pipe.multi()
        pipe.set("tx:a", 1)
        pipe.get("tx:a")
        return "done"

    with open_peer(server) as peer:
        expected = peer.transaction(body, "tx:a"), peer.transaction(body, value_from_callable=True)
    async with open_redis(server.url) as redis:
        assert (
            await redis.transaction(body, "tx:a"),
            await redis.transaction(body, value_from_callable=True),
        ) == expected


@pytest.mark.parametrize(("attempts", "within", "calls"), [(3, 10.0, 3), (1, 10.0, 1), (1e9, 0.0, 1)])
async def test_it_gives_up(server: RedisServer, attempts: float, within: float, calls: int) -> None:
    async with open_redis(server.url) as redis:
        called = 0

        async def body(tx: Transaction) -> None:
            nonlocal called
            called += 1
            await redis.incr("tx:a")  # somebody is always faster
            tx.multi()
            tx.set("tx:b", 1)

        with pytest.raises(WatchError) as caught:
            await redis.transaction(body, "tx:a", attempts=attempts, within=within)
        assert called == calls
        assert caught.value.__notes__[0].startswith(f"gave up after {calls} attempts in ")
        assert await redis.get("tx:b") is None
        assert idle(redis) == 1


async def test_it_pauses_between_attempts(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        conflicts = iter([None, None])
        times: list[float] = []

        def body(tx: Transaction) -> None:
            times.append(trio.current_time())
            for _ in conflicts:
                raise WatchError("somebody was faster")
            tx.multi()
            tx.execute_command("INCR", "n")

        class Steady(NoBackoff):
            def __init__(self) -> None:
                pass

            def compute(self, failures: int) -> float:
                return 10.0**failures

        assert await redis.transaction(body, within=111, backoff=Steady()) == [1]
        assert [at - times[0] for at in times] == [0, 10, 110]


@pytest.mark.parametrize("option", [{"attempts": 0}, {"within": -1}, {"attempts": float("nan")}])
async def test_wrong_bounds(server: RedisServer, option: dict[str, float]) -> None:
    async with open_redis(server.url) as redis:
        with pytest.raises(ValueError, match=f"^{next(iter(option))} must be >= "):
            await redis.transaction(taken, "tx:stock", **option)  # type: ignore[arg-type]


async def test_an_error_of_the_body_comes_out_bare(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        error = LookupError("no")

        def body(tx: Transaction) -> None:
            raise error

        with pytest.raises(LookupError) as caught:
            await redis.transaction(body, "tx:a")
        assert caught.value is error
        assert idle(redis) == 1


# -------------------------------------------------------------------------------------------------- lost


@pytest.mark.parametrize("executed", [False, True])
async def test_a_lost_connection_is_never_replaced(executed: bool, autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        async with redis.watch() as tx:
            scripted.kill_after = lambda words: executed and words[0] == b"EXEC"
            tx.multi()
            tx.execute_command("INCR", "n")
            if not executed:
                scripted.session.kill()
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(LinkError) as caught:
                await tx.execute()
            assert caught.value.sent is executed
            with pytest.raises(LinkError):
                await tx.get("n")
        assert len(scripted.ran("INCR")) == executed
        assert idle(redis) == 0


async def test_no_answer_in_time_closes_the_connection(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted, command_timeout=1) as redis:
        async with redis.watch() as tx:
            tx.multi()
            tx.execute_command("INCR", "n")
            scripted.session.mute()
            with pytest.raises(CallTimeoutError):
                await tx.execute()
        assert idle(redis) == 0


async def test_a_server_that_is_no_longer_the_master_is_left(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        async with redis.watch() as tx:
            scripted.refuse = lambda words: "READONLY no" if words[0] == b"SET" else None
            with pytest.raises(ReadOnlyError):
                await tx.set("a", 1)
            scripted.refuse = lambda words: None
        assert idle(redis) == 0
        assert await redis.set("a", 1) is True
        assert redis.statistics().connections == 2
