"""Sentinels that cannot be reached, refuse, forget or are replaced; races; in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing
from redis.exceptions import RedisError

from tests.redis.scripted import Command, ScriptedServer, virtual
from tests.redis.scripted_commands import teach
from tests.redis.scripted_sentinel import NAME, A, B, Scene, ScriptedSentinel, open_scene, place
from tests.redis.test_sentinel_words import incr, sentinels_of, watch, where
from trio_orchestrator.redis import LinkError, Redis
from trio_orchestrator.redis.sentinel import OTHERS, SPREAD
from trio_orchestrator.redis.sentinel_link import AGAIN
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

# ------------------------------------------------------------------------------------------------ entering


async def refused(scene: Scene, *numbers: int, **options: object) -> str:
    """Return why entering fails."""
    with pytest.raises(LinkError) as caught:
        async with scene.open(*numbers, **options):  # type: ignore[arg-type]
            raise AssertionError
    return str(caught.value)


@virtual
async def test_if_none_can_be_reached_each_is_named_with_its_cause() -> None:
    async with open_scene() as scene:
        del scene.servers[place(1)]
        scene.servers[place(2)].stalled = True
        scene.servers[place(3)].password = "secret"
        began = trio.current_time()
        error = await refused(scene)
        assert trio.current_time() - began == pytest.approx(2.5)
        assert error == (
            "no Sentinel of 'main' can be reached: s1:26379: nobody is at s1:26379; "
            "s2:26379: no answer from s2:26379 within 2.5 s; "
            "s3:26379: HELLO must be called with the client already authenticated"
        )


@virtual
async def test_one_that_can_be_reached_is_enough() -> None:
    async with open_scene() as scene:
        del scene.servers[place(1)]
        scene.servers[place(2)].stalled = True
        began = trio.current_time()
        async with scene.open() as redis:
            await incr(redis)
            assert trio.current_time() - began <= 2 * OTHERS


@virtual
async def test_a_name_that_they_do_not_know() -> None:
    async with open_scene() as scene:
        error = await refused(scene, name="mine")
        assert error.startswith("no Sentinel says where the master 'mine' is: ")
        assert all(f"s{number}:26379: No such master with that name" in error for number in (1, 2, 3))


@virtual
async def test_a_wrong_password_is_tried_again_since_it_may_be_made_right() -> None:
    async with open_scene() as scene:
        for number in (1, 2, 3):
            scene.servers[place(number)].password = "secret"
        error = await refused(scene, passwords="wrong")
        assert error.count("invalid username-password pair or user is disabled") == 3
        for number in (1, 2):
            scene.servers[place(number)].password = "wrong"
        scene.servers[place(3)].password = "late"
        async with scene.open(passwords="wrong") as redis:
            await scene.settle()
            scene.servers[place(3)].password = "wrong"
            await trio.sleep(2 * AGAIN)
            assert all(link.is_ready for link in sentinels_of(redis)._links.values())


@virtual
async def test_silent_after_the_greeting() -> None:
    async with open_scene() as scene:
        for sentinel in scene.sentinels:
            sentinel.server.takes_long = lambda words: 60 if words[:2] == (b"SENTINEL", b"MASTER") else 0
        error = await refused(scene)
        assert error.count("within 1.25 s") == 3


@pytest.mark.parametrize("asked", [b"SENTINEL", b"SUBSCRIBE"])
def test_one_that_refuses_what_is_needed_counts_as_one_that_cannot_be_reached(asked: bytes) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            refuse(scene.servers[place(1)], asked)
            async with scene.open() as redis:
                await incr(redis)
            refuse(scene.servers[place(2)], asked)
            refuse(scene.servers[place(3)], asked)
            assert (await refused(scene)).count("has no permissions") == 3
            async with trio.open_nursery() as nursery:
                nursery.start_soon(permit, scene)
                async with scene.open(wait=5) as redis:
                    await incr(redis)

    run_virtual(run)


def refuse(server: ScriptedServer, *names: bytes) -> None:
    def refusal(words: Command) -> str | None:
        name = words[0].decode().lower()
        return f"NOPERM User default has no permissions to run the '{name}' command" if words[0] in names else None

    server.refuse = refusal


async def permit(scene: Scene) -> None:
    await trio.sleep(1)
    for number in (1, 2, 3):
        scene.servers[place(number)].refuse = lambda words: None


@virtual
async def test_one_that_may_not_be_pinged_keeps_in_step() -> None:
    async with open_scene() as scene:
        for number in (1, 2, 3):
            refuse(scene.servers[place(number)], b"PING")
        async with scene.open() as redis:
            scene.promote(scene.b)
            scene.sentinels[0].switch(B)
            await scene.settle()
            assert where(redis) == "b:6379"


@pytest.mark.parametrize("what", ["_master", "_get_master_addr_by_name", "_sentinels", "_myid"])
@pytest.mark.parametrize("nonsense", [[], [b"a"], {b"ip": b"a"}, 1, b"x", None, [b"a", b"no port"], "OK"])
def test_one_that_talks_nonsense_does_not_spoil_it(what: str, nonsense: object) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            setattr(scene.sentinels[0], what, lambda: nonsense)
            async with scene.open() as redis:
                await incr(redis)
                scene.sentinels[0].say("+sentinel", f"sentinel id4 s4 26379 @ {NAME} a 6379")
                await trio.sleep(2)
                await incr(redis)

    run_virtual(run)


# ------------------------------------------------------------------------- those who forget, or come anew


@virtual
async def test_sentinels_that_were_set_up_anew_and_count_from_zero_are_believed() -> None:
    async with open_scene() as scene:
        for sentinel in scene.sentinels:
            sentinel.epoch = 7
        async with scene.open() as redis:
            for sentinel in scene.sentinels:
                sentinel.go()
                sentinel.master, sentinel.epoch = B, 0
            scene.promote(scene.b)
            scene.a.down = ConnectionRefusedError("gone")
            scene.a.kill()
            await trio.sleep(1)
            for sentinel in scene.sentinels:
                sentinel.come()
            await trio.sleep(1)
            await incr(redis)
            assert where(redis) == "b:6379"


@virtual
async def test_sentinels_that_were_replaced_by_others_are_not_clung_to() -> None:
    """Those that know the old master, at a later epoch, never come back; the new ones know their own names only."""
    async with open_scene() as scene:
        for sentinel in scene.sentinels:
            sentinel.epoch = 7
        async with scene.open() as redis:
            await scene.settle()
            one, *gone = scene.sentinels
            for sentinel in gone:
                sentinel.go()
            scene.promote(scene.b)
            scene.a.down = ConnectionRefusedError("gone")
            scene.a.kill()
            one.master, one.epoch, one.others = B, 0, {}  # of one: a majority of itself
            one.server.kill()
            began = trio.current_time()
            while where(redis) != "b:6379":  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.125)
            assert trio.current_time() - began == pytest.approx(SPREAD, abs=1)


@virtual
async def test_a_minority_that_lags_behind_is_never_believed() -> None:
    async with open_scene() as scene, scene.open() as redis:
        one, two, three = scene.sentinels
        scene.b.role = "master"
        for sentinel in (one, two):
            sentinel.switch(B)
        await scene.settle()
        for server in (scene.b, one.server, two.server):
            server.down = ConnectionRefusedError("gone")
            server.kill()
        await trio.sleep(60)
        assert where(redis) == ""
        assert three.master == A
        assert len(scene.a.dials) == 1
        one.come()
        scene.b.down = None
        await trio.sleep(1)
        assert where(redis) == "b:6379"


# --------------------------------------------------------------------------------------------------- races

GREETING = {b"HELLO", b"CLIENT", b"ROLE"}


async def keep_calling(scene: Scene, redis: Redis) -> None:
    """Call through everything that there is, as long as it is not cancelled."""
    teach(scene.a)
    teach(scene.b)
    async with redis.sibling() as twin, trio.open_nursery() as nursery:
        for fn in (incr, twin_of(twin), block, watch, listen):
            nursery.start_soon(repeat, fn, redis)


def twin_of(twin: Redis) -> Callable[[Redis], Awaitable[None]]:
    async def call(_redis: Redis) -> None:
        await incr(twin)

    return call


async def block(redis: Redis) -> None:
    await redis.blpop(["list"], 1 / 16)


async def listen(redis: Redis) -> None:
    async with redis.pubsub() as sub:
        await sub.subscribe("news")
        await trio.sleep(1 / 8)


async def repeat(fn: Callable[[Redis], Awaitable[None]], redis: Redis) -> None:
    while True:
        with suppress(RedisError):
            await fn(redis)
        await trio.sleep(1 / 16)


def spoken(server: ScriptedServer) -> list[float]:
    """Return when a server was told anything but the greeting."""
    return [one.at for one in server.log if one.words[0] not in GREETING]


@pytest.mark.parametrize("tell", ["+switch-master", "+promoted-slave"])
@pytest.mark.parametrize("delay", [2, 5, 7])
def test_nothing_goes_to_the_old_master_not_even_by_a_connection_that_is_just_being_made(delay: int, tell: str) -> None:
    async def run() -> None:
        async with open_scene() as scene, scene.open() as redis, trio.open_nursery() as nursery:
            nursery.start_soon(keep_calling, scene, redis)
            await trio.sleep(1)
            scene.a.latency = 1 / 64
            scene.b.role = "master"  # both say so: only the Sentinels know
            scene.a.kill()
            await trio.sleep(delay / 128)
            if tell == "+switch-master":
                scene.sentinels[0].switch(B)
            else:
                scene.sentinels[0].epoch, scene.sentinels[0].named = 2, B
                scene.sentinels[0].say("+promoted-slave", "slave b:6379 b 6379 @ main a 6379")
            switched = trio.current_time()
            await trio.sleep(1)
            assert max(spoken(scene.a)) <= switched
            for command in (b"INCR", b"BLPOP", b"WATCH", b"SUBSCRIBE"):
                assert [one for one in scene.b.log if one.words[0] == command], command
            nursery.cancel_scope.cancel()

    run_virtual(run, seed=delay)


class Storm:
    """Failovers, and Sentinels that come and go, are slow, lag behind and repeat themselves.

    Both servers say that they are master. The first Sentinel is always reachable, and the first to know; nothing else
    can be relied upon.
    """

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene = scene
        self.rng = rng
        self.master, self.other = A, B
        self.epoch = 1
        self.terms = [(A, trio.current_time())]
        """Who became the master, and when."""
        scene.b.role = "master"

    async def blow(self, seconds: float) -> None:
        deadline = trio.current_time() + seconds
        what = [self.fail_over, self.fail_over, self.lose, self.vanish, self.repeat, self.slow_down, self.inform_one]
        while trio.current_time() < deadline:
            await trio.sleep(self.rng.choice([0, 1 / 128, 1 / 16, 0.5, 1]))
            self.rng.choice(what)()

    def calm_down(self) -> None:
        for sentinel in self.scene.sentinels:
            sentinel.server.latency = 0
            sentinel.come()
            self.inform(sentinel)

    def inform(self, sentinel: ScriptedSentinel) -> None:
        if sentinel.epoch != self.epoch:
            sentinel.switch(self.master, self.epoch)

    def any(self) -> ScriptedSentinel:
        return self.rng.choice(self.scene.sentinels[1:])

    def fail_over(self) -> None:
        self.master, self.other = self.other, self.master
        self.epoch += self.rng.choice([1, 1, 3])
        self.terms.append((self.master, trio.current_time()))
        self.inform(self.scene.sentinels[0])
        if self.rng.random() < 0.5:
            self.inform_one()

    def inform_one(self) -> None:
        self.inform(self.any())

    def lose(self) -> None:
        """Break some connections, or those of a Sentinel."""
        self.rng.choice([self.scene.a, self.scene.b, self.any().server]).kill()

    def vanish(self) -> None:
        sentinel = self.any()
        (sentinel.go if sentinel.server.down is None else sentinel.come)()

    def repeat(self) -> None:
        """Tell of a switch that has long been reversed."""
        sentinel = self.any()
        if sentinel.server.latency == 0:
            sentinel.push(self.master, self.other)

    def slow_down(self) -> None:
        self.any().server.latency = self.rng.choice([0, 1 / 64, OTHERS, 0.5])

    def astray(self) -> list[tuple[str, float, Command]]:
        """Return what a server was told when it was not the master."""
        ends = [*(since for _, since in self.terms[1:]), math.inf]
        terms = [(address, since, until) for (address, since), until in zip(self.terms, ends, strict=True)]
        return [
            (str(address), one.at, one.words)
            for address, server in ((A, self.scene.a), (B, self.scene.b))
            for one in server.log
            if one.words[0] not in GREETING
            and not any(who == address and since <= one.at <= until for who, since, until in terms)
        ]


@pytest.mark.parametrize("seed", range(2))
def test_in_a_storm_all_goes_to_the_master(seed: int) -> None:
    async def run() -> None:
        async with open_scene() as scene, scene.open() as redis, trio.open_nursery() as nursery:
            storm = Storm(scene, random.Random(seed))
            nursery.start_soon(keep_calling, scene, redis)
            await storm.blow(16)
            storm.calm_down()
            await trio.sleep(1)
            settled = trio.current_time()
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
            assert storm.astray() == []
            assert len(storm.terms) > 3
            log = scene.servers[storm.master].log
            for command in (b"INCR", b"BLPOP", b"WATCH", b"SUBSCRIBE"):
                assert [one for one in log if one.words[0] == command and one.at > settled], command

    run_virtual(run, seed=seed)


# -------------------------------------------------------------------------------------------- cancelled


def test_entering_and_a_failover_cancelled_at_every_checkpoint() -> None:
    async def run(injector: CancelAt) -> None:
        async with open_scene() as scene:
            with injector.watch():
                async with scene.open(1) as redis:
                    await incr(redis)
                    scene.promote(scene.b)
                    scene.sentinels[0].switch(B)
                    await trio.lowlevel.checkpoint()
                    with suppress(LinkError):
                        await incr(redis)
                    async with redis.dedicated() as one:
                        await one.execute_command("INCR", "m")

    assert cancelled_everywhere(run, seeds=range(2)) > 10


@virtual
async def test_leaving_while_no_master_can_be_found_ends_at_once() -> None:
    async with open_scene() as scene:
        with trio.move_on_after(0.5) as scope:
            async with scene.open() as redis:
                for server in (scene.a, *(sentinel.server for sentinel in scene.sentinels)):
                    server.down = ConnectionRefusedError("gone")
                    server.kill()
                await trio.testing.wait_all_tasks_blocked()
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(incr, redis)
        assert scope.cancelled_caught
        assert trio.current_time() == scope.deadline
