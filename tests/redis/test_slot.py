"""The slots of keys, against a real cluster and redis-py's own encoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ClusterCrossSlotError, DataError

from trio_orchestrator.redis.error import CrossSlotError
from trio_orchestrator.redis.slot import SLOTS, one_slot, slot_of
from trio_orchestrator.testing.cluster import RedisClusterServers

ENCODER = Redis().get_encoder()  # type: ignore[no-untyped-call]
KEYS = st.one_of(st.text(st.characters(codec="utf-8")), st.binary(), st.integers(), st.floats())


def test_slots_are_those_of_the_server(redis_cluster: RedisClusterServers) -> None:
    keys = ["123456789", "foo", "{foo}bar", "x{foo}{bar}", "{}a", "{a", "a}{", "", "{{a}}", "snö{☃}", "a\0{b}"]
    server = redis_cluster.masters[0]
    assert [slot_of(key) for key in keys] == [server.command("CLUSTER", "KEYSLOT", key) for key in keys]


@given(KEYS)
def test_the_slot_is_that_of_the_bytes_that_redis_py_sends(key: Any) -> None:
    sent = ENCODER.encode(key)
    assert slot_of(key) == slot_of(sent) == slot_of(memoryview(sent)) == slot_of(bytearray(sent))
    assert 0 <= slot_of(key) < SLOTS


@given(
    st.binary().filter(lambda tag: tag and b"}" not in tag),
    st.binary().filter(lambda part: b"{" not in part),
    st.binary(),
)
def test_a_tag_decides_alone(tag: bytes, before: bytes, after: bytes) -> None:
    tagged = before + b"{" + tag + b"}" + after
    assert slot_of(tagged) == slot_of(b"{" + tag + b"}")
    assert one_slot([tagged, b"{" + tag + b"}x"]) == slot_of(tagged)


@pytest.mark.parametrize("key", [True, None, object(), ["a"], "\ud800"])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(DataError, match=r"^key must be "):
        slot_of(key)


def test_keys_of_several_slots_are_named() -> None:
    with pytest.raises(CrossSlotError, match=r"'a' in 15495, 'b' in 3300, 1 in 9842") as caught:
        one_slot(["a", "b", 1])
    assert caught.value.keys == ("a", "b", 1)
    assert isinstance(caught.value, ClusterCrossSlotError)
    with pytest.raises(CrossSlotError):
        one_slot(["a", "b", "a"])
    with pytest.raises(ValueError, match=r"^keys must hold at least one key"):
        one_slot([])
