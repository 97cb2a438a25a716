"""Which arguments of a command are keys, against what a real server finds."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import DataError

from tests.redis.described import flat
from trio_orchestrator.redis.command import kind_of_call
from trio_orchestrator.redis.key import keys_of
from trio_orchestrator.testing.server import RedisServer

MOVABLE = """
    EVAL s 0|EVAL s 2 a b c|EVAL s x a|EVAL s 5 a|EVAL s -1 a|EVAL_RO s 1 a b|EVALSHA s 1 a|EVALSHA_RO s 2 a b
    FCALL f 0|FCALL f 1 a b|FCALL_RO f 2 a b c
    ZUNION 2 a b WEIGHTS 1 2|ZINTER 1 a|ZDIFF 2 a b WITHSCORES|ZINTERCARD 2 a b LIMIT 1
    SINTERCARD 3 a b c|SINTERCARD 4 a b
    ZUNIONSTORE d 2 a b|ZINTERSTORE d 1 a AGGREGATE MAX|ZDIFFSTORE d 2 a b|ZUNIONSTORE d 3 a b|ZUNIONSTORE d x a b
    LMPOP 2 a b LEFT|ZMPOP 1 a MIN|BLMPOP 0 2 a b RIGHT|BZMPOP 1.5 1 a MAX COUNT 2
    XREAD STREAMS a 0|XREAD COUNT 2 BLOCK 0 STREAMS a b 0 0|XREAD BLOCK 5 STREAMS STREAMS 0|XREAD STREAMS a b 0
    XREADGROUP GROUP STREAMS block STREAMS a >|XREADGROUP GROUP g c NOACK COUNT 1 STREAMS a b > >
    SORT a|SORT a STORE b|SORT a BY STORE GET STORE LIMIT 0 STORE DESC|SORT a STORE b STORE c|SORT a LIMIT 0 1 store b
    SORT_RO a BY nosort|SORT a GET STORE STORE b
    GEORADIUS a 1 2 3 m|GEORADIUS a 1 2 3 m STORE b|GEORADIUS_RO a 1 2 3 m
    GEORADIUSBYMEMBER a m 3 km STOREDIST b|GEORADIUSBYMEMBER a m 3 km COUNT 1 store b
    MIGRATE h 1 a 0 10|MIGRATE h 1 a 0 10 COPY REPLACE|MIGRATE h 1 a 0 10 AUTH KEYS
    MSETEX 2 a 1 b 2 EX 5|MSETEX 1 a 1|MSETEX 3 a 1
    OBJECT ENCODING a|OBJECT HELP|MEMORY USAGE a SAMPLES 3|XINFO STREAM a FULL|XGROUP CREATE a g $|PFDEBUG ENCODING a
    PUBLISH a m|SUBSCRIBE a b|PING a|BITOP AND d a b|CLIENT KILL a|CONFIG GET a|SCRIPT EXISTS a
