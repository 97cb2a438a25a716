"""What is known of commands, against what a real server says of itself."""

from __future__ import annotations

import ast
import inspect
import math
import re
from types import ModuleType
from typing import Any

import pytest
import redis.commands.cluster
import redis.commands.core
import redis.commands.sentinel
from redis.commands.cluster import READ_COMMANDS

from tests.redis.described import flat
from trio_orchestrator.redis.command import UNKNOWN, Kind, Route, kind_of, kind_of_call, refuse
from trio_orchestrator.redis.error import RefusedCommandError
from trio_orchestrator.testing.server import RedisServer


@pytest.fixture(scope="session")
def commands(redis_server: RedisServer) -> dict[str, list[Any]]:
    return flat(redis_server.command("COMMAND"))


def test_every_command_of_the_server_is_known(commands: dict[str, list[Any]]) -> None:
    assert [name for name in commands if kind_of(name) is UNKNOWN] == []


def test_nothing_reads_that_the_server_calls_a_write(commands: dict[str, list[Any]]) -> None:
    assert [name for name, entry in commands.items() if kind_of(name).reads and "write" in entry[2]] == []
    changing = (
        "CONFIG SET",
        "FLUSHALL",
        "SCRIPT LOAD",
        "ACL LOG",
        "EVAL",
        "PUBLISH",
        "LATENCY RESET",
        "SWAPDB",
        "WAIT",
    )
    assert [name for name in changing if kind_of(name).reads] == []


def test_what_the_server_calls_readonly_reads(commands: dict[str, list[Any]]) -> None:
    unread = {name for name, entry in commands.items() if "readonly" in entry[2] and not kind_of(name).reads}
    assert unread == {"TOUCH"}, "its effect is its purpose"


def test_what_redis_py_sends_to_replicas_reads() -> None:
    assert [name for name in READ_COMMANDS if not kind_of(name).reads] == []


def test_what_blocks_never_shares(commands: dict[str, list[Any]]) -> None:
    blocking = {name for name, entry in commands.items() if "blocking" in entry[2]}
    shared = {name for name in blocking if kind_of(name).route is Route.SHARED}
    assert shared == {"XREAD", "XREADGROUP"}
    assert all(kind_of(name).timeout_of for name in blocking)


def test_what_turns_a_connection_into_one_of_messages_is_refused(commands: dict[str, list[Any]]) -> None:
    pubsub = {name for name, entry in commands.items() if "pubsub" in entry[2] and not name.startswith("PUBSUB")}
    refused = {name for name in pubsub if kind_of(name).refused_on_dedicated}
    assert pubsub - refused == {"PUBLISH", "SPUBLISH"}
    assert len(refused) == 6


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        (["BLPOP", "a", "b", 1.5], 1.5),
        (["BLPOP", "a", 0], math.inf),
        (["brpop", b"a", b"2"], 2),
        (["BLPOP a", 3], 3),
        (["BLMOVE", "a", "b", "LEFT", "RIGHT", "0.25"], 0.25),
        (["BRPOPLPUSH", "a", "b", 4], 4),
        (["BZPOPMIN", "a", 5], 5),
        (["BLMPOP", 6, 1, "a", "LEFT"], 6),
        (["BZMPOP", 0.5, 1, "a", "MIN"], 0.5),
        (["BLMOVEM", "a", "b", "LEFT", "RIGHT", 7, "COUNT", 2, "BULK"], 7),
        (["XREAD", "COUNT", 1, "BLOCK", 1500, "STREAMS", "a", "$"], 1.5),
        (["XREADGROUP", "GROUP", "g", "c", "block", b"0", "STREAMS", "a", ">"], math.inf),
        (["TS.READ", "a", "$", "COUNT", 1, "BLOCK", 250, 1], 0.25),
        (["WAIT", 1, 100], 0.1),
        (["WAITAOF", 1, 1, 0], math.inf),
        (["BLPOP", "a", "soon"], math.inf),
        (["BLPOP", "a", -1], math.inf),
        (["BLPOP", "a", "nan"], math.inf),
        (["BLPOP"], math.inf),
    ],
)
def test_a_blocking_call_tells_its_timeout(call: list[Any], seconds: float) -> None:
    kind = kind_of_call(call)
    assert kind.blocks(call) == pytest.approx(seconds)
    assert kind.route_for(call) is not Route.SHARED


@pytest.mark.parametrize(
    "call",
    [
        ["GET", "BLOCK"],
        ["XREAD", "STREAMS", "BLOCK", "5"],
        ["XREAD", "COUNT", 1, "STREAMS", "a", "BLOCK", 1, 1],
        ["XREADGROUP", "GROUP", "BLOCK", "BLOCK", "STREAMS", "a", ">"],
        ["XREADGROUP", "GROUP", "g", "c", "COUNT", "BLOCK", "NOACK", "STREAMS", "a", ">"],
        ["XREAD", "BLOCK"],
        ["TS.READ", "BLOCK", "BLOCK"],
    ],
)
def test_a_word_that_only_looks_like_block_does_not_block(call: list[Any]) -> None:
    kind = kind_of_call(call)
    assert kind.blocks(call) is None
    assert kind.route_for(call) is Route.SHARED


