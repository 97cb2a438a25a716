"""What must be known of a command before it is sent: whether it may be repeated, whether it may share a connection."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast, final

from redis.commands.cluster import READ_COMMANDS

from trio_orchestrator.redis.error import RefusedCommandError
from trio_orchestrator.redis.key import CONTAINERS, KNOWN, STREAM_OPTIONS, Args, keys_of, named, options, text

__all__ = ["UNKNOWN", "Kind", "Route", "keys_of", "kind_of", "kind_of_call"]


@final
class Route(enum.Enum):
    """On which connection a command may go."""

    SHARED = "shared"
    """On the one that all ordinary calls share."""
    DEDICATED = "dedicated"
    """Only on one that nobody else waits for: it blocks, or must overtake what blocks."""
    REFUSED = "refused"
    """Not on the shared one: it would change the connection for everybody."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is known of a command by its name. One object serves all commands of the kind.

    A kind of which nothing is said is a write that may share a connection: not repeated, not blocking, not refused.
    """

    reads: bool = False
    """Whether it changes nothing that anybody could ask for, so that it may be sent again after a lost connection.

    Conservative: a command that writes with some option only (`SORT`, `GEORADIUS`, `BITFIELD`, `ACL LOG`) does not
    read, and `TOUCH` does not, whose purpose is its effect: on a replica it would be lost. One that reads and has
    keys may go to a replica.
    """
    route: Route = Route.SHARED
    """Where it goes by its name; `route_for` also looks at the arguments."""
    why: str = ""
    """What it does that a shared connection cannot bear, as the rest of a sentence that begins with "it"."""
    advice: str = ""
    """What to do instead, as an imperative."""
    refused_on_dedicated: bool = False
    """Whether not even a dedicated connection takes it."""
    stateful: bool = False
    """Whether it leaves something on its connection, which then should not be given to the next who asks for one."""
    option: str = ""
    """The option of the client that lets it pass on the shared connection all the same; empty: none does."""
    timeout_of: Callable[[Args], float | None] | None = None
    """How to find its time-out; None for what never blocks. Use `blocks`."""

    def blocks(self, args: Args) -> float | None:
        """Return for how many seconds the server may hold the answer back, or None if it does not.

        `inf` for a time-out of 0, and for one that makes no sense, which the server refuses at once.
        """
        return None if self.timeout_of is None else self.timeout_of(named(args)[1])

    def route_for(self, args: Args) -> Route:
        """Return on which connection this call may go. `XREAD` and its like are dedicated only with `BLOCK`."""
        if self.timeout_of is None or self.route is not Route.SHARED:
            return self.route
        return Route.SHARED if self.blocks(args) is None else Route.DEDICATED

    def refusal(self, name: str | bytes) -> RefusedCommandError:
        """Return the error that says why this command may not share a connection, and what to do instead."""
        return RefusedCommandError(f"{text(name).upper()} is refused: it {self.why}; {self.advice}")


UNKNOWN: Final = Kind()
"""The kind of every command that this module has not heard of."""

_WRITES: Final = Kind()
_CONTAINER: Final = Kind()
_READS: Final = Kind(reads=True)
_HOLDS: Final = "may hold back whatever comes behind it"
_ALONE: Final = "send it by itself, outside of a pipeline"
_OVERTAKES: Final = Kind(False, Route.DEDICATED, "would wait behind what it is to end", _ALONE)


def _seconds(value: object, unit: float) -> float:
    try:
        seconds = float(text(value)) * unit
    except ValueError:
        return math.inf
    return seconds if 0 < seconds < math.inf else math.inf


def _at(place: int, unit: float = 1.0) -> Callable[[Args], float | None]:
    def timeout(args: Args) -> float | None:
        return _seconds(args[place], unit) if len(args) > abs(place) else math.inf

    return timeout


def _by_option(start: int, takes: Mapping[str, int]) -> Callable[[Args], float | None]:
    def timeout(args: Args) -> float | None:
        for word, at in options(args, start, takes):
            if word == "BLOCK" and at + 1 < len(args):
                return _seconds(args[at + 1], 0.001)
            if word == "STREAMS":
                break
        return None

    return timeout


_TIMEOUTS: Final = {
    **dict.fromkeys(("BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX"), _at(-1)),
    **dict.fromkeys(("BLMPOP", "BZMPOP"), _at(1)),
    "BLMOVEM": _at(5),
}

_OF_SERVER: Final = {
    "ACL": "CAT DRYRUN GENPASS GETUSER HELP LIST USERS WHOAMI",
    "CLIENT": "GETNAME GETREDIR HELP ID INFO LIST TRACKINGINFO",
    "CLUSTER": "COUNT-FAILURE-REPORTS COUNTKEYSINSLOT GETKEYSINSLOT GETSLOTMIGRATIONS HELP INFO KEYSLOT LINKS MYID "
    "MYSHARDID NODES REPLICAS SHARDS SLAVES SLOT-STATS SLOTS",
    "COMMAND": "COUNT DOCS GETKEYS GETKEYSANDFLAGS HELP INFO LIST",
    "COMMANDLOG": "GET HELP LEN",
    "CONFIG": "GET HELP",
    "DEBUG": "OBJECT",
    "FUNCTION": "DUMP HELP LIST STATS",
    "HOTKEYS": "GET",
    "JSON.DEBUG": "HELP MEMORY",
    "LATENCY": "DOCTOR GRAPH HELP HISTOGRAM HISTORY LATEST",
    "MEMORY": "DOCTOR HELP MALLOC-STATS STATS USAGE",
    "MODULE": "HELP LIST",
    "OBJECT": "ENCODING FREQ HELP IDLETIME REFCOUNT",
    "PUBSUB": "CHANNELS HELP NUMPAT NUMSUB SHARDCHANNELS SHARDNUMSUB",
    "SCRIPT": "EXISTS HELP SHOW",
    "SENTINEL": "CKQUORUM GET-MASTER-ADDR-BY-NAME MASTER MASTERS MYID REPLICAS SENTINELS SLAVES",
    "SLOWLOG": "GET HELP LEN",
    "XGROUP": "HELP",
    "XINFO": "CONSUMERS GROUPS HELP STREAM",
}

# What redis-py's own list lacks. PFCOUNT may store its result inside the value, which changes no answer.
_MORE_READS: Final = """
    CLUSTERSCAN COMMAND ECHO GEORADIUSBYMEMBER_RO GEORADIUS_RO INFO LASTSAVE LOLWUT PFCOUNT PING ROLE SORT_RO SUBSTR
    TIME ARCOUNT ARGET ARGETRANGE ARGREP ARINFO ARLASTITEMS ARLEN ARMGET ARNEXT AROP ARSCAN BF.CARD BF.EXISTS BF.INFO
    BF.MEXISTS BF.SCANDUMP CF.COUNT CF.EXISTS CF.INFO CF.MEXISTS CF.SCANDUMP CMS.INFO CMS.QUERY FT.DICTDUMP
    FT.EXPLAINCLI FT.SPELLCHECK FT.SUGGET FT.SUGLEN FT.SYNDUMP FT.TAGVALS FT._LIST TDIGEST.BYRANK TDIGEST.BYREVRANK
    TDIGEST.CDF TDIGEST.INFO TDIGEST.MAX TDIGEST.MIN TDIGEST.QUANTILE TDIGEST.RANK TDIGEST.REVRANK
    TDIGEST.TRIMMED_MEAN TOPK.COUNT TOPK.INFO TOPK.LIST TOPK.QUERY TS.GET TS.INFO TS.MGET TS.MRANGE TS.MREVRANGE
    TS.NRANGE TS.NREVRANGE TS.QUERYINDEX TS.QUERYLABELS TS.RANGE TS.REVRANGE VCARD VDIM VEMB VGETATTR VINFO VISMEMBER
    VLINKS VRANDMEMBER VRANGE VSIM
