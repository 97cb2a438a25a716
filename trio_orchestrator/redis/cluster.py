"""A client of a cluster: each command to the node that serves its keys, wherever that is by now."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Literal, cast, final, overload

import trio
from redis.backoff import AbstractBackoff
from redis.exceptions import RedisError, ResponseError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.cluster_events import ClusterEvents, MakeConnector
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.dedicated import DedicatedRedis
from trio_orchestrator.redis.fanout import Fanout, fanout_of
from trio_orchestrator.redis.inbox import Overflow
from trio_orchestrator.redis.journey import Speak, speak_shared, travel
from trio_orchestrator.redis.key import keys_of
from trio_orchestrator.redis.link import LinkStatistics
from trio_orchestrator.redis.method import Commands
from trio_orchestrator.redis.node import Node
from trio_orchestrator.redis.pipeline import Pipeline
from trio_orchestrator.redis.posting import Posted
from trio_orchestrator.redis.pubsub import Message, PubSub
from trio_orchestrator.redis.router import Aim, Router
from trio_orchestrator.redis.scan import Scan
from trio_orchestrator.redis.selection import aims_of, chosen_aims, find_address
from trio_orchestrator.redis.slot import SLOTS, one_slot, slot_of
from trio_orchestrator.redis.split import ClusterHost
from trio_orchestrator.redis.subscription import Gap
from trio_orchestrator.redis.transaction import Body, Transaction
from trio_orchestrator.redis.walk import Walk


@final
@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The figures of one node that is spoken with."""

    address: str
    reads: bool
    """Whether they are those of reading from it as a replica."""
    link: LinkStatistics


@final
@dataclass(frozen=True, slots=True)
class ClusterStatistics:
    """The figures of a cluster's client."""

    nodes: tuple[NodeStatistics, ...]
    masters: tuple[str, ...]
    """Those that serve a slot, as far as is known now."""
    moved: int
    """How many calls were told that their slot is elsewhere for good (MOVED)."""
    asked: int
    """How many calls were told that their key is elsewhere for now (ASK)."""
    retried: int
    """How many times a call was sent again after a pause, or after a connection that was lost before it was sent."""
    refreshes: int
    """How many times the whole map was learnt anew."""
    failovers: int
    """How many masters were followed by others."""


