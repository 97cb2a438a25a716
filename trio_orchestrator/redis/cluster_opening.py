"""Opening a client of a cluster: its arguments, its block, and what its entry and its exit promise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final, Literal, TypeAlias, Unpack

import trio
from redis.exceptions import ResponseError

from trio_orchestrator.block import open_block
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.cluster import RedisCluster
from trio_orchestrator.redis.connector import Connector, Resolve
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.option import ClientOptions, Plan, read_plan
from trio_orchestrator.redis.pipe import Dial, SocketDial
from trio_orchestrator.redis.router import Router
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.settings import Target, read_target

ReadFrom: TypeAlias = Literal["master", "replica", "any"]
_READ_FROM: Final = ("master", "replica", "any")


class _Maker:
    """Makes what speaks with the nodes."""

    def __init__(self, plan: Plan, dial: Dial) -> None:
        self._target = plan.target
        self._settings = replace(plan.settings, reconnect_on=_never)  # another node is the router's affair
        self._dial = dial
        self._dedicated = plan.dedicated

    def connector(self, name: str, resolve: Resolve, *, reads: bool = False) -> Connector:
        first = (("READONLY",),) if reads else ()
        handshake = Handshake(self._target.credentials, name=self._target.name, first=first)
        return Connector(name, resolve, self._dial, handshake, self._settings)

    def server(self, address: Address, resolve: Resolve, reads: bool) -> Server:
        name = f"{'replica' if reads else 'node'} at {address}"
        connector = self.connector(name, resolve, reads=reads)
        return Server(name, connector, self._settings, dedicated=self._dedicated)


def _never(_error: ResponseError) -> bool:
    return False


async def _open(
    plan: Plan, seeds: Sequence[Address], read_from: ReadFrom, dial: Dial
) -> AsyncGenerator[RedisCluster, None]:
    maker = _Maker(plan, dial)
    router = Router(
        f"cluster at {', '.join(map(str, seeds))}",
        seeds,
        maker.server,
        plan.settings,
        tls=plan.target.tls is not None,
        read_from=read_from,
        close_within=plan.close_within,
    )

    async def close(_error: BaseException | None) -> None:
        await router.fleet.flush()
        router.fleet.stop()

    async with open_block(close) as block:
        with trio.CancelScope(shield=True):  # a few steps; a cancelled `start` would wait for what is shielded
            await block.nursery.start(router.fleet.run, router.run)
        await router.begin(plan.wait)
        yield RedisCluster(router, Answers(plan.target), plan.allowed, maker.connector)


open_planned: Callable[[Plan, Sequence[Address], ReadFrom, Dial], AbstractAsyncContextManager[RedisCluster]]
open_planned = asynccontextmanager(_open)
"""Open a client whose arguments are checked: `async with open_planned(plan, seeds, read_from, dial) as redis`."""


def open_redis_cluster(
    *urls: str, read_from: ReadFrom = "master", **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[RedisCluster]:
    """Open a client of a cluster for the length of a block.

    `async with open_redis_cluster("redis://node-1:6379", "redis://node-2:6379") as redis: ...`

    Entering asks one node after another, without waiting long for each, which of them serve what, and connects to all
    masters; one that cannot be reached then does not hinder it. Nodes that come later are connected to when they are
    first needed, and left when they are no part of the cluster any more. All of it runs beside the block, whatever is
    cancelled outside, and ends with it: leaving waits for what was posted, at most `close_within`.

    While the nodes disagree, or a master is down, calls wait until one serves their slot again, each no longer than
    `command_timeout`. A failover takes the cluster longer than its `cluster-node-timeout`.

    Args:
        urls: Some of the nodes, `redis://` or `rediss://` (TLS), of which one must answer. The first one also says who
            this is, and how. Without any: the environment's, as for `open_redis`.
        read_from: Who answers what only reads: "master"; "replica", in turn, which may be behind its master (the master
            while no replica is connected); or "any" of these in turn. Pipelines always go to masters.
        options: As for `open_redis`; but a cluster has only database 0.

    Raises:
        ValueError: A URL is malformed, or an argument out of range.
        LinkError: No node can be reached, or tells of a cluster; names all of them, with the cause of each.
        AuthenticationError: A node does not know the user, or the password is wrong.
    """
    if read_from not in _READ_FROM:
        raise ValueError(f"read_from must be one of {', '.join(_READ_FROM)}, got {read_from!r}")
    plan = read_plan(urls[0] if urls else None, options)
    seeds = [plan.target.address, *(_checked(read_target(url)).address for url in urls[1:])]
    _checked(plan.target)
    dial = SocketDial(plan.target.tls, plan.settings.keepalive)
    return open_planned(plan, list(dict.fromkeys(seeds)), read_from, dial)


def _checked(target: Target) -> Target:
    if target.address.path:
        raise ValueError(f"url must be redis:// or rediss:// for a cluster, got the path {target.address.path!r}")
    if target.database:
        raise ValueError(f"db must be 0 for a cluster, got {target.database}")
    return target
