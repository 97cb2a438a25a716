"""Who serves which slot of a cluster, as its nodes tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any, TypeAlias, cast, final

from redis.exceptions import RedisClusterException, SlotNotCoveredError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.slot import SLOTS

Fields: TypeAlias = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """One master and its replicas, which hold the same slots."""

    master: Address
    replicas: tuple[Address, ...] = ()
    """Those that were healthy when the node told."""


@final
@dataclass(frozen=True, slots=True)
class Change:
    """What is different in a topology from an earlier one."""

    gone: frozenset[Address]
    """Nodes that are no part of it any more."""
    new: frozenset[Address]
    """Nodes that were no part of the earlier one."""


Span: TypeAlias = tuple[int, int, Shard]


@final
class Topology:
    """Which shard serves which slot. Immutable: a change makes another one, which shares what did not change.

    Two are equal if every slot has an equal shard. A shard that serves no slot is no part of it.
    """

    __slots__ = ("_owners", "_shards")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Make it of first slot, last slot (included) and shard; of spans that overlap, the last holds.

        Raises:
            ValueError: A span is not within 0 to 16383.
        """
        owners: list[Shard | None] = [None] * SLOTS
        known: dict[Shard, Shard] = {}
        for first, last, shard in spans:
            if not 0 <= first <= last < SLOTS:
                raise ValueError(f"spans must lie within 0..{SLOTS - 1}, got {first}..{last}")
            owners[first : last + 1] = [known.setdefault(shard, shard)] * (last + 1 - first)
        # Equal shards are one object, so identity will do: hashing one for each slot would take milliseconds.
        self._owners = tuple(owners)
        self._shards = tuple({id(shard): shard for shard in owners if shard is not None}.values())

    @classmethod
    def _of(cls, owners: Sequence[Shard | None], shards: Iterable[Shard]) -> Topology:
        made = cls.__new__(cls)
        made._owners = tuple(owners)
        made._shards = tuple(shards)
        return made

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, each once, in no order that means anything."""
        return self._shards

    @property
    def masters(self) -> tuple[Address, ...]:
        """The masters that serve a slot, each once, in no order that means anything."""
        return tuple(dict.fromkeys(shard.master for shard in self._shards))

    @property
    def nodes(self) -> frozenset[Address]:
        """All masters and replicas."""
        return frozenset(node for shard in self._shards for node in (shard.master, *shard.replicas))

    @property
    def covers_all(self) -> bool:
        """Whether every slot is served."""
        return None not in self._owners

    def shard_of(self, slot: int) -> Shard | None:
        """Return the shard that serves a slot, or None if none is known to."""
        return self._owners[slot]

    def master_of(self, slot: int) -> Address:
        """Return the master that serves a slot.

        Raises:
            SlotNotCoveredError: None is known to; a refresh may tell.
        """
        shard = self._owners[slot]
        if shard is None:
            raise SlotNotCoveredError(f"slot {slot} is not served by any node that the cluster told of")
        return shard.master

    def replicas_of(self, slot: int) -> tuple[Address, ...]:
        """Return the healthy replicas of a slot's master; none if nobody serves the slot."""
        shard = self._owners[slot]
        return () if shard is None else shard.replicas

    def moved(self, slot: int, address: Address) -> Topology:
        """Return what holds after `MOVED slot address`: that slot is served by that master.

        A known master takes the one slot; an unknown node becomes a shard without known replicas. A *replica of that
        slot's shard* has taken its master's place (a failover: a replica owns no slots), so all slots of the shard go
        with it, and the old master is left out until a refresh tells what became of it. The rest of the cluster is
        learnt by a refresh.
        """
        old = self._owners[slot]
        if old is not None and old.master == address:
            return self
        if old is not None and address in old.replicas:
            others = tuple(node for node in old.replicas if node != address)
            return self._replaced(old, Shard(address, others))
        new = next((shard for shard in self._shards if shard.master == address), Shard(address))
        owners = list(self._owners)
        owners[slot] = new
        kept = (shard for shard in self._shards if shard is not old or any(map(is_, owners, repeat(old))))
        return self._of(owners, dict.fromkeys([*kept, new]))

    def _replaced(self, old: Shard, new: Shard) -> Topology:
        new = next((shard for shard in self._shards if shard == new), new)
        owners = [new if shard is old else shard for shard in self._owners]
        return self._of(owners, dict.fromkeys(new if shard is old else shard for shard in self._shards))

    def changed_from(self, earlier: Topology) -> Change:
        """Return which nodes came and went since an earlier topology."""
        before, after = earlier.nodes, self.nodes
        return Change(gone=before - after, new=after - before)

    def spans(self) -> Iterator[Span]:
        """Yield first slot, last slot and shard of each unbroken run of slots."""
        first = 0
        for slot in range(1, SLOTS + 1):
            shard = self._owners[first]
            if slot < SLOTS and self._owners[slot] == shard:
                continue
            if shard is not None:
                yield first, slot - 1, shard
            first = slot

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._owners == other._owners

    def __hash__(self) -> int:
        return hash(frozenset(self._shards))

    def __repr__(self) -> str:
        runs = ", ".join(f"{first}-{last}: {shard.master}" for first, last, shard in self.spans())
        return f"<Topology {runs or 'of no slots'}>"


