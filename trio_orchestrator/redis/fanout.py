"""Commands without a key in a cluster: which nodes are asked, and how their answers become one.

What *changes* every node goes to every node, or to every master where a replica follows its master by itself; what is
only a part of the cluster's answer on one node (`DBSIZE`, `KEYS`, `PUBSUB NUMSUB`) is asked of all that have a part;
what tells of one node (`INFO`, `CONFIG GET`, `CLIENT LIST`, `SLOWLOG GET`, `TIME`) is asked of the home node, and of
others if they are named. That is what the servers' own hints say (`request_policy` and `response_policy` in
`COMMAND`).

Where `redis.asyncio.RedisCluster` is different:

- it asks its default node alone for `ACL DELUSER`, `ACL LOAD`, `ACL SAVE`, `ACL SETUSER`, `CLIENT SETINFO`, `CLIENT
  SETNAME`, `CONFIG RESETSTAT`, `CONFIG REWRITE`, `CONFIG SET`, `DBSIZE`, `KEYS`, `LATENCY RESET`, `MEMORY PURGE`,
  `PING`, `PUBSUB` and `SLOWLOG RESET`, unless told otherwise: an answer, or a change, for a part of the cluster;
- it answers `FLUSHALL`, `FLUSHDB`, `FUNCTION DELETE`, `FUNCTION FLUSH`, `FUNCTION LIST`, `FUNCTION LOAD` and `FUNCTION
  RESTORE` with a dict by node, where this gives the one answer that a single server gives;
- it has no node for `ECHO`, `FUNCTION KILL` and `SCRIPT KILL`;
- it sends `PUBLISH` to the node of the slot that the channel's name would have, where any node will do.

A command for one node that is sent to several by name answers with a dict by node in both.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from trio_orchestrator.redis.key import Args, named, text
from trio_orchestrator.redis.slot import SLOTS, slot_of


@final
class Target(enum.Enum):
    """Which nodes are asked."""

    HOME = "home"
    """One node, the same as long as it lives: redis-py's default node."""
    ANY = "any"
    """Any one master: each would answer alike, or the work is to be spread."""
    MASTERS = "masters"
    """Every master."""
    NODES = "nodes"
    """Every master and every replica."""
    SLOT = "slot"
    """The master of the slot that `Fanout.slot_in` finds in the arguments."""


Replies = Mapping[str, Any]


def _by_node(replies: Replies) -> dict[str, Any]:
    return dict(replies)


def _first(replies: Replies) -> Any:
    return next(iter(replies.values()))


def _all(replies: Replies) -> bool:
    return all(replies.values())


def _sum(replies: Replies) -> Any:
    return sum(replies.values())


def _any_positive(replies: Replies) -> int:
    return int(any(replies.values()))


def _least(replies: Replies) -> Any:
    values = list(replies.values())
    return [min(column) for column in zip(*values, strict=True)] if isinstance(values[0], list) else min(values)


def _union(replies: Replies) -> list[Any]:
    return list(dict.fromkeys(item for reply in replies.values() for item in reply))


def _each(replies: Replies) -> list[bool]:
    return [all(column) for column in zip(*replies.values(), strict=True)]


def _counts(replies: Replies) -> list[tuple[Any, int]]:
    total: dict[Any, int] = {}
    for channel, count in (pair for reply in replies.values() for pair in reply):
        total[channel] = total.get(channel, 0) + count
    return list(total.items())


def _some(replies: Replies) -> Any:
    return next(reply for reply in replies.values() if not isinstance(reply, Exception))


def _scan(replies: Replies) -> tuple[dict[str, int], list[Any]]:
    cursors = {node: cursor for node, (cursor, _) in replies.items()}
    return cursors, [key for _, keys in replies.values() for key in keys]


@final
class Join(enum.Enum):
    """How several answers become one. The answers are those that a single server's client would have given."""

    BY_NODE = enum.member(_by_node)
    """A dict of them by node."""
    FIRST = enum.member(_first)
    """They are equal: one of them."""
    ALL = enum.member(_all)
    """True if all are."""
    SUM = enum.member(_sum)
    """Their sum."""
    POSITIVE = enum.member(_any_positive)
    """1 if any is not 0."""
    LEAST = enum.member(_least)
    """The least, place by place if they are lists."""
    UNION = enum.member(_union)
    """The items of all, each once, in the order they came."""
    EACH = enum.member(_each)
    """A list of bools: true where all are."""
    COUNTS = enum.member(_counts)
    """Pairs of a channel and a number, the numbers of a channel added up."""
    SCAN = enum.member(_scan)
    """The cursors by node, and the keys of all."""
    SOME = enum.member(_some)
    """One that is no error, for what is in place on one node only; an error only if all are."""


