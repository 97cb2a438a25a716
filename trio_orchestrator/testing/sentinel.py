"""Real Sentinels, a master and replicas that live as long as a block: see `trio_orchestrator.testing.server`."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import Final, final

from trio_orchestrator.algorithms.argument import above, count
from trio_orchestrator.testing.opening import Opening, Steps, finish, finish_async, until
from trio_orchestrator.testing.server import Option, RedisServer, revive, start, with_defaults

_PATIENT: Final = 5000


@final
class RedisSentinelServers:
    """Sentinels, and the servers they watch. Made by `open_redis_sentinels`."""

    def __init__(
        self,
        name: str,
        servers: tuple[RedisServer, ...],
        sentinels: tuple[RedisServer, ...],
        *,
        down_after: int,
        within: float,
    ) -> None:
        """Made by `open_redis_sentinels`."""
        self.name: str = name
        """The name by which the Sentinels know the master."""
        self.servers: tuple[RedisServer, ...] = servers
        """The servers that hold data: first the one that was master in the beginning."""
        self.sentinels: tuple[RedisServer, ...] = sentinels
        """The Sentinels."""
        self._down_after = down_after
        self._within = within

    def __repr__(self) -> str:
        return f"<RedisSentinelServers {self.name!r} {self.sentinels} {self.servers}>"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The hosts and ports of all Sentinels, as a client wants them."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    @property
    def master(self) -> RedisServer:
        """The server that the first Sentinel that answers names as the master. Sync, as `RedisServer.command`.

        During a failover the Sentinels may disagree, and it may not know of its office yet.
        """
        return self._named_by(next(sentinel for sentinel in self.sentinels if sentinel.is_running))

    @property
    def replicas(self) -> tuple[RedisServer, ...]:
        """The other servers that are running. Sync."""
        master = self.master
        return tuple(server for server in self.servers if server is not master and server.is_running)

    async def wait_failover(self, old: RedisServer, *, within: float = 10.0) -> RedisServer:
        """Wait until all running Sentinels agree on another master than `old`, and it says so itself; return it.

        Cancelled, it changes nothing.

        Args:
            old: The master that is, or was.
            within: Seconds, > 0.

        Raises:
            RuntimeError: It did not happen in time; this quotes the logs.
        """
        deadline = time.monotonic() + above("within", within, 0)
        await finish_async(until(deadline, lambda: self._has_replaced(old), lambda: self._complaint("did not change")))
        return self.master

    async def heal(self) -> None:
        """Wake all, restart what does not run, and wait until all are as they were in the beginning.

        Who is master may be another. Cancelled, it has healed a part.

        Raises:
            RuntimeError: It is not whole in time; this quotes the logs.
        """
        await finish_async(self._healing())

    def heal_blocking(self) -> None:
        """Do the same in this thread, for code without Trio.

        Raises:
            RuntimeError: As for `heal`.
        """
        finish(self._healing())

    def _healing(self) -> Steps[None]:
        yield from revive(self.servers + self.sentinels)
        self._be_patient(_PATIENT)
        deadline = time.monotonic() + self._within
        yield from until(deadline, self._is_settled, lambda: self._complaint("do not agree"))
        self._attach_strays()
        yield from self._getting_whole()
        self._be_patient(self._down_after)

    def _be_patient(self, down_after: int) -> None:
        """Set the milliseconds after which a silent master is taken for dead.

        A failover cuts the connections of the new master, and a Sentinel makes its own again only every second: as long
        as there is a replica to be had, impatient Sentinels would go on replacing one by the other.
        """
        for sentinel in self.sentinels:
            sentinel.command("SENTINEL", "SET", self.name, "down-after-milliseconds", down_after)

    def _getting_whole(self) -> Steps[None]:
        """Wait until the Sentinels agree, know each other, and see all replicas linked."""
        deadline = time.monotonic() + self._within
        yield from until(deadline, self._is_whole, lambda: self._complaint("are not ready"))

    def _is_settled(self) -> bool:
        """Tell whether no Sentinel is at work, and the one master that they name says so itself."""
        with suppress(OSError, RuntimeError, KeyError, LookupError):
            flags = {_pairs(each.command("SENTINEL", "MASTER", self.name))["flags"] for each in self.sentinels}
            masters = {self._named_by(sentinel) for sentinel in self.sentinels}
            return flags == {"master"} and len(masters) == 1 and _role(masters.pop()) == "master"
        return False

    def _attach_strays(self) -> None:
        """Have those that came back as masters follow the new one; the Sentinels would take ten seconds to do it."""
        master = self.master
        for server in self.servers:
            if server is not master and _role(server) == "master":
                _follow(server, master)

    def _is_whole(self) -> bool:
        with suppress(OSError, RuntimeError, KeyError, LookupError):
            masters = {self._named_by(sentinel) for sentinel in self.sentinels}
            return len(masters) == 1 and self._are_well(masters.pop())
        return False

    def _are_well(self, master: RedisServer) -> bool:
        told = master.info("replication")
        linked = sum(server.info("replication").get("master_link_status") == "up" for server in self.servers)
        followers = len(self.servers) - 1
        if (told["role"], told["connected_slaves"], linked) != ("master", str(followers), followers):
            return False
        return all(_sees_all(each, self.name, len(self.sentinels) - 1, followers) for each in self.sentinels)

    def _has_replaced(self, old: RedisServer) -> bool:
        with suppress(OSError, RuntimeError, KeyError, LookupError):
            masters = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.is_running}
            return len(masters) == 1 and old not in masters and _role(masters.pop()) == "master"
        return False

    def _named_by(self, sentinel: RedisServer) -> RedisServer:
        _, port = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return next(server for server in self.servers if server.port == int(port))

    def _complaint(self, what: str) -> str:
        logs = "\n".join(each._complaint("says") for each in self.sentinels + self.servers)
        return f"the Sentinels {what} in time\n{logs}"


def open_redis_sentinels(
    *,
    name: str = "main",
    sentinels: int = 3,
    replicas: int = 1,
    down_after: float = 0.2,
    failover_timeout: float = 1.0,
    within: float = 20.0,
    **options: Option,
) -> Opening[RedisSentinelServers]:
    """Open Sentinels, a master and its replicas, ready to be used, for `async with`, or for `with` without Trio.

    All listen on TCP ports of 127.0.0.1. Entering waits, about two seconds, until the Sentinels know each other and
    have seen every replica linked. A killed master is replaced within one or two seconds.

    Args:
        name: The name of the master.
        sentinels: How many Sentinels, >= 1; more than half of them must agree before a master is replaced.
        replicas: How many replicas, >= 0.
        down_after: Seconds after which a silent master is taken for dead (`down-after-milliseconds`), > 0.
        failover_timeout: Seconds that a failover may take (`failover-timeout`), > 0; the next one of the same master
            begins after twice that.
        within: Seconds until all must be ready, > 0.
        options: As for `open_redis_server`, for the master and the replicas.

    Raises:
        RuntimeError: On entering: there is no server program, or they did not get ready; this quotes the servers' logs.
        ValueError: An argument is out of range.
    """
    watchers, followers = int(count("sentinels", sentinels, 1)), int(count("replicas", replicas, 0))
    above("within", within, 0)
    described = with_defaults(options)
    silence, turn = (
        max(1, round(above(name, value, 0, finite=True) * 1000))
        for name, value in (("down_after", down_after), ("failover_timeout", failover_timeout))
    )

    def steps(stack: ExitStack) -> Steps[RedisSentinelServers]:
        made = (RedisServer(described, within=within) for _ in range(1 + followers))
        servers = yield from start(stack, made)
        for server in servers[1:]:
            _follow(server, servers[0])
        made = (RedisServer({}, arguments=("--sentinel",), within=within) for _ in range(watchers))
        watching = yield from start(stack, made)
        for sentinel in watching:
            sentinel.command("SENTINEL", "MONITOR", name, servers[0].host, servers[0].port, watchers // 2 + 1)
            sentinel.command("SENTINEL", "SET", name, "failover-timeout", turn, "down-after-milliseconds", silence)
        group = RedisSentinelServers(name, servers, watching, down_after=silence, within=within)
        yield from group._getting_whole()
        return group

    return Opening(steps)


def _sees_all(sentinel: RedisServer, name: str, sentinels: int, replicas: int) -> bool:
    """Tell whether a Sentinel sees so many others of each kind, and takes none of them for dead."""
    kinds = (("SENTINELS", sentinels), ("REPLICAS", replicas))
    return all(_count_well(sentinel.command("SENTINEL", kind, name)) == n for kind, n in kinds)


def _count_well(described: list[list[str]]) -> int:
    flags = [set(_pairs(each)["flags"].split(",")) for each in described]
    return sum(not (each & {"s_down", "o_down", "disconnected"}) for each in flags)


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _role(server: RedisServer) -> str:
    return server.info("replication")["role"]


def _follow(server: RedisServer, master: RedisServer) -> None:
    server.command("REPLICAOF", master.host, master.port)
    server.command("CONFIG", "REWRITE")  # so that it comes back as a replica