@pytest.mark.parametrize("name", ["CONFIG GET", "config get", b"CONFIG GET", b"Config Get", "config   get"])
def test_a_name_may_be_written_in_any_way(name: str | bytes) -> None:
    assert kind_of(name) is kind_of("CONFIG GET")
    assert kind_of(name).reads


def test_the_second_word_may_be_an_argument() -> None:
    assert kind_of_call(["config", b"get", "x"]).reads
    assert not kind_of_call(["CONFIG", "SET", "x", "y"]).reads
    assert kind_of_call([b"client", "REPLY", "OFF"]).route is Route.REFUSED
    assert kind_of_call(["CLIENT", "NOT_YET_KNOWN"]) is UNKNOWN
    assert kind_of_call([""]) is UNKNOWN
    assert kind_of_call(["COMMAND"]).reads
    assert not kind_of("CLIENT").reads


@pytest.mark.parametrize("call", [["BLPOP", "a", 0], ["XREAD", "BLOCK", 0, "STREAMS", "a", 0], ["SCRIPT KILL"]])
def test_what_needs_a_connection_of_its_own_says_why(call: list[Any]) -> None:
    kind = kind_of_call(call)
    assert kind.route_for(call) is Route.DEDICATED
    error = kind.refusal(call[0].lower())
    assert re.fullmatch(rf"{call[0]} is refused: it .+; send it by itself, outside of a pipeline", str(error))


def test_what_ends_a_script_does_not_queue_behind_it() -> None:
    assert kind_of("SCRIPT KILL").route is kind_of("FUNCTION KILL").route is Route.DEDICATED


REFUSED_EVERYWHERE = [
    "SUBSCRIBE", "SSUBSCRIBE", "PUNSUBSCRIBE", "MONITOR", "SELECT", "RESET", "QUIT", "HELLO", "AUTH", "CLIENT REPLY",
    "CLIENT TRACKING", "CLIENT CACHING", "CLIENT CAPA", "CLUSTER SYNCSLOTS", "SCRIPT DEBUG", "SYNC", "PSYNC",
    "REPLCONF",
]  # fmt: skip
REFUSED_WHERE_SHARED = [
    "WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD", "READONLY", "READWRITE", "ASKING", "CLIENT NO-EVICT",
    "CLIENT NO-TOUCH", "HIMPORT PREPARE", "HIMPORT SET",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_EVERYWHERE)
def test_some_commands_are_refused_everywhere(name: str) -> None:
    for dedicated in (False, True):
        with pytest.raises(RefusedCommandError, match=rf"^{name} is refused: it .*; "):
            refuse(name.lower().split(), dedicated=dedicated)


@pytest.mark.parametrize("name", REFUSED_WHERE_SHARED)
def test_some_commands_are_refused_where_they_would_disturb_others(name: str) -> None:
    with pytest.raises(RefusedCommandError, match=rf"^{name} is refused: it .*; "):
        refuse([name, "a"])
    refuse([name, "a"], dedicated=True)
    assert kind_of(name).stateful


@pytest.mark.parametrize("name", ["WAIT", "WAITAOF"])
def test_wait_is_for_a_connection_of_its_own(name: str) -> None:
    with pytest.raises(RefusedCommandError, match=r"its own connection; send both on `async with redis\.dedicated"):
        refuse([name, 1, 0])
    refuse([name, 1, 0], dedicated=True)
    assert not kind_of(name).stateful


def test_keys_is_refused_unless_allowed() -> None:
    with pytest.raises(RefusedCommandError, match=r"use `redis\.scan_iter"):
        refuse(["KEYS", "*"])
    refuse(["KEYS", "*"], allowed=frozenset({"allow_keys"}))
    refuse(["KEYS", "*"], dedicated=True)
    with pytest.raises(RefusedCommandError):
        refuse(["SELECT", 1], allowed=frozenset({"allow_keys"}))


def test_ordinary_and_unknown_commands_share() -> None:
    for name in ("SET", "SHUTDOWN", "FAILOVER", "DEBUG SLEEP", "CLIENT SETNAME", "NOBODY.KNOWS", "PUBLISH", "MIGRATE"):
        refuse([name, "a"])
        assert kind_of(name).route is Route.SHARED


def test_a_kind_of_which_nothing_is_said_is_a_write_that_may_share() -> None:
    assert Kind().route is Route.SHARED
    assert not Kind().reads
    assert Kind().blocks(["X"]) is None


def test_redis_py_sends_known_commands() -> None:
    sent = sent_by(redis.commands.core) | sent_by(redis.commands.sentinel) | sent_by(redis.commands.cluster)
    unknown = {name for name in sent if kind_of(name) is UNKNOWN}
    assert unknown == {"STRALGO"}, "which Redis 7 has given up"
    assert len(sent) > 300


def sent_by(module: ModuleType) -> set[str]:
    """Return the names that a module's code gives to `execute_command` in so many letters."""
    calls = [
        node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call) and node.args
    ]
    sending = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "execute_command"]
    names = [call.args[0].value for call in sending if isinstance(call.args[0], ast.Constant)]
    return {name for name in names if isinstance(name, str)}
