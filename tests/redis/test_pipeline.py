# mypy: disable-error-code="unused-awaitable, comparison-overlap"
"""Pipelines: what is sent, when, in how many writes; errors, refusals, cancels and lost connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from redis.exceptions import DataError, ExecAbortError, NoScriptError, ReadOnlyError, ResponseError

from tests.redis.peer import forget, idle, open_peer, until
from tests.redis.scripted import ScriptedServer, Session, open_client, open_scripted
from trio_orchestrator.redis import open_redis
from trio_orchestrator.redis.error import CallTimeoutError, LinkError, RefusedCommandError
from trio_orchestrator.testing.proxy import open_fault_proxy
from trio_orchestrator.testing.server import RedisServer

BOTH = pytest.mark.parametrize("transaction", [False, True], ids=["pipeline", "transaction"])


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    forget(redis_server, "pl:")
    yield redis_server
    forget(redis_server, "pl:")


def fill(pipe: Any) -> None:
    """Queue commands of many groups, with two that fail."""
    pipe.set("pl:a", 1, px=60_000).incr("pl:a").hset("pl:h", mapping={"x": 1, "y": 2}).hgetall("pl:h")
    pipe.lpush("pl:a", 1).rpush("pl:l", 1, 2).lrange("pl:l", 0, -1).mget([]).mget("pl:a", "pl:none")
    pipe.zadd("pl:z", {"a": 1.5}).zrange("pl:z", 0, -1, withscores=True).smembers("pl:none")
    pipe.hincrby("pl:a", "x", 1).dump("pl:a").scan(match="pl:z").exists("pl:a", "pl:h").type("pl:z")


@BOTH
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
async def test_answers_are_those_of_redis_py(server: RedisServer, transaction: bool, decode: bool) -> None:
    with open_peer(server, decode_responses=decode) as peer:
        theirs = peer.pipeline(transaction)
        fill(theirs)
        if decode and transaction:  # redis-py decodes what DUMP says
            theirs = peer.pipeline(False)
            fill(theirs)
        expected = theirs.execute(raise_on_error=False)
    forget(server, "pl:")
    async with open_redis(server.url, decode_responses=decode) as redis, redis.pipeline(transaction) as pipe:
        fill(pipe)
        assert len(pipe) == len(expected) == 17
        results = await pipe.execute(raise_on_error=False)
        assert list(map(comparable, results)) == list(map(comparable, expected))
        assert len(pipe) == 0
        assert idle(redis) == 0


def comparable(result: Any) -> Any:
    return (type(result), str(result)) if isinstance(result, Exception) else result


@BOTH
async def test_the_first_error_is_raised_in_the_words_of_redis_py(server: RedisServer, transaction: bool) -> None:
    async with open_redis(server.url) as redis, redis.pipeline(transaction) as pipe:
        pipe.set("pl:a", 1)
        pipe.lpush("pl:a", "x" * 300)
        pipe.set("pl:b", 3)
        with pytest.raises(
            ResponseError, match=r"^Command # 2 \(LPUSH pl:a\.\.\.\) of pipeline caused error: \('WRONGT"
        ):
            await pipe.execute()
        assert await redis.get("pl:b") == b"3"  # those behind it have run
        assert await pipe.execute() == []


async def test_a_transaction_with_a_command_that_is_not_accepted_does_nothing(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.pipeline(transaction=True) as pipe:
        pipe.set("pl:a", 1)
        pipe.execute_command("NOSUCH", 1)
        with pytest.raises(ResponseError, match=r"^Command # 2 \(NOSUCH 1\) of pipeline caused error: ") as caught:
            await pipe.execute(raise_on_error=False)
        assert isinstance(caught.value.__cause__, ExecAbortError)
        assert await redis.get("pl:a") is None


async def test_by_default_it_is_no_transaction(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.pipeline() as pipe:
        assert not pipe.is_transaction
        pipe.set("pl:a", 1)
        pipe.execute_command("NOSUCH")
        results = await pipe.execute(raise_on_error=False)
        assert results[0] is True
        assert await redis.get("pl:a") == b"1"


async def test_leaving_without_execute_sends_nothing_and_reset_forgets(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        async with redis.pipeline() as pipe:
            pipe.set("pl:a", 1)
            assert await pipe is pipe
            assert len(pipe) == 1
            assert pipe
        assert len(pipe) == 0
        assert pipe
        pipe.set("pl:a", 1)
        await pipe.reset()
        assert await pipe.execute() == []
        assert redis.statistics().calls == 0
        assert await pipe.execute_command("SET", "pl:a", 2).execute() == [True]  # it can be used again


REFUSED: dict[str, Callable[[Any], object]] = {
    "BLPOP is refused in a pipeline: it blocks": lambda pipe: pipe.blpop("pl:q", 1),
    "XREAD is refused in a pipeline: it blocks": lambda pipe: pipe.xread({"pl:s": 0}, block=10),
    "SCRIPT KILL is refused in a pipeline": lambda pipe: pipe.script_kill(),
    "WATCH is refused": lambda pipe: pipe.watch("pl:a"),
    "EXEC is refused": lambda pipe: pipe.execute_command("EXEC"),
    "KEYS is refused": lambda pipe: pipe.keys("pl:*"),
    "WAIT is refused": lambda pipe: pipe.wait(1, 10),
    "SELECT is refused": lambda pipe: pipe.select(1),
    "arguments must be bytes": lambda pipe: pipe.set("pl:a", object()),
    "arguments must be encodable": lambda pipe: pipe.set("pl:a", "\ud800"),
}


@BOTH
@pytest.mark.parametrize("message", REFUSED)
async def test_what_cannot_be_sent_is_refused_where_it_is_queued(
    server: RedisServer, transaction: bool, message: str
) -> None:
    async with open_redis(server.url) as redis, redis.pipeline(transaction) as pipe:
        pipe.set("pl:a", 1)
        with pytest.raises(DataError, match=message):
            REFUSED[message](pipe)
        assert await pipe.execute() == [True]


async def test_keys_pass_if_the_client_allows_them(server: RedisServer) -> None:
    async with open_redis(server.url, allow_keys=True) as redis, redis.pipeline() as pipe:
        pipe.set("pl:a", 1)
        pipe.keys("pl:*")
        pipe.xread({"pl:s": 0})
        assert await pipe.execute() == [True, [b"pl:a"], []]


@BOTH
async def test_a_thousand_commands_leave_in_one_write(transaction: bool, autojump_clock: object) -> None:
    writes: list[int] = []

    def takes(size: int) -> int:
        writes.append(size)
        return size

    async with open_scripted() as scripted:
        scripted.exact, scripted.takes = True, takes
        async with open_client(scripted) as redis, redis.pipeline(transaction) as pipe:
            writes.clear()
            for _ in range(1000):
                pipe.execute_command("INCR", "n")
            assert await pipe.execute() == list(range(1, 1001))
            assert len(writes) == 1
            assert redis.statistics().calls == 1


@BOTH
async def test_a_thousand_commands_wait_for_no_reply(server: RedisServer, transaction: bool) -> None:
    async with (
        open_fault_proxy((server.host, server.port)) as proxy,
        open_redis(f"redis://{proxy.host}:{proxy.port}") as redis,
        trio.open_nursery() as nursery,
    ):
        pipe, results, before = redis.pipeline(transaction), [], proxy.requests.arrived
        for number in range(1000):
            pipe.hincrby("pl:h", str(number % 10), 1)
        proxy.replies.held = True

        async def execute() -> None:
            results.extend(await pipe.execute())

        nursery.start_soon(execute)
        await until(lambda: server.command("HGET", "pl:h", "9") == "100")  # all of it has run
        sent = proxy.requests.arrived - before
        assert results == []
        proxy.replies.held = False
        await until(lambda: bool(results))
        assert results == [1 + number // 10 for number in range(1000)]
        assert redis.statistics().calls == 1
        assert sent == redis.statistics().sent_bytes - before


@BOTH
async def test_a_hundred_thousand_commands(server: RedisServer, transaction: bool) -> None:
    async with open_redis(server.url, command_timeout=20, max_unsent=1000, max_in_flight=2) as redis:
        pipe = redis.pipeline(transaction)
        for _ in range(100_000):
            pipe.execute_command("INCR", "pl:n")
        assert await pipe.execute() == list(range(1, 100_001))
        assert idle(redis) == 0


async def test_a_callback_that_waits_is_waited_for(server: RedisServer) -> None:
    async def later(reply: bytes) -> str:
        await trio.lowlevel.checkpoint()
        return reply.decode()

    async with open_redis(server.url) as redis, redis.pipeline() as pipe:
        redis.set_response_callback("ECHO", later)
        pipe.echo("a")
        pipe.echo("b")
        assert await pipe.execute() == ["a", "b"]


# ------------------------------------------------------------------------------------------ scripts


@BOTH
async def test_scripts_are_loaded_in_the_same_write(server: RedisServer, transaction: bool) -> None:
    server.command("SCRIPT", "FLUSH")
    async with open_redis(server.url) as redis, redis.pipeline(transaction) as pipe:
        double = redis.register_script("return 2 * ARGV[1]")
        broken = redis.register_script("return )")
        double(args=[1], client=pipe)
        assert await double(args=[2], client=pipe, resend=True) is pipe
        assert await pipe.execute() == [2, 4]
        assert redis.statistics().calls == 1
        broken(client=pipe)
        double(args=[3], client=pipe)
        error, six = await pipe.execute(raise_on_error=False)
        assert "Error compiling script" in str(error)
        assert six == 6
        pipe.evalsha("0" * 40, 0)
        with pytest.raises(NoScriptError, match=r"Command # 1 \(EVALSHA 000"):
            await pipe.execute()


# ------------------------------------------------------------------------------- cancelled, lost, refused


@BOTH
async def test_cancelled_anywhere_it_leaves_the_link_in_step(server: RedisServer, transaction: bool) -> None:
    async with (
        open_fault_proxy((server.host, server.port)) as proxy,
        open_redis(f"redis://{proxy.host}:{proxy.port}") as redis,
    ):
        proxy.replies.piece = (1, 9)
        caught = 0
        for number in range(60):  # from before it is sent to after its last reply
            pipe = redis.pipeline(transaction)
            for value in range(20):
                pipe.set(f"pl:{number}", value, get=True)
            with trio.move_on_after(number * 0.0001) as scope:
                assert (await pipe.execute())[1:] == [b"%d" % value for value in range(19)]
            caught += scope.cancelled_caught
            if number % 3 == 0:
                assert await redis.echo(str(number)) == b"%d" % number
        assert 0 < caught
        assert await redis.echo("end") == b"end"
        assert idle(redis) == 0
        assert redis.statistics().connections == 1


async def test_a_pipeline_of_reads_and_one_that_may_run_twice_are_sent_again(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        scripted.data[b"a"] = b"1"
        scripted.session.kill_out = 6  # the first reply is half through
        reads = redis.pipeline()
        reads.get("a")
        reads.get("b")
        assert await reads.execute() == [b"1", None]
        scripted.session.kill_out = 6
        pipe = redis.pipeline(resend=True)
        pipe.execute_command("INCR", "n")
        pipe.execute_command("INCR", "n")
        assert await pipe.execute() == [3, 4]
        assert redis.statistics().lost == 2


def take_slowly(scripted: ScriptedServer, first: int) -> None:
    """Have the socket take so many bytes, and the rest one by one; the server ends the connection at those."""
    sizes = iter([first])
    scripted.exact = True
    scripted.takes = lambda size: next(sizes, 1) if size < 80 else size
    scripted.kill_in = math.inf


@pytest.mark.parametrize("transaction", [False, True])
async def test_what_was_sent_in_part(transaction: bool, autojump_clock: object) -> None:
    """Of a pipeline some may have run; of a transaction without its EXEC nothing has, so that it is sent again."""
    async with open_scripted() as scripted:
        take_slowly(scripted, 40)
        async with open_client(scripted) as redis:
            scripted.session.kill_in = scripted.session.received + 38
            pipe = redis.pipeline(transaction)
            for _ in range(2 if transaction else 3):
                pipe.execute_command("INCR", "n")
            if transaction:
                assert await pipe.execute() == [1, 2]
                assert len(scripted.ran("EXEC")) == 1
            else:
                with pytest.raises(LinkError) as caught:
                    await pipe.execute()
                assert caught.value.sent
                assert scripted.data[b"n"] == b"1"


async def test_a_transaction_that_was_sent_may_have_run(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        scripted.kill_after = lambda words: words[0] == b"EXEC"
        pipe = redis.pipeline(transaction=True)
        pipe.execute_command("INCR", "n")
        with pytest.raises(LinkError) as caught:
            await pipe.execute()
        assert caught.value.sent
        assert scripted.data[b"n"] == b"1"


async def test_no_answer_in_time(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted, command_timeout=1) as redis:
        scripted.takes_long = lambda words: 0.6
        pipe = redis.pipeline()
        pipe.execute_command("INCR", "n")
        pipe.execute_command("INCR", "n")
        began_at = trio.current_time()
        with pytest.raises(CallTimeoutError) as caught:
            await pipe.execute()
        assert caught.value.sent
        assert trio.current_time() - began_at == 1
        scripted.takes_long = lambda words: 0
        assert await redis.get("n") == b"2"  # behind its late replies


def demoted(scripted: ScriptedServer, *names: bytes) -> Callable[[tuple[bytes, ...]], str | None]:
    """Return the refusals of a server that is no master until it is connected to anew."""
    first: Session = scripted.session

    def refuse(words: tuple[bytes, ...]) -> str | None:
        refused = scripted.session is first and words[0] in names
        return "READONLY You can't write against a read only replica." if refused else None

    return refuse


async def test_a_pipeline_that_was_refused_as_a_whole_is_sent_again(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        scripted.refuse = demoted(scripted, b"INCR")
        pipe = redis.pipeline()
        pipe.execute_command("INCR", "n")
        pipe.execute_command("INCR", "n")
        assert await pipe.execute() == [1, 2]
        assert redis.statistics().connections == 2


async def test_a_pipeline_that_was_refused_in_part_is_not_sent_again(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        scripted.refuse = demoted(scripted, b"INCR")
        pipe = redis.pipeline()
        pipe.execute_command("INCR", "n")
        pipe.get("n")
        error, value = await pipe.execute(raise_on_error=False)
        assert isinstance(error, ReadOnlyError)
        assert value is None
        assert await redis.execute_command("INCR", "n") == 1  # elsewhere by now
        assert redis.statistics().connections == 2


async def test_a_transaction_that_was_refused_is_sent_again(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        readonly = demoted(scripted, b"INCR")

        def refuse(words: tuple[bytes, ...]) -> str | None:
            aborted = words[0] == b"EXEC" and readonly((b"INCR",))
            return "EXECABORT Transaction discarded because of previous errors." if aborted else readonly(words)

        scripted.refuse = refuse
        pipe = redis.pipeline(transaction=True)
        pipe.get("n")
        pipe.execute_command("INCR", "n")
        assert await pipe.execute() == [None, 1]


async def test_a_transaction_that_was_refused_at_its_end_is_sent_again(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        readonly = demoted(scripted, b"EXEC")

        def refuse(words: tuple[bytes, ...]) -> str | None:
            refusal = readonly(words)
            return refusal and f"EXECABORT Transaction discarded because of: {refusal}"

        scripted.refuse = refuse
        pipe = redis.pipeline(transaction=True)
        pipe.execute_command("INCR", "n")
        assert await pipe.execute() == [1]


async def test_a_server_that_refuses_for_ever(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        scripted.refuse = lambda words: "READONLY no" if words[0] == b"INCR" else None
        pipe = redis.pipeline()
        pipe.execute_command("INCR", "n")
        with pytest.raises(ReadOnlyError, match=r"Command # 1 \(INCR n\) of pipeline caused error"):
            await pipe.execute()
        assert scripted.seen.count((b"INCR", b"n")) == 2


async def test_after_the_block_of_the_client(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        pipe = redis.pipeline()
    pipe.set("pl:a", 1)
    with pytest.raises(trio.ClosedResourceError):
        await pipe.execute()


def test_a_refusal_is_an_error_of_data() -> None:
    assert issubclass(RefusedCommandError, DataError)
