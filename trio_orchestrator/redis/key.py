"""Which arguments of a command are keys: what a cluster routes by, and what must be in one slot.

The positions are those that `COMMAND` of Valkey 9.1 and Redis 7.0 reports, and the syntax of the commands that only
later Redis or its modules have. Nothing here raises on a call that the server would refuse: it has no keys then, so
that it goes to any node and the server says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from redis.exceptions import DataError

Args: TypeAlias = Sequence[Any]
Places: TypeAlias = "slice | Callable[[Args], list[Any]]"

_OCTETS: Final = (bytes, bytearray, memoryview)

_BOXES: Final = """
    ACL CLIENT CLUSTER COMMAND COMMANDLOG CONFIG DEBUG FUNCTION HIMPORT HOTKEYS JSON.DEBUG LATENCY MEMORY MODULE OBJECT
    PUBSUB SCRIPT SENTINEL SLOWLOG XGROUP XINFO
"""
CONTAINERS: Final = frozenset(_BOXES.split())
"""The commands whose second word is part of their name."""


def text(word: Any) -> str:
    """Return an argument as a str, whatever it is made of; bytes that are no UTF-8 do not matter in a name."""
    if isinstance(word, str):
        return word
    return bytes(cast("bytes", word)).decode(errors="replace") if isinstance(word, _OCTETS) else str(word)


def named(args: Args) -> tuple[str, Args]:
    """Return the name of a call in upper case, two words for a container, and the call with its name as one argument.

    The name may come in any case, as bytes, as one argument with blanks (`"CONFIG GET"`, as redis-py passes it) or as
    two.

    Raises:
        DataError: There is no name, which no server would answer to.
    """
    head = args[0] if args else None
    if not isinstance(head, (str, bytes)) or (head and not head.strip()):
        raise DataError(f"a command must begin with its name, got {head!r}")
    if (" " in head) if isinstance(head, str) else (b" " in head):
        args = [*head.split(), *args[1:]] or args
    name = text(args[0]).upper()
    if name in CONTAINERS and len(args) > 1:
        return f"{name} {text(args[1]).upper()}", args[1:]
    return name, args


def options(args: Args, start: int, takes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each option from `start` on in upper case, with its index; `takes` says how many arguments follow which."""
    at = start
    while at < len(args):
        word = text(args[at]).upper()
        yield word, at
        at += 1 + takes.get(word, 0)


def _counted(at: int, *, step: int = 1, stores: bool = False) -> Places:
    """Return the rule for commands that say at `at` how many keys follow; with `stores`, argument 1 is a key too."""

    def find(args: Args) -> list[Any]:
        try:
            count = int(text(args[at]))
        except (IndexError, ValueError):
            return []
        keys = args[at + 1 : at + 1 + count * step : step]
        return [*args[1:2], *keys] if stores and len(keys) == count else [*keys] if len(keys) == count else []

    return find


def _stored(start: int, takes: Mapping[str, int], *words: str) -> Places:
    """Return the rule for commands whose last option of `words` names a second key: SORT, GEORADIUS."""

    def find(args: Args) -> list[Any]:
        target = [args[at + 1 : at + 2] for word, at in options(args, start, takes) if word in words]
        return [*args[1:2], *(target[-1] if target else ())]

    return find


STREAM_OPTIONS: Final = {"BLOCK": 1, "COUNT": 1, "GROUP": 2, "CLAIM": 1}


