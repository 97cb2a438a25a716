"""A real Redis or Valkey cluster that lives as long as a block, for tests: see `trio_orchestrator.testing.server`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, final

from trio_orchestrator.algorithms.argument import above, count
from trio_orchestrator.testing.opening import Opening, Steps, finish, finish_async, until
from trio_orchestrator.testing.server import Option, RedisServer, revive, start, with_defaults

_SLOTS: Final = 16384
_PORTS: Final = ("port", "cluster-port")  # by default that is port + 10000, which for a high port is none at all


@final
class RedisClusterServers:
    """The nodes of a cluster. Made by `open_redis_cluster_servers`."""

    def __init__(self, nodes: tuple[RedisServer, ...], masters: int, within: float) -> None:
        """Made by `open_redis_cluster_servers`."""
        self.nodes: tuple[RedisServer, ...] = nodes
        """All nodes: first those that were masters in the beginning, then their replicas, in the same order."""
        self._masters = masters
        self._within = within

    def __repr__(self) -> str:
        return f"<RedisClusterServers {', '.join(map(repr, self.nodes))}>"

    @property
    def url(self) -> str:
        """The URL of the first node that is running; a client finds the rest through it."""
        return next(node for node in self.nodes if node.is_running).url

    @property
    def masters(self) -> tuple[RedisServer, ...]:
        """The running nodes that say now that they are masters and have slots. Sync, as `RedisServer.command`."""
        return tuple(node for node in self._running() if _is_master(node) and _own(node)[8:])

    @property
    def replicas(self) -> tuple[RedisServer, ...]:
        """The running nodes that say now that they are replicas. Sync, as `RedisServer.command`."""
        return tuple(node for node in self._running() if not _is_master(node))

    def master_of(self, key: str | bytes | int) -> RedisServer:
        """Return the node that serves `key`, or the slot if it is a number, as the first running node knows it. Sync.

        Raises:
            LookupError: Nobody serves it.
        """
        asked = next(iter(self._running()))
        slot = key if isinstance(key, int) else int(asked.command("CLUSTER", "KEYSLOT", key))
        for first, last, master, *_ in asked.command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        raise LookupError(f"no node serves slot {slot}")

    def replicas_of(self, master: RedisServer) -> tuple[RedisServer, ...]:
        """Return the running replicas of `master`, as they say themselves. Sync."""
        return tuple(node for node in self.replicas if node.info("replication")["master_port"] == str(master.port))

    async def heal(self) -> None:
        """Wake all nodes, restart those that do not run, and wait until the cluster is whole again.

        Who is master may be another than in the beginning. Cancelled, it has healed a part.

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

    def _forming(self) -> Steps[None]:
        """Give out the slots, introduce all to all, and attach the replicas."""
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(masters):
            first, end = (_SLOTS * each // self._masters for each in (number, number + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        _introduce(self.nodes)
        for number, node in enumerate(replicas):
            yield from self._attaching(node, masters[number % len(masters)])
        yield from self._getting_whole()

    def _attaching(self, replica: RedisServer, master: RedisServer) -> Steps[None]:
        name = master.command("CLUSTER", "MYID")

        def attached() -> bool:
            with suppress(RuntimeError):  # it has not heard of its master yet
                return bool(replica.command("CLUSTER", "REPLICATE", name) == "OK")
            return False

        yield from until(time.monotonic() + self._within, attached, lambda: self._complaint("did not meet"))

    def _healing(self) -> Steps[None]:
        yield from revive(self.nodes)
        yield from self._getting_whole()

    def _getting_whole(self) -> Steps[None]:
        yield from until(time.monotonic() + self._within, self._is_whole, lambda: self._complaint("is not ready"))

    def _is_whole(self) -> bool:
        """Tell whether every node says that all is well, sees all others, and every replica is linked."""
        with suppress(OSError, RuntimeError, KeyError):
            return all(_is_well(node, len(self.nodes)) for node in self.nodes)
        return False

    def _running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running]

    def _complaint(self, what: str) -> str:
        logs = "\n".join(node._complaint("says") for node in self.nodes)
        return f"the cluster {what} after {self._within:g} s\n{logs}"


def open_redis_cluster_servers(
    *,
    masters: int = 3,
    replicas: int = 3,
    node_timeout: float = 1.0,
    within: float = 20.0,
    **options: Option,
) -> Opening[RedisClusterServers]:
    """Open a cluster that is ready to be used, for `async with`, or for `with` in code without Trio.

    The nodes listen on TCP ports of 127.0.0.1, since redirects name a host and a port. Entering waits, about two
    seconds, until every node says `cluster_state:ok`, knows all others, and every replica is linked to its master.

    Args:
        masters: How many masters share the slots, >= 1; with fewer than 3 none is ever replaced.
        replicas: How many replicas, >= 0, given to the masters in turn.
        node_timeout: Seconds after which a silent node is taken for dead (`cluster-node-timeout`), > 0; the shortest
            that works on a busy machine is about 0.3.
        within: Seconds until it must be ready, > 0.
        options: As for `open_redis_server`, for all nodes.

    Raises:
        RuntimeError: On entering: there is no server program, or it did not get ready; this quotes the servers' logs.
        ValueError: An argument is out of range.
    """
    first, number = int(count("masters", masters, 1)), int(count("replicas", replicas, 0))
    timeout = max(1, round(above("node_timeout", node_timeout, 0, finite=True) * 1000))
    above("within", within, 0)
    described = with_defaults(
        {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "cluster-node-timeout": timeout, **options}
    )

    def steps(stack: ExitStack) -> Steps[RedisClusterServers]:
        made = (RedisServer(described, ports=_PORTS, within=within) for _ in range(first + number))
        cluster = RedisClusterServers((yield from start(stack, made)), first, within)
        yield from cluster._forming()
        return cluster

    return Opening(steps)


def _introduce(nodes: Sequence[RedisServer]) -> None:
    """Have each node meet each: gossip alone would take seconds."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.command("CLUSTER", "MEET", other.host, other.port, other.ports["cluster-port"])


def _is_well(node: RedisServer, size: int) -> bool:
    cluster = node.info_of("CLUSTER", "INFO")
    if (cluster["cluster_state"], cluster["cluster_known_nodes"]) != ("ok", str(size)):
        return False
    if len(node.command("CLUSTER", "LINKS")) < 2 * (size - 1):  # one restarted hears no votes while others lack theirs
        return False
    return node.info("replication").get("master_link_status", "up") == "up" and not _has_lost(node)


def _has_lost(node: RedisServer) -> bool:
    """Tell whether it sees one as failing, or is shaking hands with it."""
    lines = str(node.command("CLUSTER", "NODES")).splitlines()
    flags = {flag for line in lines for flag in line.split()[2].split(",")}
    return bool(flags & {"fail", "fail?", "handshake", "noaddr"})


def _own(node: RedisServer) -> list[str]:
    """Return what a node says of itself: its line of CLUSTER NODES, in which the slots begin with the ninth field."""
    lines = str(node.command("CLUSTER", "NODES")).splitlines()
    return next(line.split() for line in lines if "myself" in line)


def _is_master(node: RedisServer) -> bool:
    return "master" in _own(node)[2].split(",")
