"""One of them for each key, forgotten when it is idle and only then."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.policies.per_key import PerKey, PerKeyStatistics
from trio_orchestrator.policies.rate import RateLimiter
from trio_orchestrator.testing import run_virtual


class Thing:
    def __init__(self, key: int) -> None:
        self.key = key
        self.is_idle = True


def test_each_key_has_its_own_and_keeps_it() -> None:
    async def main() -> None:
        hosts = PerKey[str, RateLimiter](lambda host: RateLimiter(1, name=host))
        assert hosts.get("a") is hosts.get("a")
        assert hosts.get("a") is not hosts.get("b")
        hosts.get("a").acquire_nowait()
        hosts.get("b").acquire_nowait()
        assert (len(hosts), list(hosts), "a" in hosts, "c" in hosts) == (2, ["a", "b"], True, False)
        assert [(host, limiter.name) for host, limiter in hosts.items()] == [("a", "a"), ("b", "b")]
        assert repr(hosts) == "<PerKey: 2 entries>"

    run_virtual(main)


def test_those_that_are_idle_are_forgotten_and_those_in_use_are_not() -> None:
    async def main() -> None:
        hosts = PerKey[int, RateLimiter](lambda host: RateLimiter(1), most_idle=10)
        for host in range(10):
            hosts.get(host).acquire_nowait()
        await trio.sleep(1)
        kept = hosts.get(3)
        kept.acquire_nowait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hosts.get(4).acquire, 1)
            nursery.start_soon(hosts.get(4).acquire, 1)
            await trio.testing.wait_all_tasks_blocked()
            hosts.get(10)
            assert list(hosts) == [3, 4, 10]
            assert hosts.get(3) is kept
            assert hosts.statistics() == PerKeyStatistics(entries=3, made=11, forgotten=8)
        await trio.sleep(10)
        assert hosts.forget_idle() == 3
        assert len(hosts) == 0

    run_virtual(main)


def test_a_million_keys_that_are_used_once_take_the_room_of_a_thousand() -> None:
    things = PerKey(Thing)
    for key in range(100_000):
        assert things.get(key).key == key
        assert len(things) <= 1024
    assert things.statistics().made == 100_000


def test_looking_through_them_is_paid_for_by_what_is_made() -> None:
    looked = 0

    class Watched:
        @property
        def is_idle(self) -> bool:
            nonlocal looked
            looked += 1
            return False

    things = PerKey[int, Watched](lambda key: Watched(), most_idle=10)
    for key in range(10_000):
        things.get(key)
    assert len(things) == 10_000
    assert looked <= 2 * 10_000


@given(
    most_idle=st.integers(0, 5),
    steps=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=100),
)
def test_one_in_use_is_never_made_twice(most_idle: int, steps: list[tuple[int, bool]]) -> None:
    things = PerKey(Thing, most_idle=most_idle)
    in_use: dict[int, Thing] = {}
    most_in_use = 0
    for key, use in steps:
        thing = things.get(key)
        assert in_use.get(key, thing) is thing
        thing.is_idle = not use
        in_use.pop(key, None)
        if use:
            in_use[key] = thing
        most_in_use = max(most_in_use, len(in_use))
        assert all(things.get(each) is kept for each, kept in in_use.items())
        assert len(things) <= max(most_idle, 2 * most_in_use) + 1
        counts = things.statistics()
        assert counts.made - counts.forgotten == counts.entries == len(things)


def test_what_is_made_may_ask_for_its_own_key_or_fail() -> None:
    def make(key: int) -> Thing:
        if key < 0:
            raise KeyError(key)
        if key == 1 and 1 not in seen:
            seen.append(1)
            return things.get(1)
        return Thing(key)

    seen: list[int] = []
    things = PerKey(make)
    assert things.get(1) is things.get(1)
    with pytest.raises(KeyError):
        things.get(-1)
    assert things.statistics() == PerKeyStatistics(entries=1, made=1, forgotten=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"make": 3}, TypeError, "make must be a plain function, got 3"),
        ({"make": trio.sleep}, TypeError, "make must be a plain function, got the async function"),
        ({"make": Thing, "most_idle": -1}, ValueError, "most_idle must be >= 0, got -1"),
        ({"make": Thing, "most_idle": 1.5}, ValueError, "most_idle must be a whole number or math.inf, got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        PerKey(**arguments)