def _streams(args: Args) -> list[Any]:
    for word, at in options(args, 1, STREAM_OPTIONS):
        if word == "STREAMS":
            return [*args[at + 1 : at + 1 + (len(args) - at - 1) // 2]]
    return []


def _migrated(args: Args) -> list[Any]:
    if len(args) > 3 and args[3] in {"", b""}:
        for word, at in options(args, 6, {"AUTH": 1, "AUTH2": 2}):
            if word == "KEYS":
                return [*args[at + 1 :]]
    return [*args[3:4]]


_SORT: Final = {"LIMIT": 2, "GET": 1, "BY": 1}
_RADIUS: Final = {"STORE": 1, "STOREDIST": 1}

_TABLE: Final[tuple[tuple[Places, str], ...]] = (
    (
        slice(1, 2),
        """
        APPEND BITCOUNT BITFIELD BITFIELD_RO BITPOS CLUSTERSCAN DECR DECRBY DELEX DELIFEQ DIGEST DUMP EXPIRE EXPIREAT
        EXPIRETIME GEOADD GEODIST GEOHASH GEOPOS GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GET GETBIT GETDEL GETEX
        GETRANGE GETSET HDEL HEXISTS HEXPIRE HEXPIREAT HEXPIRETIME HGET HGETALL HGETDEL HGETEX HINCRBY HINCRBYFLOAT
        HKEYS HLEN HMGET HMSET HPERSIST HPEXPIRE HPEXPIREAT HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSET HSETEX HSETNX
        HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT INCREX LINDEX LINSERT LLEN LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET
        LTRIM MOVE PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PSETEX PTTL RESTORE RESTORE-ASKING RPOP RPUSH RPUSHX
        SADD SCARD SET SETBIT SETEX SETNX SETRANGE SISMEMBER SMEMBERS SMISMEMBER SORT_RO SPOP SPUBLISH SRANDMEMBER
        SREM SSCAN STRLEN SUBSTR TTL TYPE XACK XACKDEL XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XLEN XNACK XPENDING
        XRANGE XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZINCRBY ZLEXCOUNT ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE
        ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX
        ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE ARCOUNT ARDEL ARDELRANGE ARGET ARGETRANGE ARGREP ARINFO ARINSERT
        ARLASTITEMS ARLEN ARMGET ARMSET ARNEXT AROP ARRING ARSCAN ARSEEK ARSET VADD VCARD VDIM VEMB VGETATTR VINFO
        VISMEMBER VLINKS VRANDMEMBER VRANGE VREM VSETATTR VSIM BF.ADD BF.CARD BF.EXISTS BF.INFO BF.INSERT BF.LOADCHUNK
        BF.MADD BF.MEXISTS BF.RESERVE BF.SCANDUMP CF.ADD CF.ADDNX CF.COUNT CF.DEL CF.EXISTS CF.INFO CF.INSERT
        CF.INSERTNX CF.LOADCHUNK CF.MEXISTS CF.RESERVE CF.SCANDUMP CMS.INCRBY CMS.INFO CMS.INITBYDIM CMS.INITBYPROB
        CMS.QUERY FT.SUGADD FT.SUGDEL FT.SUGGET FT.SUGLEN JSON.ARRAPPEND JSON.ARRINDEX JSON.ARRINSERT JSON.ARRLEN
        JSON.ARRPOP JSON.ARRTRIM JSON.CLEAR JSON.DEL JSON.GET JSON.MERGE JSON.NUMINCRBY JSON.NUMMULTBY JSON.OBJKEYS
        JSON.OBJLEN JSON.RESP JSON.SET JSON.STRAPPEND JSON.STRLEN JSON.TOGGLE JSON.TYPE TDIGEST.ADD TDIGEST.BYRANK
        TDIGEST.BYREVRANK TDIGEST.CDF TDIGEST.CREATE TDIGEST.INFO TDIGEST.MAX TDIGEST.MIN TDIGEST.QUANTILE
        TDIGEST.RANK TDIGEST.RESET TDIGEST.REVRANK TDIGEST.TRIMMED_MEAN TOPK.ADD TOPK.COUNT TOPK.INCRBY TOPK.INFO
        TOPK.LIST TOPK.QUERY TOPK.RESERVE TS.ADD TS.ALTER TS.CREATE TS.DECRBY TS.DEL TS.GET TS.INCRBY TS.INFO TS.RANGE
        TS.READ TS.REVRANGE
        """,
    ),
    (slice(1, 3), "BLMOVE BLMOVEM BRPOPLPUSH COPY GEOSEARCHSTORE LCS LMOVE LMOVEM RENAME RENAMENX RPOPLPUSH SMOVE"),
    (slice(1, 3), "TS.CREATERULE TS.DELETERULE ZRANGESTORE"),
    (
        slice(1, None),
        "DEL EXISTS MGET PFCOUNT PFMERGE SDIFF SDIFFSTORE SINTER SINTERSTORE SSUBSCRIBE SUNION SUNIONSTORE",
    ),
    (slice(1, None), "SUNSUBSCRIBE TOUCH UNLINK WATCH"),
    (slice(1, -1), "BLPOP BRPOP BZPOPMAX BZPOPMIN JSON.MGET"),
    (slice(1, None, 2), "MSET MSETNX"),
    (slice(1, None, 3), "JSON.MSET TS.MADD"),
    (slice(2, None), "BITOP"),
    (slice(2, 3), "PFDEBUG"),
    (_counted(1), "LMPOP SDIFFCARD SINTERCARD SUNIONCARD TS.NRANGE TS.NREVRANGE ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION"),
    (_counted(1, step=2), "MSETEX"),
    (_counted(2), "BLMPOP BZMPOP EVAL EVALSHA EVALSHA_RO EVAL_RO FCALL FCALL_RO"),
    (_counted(2, stores=True), "CMS.MERGE TDIGEST.MERGE ZDIFFSTORE ZINTERSTORE ZUNIONSTORE"),
    (_stored(2, _SORT, "STORE"), "SORT"),
    (_stored(5, _RADIUS, "STORE", "STOREDIST"), "GEORADIUS GEORADIUSBYMEMBER"),
    (_streams, "XREAD XREADGROUP"),
    (_migrated, "MIGRATE"),
    (
        slice(0, 0),
        """
        ASKING AUTH BGREWRITEAOF BGSAVE DBSIZE DISCARD ECHO EXEC FAILOVER FLUSHALL FLUSHDB HELLO INFO KEYS LASTSAVE
        LOLWUT MONITOR MULTI PFSELFTEST PING PSUBSCRIBE PSYNC PUBLISH PUNSUBSCRIBE QUIT RANDOMKEY READONLY READWRITE
        REPLCONF REPLICAOF RESET ROLE SAVE SCAN SELECT SHUTDOWN SLAVEOF SUBSCRIBE SWAPDB SYNC TIME UNSUBSCRIBE UNWATCH
        WAIT WAITAOF FT.AGGREGATE FT.ALIASADD FT.ALIASDEL FT.ALIASLIST FT.ALIASUPDATE FT.ALTER FT.CONFIG FT.CREATE
        FT.CURSOR FT.DICTADD FT.DICTDEL FT.DICTDUMP FT.DROPINDEX FT.EXPLAIN FT.EXPLAINCLI FT.HYBRID FT.INFO FT.PROFILE
        FT.SEARCH FT.SPELLCHECK FT.SYNDUMP FT.SYNUPDATE FT.TAGVALS FT._LIST TS.MGET TS.MRANGE TS.MREVRANGE
        TS.QUERYINDEX TS.QUERYLABELS
        """,
    ),
)

_WORDS: Final[tuple[tuple[slice, str, str], ...]] = (
    (slice(1, 2), "DEBUG", "OBJECT"),
    (slice(1, 2), "HIMPORT", "SET"),
    (slice(1, 2), "JSON.DEBUG", "MEMORY"),
    (slice(1, 2), "MEMORY", "USAGE"),
    (slice(1, 2), "OBJECT", "ENCODING FREQ IDLETIME REFCOUNT"),
    (slice(1, 2), "XGROUP", "CREATE CREATECONSUMER DELCONSUMER DESTROY SETID"),
    (slice(1, 2), "XINFO", "CONSUMERS GROUPS STREAM"),
    (slice(0, 0), "ACL", "CAT DELUSER DRYRUN GENPASS GETUSER LIST LOAD LOG SAVE SETUSER USERS WHOAMI"),
    (
        slice(0, 0),
        "CLIENT",
        "CACHING CAPA GETNAME GETREDIR ID IMPORT-SOURCE INFO KILL LIST NO-EVICT NO-TOUCH PAUSE REPLY",
    ),
    (slice(0, 0), "CLIENT", "SETINFO SETNAME TRACKING TRACKINGINFO UNBLOCK UNPAUSE"),
    (
        slice(0, 0),
        "CLUSTER",
        "ADDSLOTS ADDSLOTSRANGE BUMPEPOCH CANCELSLOTMIGRATIONS COUNT-FAILURE-REPORTS COUNTKEYSINSLOT",
    ),
    (
        slice(0, 0),
        "CLUSTER",
        "DELSLOTS DELSLOTSRANGE FAILOVER FLUSHSLOT FLUSHSLOTS FORGET GETKEYSINSLOT GETSLOTMIGRATIONS",
    ),
    (
        slice(0, 0),
        "CLUSTER",
        "INFO KEYSLOT LINKS MEET MIGRATESLOTS MYID MYSHARDID NODES REPLICAS REPLICATE RESET SAVECONFIG",
    ),
    (slice(0, 0), "CLUSTER", "SET-CONFIG-EPOCH SETSLOT SHARDS SLAVES SLOT-STATS SLOTS SYNCSLOTS"),
    (slice(0, 0), "COMMAND", "COUNT DOCS GETKEYS GETKEYSANDFLAGS INFO LIST"),
    (slice(0, 0), "COMMANDLOG", "GET LEN RESET"),
    (slice(0, 0), "CONFIG", "GET RESETSTAT REWRITE SET"),
    (slice(0, 0), "FUNCTION", "DELETE DUMP FLUSH KILL LIST LOAD RESTORE STATS"),
    (slice(0, 0), "HIMPORT", "DISCARD DISCARDALL PREPARE"),
    (slice(0, 0), "HOTKEYS", "GET RESET START STOP"),
    (slice(0, 0), "LATENCY", "DOCTOR GRAPH HISTOGRAM HISTORY LATEST RESET"),
    (slice(0, 0), "MEMORY", "DOCTOR MALLOC-STATS PURGE STATS"),
    (slice(0, 0), "MODULE", "LIST LOAD LOADEX UNLOAD"),
    (slice(0, 0), "PUBSUB", "CHANNELS NUMPAT NUMSUB SHARDCHANNELS SHARDNUMSUB"),
    (slice(0, 0), "SCRIPT", "DEBUG EXISTS FLUSH KILL LOAD SHOW"),
    (
        slice(0, 0),
        "SENTINEL",
        "CKQUORUM FAILOVER FLUSHCONFIG GET-MASTER-ADDR-BY-NAME MASTER MASTERS MONITOR MYID REMOVE",
    ),
    (slice(0, 0), "SENTINEL", "REPLICAS RESET SENTINELS SET SLAVES"),
    (slice(0, 0), "SLOWLOG", "GET LEN RESET"),
)

KNOWN: Final[dict[str, Places]] = {name: places for places, names in _TABLE for name in names.split()}
KNOWN.update({f"{box} {word}": places for places, box, words in _WORDS for word in words.split()})
KNOWN.update({f"{box} HELP": slice(0, 0) for box in CONTAINERS})
"""Every command whose keys are known, by its name in upper case."""

_MODULES: Final = ("BF.", "CF.", "CMS.", "JSON.", "TDIGEST.", "TOPK.", "TS.")


def keys_of(args: Args) -> list[Any]:
    """Return the keys of a command, as they were given, in the order in which the server lists them.

    An unknown command has none, unless it is one of a module whose commands begin with their key. The channel of
    `SPUBLISH` counts as a key (its slot routes it), that of `PUBLISH` does not. A cursor of `CLUSTERSCAN` does, as
    for the server.

    Args:
        args: The command, its name first: `["GET", "a"]`, `["OBJECT ENCODING", "a"]` or `["object", b"encoding", "a"]`.
    """
    places = KNOWN.get(args[0])
    if places is None:
        name, args = named(args)
        places = KNOWN.get(name)
    if places is None:
        return [*args[1:2]] if text(args[0]).upper().startswith(_MODULES) else []
    return [*args[places]] if isinstance(places, slice) else places(args)