"""


def _blocking(route: Route, timeout_of: Callable[[Args], float | None], *, reads: bool = False) -> Kind:
    return Kind(reads, route, _HOLDS, _ALONE, timeout_of=timeout_of)


def _refused(why: str, advice: str, *, nowhere: bool = True, stateful: bool = False, option: str = "") -> Kind:
    return Kind(False, Route.REFUSED, why, advice, nowhere, stateful, option)


def _on_dedicated(why: str, advice: str = "send it on `async with redis.dedicated() as d`") -> Kind:
    return _refused(why, advice, nowhere=False, stateful=True)


_PUBSUB: Final = _refused("turns its connection into one of messages", "use `redis.pubsub()`")
_IDENTITY: Final = _refused(
    "changes who speaks on the connection", "name the user in the URL, or give a credential provider"
)
_TRANSACTION: Final = _on_dedicated(
    "makes a transaction of what others send", "use `redis.watch()` or `redis.pipeline(transaction=True)`"
)
_PUSHES: Final = _refused("has pushes sent to a connection that does not wait for them", "use `redis.pubsub()`")
_REPLICATION: Final = _refused("turns its connection into a replication link", "let a server send it, not a client")
_NODE_READS: Final = _on_dedicated(
    "changes what a cluster's node answers to others", "open the cluster client with reads from replicas"
)
_EVICTION: Final = _on_dedicated("changes how the server treats what others send")
_FIELDSETS: Final = _on_dedicated("works by what was prepared on its own connection, and is lost with it")
_ACKNOWLEDGED = "speaks only of the writes of its own connection"
_WAIT: Final = Kind(
    False, Route.REFUSED, _ACKNOWLEDGED, "send both on `async with redis.dedicated() as d`", timeout_of=_at(-1, 0.001)
)

_REFUSED: Final[dict[str, Kind]] = {
    **dict.fromkeys(["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"], _PUBSUB),
    **dict.fromkeys(["MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"], _TRANSACTION),
    **dict.fromkeys(("AUTH", "HELLO"), _IDENTITY),
    **dict.fromkeys(("CLIENT TRACKING", "CLIENT CACHING"), _PUSHES),
    **dict.fromkeys(("SYNC", "PSYNC", "REPLCONF", "CLUSTER SYNCSLOTS"), _REPLICATION),
    **dict.fromkeys(("READONLY", "READWRITE", "ASKING"), _NODE_READS),
    **dict.fromkeys(("CLIENT NO-EVICT", "CLIENT NO-TOUCH", "CLIENT IMPORT-SOURCE"), _EVICTION),
    **dict.fromkeys(("HIMPORT PREPARE", "HIMPORT SET", "HIMPORT DISCARD", "HIMPORT DISCARDALL"), _FIELDSETS),
    **dict.fromkeys(("WAIT", "WAITAOF"), _WAIT),
    "MONITOR": _refused("turns its connection into a log of all commands", "use `redis.monitor()`"),
    "SELECT": _refused("changes the database under everybody on the connection", "name the database in the URL"),
    "RESET": _refused("throws away what the connection was set up with", "leave the client's block, and open another"),
    "QUIT": _refused("ends the connection under everybody on it", "leave the client's block"),
    "CLIENT REPLY": _refused("makes the server leave out answers that are waited for", "use a pipeline"),
    "CLIENT CAPA": _refused("changes the answers that the connection gets", "use the cluster or Sentinel client"),
    "SCRIPT DEBUG": _refused("turns its connection into a debugger's", "debug with the server's own command line"),
    "KEYS": Kind(
        True,
        Route.REFUSED,
        "stops the server for as long as it looks at every key",
        "use `redis.scan_iter()`",
        option="allow_keys",
    ),
}


def _kinds() -> dict[str, Kind]:
    """Return the kind of every known command, by its name in upper case."""
    kinds = {**dict.fromkeys(KNOWN, _WRITES), **dict.fromkeys(CONTAINERS, _CONTAINER)}
    reads = [*_MORE_READS.split(), *(f"{box} {word}" for box, words in _OF_SERVER.items() for word in words.split())]
    kinds.update(dict.fromkeys([*READ_COMMANDS, *reads], _READS))
    kinds.update({name: _blocking(Route.DEDICATED, timeout) for name, timeout in _TIMEOUTS.items()})
    kinds["XREAD"] = _blocking(Route.SHARED, _by_option(1, STREAM_OPTIONS), reads=True)
    kinds["XREADGROUP"] = _blocking(Route.SHARED, _by_option(1, STREAM_OPTIONS))
    kinds["TS.READ"] = _blocking(Route.SHARED, _by_option(3, {"COUNT": 1, "BLOCK": 2}), reads=True)
    # A script that runs too long holds back its own connection: what ends it must come on another.
    kinds.update(dict.fromkeys(("SCRIPT KILL", "FUNCTION KILL"), _OVERTAKES))
    # A name on the connection is a label that changes no answer, so it may share; a dedicated one keeps it.
    kinds.update(dict.fromkeys(("CLIENT SETNAME", "CLIENT SETINFO"), Kind(stateful=True)))
    kinds.update(_REFUSED)
    return kinds


_KINDS: Final[Mapping[str | bytes, Kind]] = dict[str | bytes, Kind](_kinds().items())


def kind_of(name: str | bytes) -> Kind:
    """Return what is known of the command of this name: one look into a dict if it is upper case, as in redis-py.

    A name in another case, as bytes, or with blanks (`"config get"`) is looked up by its normal form. The first word
    alone of a name of two words says nothing: use `kind_of_call` where the second may come as an argument.

    Raises:
        DataError: That is no name.
    """
    try:
        kind = _KINDS.get(name)
    except TypeError:  # no name at all
        kind = None
    return kind if kind is not None else _KINDS.get(named([name])[0], UNKNOWN)


def kind_of_call(args: Args) -> Kind:
    """Return what is known of the command of this call, whose name may be two arguments (`["CONFIG", "GET", "a"]`)."""
    kind = kind_of(args[0] if args else cast("str", None))
    return kind if kind is not _CONTAINER else _KINDS.get(named(args)[0], UNKNOWN)


def refuse(args: Args, *, dedicated: bool = False, allowed: frozenset[str] = frozenset()) -> None:
    """Raise if a call may not go on its connection.

    Args:
        args: The call, its name first.
        dedicated: Whether the connection is a dedicated one.
        allowed: The options of the client (`allow_keys`) that let some commands pass.

    Raises:
        RefusedCommandError: It may not. Nothing was sent.
    """
    kind = kind_of_call(args)
    if kind.route is Route.REFUSED and (kind.refused_on_dedicated or not dedicated) and kind.option not in allowed:
        raise kind.refusal(named(args)[0])
