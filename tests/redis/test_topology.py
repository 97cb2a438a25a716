"""The map of a cluster: properties, and answers that real servers gave."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import RedisClusterException, SlotNotCoveredError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.slot import SLOTS
from trio_orchestrator.redis.topology import Change, Shard, Topology, parse_shards, parse_slots
from trio_orchestrator.testing.cluster import RedisClusterServers

ASKED = Address("10.9.9.9", 7000)


def node(port: int) -> Address:
    return Address("127.0.0.1", port)


def entry(port: int, role: bytes, health: bytes = b"online", **more: Any) -> dict[bytes, Any]:
    fields = {"endpoint": b"127.0.0.1", "ip": b"127.0.0.1", "port": port, "id": b"6f", "replication-offset": 14, **more}
    return {name.encode(): value for name, value in fields.items()} | {b"role": role, b"health": health}


def flattened(reply: Any) -> Any:
    """The same answer as RESP2 gives it: each map as a flat list."""
    if isinstance(reply, dict):
        return [flattened(part) for pair in reply.items() for part in pair]
    return [flattened(part) for part in reply] if isinstance(reply, list) else reply


# Valkey 9.1.2, two masters with a replica each; the first has two runs of slots.
VALKEY_SHARDS = [
    {
        b"id": b"6d9893f53a4dcd93f62fb851842c10a3f42ded49",
        b"nodes": [entry(7611, b"master"), entry(7613, b"replica")],
        b"slots": [5001, 8999],
    },
    {
        b"id": b"efab39fd4140af0244e2876c376f5b4ba17add9d",
        b"nodes": [entry(7610, b"master"), entry(7612, b"replica")],
        b"slots": [0, 5000, 9000, 16383],
    },
]
VALKEY_SLOTS = [
    [0, 5000, [b"127.0.0.1", 7610, b"4719d0", {}], [b"127.0.0.1", 7612, b"82f640", {}]],
    [5001, 8999, [b"127.0.0.1", 7611, b"936f04", {}], [b"127.0.0.1", 7613, b"dcca74", {}]],
    [9000, 16383, [b"127.0.0.1", 7610, b"4719d0", {}], [b"127.0.0.1", 7612, b"82f640", {}]],
]
STEADY = Topology(
    [
        (0, 5000, Shard(node(7610), (node(7612),))),
        (5001, 8999, Shard(node(7611), (node(7613),))),
        (9000, 16383, Shard(node(7610), (node(7612),))),
    ]
)

# 7611 was killed, 7613 took over: Valkey tells of two masters in one shard, Redis 7.0 of a shard without slots.
VALKEY_FAILED_OVER = [
    {b"slots": [5001, 8999], b"nodes": [entry(7611, b"master", b"fail"), entry(7613, b"master")], b"id": b"f45e05"},
    {b"slots": [9000, 16383], b"nodes": [entry(7612, b"master")], b"id": b"bb3a9a"},
    {b"slots": [0, 5000], b"nodes": [entry(7610, b"master")], b"id": b"78c0f8"},
]
REDIS_FAILED_OVER = [
    {b"slots": [9000, 16383], b"nodes": [entry(7612, b"master")]},
    {b"slots": [5001, 8999], b"nodes": [entry(7613, b"master")]},
    {b"slots": [], b"nodes": [entry(7611, b"master", b"fail")]},
    {b"slots": [0, 5000], b"nodes": [entry(7610, b"master")]},
]
FAILED_OVER = Topology(
    [(0, 5000, Shard(node(7610))), (5001, 8999, Shard(node(7613))), (9000, 16383, Shard(node(7612)))]
)


@pytest.mark.parametrize("form", [lambda reply: reply, flattened], ids=["RESP3", "RESP2"])
def test_real_answers_of_both_commands_and_protocols_say_the_same(form: Any) -> None:
    assert parse_shards(form(VALKEY_SHARDS), ASKED) == STEADY
    assert parse_slots(form(VALKEY_SLOTS), ASKED) == STEADY
    assert parse_shards(form(VALKEY_FAILED_OVER), ASKED) == FAILED_OVER
    assert parse_shards(form(REDIS_FAILED_OVER), ASKED) == FAILED_OVER


def test_decoded_answers_are_read_too() -> None:
    decoded = [[0, 16383, ["127.0.0.1", 7610, "4719d0", []], ["127.0.0.1", 7612, "82f640", []]]]
    assert parse_slots(decoded, ASKED) == Topology([(0, 16383, Shard(node(7610), (node(7612),)))])
    nodes = [{"endpoint": "127.0.0.1", "port": 7610, "role": "master", "health": "online"}]
    assert parse_shards([{"slots": [0, 16383], "nodes": nodes}], ASKED) == Topology([(0, 16383, Shard(node(7610)))])


def test_a_topology_tells_who_serves_what() -> None:
    assert STEADY.masters == (node(7610), node(7611))
    assert STEADY.nodes == {node(port) for port in (7610, 7611, 7612, 7613)}
    assert STEADY.covers_all
    assert [STEADY.master_of(slot).port for slot in (0, 5000, 5001, 8999, 9000, 16383)] == [
        7610,
        7610,
        7611,
        7611,
        7610,
        7610,
    ]
    assert STEADY.replicas_of(6000) == (node(7613),)
    assert [(first, last) for first, last, _ in STEADY.spans()] == [(0, 5000), (5001, 8999), (9000, 16383)]
    assert repr(STEADY).startswith("<Topology 0-5000: 127.0.0.1:7610, 5001-8999: ")


def test_a_slot_that_nobody_serves_is_said() -> None:
    part = Topology([(0, 9, Shard(node(1)))])
    assert not part.covers_all
    assert part.shard_of(10) is None
    assert part.replicas_of(10) == ()
    with pytest.raises(SlotNotCoveredError, match="slot 10 "):
        part.master_of(10)
    assert repr(Topology()) == "<Topology of no slots>"
    assert Topology().masters == ()


def test_a_reply_replaces_what_changed() -> None:
    change = FAILED_OVER.changed_from(STEADY)
    assert change == Change(gone=frozenset({node(7611)}), new=frozenset())
    assert STEADY.changed_from(Topology()) == Change(gone=frozenset(), new=STEADY.nodes)


@pytest.mark.parametrize(
    ("endpoint", "ip", "host"),
    [
        (b"", b"10.0.0.1", ASKED.host),
        (None, b"10.0.0.1", ASKED.host),
        (b"?", b"10.0.0.1", "10.0.0.1"),
        (b"?", None, ASKED.host),
        (b"?", b"", ASKED.host),
        (b"one.example", b"10.0.0.1", "one.example"),
        (b"::1", b"::1", "::1"),
    ],
)
def test_a_host_that_is_not_told_is_that_which_was_asked(endpoint: bytes | None, ip: bytes | None, host: str) -> None:
    shards = [{b"slots": [0, 1], b"nodes": [entry(7, b"master", endpoint=endpoint, ip=ip)]}]
    slots = [[0, 1, [endpoint, 7, b"6f", [] if ip is None else [b"ip", ip]]]]
    assert parse_shards(shards, ASKED).masters == parse_slots(slots, ASKED).masters == (Address(host, 7),)


TLS: dict[str, Any] = {"tls-port": 8}


def test_the_port_is_that_of_the_connection_that_is_made() -> None:
    both = [{b"slots": [0, 1], b"nodes": [entry(7, b"master", **TLS)]}]
    assert parse_shards(both, ASKED).masters == (node(7),)
    assert parse_shards(both, ASKED, tls=True).masters == (node(8),)
    assert parse_shards([{b"slots": [0, 1], b"nodes": [entry(7, b"master")]}], ASKED, tls=True).masters == (node(7),)


def test_sick_replicas_are_left_out_but_a_sick_master_is_all_there_is() -> None:
    nodes = [entry(1, b"master", b"fail"), entry(3, b"slave"), entry(2, b"replica", b"loading"), entry(4, b"replica")]
    assert parse_shards([{b"slots": [0, 1], b"nodes": nodes}], ASKED).shards == (Shard(node(1), (node(3), node(4))),)
    assert parse_shards([{b"slots": [0, 1], b"nodes": nodes[1:]}], ASKED).shards == ()


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [None],
        [[0]],
        [[b"slots", [0]]],
        "OK",
        7,
        [{b"slots": [0, 1]}],
        [{b"slots": [0], b"nodes": [entry(1, b"master")]}],
        [{b"slots": [0, 16384], b"nodes": [entry(1, b"master")]}],
        [{b"slots": [0, 1], b"nodes": [{b"role": b"master"}]}],
    ],
)
def test_an_answer_that_is_no_map_is_an_error_that_shows_it(reply: Any) -> None:
    with pytest.raises(RedisClusterException, match=r"^CLUSTER SHARDS of 10\.9\.9\.9:7000 cannot be read: "):
        parse_shards(reply, ASKED)
    with pytest.raises(RedisClusterException, match=r"^CLUSTER SLOTS of 10\.9\.9\.9:7000 cannot be read: "):
        parse_slots(reply, ASKED)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (5, 4), (0, SLOTS)])
def test_a_span_lies_within_the_slots(first: int, last: int) -> None:
    with pytest.raises(ValueError, match=r"^spans must lie within 0\.\.16383, got "):
        Topology([(first, last, Shard(node(1)))])


# moved

PORTS = st.integers(1, 6)
SHARDS = st.builds(
    lambda ports: Shard(node(ports[0]), tuple(node(port) for port in ports[1:])),
    st.lists(PORTS, min_size=1, max_size=3, unique=True),
)
EDGES = st.integers(0, SLOTS - 1)
SPANS = st.builds(lambda a, b, shard: (min(a, b), max(a, b), shard), EDGES, EDGES, SHARDS)
TOPOLOGIES = st.lists(SPANS, max_size=6).map(Topology)


@given(TOPOLOGIES)
def test_a_topology_is_its_spans(topology: Topology) -> None:
    spans = list(topology.spans())
    again = Topology(spans)
    assert again == topology
    assert hash(again) == hash(topology)
    assert sum(last + 1 - first for first, last, _ in spans) == sum(
        topology.shard_of(slot) is not None for slot in range(SLOTS)
    )
    assert set(topology.shards) == {shard for _, _, shard in spans}
    assert len(topology.shards) == len(set(topology.shards))
    assert topology.changed_from(again) == Change(frozenset(), frozenset())


@given(TOPOLOGIES, EDGES, st.integers(1, 9))
def test_moved_gives_that_slot_to_that_master_and_no_other(before: Topology, slot: int, port: int) -> None:
    spans = list(before.spans())
    after = before.moved(slot, node(port))
    assert after.master_of(slot) == node(port)
    assert node(port) not in after.replicas_of(slot)
    assert list(before.spans()) == spans, "the earlier one is as it was"
    old = before.shard_of(slot)
    changed = {n for n in range(SLOTS) if before.shard_of(n) != after.shard_of(n)}
    if old is not None and node(port) in old.replicas:
        assert changed == {n for n in range(SLOTS) if before.shard_of(n) == old}
        assert old.master not in (after.master_of(slot), *after.replicas_of(slot))
    else:
        assert changed <= {slot}
    assert after.moved(slot, node(port)) is after
    assert set(after.shards) == {shard for _, _, shard in after.spans()}
    assert len(after.shards) == len(set(after.shards))
    assert after == Topology(after.spans())


def test_moved_to_a_known_master_brings_its_replicas() -> None:
    assert STEADY.moved(0, node(7611)).replicas_of(0) == (node(7613),)
    assert STEADY.moved(0, node(7611)).master_of(1) == node(7610)


def test_moved_to_a_replica_is_a_failover_of_the_shard() -> None:
    after = STEADY.moved(6000, node(7613))
    assert after.masters == (node(7610), node(7613))
    assert after.changed_from(STEADY).gone == {node(7611)}


def test_a_shard_that_becomes_equal_to_another_is_that_one() -> None:
    both = Topology([(0, 0, Shard(node(1), (node(2),))), (1, 1, Shard(node(2)))]).moved(0, node(2))
    assert both.shards == (Shard(node(2)),)
    assert set(both.moved(0, node(3)).masters) == set(both.moved(1, node(3)).masters) == {node(2), node(3)}
    assert both.moved(0, node(3)).moved(1, node(3)).masters == (node(3),)


def test_moved_to_an_unknown_node_makes_a_shard() -> None:
    after = STEADY.moved(7, node(9999))
    assert set(after.shards) == {*STEADY.shards, Shard(node(9999))}
    assert after.changed_from(STEADY) == Change(frozenset(), frozenset({node(9999)}))


def test_a_shard_that_lost_its_last_slot_is_gone() -> None:
    one = Topology([(5, 5, Shard(node(1))), (6, 6, Shard(node(2)))])
    assert one.moved(5, node(3)).masters == (node(2), node(3))
    assert one.moved(5, node(2)).masters == (node(2),)


def test_topologies_of_other_things_are_not_equal() -> None:
    assert Topology() != object()
    assert pickle.loads(pickle.dumps(STEADY)) == STEADY


def test_a_real_cluster_is_read(redis_cluster: RedisClusterServers) -> None:
    server = redis_cluster.masters[0]
    shards = parse_shards(server.command("CLUSTER", "SHARDS"), ASKED)
    slots = parse_slots(server.command("CLUSTER", "SLOTS"), ASKED)
    assert shards.covers_all
    assert list(shards.spans()) == list(slots.spans())
    assert len(shards.masters) == len(redis_cluster.masters) == 3
    assert {f"redis://{master}" for master in shards.masters} == {master.tcp_url for master in redis_cluster.masters}
