"""Whom the client takes for the master, whatever its Sentinels say, and when; in virtual time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from redis.exceptions import RedisError

from tests.redis.scripted import Command, ScriptedServer, Session, link_settings, open_scripted, virtual
from tests.redis.scripted_commands import teach
from tests.redis.scripted_sentinel import NAME, A, B, Scene, open_scene, place
from trio_orchestrator.redis import LinkError, Redis
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connector import Connector
from trio_orchestrator.redis.handshake import Handshake, WrongRoleError
from trio_orchestrator.redis.pipe import Pipe
from trio_orchestrator.redis.sentinel import OTHERS, Sentinels
from trio_orchestrator.testing import run_virtual

GREETING = {b"HELLO", b"CLIENT", b"ROLE"}


def where(redis: Redis) -> str:
    return redis.statistics().address


def sentinels_of(redis: Redis) -> Sentinels:
    beside: Any = redis._server._beside
    found = beside.__self__
    assert isinstance(found, Sentinels)
    return found


async def incr(redis: Redis) -> None:
    await redis.execute_command("INCR", "n")


# -------------------------------------------------------------------------------------------- differing answers


@pytest.mark.parametrize("behind", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3)])
def test_of_differing_answers_that_of_the_latest_epoch_counts(behind: tuple[int, ...]) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            scene.b.role = "master"  # the old one, a, does not know yet
            for number, sentinel in enumerate(scene.sentinels, 1):
                if number not in behind:
                    sentinel.master, sentinel.epoch = B, 2
                else:
                    sentinel.server.latency = 0.001
            async with scene.open() as redis:
                assert where(redis) == "b:6379"
                await redis.set("n", 1)
            assert (scene.a.ran("SET"), len(scene.b.ran("SET"))) == ([], 1)

    for seed in range(3):
        run_virtual(run, seed=seed)


@virtual
async def test_a_sentinel_that_is_slow_may_know_better_and_is_waited_for_a_little() -> None:
    async with open_scene() as scene:
        scene.b.role = "master"
        slow = scene.sentinels[2]
        slow.master, slow.epoch = B, 2
        slow.server.latency = OTHERS / 8  # four answers come one after the other until it can be asked
        async with scene.open() as redis:
            assert where(redis) == "b:6379"
        assert scene.a.dials == []


@virtual
async def test_one_that_does_not_answer_costs_no_more_than_that() -> None:
    async with open_scene() as scene:
        scene.sentinels[0].server.stalled = True
        began = trio.current_time()
        async with scene.open() as redis:
            assert where(redis) == "a:6379"
            assert trio.current_time() - began <= 2 * OTHERS


@pytest.mark.parametrize(("more", "fewer"), [(A, B), (B, A)])
def test_at_the_same_epoch_what_more_of_them_say_counts(more: Address, fewer: Address) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            scene.b.role = "master"
            for sentinel, address in zip(scene.sentinels, (more, more, fewer), strict=True):
                sentinel.master = address
            async with scene.open() as redis:
                assert where(redis) == str(more)

    run_virtual(run)


@pytest.mark.parametrize(("first", "second"), [(A, B), (B, A)])
def test_two_failovers_by_hand_at_the_same_epoch_do_not_drive_the_client_to_and_fro(
    first: Address, second: Address
) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            one, other, third = scene.sentinels
            third.go()
            scene.b.role = "master"
            one.master = other.master = first
            async with scene.open() as redis:
                await scene.settle()
                one.switch(second, epoch=2)
                await scene.settle()
                assert where(redis) == str(second)
                other.epoch = 2  # it sticks to the first
                for _ in range(3):
                    other.server.kill()
                    await trio.sleep(1)
                assert where(redis) == str(second)
                assert redis.statistics().connections == 2
                scene.servers[second].kill()
                await trio.sleep(1)
                assert where(redis) == str(second)

    run_virtual(run)


@virtual
async def test_a_sentinel_that_lags_behind_does_not_bring_the_old_master_back() -> None:
    async with open_scene() as scene:
        one, *others = scene.sentinels
        async with scene.open() as redis:
            scene.b.role = "master"
            one.switch(B)
            await scene.settle()
            assert where(redis) == "b:6379"
            one.go()
            scene.b.kill()  # so that they are asked again, and say a, which says that it is a master
            await trio.sleep(1)
            assert where(redis) == "b:6379"
            for sentinel in others:
                sentinel.server.kill()  # so that they are heard again
            await trio.sleep(1)
            assert where(redis) == "b:6379"
        assert len(scene.a.dials) == 1


@virtual
async def test_a_sentinel_dies_right_after_its_news_and_the_others_are_behind() -> None:
    async with open_scene() as scene:
        one, *others = scene.sentinels
        async with scene.open() as redis:
            scene.b.role = "master"
            one.server.refuse = lambda words: "ERR busy" if words[0] == b"SENTINEL" else None
            one.push(A, B)
            await trio.testing.wait_all_tasks_blocked()
            one.go()
            await trio.sleep(1)
            assert where(redis) == "b:6379"
            for sentinel in others:
                sentinel.switch(B)
            await trio.sleep(1)
            assert where(redis) == "b:6379"
            assert redis.statistics().connections == 2


# ------------------------------------------------------------------------------------------------ the news


@virtual
async def test_news_move_everything_at_once() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.promote(scene.b)
        began = trio.current_time()
        scene.sentinels[1].switch(B)
        with pytest.raises(LinkError, match="is at b:6379 now"):
            while True:
                await incr(redis)
                await trio.sleep(1 / 64)
        assert trio.current_time() - began < 0.05
        await incr(redis)
        assert where(redis) == "b:6379"
        scene.sentinels[0].switch(B)
        scene.sentinels[2].switch(B)
        await scene.settle()
        assert redis.statistics().connections == 2


@virtual
async def test_news_of_another_master_are_ignored() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.b.role = "master"
        for name in ("other", "mai", "main2", "main-2"):
            scene.sentinels[0].push(A, B, name)
        scene.sentinels[0].push(A, Address(NAME, 6379), "other")
        scene.sentinels[0].say("+switch-master", "nonsense", NAME)
        scene.sentinels[0].say("+promoted-slave", "slave b:6379 b 6379 @ other a 6379")
        await trio.sleep(1)
        assert redis.statistics().connections == 1
        assert scene.b.dials == []


@virtual
async def test_news_that_are_taken_back_are_not_clung_to() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.sentinels[0].push(A, B)  # late: it has changed its mind since, and b is no master any more
        await trio.sleep(1)
        await incr(redis)
        assert where(redis) == "a:6379"
        assert scene.b.ran("INCR") == []


@virtual
async def test_two_switches_in_a_row() -> None:
    async with open_scene() as scene, scene.open() as redis:
        for sentinel in scene.sentinels:
            sentinel.switch(B)
            sentinel.switch(A)
        await trio.sleep(1)
        await incr(redis)
        assert where(redis) == "a:6379"
        for sentinel in scene.sentinels:
            sentinel.switch(B)
        scene.promote(scene.b)
        await trio.sleep(1)
        await incr(redis)
        assert where(redis) == "b:6379"


@virtual
async def test_one_sentinel_tells_late_of_two_switches() -> None:
    async with open_scene() as scene, scene.open() as redis:
        late = scene.sentinels[2]
        late.server.session.mute()
        for sentinel in scene.sentinels:
            sentinel.switch(B)
            sentinel.switch(A)
        await trio.sleep(1)
        before = where(redis)
        late.server.session.mute(on=False)
        await trio.sleep(1)
        await incr(redis)
        assert (before, where(redis)) == ("a:6379", "a:6379")


@virtual
async def test_news_that_are_late_are_not_followed_before_that_sentinel_was_asked() -> None:
    async with open_scene() as scene, scene.open() as redis, trio.open_nursery() as nursery:
        nursery.start_soon(keep_calling, redis)
        scene.b.role = "master"
        late = scene.sentinels[2]
        late.server.latency = 0.75
        await trio.sleep(2)
        for sentinel in scene.sentinels:
            sentinel.switch(B)
        await trio.sleep(0.5)
        came_back = trio.current_time()
        for sentinel in scene.sentinels:
            sentinel.switch(A)
        await trio.sleep(3)
        assert came_back - 0.25 < max(scene.b.times("INCR")) <= came_back
        assert max(scene.a.times("INCR")) > came_back + 1
        nursery.cancel_scope.cancel()


async def keep_calling(redis: Redis) -> None:
    while True:
        with suppress(RedisError):
            await incr(redis)
        await trio.sleep(1 / 64)


@virtual
async def test_of_two_pieces_of_news_the_later_one_counts_whoever_tells_it() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.b.role = "master"
        for sentinel, (old, new) in zip(scene.sentinels, [(A, B), (B, A)], strict=False):
            sentinel.server.refuse = lambda words: "ERR busy" if words[0] == b"SENTINEL" else None
            sentinel.push(old, new)
            await scene.settle()
            assert where(redis) == str(new)


@pytest.mark.parametrize("silent", ["at all", "after the greeting"])
def test_a_master_that_says_nothing_is_given_up_at_the_news(silent: str) -> None:
    """A stopped one takes connections, and says no word."""

    async def run() -> None:
        async with open_scene() as scene, scene.open(command_timeout=4) as redis, trio.open_nursery() as nursery:
            teach(scene.b).lists[b"queue"] = [b"element"]
            popped = list[Any]()
            await scene.settle()
            scene.a.stalled = silent == "at all"
            scene.a.takes_long = lambda words: 60 if words[0] == b"ROLE" else 0
            nursery.start_soon(pop, redis, popped)
            scene.a.session.kill()
            await scene.settle()
            assert where(redis) == ""
            scene.promote(scene.b)
            scene.sentinels[0].switch(B)
            await scene.settle()
            assert where(redis) == "b:6379"
            assert popped == [(b"queue", b"element")]

    run_virtual(run)


async def pop(redis: Redis, popped: list[Any]) -> None:
    popped.append(await redis.blpop(["queue"], 10))


@virtual
async def test_a_promotion_counts_before_the_failover_has_ended() -> None:
    """While the other replicas are told whom to follow, which may last minutes, the leader describes the old master."""
    async with open_scene() as scene, scene.open() as redis:
        leader = scene.sentinels[0]
        scene.b.role = "master"  # a is awake again, and says so too
        leader.epoch, leader.named, leader.flags = 2, B, "s_down,o_down,master,failover_in_progress"
        leader.say("+promoted-slave", f"slave b:6379 b 6379 @ {NAME} a 6379")
        await scene.settle()
        assert where(redis) == "b:6379"
        for other in scene.sentinels[1:]:
            other.switch(B)
        await scene.settle()
        scene.b.kill()
        await trio.sleep(1)
        assert where(redis) == "b:6379"
        leader.switch(B, epoch=2)
        leader.flags = "master"
        await scene.settle()
        assert redis.statistics().connections == 3


@virtual
async def test_an_epoch_that_has_grown_unnoticed_does_not_make_news_look_old() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.sentinels[0].epoch = 5
        scene.sentinels[0].server.kill()
        await trio.sleep(1)  # one word is of epoch 5, the others are of epoch 1
        scene.promote(scene.b)
        scene.sentinels[1].master, scene.sentinels[1].epoch = B, 6
        scene.sentinels[1].server.refuse = lambda words: "ERR busy" if words[0] == b"SENTINEL" else None
        scene.sentinels[1].push(A, B)
        await scene.settle()
        assert where(redis) == "b:6379"


@virtual
async def test_host_names() -> None:
    named = Address("redis-1.example.org", 6380)
    async with open_scene() as scene:
        scene.servers[named] = scene.b
        async with scene.open() as redis:
            scene.promote(scene.b)
            for sentinel in scene.sentinels:
                sentinel.switch(named)
            await scene.settle()
            assert where(redis) == str(named)
            scene.sentinels[0].master = Address("10.0.0.1", 6380)  # one that tells addresses instead of names
            scene.sentinels[0].server.kill()
            await trio.sleep(1)
            assert (where(redis), redis.statistics().connections) == (str(named), 2)


@virtual
async def test_a_lost_sentinel_link_catches_up_by_asking() -> None:
    async with open_scene() as scene, scene.open() as redis:
        for sentinel in scene.sentinels:
            sentinel.go()
        await trio.sleep(1)
        for sentinel in scene.sentinels:
            sentinel.switch(B)  # nobody hears it
        scene.promote(scene.b)
        await trio.sleep(1)
        assert where(redis) == "a:6379"  # this is what no client can see
        scene.sentinels[2].come()
        await trio.sleep(0.25 + 0.125)
        assert where(redis) == "b:6379"


@virtual
async def test_what_one_connection_finds_out_moves_all() -> None:
    """The event connection was lost, and asked; no news have come; then the shared link must not stay."""
    async with open_scene() as scene, scene.open() as redis, redis.pubsub() as sub:
        await sub.subscribe("news")
        scene.b.role = "master"
        for sentinel in scene.sentinels:
            sentinel.master, sentinel.epoch = B, 2  # without a word
        scene.a.sessions[-1].kill()
        await trio.sleep(1)
        assert where(redis) == "b:6379"
        assert [link.address for link in redis.statistics().events] == ["b:6379"]


# --------------------------------------------------------------------------------------- who they are, and how many


@virtual
async def test_others_are_discovered_and_listened_to() -> None:
    async with open_scene() as scene, scene.open(1) as redis:
        await scene.settle()
        scene.sentinels[0].go()
        await trio.sleep(1)
        scene.promote(scene.b)
        scene.sentinels[2].switch(B)
        await scene.settle()
        assert where(redis) == "b:6379"


@virtual
async def test_one_that_joins_later_is_discovered() -> None:
    async with open_scene() as scene:
        one, two, three = scene.sentinels
        for sentinel in (one, two):
            sentinel.others.pop(three.name)
        async with scene.open(1) as redis:
            await scene.settle()
            assert three.server.dials == []
            one.others[three.name] = place(3)
            one.say("+sentinel", f"sentinel {three.name} s3 26379 @ {NAME} a 6379")
            await scene.settle()
            assert set(map(str, sentinels_of(redis)._links)) == {"s1:26379", "s2:26379", "s3:26379"}


@virtual
async def test_one_that_has_moved_is_followed_and_its_old_address_forgotten() -> None:
    async with open_scene() as scene, scene.open(1) as redis:
        one, two, three = scene.sentinels
        await scene.settle()
        three.go()
        await trio.sleep(1)
        scene.servers[place(9)] = scene.servers[place(3)]
        three.come()
        one.others[three.name] = place(9)
        one.say("+sentinel-address-switch", f"master {NAME} a 6379 ip s9 port 26379 for {three.name}")
        two.others[three.name] = place(9)
        two.say("+sentinel-address-switch", f"master {NAME} a 6379 ip s9 port 26379 for {three.name}")
        del scene.servers[place(3)]
        await trio.sleep(2)
        assert set(map(str, sentinels_of(redis)._links)) == {"s1:26379", "s2:26379", "s9:26379"}


@virtual
async def test_one_that_is_known_by_two_addresses_is_asked_once() -> None:
    async with open_scene() as scene:
        for number in (1, 2, 3):
            scene.servers[Address(f"10.0.0.{number}", 26379)] = scene.servers[place(number)]
        for sentinel in scene.sentinels:
            sentinel.others = {name: Address(f"10.0.0.{name[-1]}", 26379) for name in sentinel.others}
        away = scene.servers.pop(place(2))
        async with scene.open(1, 2) as redis:
            await trio.sleep(1)
            assert set(map(str, sentinels_of(redis)._links)) >= {"s1:26379", "10.0.0.2:26379", "10.0.0.3:26379"}
            scene.servers[place(2)] = away
            await trio.sleep(1)
            assert set(map(str, sentinels_of(redis)._links)) == {"s1:26379", "s2:26379", "10.0.0.3:26379"}
            assert all(link.is_ready for link in sentinels_of(redis)._links.values())


# ------------------------------------------------------------------------------- masters that are not to be had


@virtual
async def test_a_master_that_is_down_is_not_tried() -> None:
    async with open_scene() as scene:
        for sentinel in scene.sentinels:
            sentinel.flags = "s_down,o_down,master"
        with pytest.raises(LinkError, match="say that the master 'main' at a:6379 is down"):
            async with scene.open():
                raise AssertionError
        assert scene.a.dials == []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clear, scene)
            async with scene.open(wait=3) as redis:
                assert where(redis) == "a:6379"


async def clear(scene: Scene) -> None:
    await trio.sleep(1)
    for sentinel in scene.sentinels:
        sentinel.flags = "master"


@virtual
async def test_one_sentinel_alone_that_cannot_reach_the_master_does_not_shut_it_off() -> None:
    async with open_scene() as scene:
        scene.sentinels[0].flags = "s_down,o_down,master"
        async with scene.open() as redis:
            assert where(redis) == "a:6379"


@virtual
async def test_a_server_that_says_another_role_gets_no_call() -> None:
    async with open_scene() as scene:
        teach(scene.a)
        refused, said = record(scene.a)
        scene.a.role = "slave"
        with pytest.raises(WrongRoleError, match="its role is slave, not master"):
            async with scene.open():
                raise AssertionError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(become_master, scene.a)
            async with scene.open(wait=3) as redis:
                scene.a.role = "slave"
                scene.a.kill()
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(become_master, scene.a)
                async with trio.open_nursery() as callers:
                    callers.start_soon(incr, redis)
                    callers.start_soon(redis.blpop, ["list"], 0.1)
                    callers.start_soon(watch, redis)
        assert len(refused) > 8
        assert not refused & {session for session, name in said if name not in GREETING}


async def become_master(server: ScriptedServer) -> None:
    await trio.sleep(1)
    server.role = "master"


async def watch(redis: Redis) -> None:
    async with redis.watch("key") as tx:
        await tx.get("key")


def record(server: ScriptedServer) -> tuple[set[Session], list[tuple[Session, bytes]]]:
    """Note the connections on which a server says that it is no master, and all that is said on any."""
    refused: set[Session] = set()
    said: list[tuple[Session, bytes]] = []

    execute = server._execute

    def executing(session: Session, words: Command) -> Any:
        said.append((session, words[0]))
        if words[0] == b"ROLE" and server.role != "master":
            refused.add(session)
        return execute(session, words)

    server._execute = executing  # type: ignore[method-assign]
    return refused, said


@virtual
async def test_a_refusal_has_the_master_looked_for_and_the_write_is_sent_once_more() -> None:
    async with open_scene() as scene, scene.open() as redis:
        scene.promote(scene.b)
        scene.a.refuse = lambda words: (
            "READONLY You can't write against a read only replica." if words[0] == b"INCR" else None
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(incr, redis)
            await trio.sleep(0.5)
            assert scene.b.dials == []  # the Sentinels do not know yet, and the client does not guess
            for sentinel in scene.sentinels:
                sentinel.switch(B)
        assert where(redis) == "b:6379"
        assert (scene.a.ran("INCR"), len(scene.b.ran("INCR"))) == ([], 1)
        assert len([words for words in scene.a.seen if words[0] == b"INCR"]) == 1


@virtual
async def test_a_connection_that_is_ready_when_its_server_is_no_longer_wanted_is_closed() -> None:
    """Both may happen in one step, when it is too late to cancel."""
    async with open_scripted() as old, open_scripted() as new:
        places, wanted = {A: old, B: new}, [A, B]

        async def resolve() -> Address:
            await trio.lowlevel.checkpoint()
            return wanted.pop(0)

        async def dial(address: Address) -> Pipe:
            return await places[address].dial(address)

        async def nobody() -> tuple[str, ...]:
            return ()

        connector = Connector("it", resolve, dial, Handshake(nobody), link_settings(), lambda address: address == B)
        async with trio.open_nursery() as nursery:
            connection = await connector.connect(nursery)
            assert connection.address == B
            await trio.testing.wait_all_tasks_blocked()
            assert [end.closed for end in old.ends] == [True]
            connection.fail(EOFError())