"""
SAMPLES = [sample.split() for line in MOVABLE.strip().splitlines() for sample in line.split("|")]
SAMPLES += [
    ["MIGRATE", "h", "1", "", "0", "10", *rest.split()] for rest in ("AUTH2 u KEYS KEYS a b", "AUTH KEYS KEYS a")
]

BY_HAND = {
    "JSON.SET a $ 1": "a",
    "JSON.MGET a b $": "a b",
    "JSON.MSET a $ 1 b $ 2": "a b",
    "JSON.DEBUG MEMORY a $": "a",
    "TS.MADD a 1 2 b 3 4": "a b",
    "TS.ADD a * 1": "a",
    "TS.MRANGE - + FILTER x=1": "",
    "TS.CREATERULE a b AGGREGATION avg 1": "a b",
    "TS.NRANGE 2 a b - +": "a b",
    "TS.NOT_YET_KNOWN a b": "a",
    "BF.ADD a x": "a",
    "CMS.MERGE d 2 a b WEIGHTS 1 1": "d a b",
    "TDIGEST.MERGE d 1 a": "d a",
    "FT.SEARCH i *": "",
    "FT.SUGADD a x 1": "a",
    "VSIM a VALUES 1 0.5": "a",
    "SUNIONCARD 2 a b LIMIT 0": "a b",
    "BLMOVEM a b LEFT RIGHT 0": "a b",
    "HIMPORT SET a f 1": "a",
    "DEBUG OBJECT a": "a",
    "NOBODY KNOWS THIS": "",
    # What a cluster routes by although it is no key, so that COMMAND GETKEYS does not tell it.
    "SPUBLISH a m": "a",
    "SSUBSCRIBE a b": "a b",
    "CLUSTERSCAN 0": "0",
    "PFMERGE a": "a",
}


@pytest.fixture(scope="session")
def commands(redis_server: RedisServer) -> dict[str, list[Any]]:
    return flat(redis_server.command("COMMAND"))


def keys_by_server(server: RedisServer, call: list[str]) -> list[str]:
    try:
        keys: list[str] = server.command("COMMAND", "GETKEYS", *call)
    except RuntimeError:
        return []
    return keys


def calls_of(name: str, arity: int) -> list[list[str]]:
    """Calls with as many arguments as the command wants, and with more if it takes more."""
    words = name.split()
    least = abs(arity) - len(words)
    more = (0, 1, 2, 3) if arity < 0 else (0,)
    return [[*words, *(f"k{n}" for n in range(least + extra))] for extra in more]


def test_keys_are_those_that_the_server_finds(redis_server: RedisServer, commands: dict[str, list[Any]]) -> None:
    keyed = [name for name, entry in commands.items() if entry[3] and not {"movablekeys", "pubsub"} & set(entry[2])]
    calls = [call for name in keyed if name != "CLUSTERSCAN" for call in calls_of(name, commands[name][1])]
    calls += [call for call in SAMPLES if call[0] in commands or " ".join(call[:2]) in commands]
    calls.remove(["PFMERGE", "k0"])  # has a key, which COMMAND GETKEYS does not find without a second
    found = [keys_by_server(redis_server, call) for call in calls]
    pairs = zip(calls, found, strict=True)
    differ = {" ".join(call): (keys_of(call), keys) for call, keys in pairs if keys_of(call) != keys}
    assert differ == {}
    assert len({call[0] for call in calls}) >= 120


def test_every_command_with_movable_keys_has_a_sample(commands: dict[str, list[Any]]) -> None:
    movable = {name for name, entry in commands.items() if "movablekeys" in entry[2]}
    assert movable <= {call[0] for call in SAMPLES}


@pytest.mark.parametrize("call", BY_HAND)
def test_keys_of_commands_that_this_server_lacks(call: str) -> None:
    assert keys_of(call.split()) == BY_HAND[call].split()


@pytest.mark.parametrize(
    "call",
    [
        ["GET", "a"],
        ["get", "a"],
        [b"GET", "a"],
        ["OBJECT ENCODING", "a"],
        ["object encoding", "a"],
        [b"object encoding", "a"],
        ("OBJECT", b"encoding", "a"),
        ["Xinfo", "Stream", "a", "FULL"],
        ["GET a"],
        ["eval", b"s", b"1", "a", "b"],
        ["EVAL", "s", 1, "a", "b"],
        ["ZUNIONSTORE", "a", 0],
        ["XREAD", b"block", 5, b"streams", "a", "$"],
        ["MIGRATE", "h", 1, b"", 0, 9, "KEYS", "a"],
    ],
)
def test_a_call_may_be_written_in_any_way(call: Any) -> None:
    assert keys_of(call) == ["a"]


def test_keys_come_back_as_they_were_given() -> None:
    key = memoryview(b"a")
    assert keys_of(["MGET", key, 1, b"b"])[0] is key
    assert keys_of(["MGET", key, 1, b"b"]) == [key, 1, b"b"]


@pytest.mark.parametrize("call", [["GET"], ["EVAL", "s"], ["XREAD"], ["MIGRATE", "h"], ["SORT"], ["OBJECT"], [""]])
def test_a_call_without_its_arguments_has_no_keys(call: list[str]) -> None:
    assert keys_of(call) == []


@pytest.mark.parametrize("call", [[], [" "], [b"  "], [None], [5], [bytearray(b"GET"), "a"], [["GET"], "a"]])
def test_a_call_without_a_name_is_refused(call: Any) -> None:
    with pytest.raises(DataError, match="must begin with its name"):
        kind_of_call(call)
