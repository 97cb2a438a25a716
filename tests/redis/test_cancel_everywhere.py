# mypy: disable-error-code="unused-awaitable, attr-defined"
"""Every async operation of the client, cancelled at each of its checkpoints under several schedules: nothing is left.

What counts is ours: public functions and methods that are defined in the package, and what they return, by their
annotations. redis-py's methods do not: each of them is one `execute_command`, for which a few of them stand.
`open_redis` and `open_sentinel` are entered as they are, over sockets; a cluster is opened by what `open_redis_cluster`
opens it by, with its servers in memory.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import trio
from trio.lowlevel import Task

import trio_orchestrator.redis as package
from tests.redis.scripted import ScriptedServer, Session, open_client, open_scripted
from tests.redis.scripted_cluster import ScriptedCluster, View, open_scripted_cluster
from tests.redis.scripted_commands import Commands, listening, teach
from trio_orchestrator.redis import Redis, RedisCluster, Transaction, open_redis, open_sentinel
from trio_orchestrator.redis.slot import SLOTS
from trio_orchestrator.testing import CancelAt, cancelled_everywhere

Scenario = Callable[[CancelAt], Awaitable[None]]
SCENARIOS: dict[str, list[tuple[str, Scenario]]] = {}
SEEDS: Final = range(2)
LOW, HIGH = "b", "a"
HALVES: View = [(0, SLOTS // 2 - 1, 0, ()), (SLOTS // 2, SLOTS - 1, 1, ())]


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    """Register what cancels some operations. Each key that it writes, `once:...`, it writes once, by an increment."""

    def register(fn: Scenario) -> Scenario:
        for name in names:
            SCENARIOS.setdefault(name, []).append((fn.__name__, fn))
        return fn

    return register


# ---------------------------------------------------------------------------------------------- one server


class Stage:
    """A server, and a client of it that others go on to use."""

    def __init__(self, scripted: ScriptedServer, commands: Commands, redis: Redis) -> None:
        self.scripted = scripted
        self.commands = commands
        self.redis = redis
        self.event_links = 0
        """How many may stay: the one that all share."""
        self._server = redis._server

    def tasks(self) -> int:
        assert self._server._nursery is not None
        return len(self._server._nursery.child_tasks)

    async def check(self, before: int) -> None:
        """Fail unless the client serves others, and nothing is left of what was cancelled."""
        assert (self._server.leases.used, self._server.leases.waiting) == (0, 0)
        await trio.sleep(6)
        check_once(self.scripted)
        await self.check_usable()
        await trio.sleep(6)
        assert self._server.link.outbox.used == 0
        assert self._server.link.statistics().in_flight == 0
        assert self.commands.watching() == 0
        idle = len(self._server.leases._idle)
        shared = len(self._server._event_links)
        assert idle <= 2
        assert shared <= self.event_links
        assert self.tasks() == before + idle + shared
        assert sum(not end.closed for end in self.scripted.ends) == 1 + idle + shared
        assert all(session.topics == {} for session in self.scripted.sessions if session.alive)

    async def check_usable(self) -> None:
        assert await self.redis.incr("after") == 1
        await self.redis.lpush("list", "element")
        assert await self.redis.blpop(["list"], timeout=1) == (b"list", b"element")
        async with self.redis.dedicated() as one, self.redis.dedicated() as other:
            assert [await one.echo("1"), await other.echo("2")] == [b"1", b"2"]


def check_once(*servers: ScriptedServer) -> None:
    """Fail if a server executed a write twice."""
    for server in servers:
        assert {key: value for key, value in server.data.items() if key[:4] == b"once" and value != b"1"} == {}


@asynccontextmanager
async def open_stage() -> AsyncGenerator[Stage]:
    async with open_scripted() as scripted:
        scripted.latency = 0.125
        commands = teach(scripted)
        async with open_client(scripted, dedicated=2, command_timeout=5, max_in_flight=3) as redis:
            stage = Stage(scripted, commands, redis)
            before = stage.tasks()
            yield stage
            await stage.check(before)


@scenario("Redis.execute_command")
async def ordinary_commands(injector: CancelAt) -> None:
    async with open_stage() as stage:
        with injector.watch():
            assert await stage.redis.incr("once:1") == 1
            assert await stage.redis.execute_command("ECHO", "x") == b"x"
            async with trio.open_nursery() as nursery:
                for n in range(4):
                    nursery.start_soon(stage.redis.incr, f"once:at once {n}")


@scenario("Redis.execute_command")
async def commands_that_block(injector: CancelAt) -> None:
    async with open_stage() as stage:
        with injector.watch():
            assert await stage.redis.blpop(["list"], timeout=1) is None
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(stage.redis.execute_command, "BLPOP", "list", 1)


@scenario("Redis.execute_script", "Script.call")
async def scripts(injector: CancelAt) -> None:
    async with open_stage() as stage:
        script = stage.redis.register_script("return redis.call('INCR', KEYS[1])")
        with injector.watch():
            assert await script(keys=["once:1"]) == 1
            assert await stage.redis.execute_script(script, ("once:2",), (), resend=False, readonly=False) == 1


@scenario("Redis.transaction")
async def a_transaction_that_is_tried_again(injector: CancelAt) -> None:
    async with open_stage() as stage:
        attempts: list[int] = []

        async def body(tx: Transaction) -> None:
            attempts.append(1)
            await tx.get("read")
            if len(attempts) == 1:
                stage.scripted.data[b"read"] = b"changed"
            tx.multi()
            await tx.incr("once:1").incr("once:2")

        with injector.watch():
            assert await stage.redis.transaction(body, "read") == [1, 1]
            assert len(attempts) == 2
        assert (b"once:1" in stage.scripted.data) == (b"once:2" in stage.scripted.data)


@scenario(
    "Transaction.async with", "Transaction.await", "Transaction.execute", "Transaction.execute_command",
    "Transaction.execute_script", "Transaction.reset", "Transaction.unwatch", "Transaction.watch",
)  # fmt: skip
async def keys_that_are_watched(injector: CancelAt) -> None:
    async with open_stage() as stage:
        script = stage.redis.register_script("return redis.call('INCR', KEYS[1])")
        with injector.watch():
            async with stage.redis.watch("a") as tx:
                assert await tx.execute_command("GET", "a") is None
                await tx.unwatch()
                await tx.watch("b", "c")
                assert await script(keys=["once:script"], client=tx) == 1
                tx.multi()
                await tx.incr("once:1")
                tx.incr("once:2")
                assert await tx.execute() == [1, 1]
                await tx.watch("a")
                tx.multi()
                tx.incr("once:never")
                await tx.reset()
        assert b"once:never" not in stage.scripted.data
        assert (b"once:1" in stage.scripted.data) == (b"once:2" in stage.scripted.data)


@scenario(
    "Pipeline.async with", "Pipeline.await", "Pipeline.execute", "Pipeline.execute_script", "Pipeline.reset"
)  # fmt: skip
async def pipelines(injector: CancelAt) -> None:
    async with open_stage() as stage:
        script = stage.redis.register_script("return redis.call('INCR', KEYS[1])")
        with injector.watch():
            async with stage.redis.pipeline() as pipe:
                await pipe.incr("once:1")
                await script(keys=["once:2"], client=pipe)
                assert await pipe.execute() == [1, 1]
                pipe.incr("once:never")
                await pipe.reset()
                assert await pipe.execute() == []
            async with stage.redis.pipeline(transaction=True) as pipe:
                assert await pipe.incr("once:3").incr("once:4").execute() == [1, 1]
        assert b"once:never" not in stage.scripted.data
        assert (b"once:3" in stage.scripted.data) == (b"once:4" in stage.scripted.data)


@scenario("DedicatedRedis.async with", "DedicatedRedis.execute_command", "DedicatedRedis.execute_script")
async def connections_of_ones_own(injector: CancelAt) -> None:
    async with open_stage() as stage:
        script = stage.redis.register_script("return redis.call('INCR', KEYS[1])")

        async def use(n: int) -> None:
            async with stage.redis.dedicated() as mine:
                assert await mine.incr(f"once:{n}") == 1
                assert await mine.blpop(["list"], timeout=1) is None

        with injector.watch():
            async with stage.redis.dedicated() as mine:
                assert await script(keys=["once:script"], client=mine) == 1
                assert await mine.pipeline().incr("once:piped").execute() == [1]
            async with trio.open_nursery() as nursery:
                for n in range(3):
                    nursery.start_soon(use, n)


@scenario("Monitor.async with", "Monitor.async for")
async def the_log_of_all_commands(injector: CancelAt) -> None:
    async with open_stage() as stage:
        with injector.watch():
            async with stage.redis.monitor() as commands:
                stage.commands.tell_monitors(3)
                async for command in commands:
                    if command["command"] == "incr 2":
                        break


async def listen(stage: Stage, injector: CancelAt, *, shared: bool) -> None:
    with injector.watch():
        async with stage.redis.pubsub(shared=shared) as sub:
            await sub.subscribe("channel", "other")
            await sub.psubscribe("chan*")
            await sub.ssubscribe("shard")
            await sub.unsubscribe("other")
            await stage.redis.publish("channel", "1")
            await stage.redis.spublish("shard", "2")
            assert (await sub.receive()).data == b"1"
            async for message in sub:
                assert message.kind == "pmessage"
                break
            assert (await sub.get_message(timeout=5)) is not None
            assert await sub.get_message(timeout=1) is None
            await sub.punsubscribe()
            await sub.sunsubscribe("shard")


PUBSUB: Final = (
    "PubSub.async for", "PubSub.async with", "PubSub.get_message", "PubSub.psubscribe", "PubSub.punsubscribe",
    "PubSub.receive", "PubSub.ssubscribe", "PubSub.subscribe", "PubSub.sunsubscribe", "PubSub.unsubscribe",
)  # fmt: skip


@scenario(*PUBSUB)
async def messages_on_a_connection_of_ones_own(injector: CancelAt) -> None:
    async with open_stage() as stage:
        await listen(stage, injector, shared=False)


@scenario(*PUBSUB)
async def messages_on_the_connection_that_all_share(injector: CancelAt) -> None:
    async with open_stage() as stage:
        stage.event_links = 1
        await listen(stage, injector, shared=True)


@scenario("Scan.async for")
async def all_keys(injector: CancelAt) -> None:
    async with open_stage() as stage:
        scan, found = stage.redis.scan_iter("*"), list[bytes]()
        with injector.watch():
            async for key in scan:
                found.append(key)
        async for key in scan:  # cancelled, it goes on where it was
            found.append(key)
        assert b"".join(found) == b"abcdef"


@scenario("Redis.sibling")
async def a_second_client(injector: CancelAt) -> None:
    async with open_stage() as stage:
        with injector.watch():
            async with stage.redis.sibling() as other:
                assert await other.incr("once:1") == 1
                other.post("INCR", "once:2")
        assert stage.redis._server._twins == []


# ------------------------------------------------------------------------------------------------ openings


async def check_gone(*servers: ScriptedServer) -> None:
    """Fail unless all connections have ended."""
    alive = True
    for _ in range(500):  # the sockets are real: their ends arrive when the system gets to it
        await trio.sleep(1)
        alive = any(session.alive for server in servers for session in server.sessions)
        if not alive:
            break
        time.sleep(0.01)  # noqa: ASYNC251 - virtual time would not wait for the system
    assert not alive


@scenario("open_redis")
async def a_client(injector: CancelAt) -> None:
    with TemporaryDirectory(prefix="redis-") as directory:
        path = f"{directory}/socket"
        async with open_scripted() as scripted, listening(scripted, path):
            scripted.latency = 0.125
            teach(scripted)
            with injector.watch():
                async with open_redis(f"unix://{path}", client_name="me", db=1) as redis:
                    redis.post("INCR", "once:1")
                    assert await redis.incr("once:2") == 1
                    redis.post("INCR", "once:3")
            await check_gone(scripted)
            check_once(scripted)
            assert injector.scope.cancelled_caught or b"once:3" in scripted.data
            assert scripted.data.keys() >= {b"once:1"} or not scripted.ran("INCRBY")


def watch_over(sentinel: ScriptedServer, port: int) -> None:
    """Make a server a Sentinel, which names the master."""
    master = {b"ip": b"127.0.0.1", b"port": b"%d" % port, b"flags": b"master", b"config-epoch": b"1"}
    answers = {
        b"MASTER": master,
        b"GET-MASTER-ADDR-BY-NAME": [master[b"ip"], master[b"port"]],
        b"MYID": b"%d" % id(sentinel),
    }
    sentinel._do_sentinel = lambda _, what, *_name: answers.get(what, [])


@scenario("open_sentinel")
async def a_client_of_whatever_is_the_master(injector: CancelAt) -> None:
    async with AsyncExitStack() as stack:
        master, *sentinels = [await stack.enter_async_context(open_scripted()) for _ in range(3)]
        _, port = await stack.enter_async_context(listening(master))
        ports = [(await stack.enter_async_context(listening(sentinel)))[1] for sentinel in sentinels]
        teach(master)
        for sentinel in sentinels:
            watch_over(sentinel, port)
        with injector.watch():
            async with open_sentinel("mymaster", [f"redis://127.0.0.1:{port}" for port in ports]) as redis:
                assert await redis.incr("once:1") == 1
                redis.post("INCR", "once:2")
        await check_gone(master, *sentinels)
        check_once(master)
        assert injector.scope.cancelled_caught or b"once:2" in master.data


@scenario("open_redis_cluster")
async def a_client_of_a_cluster(injector: CancelAt) -> None:
    async with open_scripted_cluster(2) as cluster:
        cluster.see(HALVES)
        for server in cluster.servers:
            server.latency = 0.125
            teach(server)
        with injector.watch():
            async with cluster.open() as redis:
                redis.post("INCR", f"once:{{{LOW}}}")
                redis.post("INCR", f"once:{{{HIGH}}}")
                assert await redis.incr(f"once:2:{{{HIGH}}}") == 1
        await check_gone(*cluster.servers)
        check_once(*cluster.servers)
        if not injector.scope.cancelled_caught:
            assert [len(server.data) for server in cluster.servers] == [1, 2]


# ------------------------------------------------------------------------------------------------ clusters


@asynccontextmanager
async def open_cluster_stage() -> AsyncGenerator[tuple[ScriptedCluster, RedisCluster]]:
    """Open a cluster of two, and a client that others go on to use."""
    async with open_scripted_cluster(2) as cluster:
        cluster.see(HALVES)
        for server in cluster.servers:
            server.latency = 0.125
            teach(server)
        async with cluster.open(max_dedicated=2, command_timeout=5) as redis:
            yield cluster, redis
            await trio.sleep(6)
            check_once(*cluster.servers)
            await check_cluster(redis)


async def check_cluster(redis: RedisCluster) -> None:
    """Fail unless it serves others, and nothing is left of what was cancelled."""
    for key in (LOW, HIGH):
        assert await redis.incr(f"after:{{{key}}}") == 1
        async with redis.dedicated(key) as one, redis.dedicated(key) as other:
            assert [await one.echo("1"), await other.echo("2")] == [b"1", b"2"]
    await trio.sleep(6)
    for node in redis._router.fleet.nodes:
        assert node.link.outbox.used == node.link.statistics().in_flight == 0
        assert node._apart == {}
        assert node.server.leases.used == node.server.leases.waiting == 0
    assert len(redis._router.fleet.nodes) == 2


@scenario("RedisCluster.execute_command", "RedisCluster.execute_script")
async def commands_to_a_cluster(injector: CancelAt) -> None:
    async with open_cluster_stage() as (_, redis):
        script = redis.register_script("return redis.call('INCR', KEYS[1])")
        with injector.watch():
            assert await redis.incr(f"once:{{{LOW}}}") == 1
            assert await script(keys=[f"once:script:{{{HIGH}}}"]) == 1
            assert await redis.ping() is True
            assert await redis.blpop([HIGH], timeout=1) is None


@scenario("RedisCluster.execute_command")
async def commands_that_are_sent_elsewhere(injector: CancelAt) -> None:
    async with open_cluster_stage() as (cluster, redis):
        low, high = cluster.servers
        low.refuse = lambda words: "MOVED 3300 cluster:7001" if words[:1] == (b"INCRBY",) and not high.data else None
        high.refuse = lambda words: "TRYAGAIN" if words[:1] == (b"INCRBY",) and len(high.seen) < 11 else None
        with injector.watch():
            assert await redis.incr(f"once:{{{LOW}}}") == 1
        low.refuse = high.refuse = lambda words: None


def increase(server: ScriptedServer, session: Session, *words: bytes) -> str:
    """Execute MSET so that it shows how often."""
    for key in words[::2]:
        server._do_incr(session, key)
    return "OK"


@scenario("RedisCluster.mget_nonatomic", "RedisCluster.mset_nonatomic")
async def keys_in_several_slots(injector: CancelAt) -> None:
    async with open_cluster_stage() as (cluster, redis):
        for server in cluster.servers:
            server._do_mset = partial(increase, server)
        with injector.watch():
            await redis.mset_nonatomic({f"once:{{{LOW}}}": 1, f"once:{{{HIGH}}}": 1})
            assert await redis.mget_nonatomic([LOW, HIGH]) == [None, None]


@scenario("RedisCluster.transaction")
async def a_transaction_on_a_cluster(injector: CancelAt) -> None:
    async with open_cluster_stage() as (cluster, redis):

        def body(tx: Transaction) -> None:
            tx.multi()
            tx.incr(f"once:1:{{{HIGH}}}").incr(f"once:2:{{{HIGH}}}")

        with injector.watch():
            assert await redis.transaction(body, HIGH) == [1, 1]
        assert len(cluster.servers[1].data) in (0, 2)


# ------------------------------------------------------------------------------------------------ the walk

WAITS: Final = re.compile(r"\b(Awaitable|Coroutine|AbstractAsyncContextManager|AsyncIterator|AsyncGenerator)\b")
SPECIAL: Final = {"__aenter__": "async with", "__anext__": "async for", "__await__": "await", "__call__": "call"}


def is_ours(value: Any) -> bool:
    return str(getattr(inspect.unwrap(value), "__module__", "")).startswith(package.__name__)


def returned(fn: Callable[..., Any]) -> str:
    return str(inspect.unwrap(fn).__annotations__.get("return", ""))


def waits(fn: Callable[..., Any]) -> bool:
    """Return whether what a function returns is to be awaited, entered or gone through."""
    told = inspect.iscoroutinefunction(fn) or WAITS.search(returned(fn)) is not None
    return told or fn.__name__ == "__await__" or (fn.__name__ == "execute_command" and returned(fn) == "Any")


def classes_in(fn: Callable[..., Any]) -> Iterator[type]:
    """Yield the classes of ours that a function returns, or that what it returns gives."""
    names = vars(inspect.getmodule(inspect.unwrap(fn)))
    for word in re.findall(r"\w+", returned(fn)):
        if inspect.isclass(names.get(word)) and is_ours(names[word]):
            yield names[word]


def functions_of(value: Any) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a public name, by the names of their operations."""
    if not inspect.isclass(value):
        return {value.__name__: value} if inspect.isfunction(value) else {}
    members = {name: inspect.getattr_static(value, name) for name in dir(value)}
    return {
        f"{value.__name__}.{SPECIAL.get(name, name)}": member
        for name, member in members.items()
        if inspect.isfunction(member) and is_ours(member) and (name in SPECIAL or not name.startswith("_"))
    }