def parse_shards(reply: Any, asked: Address, *, tls: bool = False) -> Topology:
    """Read the answer to `CLUSTER SHARDS`, undecoded: maps as RESP3 gives them, or as flat lists.

    Of several masters in a shard (during a failover the dead one may still be told of) the healthy one holds;
    replicas that are not `online` are left out.

    Args:
        reply: What hiredis returned, strings as bytes or str.
        asked: The node that was asked: an empty or unknown host means its own.
        tls: Whether to take the `tls-port` of each node where it has one.

    Raises:
        RedisClusterException: The answer is not of that form.
    """
    try:
        return Topology(span for entry in reply for span in _shard_spans(_fields(entry), asked, tls))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise RedisClusterException(f"CLUSTER SHARDS of {asked} cannot be read: {reply!r:.200}") from error


def parse_slots(reply: Any, asked: Address) -> Topology:
    """Read the answer to `CLUSTER SLOTS`, undecoded: lists of first slot, last slot, master, replicas.

    The ports are those for the kind of connection that asked (TLS or not). Args and errors as for `parse_shards`.
    """
    try:
        shards: dict[Shard, Shard] = {}
        return Topology(_slot_span(entry, asked, shards) for entry in reply)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise RedisClusterException(f"CLUSTER SLOTS of {asked} cannot be read: {reply!r:.200}") from error


def _slot_span(entry: Any, asked: Address, shards: dict[Shard, Shard]) -> Span:
    first, last, *nodes = entry
    master, *replicas = (_slot_node(node, asked) for node in nodes)
    shard = Shard(master, tuple(sorted(replicas, key=str)))
    return int(first), int(last), shards.setdefault(shard, shard)


def _slot_node(node: Any, asked: Address) -> Address:
    more = _fields(node[3] if len(node) > 3 else {})
    return Address(_host(asked, node[0], more.get("ip")), int(node[1]))


def _shard_spans(entry: Fields, asked: Address, tls: bool) -> Iterator[Span]:
    slots: Sequence[Any] = entry["slots"]
    nodes = [_fields(node) for node in entry["nodes"]]
    masters = [node for node in nodes if _text(node["role"]) == "master"]
    if not slots or not masters:
        return
    master = next((node for node in masters if _online(node)), masters[0])
    replicas = [_shard_node(node, asked, tls) for node in nodes if _text(node["role"]) != "master" and _online(node)]
    shard = Shard(_shard_node(master, asked, tls), tuple(sorted(replicas, key=str)))
    for first, last in zip(slots[::2], slots[1::2], strict=True):
        yield int(first), int(last), shard


def _shard_node(node: Fields, asked: Address, tls: bool) -> Address:
    ports = (node.get("tls-port"), node.get("port")) if tls else (node.get("port"), node.get("tls-port"))
    port = next(port for port in (*ports, 0) if port is not None)
    if not int(port):
        raise ValueError(f"a node must have a port, got {node!r}")
    return Address(_host(asked, node.get("endpoint"), node.get("ip")), int(port))


def _host(asked: Address, endpoint: Any, ip: Any) -> str:
    """Return where to connect: no endpoint is the host that was asked; `?` is a host name the node was not given."""
    host = _text(endpoint) if endpoint is not None else ""
    if host == "?":
        host = _text(ip) if ip is not None else ""
    return host or asked.host


def _online(node: Fields) -> bool:
    return _text(node.get("health", "online")) == "online"


def _fields(entry: Any) -> Fields:
    """Return a map with its keys as str, from a RESP3 map or a flat list of keys and values."""
    if not isinstance(entry, Mapping):
        entry = dict(zip(entry[::2], entry[1::2], strict=True))
    return {_text(key): value for key, value in cast("Mapping[Any, Any]", entry).items()}


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