@final
@dataclass(frozen=True, slots=True)
class Fanout:
    """Where a command without keys goes in a cluster, and how the answers are joined."""

    target: Target = Target.HOME
    join: Join = Join.BY_NODE
    place: int = 0
    """With `Target.SLOT`: which argument tells the slot."""

    def slot_in(self, args: Args) -> int | None:
        """Return the slot that the arguments tell: a number of a slot, or the slot of the name of an index.

        A cursor of a search lives on one node, so `FT.AGGREGATE` and `FT.CURSOR` go by the name of their index, which
        has no slot of its own. None if there is no such argument, or it is no slot: any node says what is wrong.
        """
        call = named(args)[1]
        if self.target is not Target.SLOT or len(call) <= self.place:
            return None
        if text(call[0]).upper().startswith("FT."):
            return slot_of(call[self.place])
        number = text(call[self.place])
        return int(number) if number.isdecimal() and int(number) < SLOTS else None

    def joined(self, replies: Replies) -> Any:
        """Return the one answer. One node's answer alone, for which nothing is to be joined, comes as it is.

        Args:
            replies: By node, in any order, at least one; an exception stands for a node that answered with an error.

        Raises:
            Exception: The first error among the answers; with `Join.SOME` only if there is nothing else.
        """
        errors = [reply for reply in replies.values() if isinstance(reply, Exception)]
        if errors and (self.join is not Join.SOME or len(errors) == len(replies)):
            raise errors[0]
        if self.join is Join.BY_NODE and len(replies) == 1:
            return _first(replies)
        join: Callable[[Replies], Any] = self.join.value
        return join(replies)


def _rows(target: Target, join: Join, *names: str) -> Iterable[tuple[str, Fanout]]:
    return ((name, Fanout(target, join)) for name in names)


_ONE_NODE: Final = Fanout()
_ANYWHERE: Final = Fanout(Target.ANY)

_TABLE: Final[dict[str, Fanout]] = {
    **dict(_rows(Target.MASTERS, Join.ALL, "FLUSHALL", "FLUSHDB", "MEMORY PURGE", "PING", "SCRIPT FLUSH")),
    **dict(_rows(Target.MASTERS, Join.ALL, "FUNCTION DELETE", "FUNCTION FLUSH", "FUNCTION RESTORE")),
    **dict(_rows(Target.MASTERS, Join.FIRST, "FUNCTION LOAD", "SCRIPT LOAD")),
    **dict(_rows(Target.MASTERS, Join.SOME, "FUNCTION KILL", "SCRIPT KILL")),
    **dict(_rows(Target.MASTERS, Join.LEAST, "WAIT", "WAITAOF")),
    **dict(_rows(Target.MASTERS, Join.SUM, "DBSIZE")),
    **dict(_rows(Target.MASTERS, Join.UNION, "KEYS")),
    **dict(_rows(Target.MASTERS, Join.EACH, "SCRIPT EXISTS")),
    **dict(_rows(Target.MASTERS, Join.SCAN, "SCAN")),
    **dict(_rows(Target.NODES, Join.ALL, "CONFIG RESETSTAT", "CONFIG REWRITE", "CONFIG SET", "CLIENT SETNAME")),
    **dict(_rows(Target.NODES, Join.ALL, "ACL LOAD", "ACL SAVE", "ACL SETUSER", "CLIENT SETINFO")),
    **dict(_rows(Target.NODES, Join.ALL, "COMMANDLOG RESET", "SLOWLOG RESET")),
    **dict(_rows(Target.NODES, Join.FIRST, "ACL DELUSER")),
    **dict(_rows(Target.NODES, Join.SUM, "LATENCY RESET", "PUBSUB NUMPAT")),
    **dict(_rows(Target.NODES, Join.UNION, "PUBSUB CHANNELS", "PUBSUB SHARDCHANNELS")),
    **dict(_rows(Target.NODES, Join.COUNTS, "PUBSUB NUMSUB", "PUBSUB SHARDNUMSUB")),
    **dict(_rows(Target.HOME, Join.ALL, "BGSAVE", "CLIENT PAUSE", "CLIENT UNPAUSE", "SAVE")),
    **dict(_rows(Target.HOME, Join.POSITIVE, "CLIENT UNBLOCK")),
    **dict.fromkeys(
        ["ECHO", "EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO", "PUBLISH", "RANDOMKEY"], _ANYWHERE
    ),
    **dict.fromkeys(["TS.MGET", "TS.MRANGE", "TS.MREVRANGE", "TS.QUERYINDEX", "TS.QUERYLABELS"], _ANYWHERE),
    **dict.fromkeys(("FUNCTION DUMP", "FUNCTION LIST"), _ANYWHERE),
    **dict.fromkeys(("FT.AGGREGATE", "FT.HYBRID"), Fanout(Target.SLOT, place=1)),
    "FT.CURSOR": Fanout(Target.SLOT, place=2),
    **{
        f"CLUSTER {word}": Fanout(Target.SLOT, place=1)
        for word in ("COUNTKEYSINSLOT", "DELSLOTS", "DELSLOTSRANGE", "GETKEYSINSLOT", "SETSLOT")
    },
}


def fanout_of(args: Args) -> Fanout:
    """Return where a command without keys goes in a cluster: by default home, an `FT.` command to any master."""
    name = named(args)[0]
    return _TABLE.get(name) or (_ANYWHERE if name.startswith("FT.") else _ONE_NODE)