def async_operations() -> set[str]:
    """Return the names of all async operations of ours that can be got at from the package's public names."""
    found, seen = set[str](), set[Any]()
    new = [value for name, value in vars(package).items() if not name.startswith("_") and is_ours(value)]
    while new:
        value = new.pop()
        if value not in seen and not inspect.ismodule(value):
            seen.add(value)
            for name, fn in functions_of(value).items():
                found |= {name} if waits(fn) else set()
                new += classes_in(fn)
    return found


def test_every_async_operation_has_a_scenario() -> None:
    assert async_operations() == SCENARIOS.keys()
    assert len(SCENARIOS) > 40


CASES: Final = sorted({case for cases in SCENARIOS.values() for case in cases}, key=lambda case: case[0])
each_case = pytest.mark.parametrize("run", [fn for _, fn in CASES], ids=[case for case, _ in CASES])


def anybody(task: Task) -> bool:
    """Count everybody's suspensions."""
    return True


@each_case
def test_cancelled_at_its_every_checkpoint(run: Scenario) -> None:
    cases = cancelled_everywhere(run, seeds=SEEDS)
    print(f"{cases} cancellations")
    assert cases >= len(SEEDS)


OTHERS: Final = [scripts, a_client]


@pytest.mark.parametrize("run", OTHERS, ids=lambda run: run.__name__)
def test_cancelled_at_every_checkpoint_of_every_task(run: Scenario) -> None:
    assert cancelled_everywhere(run, seeds=range(1), want=anybody) > 10


# ------------------------------------------------------------------------------------------------ errors

BLOCKS: Final[dict[str, Callable[[Redis], AbstractAsyncContextManager[Any]]]] = {
    "watch": lambda redis: redis.watch("a"),
    "pipeline": lambda redis: redis.pipeline(),
    "dedicated": lambda redis: redis.dedicated(),
    "monitor": lambda redis: redis.monitor(),
    "pubsub": lambda redis: redis.pubsub(),
    "sibling": lambda redis: redis.sibling(),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_an_error_comes_out_bare_wherever_its_block_is_cancelled(name: str) -> None:
    async def run(injector: CancelAt) -> None:
        error = ValueError()
        async with open_stage() as stage:
            with injector.watch():
                try:
                    async with BLOCKS[name](stage.redis) as block:
                        if name == "pubsub":
                            await block.subscribe("channel")
                        raise error
                except ValueError as caught:
                    assert caught is error
                    assert error.__context__ is error.__cause__ is None

    assert cancelled_everywhere(run, seeds=range(1)) >= 1
