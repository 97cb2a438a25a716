"""Where commands without keys go in a cluster, and how answers are joined, against a real server's own hints."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.redis.described import flat
from trio_orchestrator.redis.command import Route, kind_of
from trio_orchestrator.redis.fanout import Fanout, Join, Target, fanout_of
from trio_orchestrator.redis.key import keys_of
from trio_orchestrator.redis.slot import slot_of
from trio_orchestrator.testing.server import RedisServer

NOT_BUSY = ResponseError("NOTBUSY No scripts in execution right now.")


def joined(name: str, *replies: Any) -> Any:
    return fanout_of([name]).joined({f"node {n}": reply for n, reply in enumerate(replies)})


def test_what_the_server_wants_everywhere_goes_everywhere(redis_server: RedisServer) -> None:
    asked: dict[str, set[str]] = {}
    for name, entry in flat(redis_server.command("COMMAND")).items():
        for hint in entry[7] if len(entry) > 7 else []:
            if hint.startswith("request_policy:") and not entry[3] and kind_of(name).route is not Route.REFUSED:
                asked.setdefault(hint.removeprefix("request_policy:"), set()).add(name)
    one = {
        name
        for name in asked["all_shards"] | asked["all_nodes"]
        if fanout_of([name]).target in {Target.HOME, Target.ANY}
    }
    # What each node tells of itself alone is asked of one unless more are named, as redis-py does.
    own = {
        "INFO",
        "RANDOMKEY",
        "FUNCTION STATS",
        "CLUSTER SLOT-STATS",
        "MEMORY DOCTOR",
        "MEMORY MALLOC-STATS",
        "MEMORY STATS",
    }
    own |= {f"{box} {word}" for box in ("SLOWLOG", "COMMANDLOG") for word in ("GET", "LEN")}
    own |= {f"LATENCY {word}" for word in ("DOCTOR", "GRAPH", "HISTOGRAM", "HISTORY", "LATEST")}
    assert one <= own
    for name in asked["all_nodes"] - one - {"SCRIPT LOAD", "SCRIPT FLUSH"}:
        assert fanout_of([name]).target is Target.NODES, name


@pytest.mark.parametrize(
    ("name", "replies", "one"),
    [
        ("DBSIZE", (3, 4, 0), 7),
        ("FLUSHALL", (True, True), True),
        ("CONFIG SET", (True, False), False),
        ("PING", (True,), True),
        ("KEYS", ([b"a", b"b"], [], [b"c", b"a"]), [b"a", b"b", b"c"]),
        ("SCRIPT EXISTS", ([True, False], [True, True]), [True, False]),
        ("SCRIPT LOAD", ("5f", "5f"), "5f"),
        ("FUNCTION LOAD", ("lib", "lib"), "lib"),
        ("ACL DELUSER", (1, 1), 1),
        ("SCRIPT KILL", (NOT_BUSY, True, NOT_BUSY), True),
        ("PUBSUB NUMSUB", ([(b"a", 1), (b"b", 0)], [(b"a", 2), (b"b", 1)]), [(b"a", 3), (b"b", 1)]),
        ("PUBSUB NUMPAT", (1, 2), 3),
        ("PUBSUB CHANNELS", ([b"a"], [b"a", b"b"]), [b"a", b"b"]),
        ("WAIT", (2, 1), 1),
        ("WAITAOF", ([1, 2], [1, 0]), [1, 0]),
        ("CLIENT UNBLOCK", (0, 1), 1),
        ("SCAN", ((7, [b"a"]), (0, [b"b"])), ({"node 0": 7, "node 1": 0}, [b"a", b"b"])),
        ("INFO", ({"a": 1}, {"a": 2}), {"node 0": {"a": 1}, "node 1": {"a": 2}}),
        ("INFO", ({"a": 1},), {"a": 1}),
        ("CONFIG GET", ({},), {}),
    ],
)
def test_answers_become_one(name: str, replies: tuple[Any, ...], one: Any) -> None:
    assert joined(name, *replies) == one


def test_an_error_of_one_node_is_the_error_of_the_call() -> None:
    with pytest.raises(ResponseError) as caught:
        joined("FLUSHALL", True, NOT_BUSY, True)
    assert caught.value is NOT_BUSY
    with pytest.raises(ResponseError):
        joined("SCRIPT KILL", NOT_BUSY, NOT_BUSY)


@pytest.mark.parametrize(
    ("call", "target"),
    [
        (["PUBLISH", "a", "m"], Target.ANY),
        (["RANDOMKEY"], Target.ANY),
        (["EVAL", "s", 0], Target.ANY),
        (["FT.SEARCH", "i", "*"], Target.ANY),
        (["ft.create", "i"], Target.ANY),
        (["config", b"set", "a", "b"], Target.NODES),
        (["CLIENT LIST"], Target.HOME),
        (["SLOWLOG", "GET"], Target.HOME),
        (["NOBODY", "KNOWS"], Target.HOME),
        (["FUNCTION LIST"], Target.ANY),
    ],
)
def test_a_call_without_keys_has_a_target(call: list[Any], target: Target) -> None:
    assert keys_of(call) == []
    assert fanout_of(call).target is target
    assert fanout_of(call).slot_in(call) is None


@pytest.mark.parametrize(
    ("call", "slot"),
    [
        (["CLUSTER COUNTKEYSINSLOT", 12], 12),
        (["CLUSTER", "GETKEYSINSLOT", b"16383", 3], 16383),
        (["CLUSTER SETSLOT", 16384, "NODE", "n"], None),
        (["CLUSTER SETSLOT", "x"], None),
        (["CLUSTER DELSLOTS"], None),
        (["FT.AGGREGATE", "i", "*"], slot_of("i")),
        (["FT.CURSOR", "READ", "i", 5], slot_of("i")),
        (["FT.CURSOR", "READ"], None),
    ],
)
def test_some_arguments_tell_the_slot(call: list[Any], slot: int | None) -> None:
    fanout = fanout_of(call)
    assert fanout.target is Target.SLOT
    assert fanout.slot_in(call) == slot


def test_a_fanout_of_which_nothing_is_said_asks_one_node() -> None:
    assert Fanout() == Fanout(Target.HOME, Join.BY_NODE)