@final
class RedisCluster(Commands):
    """A client of a cluster. Made by `open_redis_cluster`.

    It has redis-py's command methods. A command goes to the node that serves the slot of its keys, over the one link to
    that node which all calls share; redirections are followed. Keys in several slots are an error before anything is
    sent: `CrossSlotError`. A command without keys goes to the node, or the nodes, that its answer takes (`DBSIZE` adds
    up all masters). `target_nodes=` names others, as in redis-py: "primaries", "replicas", "all", "random", "default",
    an address ("host:port"), or a list of these. Where answers cannot be joined (`INFO`), several come as a dict.
    """

    def __init__(self, router: Router, answers: Answers, allowed: frozenset[str], connect: MakeConnector) -> None:
        """Made by `open_redis_cluster`."""
        super().__init__(answers)
        self._router = router
        self._allowed = allowed
        self._connect = connect
        self._call_timeout = router.settings.command_timeout
        self._events = ClusterEvents(router, connect)

    # ------------------------------------------------------------------------------------------- one command

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command, its name first; all methods come down to this.

        `MOVED` and `ASK` are followed at once. After `TRYAGAIN`, `CLUSTERDOWN`, `LOADING` and `MASTERDOWN`, and while a
        node cannot be reached, it is tried again after pauses, at whoever serves the slot by then, until
        `command_timeout` is over: that counts for the whole way. A write that was sent when its connection was lost is
        not repeated.

        Args:
            args: The name and its arguments: str, bytes, int or float.
            options: Of redis-py's callbacks; `resend=True`: it may run twice; `target_nodes=`: who executes it.

        Raises:
            CrossSlotError: Its keys are in several slots; nothing was sent. It names them.
            RefusedCommandError: It cannot share a connection with others; nothing was sent. The error says what to do.
            DataError: An argument is of no known type; nothing was sent.
            CallTimeoutError: No answer within `command_timeout`.
            LinkError: The connection was lost after the command was sent, so that it may have run.
            ResponseError: What the server says against it; also what did not pass within `command_timeout`.
            SlotNotCoveredError: Nobody is known to serve the slot.
        """
        kind = kind_of_call(args)
        keys = keys_of(args)
        if not keys or kind.route is not Route.SHARED or kind.timeout_of is not None or "target_nodes" in options:
            return await self._special(kind, keys, args, options)
        try:
            slot = slot_of(keys[0]) if len(keys) == 1 else one_slot(keys)
            call = self._call(kind, args, options)
        except RedisError:
            await trio.lowlevel.checkpoint()
            raise
        try:
            reply = await travel(self._router, call, slot, reads=kind.reads)
        except ResponseError as error:
            return self._answers.of_refusal(error, options)
        shaped: Any = self._answers.shape(args[0], reply, options)
        return await cast("Awaitable[Any]", shaped) if isinstance(shaped, CoroutineType) else shaped

    async def _special(self, kind: Kind, keys: list[Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Execute what has no keys, cannot share a connection, or is for nodes that are named."""
        chosen = options.pop("target_nodes", None)
        fanout = Fanout() if keys else fanout_of(args)
        try:
            aims = self._aims(kind, keys, fanout, args, chosen)
        except (RedisError, ValueError):
            await trio.lowlevel.checkpoint()
            raise
        if len(aims) == 1:
            reply = await self._execute_at(aims[0], kind, args, options)
            return reply if chosen is not None else fanout.joined({str(aims[0]): reply})
        return fanout.joined(await self._replies(aims, kind, args, options))

    def _aims(self, kind: Kind, keys: list[Any], fanout: Fanout, args: tuple[Any, ...], chosen: Any) -> list[Aim]:
        if kind.route_for(args) is Route.REFUSED and kind.option not in self._allowed:
            raise kind.refusal(args[0])
        if chosen is not None:
            return [*chosen_aims(self._router, chosen)]
        return [one_slot(keys)] if keys else [*aims_of(self._router, fanout, args)]

    async def _replies(
        self, aims: list[Aim], kind: Kind, args: tuple[Any, ...], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Execute a command at several nodes at once; return what each answered, an error as it is, by its address."""
        topology = self._router.topology
        names = [str(aim if isinstance(aim, Address) else topology.master_of(aim)) for aim in aims]
        replies: dict[str, Any] = dict.fromkeys(names)

        async def execute(name: str, aim: Aim) -> None:
            try:
                replies[name] = await self._execute_at(aim, kind, args, dict(options))
            except (RedisError, trio.ClosedResourceError) as error:
                replies[name] = error

        async with trio.open_nursery() as nursery:
            for name, aim in zip(names, aims, strict=True):
                nursery.start_soon(execute, name, aim)
        return replies

    async def _execute_at(self, aim: Aim, kind: Kind, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Execute a command at one node: on its link, or on a connection of its own."""
        blocks = kind.blocks(args)
        within = self._router.settings.command_timeout + (blocks or 0.0)
        shared = kind.route_for(args) is not Route.DEDICATED
        speak = speak_shared if shared else _dedicated(kind, blocks)

        async def send(call: Call) -> Any:
            return await travel(self._router, call, aim, reads=shared and kind.reads, speak=speak, within=within)

        return await self._speak(send, kind, args, options)

    def post(self, *args: Any) -> None:
        """Send a command behind all that was sent to its node, and do not wait for its reply. Sync: not cancellable.

        Behind a call to the same slot it is exact, as on a single server. It follows redirections, and goes to the new
        master if it was not sent to the old one. An error reply is thrown away.

        Raises:
            CrossSlotError: Its keys are in several slots.
            DataError: An argument is of no known type, or the command cannot share a connection with others.
            SlotNotCoveredError: Nobody is known to serve the slot.
            trio.ClosedResourceError: The block of the client was left.
        """
        kind, keys = kind_of_call(args), keys_of(args)
        if kind.route_for(args) is not Route.SHARED:
            raise kind.refusal(args[0])
        aims: list[Aim] = [one_slot(keys)] if keys else [*aims_of(self._router, fanout_of(args), args)]
        for aim in aims:
            Posted(self._answers.pack(args), aim, self._router).post(self._router.locate(aim))

    # ------------------------------------------------------------------------------------------ several slots

    def pipeline(self, transaction: bool = False, *, resend: bool = False) -> Pipeline:
        """Return a pipeline: commands that are sent together. **Not a transaction by default**, unlike redis-py's.

        They go to their nodes at the same time, in one write each, always to masters; results come in the order of the
        commands. Those of one node are executed in order, but for those that a node sends elsewhere: they are repeated
        after all others, one by one, in order. If a connection is lost, that is raised after all nodes have answered or
        failed.

        Args:
            transaction: Whether MULTI and EXEC go around it; all keys must be in one slot, else `execute` raises
                `CrossSlotError` and sends nothing. While that slot is being moved it is tried again until
                `command_timeout` is over, since nothing has run.
            resend: Whether it may run twice, so that it is sent again after a lost connection.
        """
        host = ClusterHost(self._router, self._allowed)
        return Pipeline(host, self._answers, transaction=transaction, resend=resend)

    async def mget_nonatomic(self, keys: Any, *more: Any) -> list[Any]:
        """Return the values of keys in any slots, in order: one MGET a slot, not at one moment."""
        keys = [*(keys if isinstance(keys, (list, tuple)) else [keys]), *more]
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(slot_of(key), []).append(place)
        pipe = self.pipeline()
        for group in places.values():
            _ = pipe.mget([keys[place] for place in group])
        values: list[Any] = [None] * len(keys)
        for group, found in zip(places.values(), await pipe.execute(), strict=True):
            for place, value in zip(group, found, strict=True):
                values[place] = value
        return values

    async def mset_nonatomic(self, mapping: Mapping[Any, Any]) -> list[bool]:
        """Set keys in any slots: one MSET a slot, not at one moment, some may fail. Returns one bool a slot."""
        groups: dict[int, dict[Any, Any]] = {}
        for key, value in mapping.items():
            groups.setdefault(slot_of(key), {})[key] = value
        pipe = self.pipeline()
        for group in groups.values():
            _ = pipe.mset(group)
        return await pipe.execute()

    def scan_iter(  # type: ignore[override]
        self, match: Any = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> Scan[Any]:
        """Go through all keys of all masters, one master after another: `async for key in redis.scan_iter("user:*")`.

        A master that is replaced meanwhile is gone through again at its successor, so that a key may come twice.

        Args:
            match: A pattern for the keys.
            count: About how many keys a server looks at for one page.
            _type: Only keys of this type: string, list, set, zset, hash, stream.
            options: For `scan`. With `target_nodes=` it goes through that one node.
        """
        if "target_nodes" in options:
            return super().scan_iter(match, count, _type, **options)

        async def page(node: Address, cursor: int) -> Any:
            return await cast("Any", self).scan(cursor, match, count, _type, target_nodes=node, **options)

        return Scan(Walk(self._router, page).page)

    # ---------------------------------------------------------------------------------------------- one node

    def on(self, *, key: Any = None, slot: int | None = None, address: str | Address | None = None) -> Redis:
        """Return a client of one node, on the connections of this one. Sync. Exactly one of these names it.

        It follows nothing: if its node loses a slot, commands to that raise `MovedError`; once the node has left the
        cluster, all calls raise `trio.ClosedResourceError`.

        Args:
            key: The master of its slot.
            slot: Its master, 0 to 16383.
            address: The node there, master or replica: "host:port".

        Raises:
            ValueError: There is no such slot or node.
            SlotNotCoveredError: Nobody is known to serve the slot.
            trio.ClosedResourceError: The block was left.
        """
        return self._client(self._router.locate(self._aim(key, slot, address)))

    def _aim(self, key: Any, slot: int | None, address: str | Address | None) -> Aim:
        if [key, slot, address].count(None) != 2:
            raise ValueError("key must be given, or slot, or address: exactly one of them")
        if address is not None:
            return find_address(self._router, address, "address")
        if slot is not None and not 0 <= slot < SLOTS:
            raise ValueError(f"slot must be within 0..{SLOTS - 1}, got {slot}")
        return slot_of(key) if slot is None else slot

    def _client(self, node: Node) -> Redis:
        return Redis(node.server, self._answers, allowed=self._allowed)

    def watch(self, *keys: Any) -> Transaction:  # type: ignore[override]
        """Return a transaction at the node of keys in one slot: `async with redis.watch("stock") as tx`.

        It does not follow a slot that is moved meanwhile: that is a `MovedError`, after which nothing has run.

        Raises:
            CrossSlotError: They are in several slots.
            ValueError: No key is given; it says where to go.
        """
        return self.on(slot=one_slot(keys)).watch(*keys)

    async def transaction(
        self,
        body: Body,
        *keys: Any,
        attempts: float = math.inf,
        within: float = 10.0,
        backoff: AbstractBackoff | None = None,
        value_from_callable: bool = False,
    ) -> Any:
        """Watch keys in one slot, call `body(tx)`, execute what it has queued; again if a key was changed meanwhile.

        Args and errors as for `transaction` of `Redis`; and `CrossSlotError`.
        """
        try:
            client = self.on(slot=one_slot(keys))
        except RedisError:
            await trio.lowlevel.checkpoint()
            raise
        return await client.transaction(
            body, *keys, attempts=attempts, within=within, backoff=backoff, value_from_callable=value_from_callable
        )

    def dedicated(self, key: Any) -> DedicatedRedis:
        """Return a client on a connection of its own to the node of a key: `async with redis.dedicated("a") as d`."""
        return self.on(key=key).dedicated()

    @overload
    def pubsub(
        self, *, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise", gaps: Literal[False] = False
    ) -> PubSub[Message]: ...

    @overload
    def pubsub(
        self, *, gaps: bool, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise"
    ) -> PubSub[Message | Gap]: ...

    def pubsub(
        self, *, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise", gaps: bool = False
    ) -> PubSub[Any]:
        """Return a set of subscriptions, to be entered: `async with redis.pubsub() as sub`. See `PubSub`.

        Channels and patterns are heard at any node, and at another one if that is lost. Shard channels are heard at the
        node that serves their slot, over one connection a slot; when that moves they are subscribed to again, and that
        is a gap. Keyspace notifications are told by each node for itself: use `pubsub` of `on(address=...)`.

        Args:
            shared: Whether it listens on the event connections that all of the client share, instead of its own.
            buffer: So many messages are kept until they are taken, >= 1; `math.inf`: all of them.
            overflow: What happens to those beyond: "raise", "drop_oldest" or "drop_newest", as for `Redis`.
            gaps: Whether a `Gap` comes between the messages where a connection was lost.
        """
        events = self._events if shared else ClusterEvents(self._router, self._connect)
        encoder = self._answers.encoder
        return PubSub(events.route, encoder, owned=not shared, buffer=buffer, overflow=overflow, gaps=gaps)

    def statistics(self) -> ClusterStatistics:
        """Return the figures so far."""
        router, counts = self._router, self._router.counts
        return ClusterStatistics(
            nodes=tuple(
                NodeStatistics(str(node.address), node.reads, node.link.statistics()) for node in router.fleet.nodes
            ),
            masters=tuple(map(str, router.topology.masters)),
            moved=counts.moved,
            asked=counts.asked,
            retried=counts.retried,
            refreshes=counts.refreshes,
            failovers=counts.failovers,
        )


def _dedicated(kind: Kind, blocks: float | None) -> Speak:
    """Return how a call is sent on a connection that nobody else uses."""

    async def speak(node: Node, call: Call) -> Any:
        return await node.call_apart(call, blocks=blocks, stateful=kind.stateful)

    return speak
