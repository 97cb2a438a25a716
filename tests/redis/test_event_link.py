"""The event connection in virtual time: what is asked of the server, who is told what, and what is left behind."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, final

import pytest
import trio
from redis.exceptions import AuthenticationError, MovedError, NoPermissionError

from tests.redis.scripted import Command, Push, ScriptedServer, Session, open_scripted, open_server
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.subscription import BATCH, Gap, Sink
from trio_orchestrator.redis.topic import CHANNEL, PATTERN, SHARD, Topic
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual


@final
class Ear(Sink):
    """Remembers what it is told, and when."""

    def __init__(self) -> None:
        self.heard: list[list[Any]] = []
        self.gaps: list[Gap] = []
        self.ends: list[tuple[Topic, str]] = []

    def receive(self, push: list[Any], /) -> None:
        self.heard.append(list(push))

    def miss(self, gap: Gap, /) -> None:
        self.gaps.append(gap)

    def end(self, topic: Topic, error: Exception, /) -> None:
        self.ends.append((topic, str(error)))


@final
class Deaf(Sink):
    """Raises at everything."""

    def receive(self, push: list[Any], /) -> None:
        raise RuntimeError("deaf")

    def miss(self, gap: Gap, /) -> None:
        raise RuntimeError("deaf")

    def end(self, topic: Topic, error: Exception, /) -> None:
        raise RuntimeError("deaf")


def channels(*names: str) -> list[Topic]:
    return [Topic(CHANNEL, name.encode()) for name in names]


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[tuple[ScriptedServer, Server, EventLink]]:
    async with open_scripted() as scripted, open_server(scripted, **options) as server:
        yield scripted, server, server.events


def asked(scripted: ScriptedServer) -> list[Command]:
    """Return what was executed for subscriptions, PINGs too."""
    return [
        words
        for words in scripted.executed
        if words[0].endswith(b"SUBSCRIBE") or (len(words) == 2 and words[0] == b"PING")
    ]


def subscribed(scripted: ScriptedServer) -> set[Topic]:
    """Return what the living connections are subscribed to; only one of them may be, to anything."""
    listening = [session for session in scripted.sessions if session.alive and session.topics]
    assert len(listening) <= 1
    return {Topic(*topic) for session in listening for topic in session.topics}


def listener(scripted: ScriptedServer) -> Session:
    """Return the session of the event connection."""
    (session,) = [session for session in scripted.sessions if session.alive and session.topics]
    return session


def is_idle(link: EventLink) -> bool:
    """Return whether nothing is wanted and nothing is asked."""
    return not link._asking and not len(link._subscriptions)


async def settle() -> None:
    """Wait until no answer is on its way any more."""
    await trio.sleep(30)


async def test_the_first_subscribes_and_the_last_unsubscribes(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        one, two = Ear(), Ear()
        await link.subscribe(channels("a", "b"), one)
        await link.subscribe(channels("a"), two)
        scripted.publish(b"a", b"1")
        scripted.publish(b"b", b"2")
        await trio.testing.wait_all_tasks_blocked()
        link.unsubscribe(channels("a"), one)
        scripted.publish(b"a", b"3")
        await trio.testing.wait_all_tasks_blocked()
        assert scripted.ran("UNSUBSCRIBE") == []
        link.unsubscribe(channels("a"), two)
        await trio.testing.wait_all_tasks_blocked()
        assert one.heard == [[b"message", b"a", b"1"], [b"message", b"b", b"2"]]
        assert two.heard == [[b"message", b"a", b"1"], [b"message", b"a", b"3"]]
        assert [words for words in asked(scripted) if words[0] != b"PING"] == [
            (b"SUBSCRIBE", b"a", b"b"),
            (b"UNSUBSCRIBE", b"a"),
        ]
        assert one.gaps == two.gaps == []
        assert len(scripted.sessions) == 2


async def test_a_ping_of_its_own_follows_each_in_the_same_write(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        ear = Ear()
        await link.subscribe([*channels("a"), Topic(PATTERN, b"p*"), Topic(SHARD, b"s")], ear)
        await settle()
        verbs, pings = asked(scripted)[::2], asked(scripted)[1::2]
        assert [words[0] for words in verbs] == [b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"]
        assert [words[0] for words in pings] == [b"PING"] * 3
        assert len(set(pings)) == 3
        assert len(set(scripted.times("SUBSCRIBE") + scripted.times("SSUBSCRIBE"))) == 1


async def test_subscriptions_of_one_moment_share_their_commands(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        scripted.latency = 0.1
        async with trio.open_nursery() as nursery:
            for number in range(BATCH + 100):
                nursery.start_soon(link.subscribe, channels(f"c{number}"), Ear())
        sizes = [len(words) - 1 for words in scripted.ran("SUBSCRIBE")]
        assert sum(sizes) == BATCH + 100
        assert len(sizes) <= 3
        assert max(sizes) <= BATCH


async def test_a_refusal_names_the_rule_and_spares_the_others(autojump_clock: trio.abc.Clock) -> None:
    def refuse(words: Command) -> str | None:
        return "NOPERM No permissions to access a channel" if b"no" in words[1:] else None

    async with opened() as (scripted, _server, link):
        scripted.refuse, scripted.latency = refuse, 0.1
        await _refused(link, ("other", "no"), Ear(), "'&no'")
        await settle()
        assert subscribed(scripted) == set()
        fine, bad, mixed = Ear(), Ear(), Ear()
        await link.subscribe(channels("old"), Ear())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.subscribe, channels("fine"), fine)
            for ear, names in ((bad, ("no",)), (mixed, ("other", "no", "fine"))):
                nursery.start_soon(_refused, link, names, ear, "'&no'")
        await settle()
        assert subscribed(scripted) == {*channels("fine", "old")}
        scripted.publish(b"fine", b"1")
        await settle()
        assert fine.heard == [[b"message", b"fine", b"1"]]
        assert bad.heard == mixed.heard == []
        assert (bad.ends, mixed.ends) == ([], [])


async def _refused(link: EventLink, names: Iterable[str], ear: Ear, text: str) -> None:
    with pytest.raises(NoPermissionError, match=text):
        await link.subscribe(channels(*names), ear)


@pytest.mark.parametrize("refused", [(b"PING",), (b"SUBSCRIBE", b"PING")])
async def test_a_refused_ping_is_told_from_a_refused_subscription(
    refused: tuple[bytes, ...], autojump_clock: trio.abc.Clock
) -> None:
    def refuse(words: Command) -> str | None:
        verb = words[0]
        return (
            f"NOPERM User u has no permissions to run the '{verb.decode().lower()}' command"
            if verb in refused
            else None
        )

    async with opened() as (scripted, _server, link):
        await link.subscribe(channels("before"), Ear())
        scripted.refuse = refuse
        if b"SUBSCRIBE" in refused:
            await _refused(link, ("a",), Ear(), r"'\+subscribe'")
        else:
            await link.subscribe(channels("a"), Ear())
        scripted.refuse = lambda words: None
        await link.subscribe(channels("after"), Ear())
        assert len(scripted.sessions) == 2, "the connection is still in step"


async def test_an_unsubscription_that_is_refused_is_not_tried_for_ever(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), ear)
        scripted.refuse = lambda words: "NOPERM no" if words[0] == b"UNSUBSCRIBE" else None
        link.unsubscribe(channels("a"), ear)
        await settle()
        scripted.publish(b"a", b"1")
        await settle()
        assert ear.heard == []
        assert len([words for words in scripted.seen if words[0] == b"UNSUBSCRIBE"]) == 1
        await link.subscribe(channels("a"), ear)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
async def test_pushes_may_stand_anywhere_between_replies(pieces: int, autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), ear)
        scripted.cut = lambda n: [pieces] * (n // pieces)
        numbers = iter(range(1000))
        scripted.pushes = lambda: [b"message", b"a", b"%d" % next(numbers)]
        for round_ in range(5):
            assert await link.redirect_id() == 1
            await link.subscribe(channels(f"c{round_}", f"d{round_}"), ear)
        await trio.testing.wait_all_tasks_blocked()
        scripted.pushes = lambda: None
        told = [int(push[2]) for push in ear.heard]
        assert told == list(range(len(told)))
        assert len(told) == next(numbers)
        assert len(told) == 30, "two for each of three commands in five rounds"


async def test_after_a_loss_all_is_subscribed_again_before_one_gap_is_told(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        one, two, none = Ear(), Ear(), Ear()
        await link.subscribe([*channels("a"), Topic(PATTERN, b"a*")], one)
        await link.subscribe(channels("b"), two)
        await link.subscribe(channels("c"), none)
        link.unsubscribe(channels("c"), none)
        await trio.sleep(5)
        scripted.publish(b"a", b"last")
        await trio.sleep(1)
        scripted.latency, scripted.connect_delay = 0.25, 0.5
        lost_at = trio.current_time()
        listener(scripted).kill()
        await trio.sleep(0.6)
        assert one.gaps == two.gaps == []
        await trio.sleep(3)
        until = max(scripted.times("SUBSCRIBE") + scripted.times("PSUBSCRIBE")) + 0.25
        assert one.gaps == two.gaps == [Gap(lost_at - 1, until)]
        assert none.gaps == []
        assert subscribed(scripted) == {*channels("a", "b"), Topic(PATTERN, b"a*")}
        scripted.publish(b"a", b"new")
        await trio.sleep(1)
        assert [push[-1] for push in one.heard] == [b"last", b"last", b"new", b"new"]


async def test_a_second_loss_while_subscribing_again_makes_the_gap_longer(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), ear)
        await trio.sleep(3)
        since = link._connection.heard_at if link._connection is not None else math.nan
        scripted.kill_before = lambda words: words[0] == b"SUBSCRIBE" and len(scripted.sessions) < 5
        listener(scripted).kill()
        await settle()
        assert len(scripted.sessions) == 5
        (gap,) = ear.gaps
        assert gap.since == since
        assert gap.until == scripted.times("SUBSCRIBE")[-1]


async def test_a_subscription_that_was_not_told_yet_has_no_gap(autojump_clock: trio.abc.Clock) -> None:
    async with opened(command_timeout=10) as (scripted, _server, link):
        await link.subscribe(channels("a"), Ear())
        scripted.latency = 0.5
        late, later = Ear(), Ear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.subscribe, channels("b"), late)
            await trio.sleep(0.25)
            listener(scripted).kill()
            await trio.sleep(0.01)
            await link.subscribe(channels("a"), later)  # nothing is confirmed now, though it was before
        await settle()
        assert late.gaps == later.gaps == []
        assert subscribed(scripted) == {*channels("a", "b")}


async def test_who_may_not_subscribe_again_is_told_and_the_others_get_their_gap(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        one, two = Ear(), Ear()
        await link.subscribe(channels("a", "b", "c"), one)
        await link.subscribe(channels("c"), two)
        scripted.refuse = lambda words: "NOPERM No permissions to access a channel" if b"b" in words else None
        listener(scripted).kill()
        await settle()
        ((topic, error),) = one.ends
        assert topic == channels("b")[0]
        assert "'&b'" in error
        assert len(one.gaps) == len(two.gaps) == 1
        assert two.ends == []
        assert subscribed(scripted) == {*channels("a", "c")}
        assert not link.holds(topic, one)


async def test_a_subscription_that_the_server_ends_is_told(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        ear, topic = Ear(), Topic(SHARD, b"s")
        await link.subscribe([topic, Topic(SHARD, b"t")], ear)
        listener(scripted).say(Push([b"sunsubscribe", b"s", 0]))
        await settle()
        assert [end[0] for end in ear.ends] == [topic]
        assert not link.holds(topic, ear)
        scripted.refuse = lambda words: "MOVED 1 other:6379" if words[0] == b"SSUBSCRIBE" else None
        with pytest.raises(MovedError, match="1 other:6379"):
            await link.subscribe([topic], ear)


async def test_a_slot_that_has_moved_is_looked_for_again(autojump_clock: trio.abc.Clock) -> None:
    async with opened(command_timeout=10) as (scripted, _server, link):
        topic, ear, moves = Topic(SHARD, b"s"), Ear(), list[str]()
        link._moved = lambda error: moves.append(str(error))
        scripted.refuse = lambda words: (
            "MOVED 1 other:6379" if words[0] == b"SSUBSCRIBE" and len(scripted.sessions) < 4 else None
        )
        await link.subscribe([topic], ear)
        assert moves == ["1 other:6379"] * 2
        listener(scripted).say(Push([b"sunsubscribe", b"s", 0]))
        await settle()
        assert len(moves) == 3
        assert subscribed(scripted) == {topic}
        assert len(ear.gaps) == 1


async def test_a_silent_server_ends_the_waiting_and_nothing_stays(autojump_clock: trio.abc.Clock) -> None:
    async with opened(command_timeout=2, silent_after=math.inf, keepalive=math.inf) as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), ear)
        session = listener(scripted)
        session.stall()
        start = trio.current_time()
        with pytest.raises(CallTimeoutError):
            await link.subscribe(channels("b"), ear)
        assert trio.current_time() - start == 2
        for _ in range(50):  # whatever is wanted and no longer wanted meanwhile costs nothing
            with trio.move_on_after(0.01):
                await link.subscribe(channels("b", "c"), ear)
        assert len(link._link.outbox) == 0
        session.stall(on=False)
        await settle()
        assert subscribed(scripted) == {*channels("a")}
        assert len([words for words in asked(scripted) if words[0] != b"PING"]) <= 4


async def test_what_was_asked_on_a_doubted_connection_is_not_asked_on_the_next(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with opened(command_timeout=1, silent_after=1, keepalive=1) as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), ear)
        await trio.testing.wait_all_tasks_blocked()  # the PING was answered too
        session = listener(scripted)
        session.stall()
        scripted.connect_delay = 4
        await trio.sleep(3)
        assert link.statistics().doubted
        with pytest.raises(CallTimeoutError):
            await link.subscribe(channels("b"), ear)
        assert link.statistics().doubted
        await trio.sleep(5)
        session.stall(on=False)
        await settle()
        assert subscribed(scripted) == {*channels("a")}
        assert [words for words in asked(scripted) if b"b" in words] == []


async def test_what_is_left_and_wanted_again_meanwhile_stays(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        one, two = Ear(), Ear()
        await link.subscribe(channels("a"), one)
        await settle()
        scripted.latency = 0.5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.subscribe, channels("b"), one)
            await trio.testing.wait_all_tasks_blocked()
            link.unsubscribe(channels("a"), one)
            await link.subscribe(channels("a"), two)
        assert subscribed(scripted) == {*channels("a", "b")}
        assert len(scripted.ran("SUBSCRIBE")) == 2
        assert scripted.ran("UNSUBSCRIBE") == []


async def test_all_connections_of_a_server_are_dropped_together(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, server, link):
        ear, own = Ear(), server.add_event_link("own")
        await link.subscribe(channels("a"), ear)
        await own.subscribe([Topic(PATTERN, b"*")], ear)
        server.drop(ConnectionError("another one is the master"))
        await settle()
        assert len(scripted.sessions) == 6
        assert len(ear.gaps) == 2


async def test_a_refused_connection_is_raised_and_another_one_tried(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.password = "new"
        refused = server.events
        with pytest.raises(AuthenticationError):
            await refused.subscribe(channels("a"), Ear())
        with pytest.raises(AuthenticationError):
            await refused.subscribe(channels("a"), Ear())
        assert refused.closed
        scripted.password = ""
        assert server.events is not refused
        await server.events.subscribe(channels("a"), Ear())


async def test_the_end_of_the_link_ends_all_waiting(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        link, ear = server.add_event_link("own"), Ear()
        await link.subscribe(channels("a"), ear)
        scripted.latency = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closed, link, channels("b"))
            await trio.sleep(0.5)
            link.close()
            await link.wait_closed()
        assert [topic for topic, _ in ear.ends] == channels("a")
        with pytest.raises(trio.ClosedResourceError):
            await link.subscribe(channels("a"), ear)
        with pytest.raises(trio.ClosedResourceError):
            await link.redirect_id()
        link.unsubscribe(channels("a"), ear)


async def _closed(link: EventLink, topics: list[Topic]) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await link.subscribe(topics, Ear())


async def test_invalidations_are_told_to_those_who_track(autojump_clock: trio.abc.Clock) -> None:
    async with opened() as (scripted, _server, link):
        cache, other = Ear(), Ear()
        link.track(cache)
        await link.subscribe(channels("a"), other)
        assert await link.redirect_id() == 1
        listener(scripted).say(Push([b"invalidate", [b"k1", b"k2"]]))
        listener(scripted).say(Push([b"invalidate", None]))
        await settle()
        assert cache.heard == [[b"invalidate", [b"k1", b"k2"]], [b"invalidate", None]]
        listener(scripted).kill()
        await settle()
        await link.subscribe(channels("b"), other)
        await trio.testing.wait_all_tasks_blocked()
        assert len(cache.gaps) == 1
        assert await link.redirect_id() == 2
        link.untrack(cache)
        listener(scripted).say(Push([b"invalidate", None]))
        await settle()
        assert len(cache.heard) == 2
        assert other.heard == []


async def test_a_sink_that_raises_disturbs_nobody(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (scripted, _server, link):
        ear = Ear()
        await link.subscribe(channels("a"), Deaf())
        await link.subscribe(channels("a"), ear)
        scripted.publish(b"a", b"1")
        await settle()
        listener(scripted).kill()
        await settle()
        assert ear.heard == [[b"message", b"a", b"1"]]
        assert len(ear.gaps) == 1
    assert "deaf" in caplog.text


# --------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("loses", [False, True])
def test_a_subscription_that_is_cancelled_anywhere_leaves_nothing(loses: bool) -> None:
    """Also on a connection that is lost meanwhile; and it takes nothing from the others who want the same."""

    async def scenario(injector: CancelAt) -> None:
        async with opened() as (scripted, _server, link):
            scripted.latency = 0.5
            victim, other = Ear(), Ear()
            await link.subscribe(channels("shared"), other)
            async with trio.open_nursery() as nursery:
                if loses:
                    nursery.start_soon(_lose, scripted)
                with injector.watch():
                    await link.subscribe([*channels("shared", "mine"), Topic(PATTERN, b"m*")], victim)
                    await link.subscribe(channels("more"), victim)
                    link.unsubscribe(channels("more"), victim)
            await settle()
            mine = {*channels("mine"), Topic(PATTERN, b"m*")}
            held = {topic for topic in (*mine, *channels("shared", "more")) if link.holds(topic, victim)}
            assert held in (set(), {*mine, *channels("shared")}), "all or none"
            assert subscribed(scripted) == held | {*channels("shared")}
            assert link.holds(channels("shared")[0], other)
            assert len(other.gaps) == loses
            link.unsubscribe(held, victim)
            link.unsubscribe(channels("shared"), other)
            await settle()
            assert is_idle(link)
            assert subscribed(scripted) == set()

    assert cancelled_everywhere(scenario, seeds=range(2)) >= 8


async def _lose(scripted: ScriptedServer) -> None:
    await trio.sleep(0.25)
    listener(scripted).kill()


def test_two_tasks_that_subscribe_the_same_sink_do_not_undo_each_other() -> None:
    async def scenario(injector: CancelAt) -> None:
        async with opened() as (scripted, _server, link):
            scripted.latency, ear = 0.5, Ear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.subscribe, channels("a", "b"), ear)
                with injector.watch():
                    await link.subscribe(channels("b", "c"), ear)
            await settle()
            cancelled = injector.scope.cancelled_caught
            assert subscribed(scripted) == {*channels("a", "b", *(() if cancelled else ("c",)))}

    assert cancelled_everywhere(scenario, seeds=range(2)) >= 4


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_server_ends_up_with_what_is_wanted(seed: int) -> None:
    """Tasks that subscribe, unsubscribe and are cancelled at random, on connections that are lost and doubted."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with opened(command_timeout=3, silent_after=1, keepalive=4) as (scripted, _server, link):
            scripted.cut = lambda n: [rng.randint(1, 20) for _ in range(4)]
            held: list[tuple[Ear, Topic]] = []
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(_wander, link, rng, held)
                for _ in range(8):
                    await trio.sleep(rng.uniform(0, 1.5))
                    _hurt(scripted, rng)
            for session in scripted.sessions:
                session.stall(on=False)
            scripted.latency = 0
            await settle()
            assert all(link.holds(topic, ear) for ear, topic in held)
            assert subscribed(scripted) == {topic for _, topic in held}
            for ear, topic in held:
                before = len(ear.heard)
                assert scripted.publish(topic.name, b"x") == 1
                await settle()
                assert len(ear.heard) == before + 1
                link.unsubscribe([topic], ear)
            await settle()
            assert is_idle(link)
            assert subscribed(scripted) == set()

    run_virtual(scenario, seed=seed)


async def _wander(link: EventLink, rng: random.Random, held: list[tuple[Ear, Topic]]) -> None:
    ear = Ear()
    for _ in range(25):
        topic = rng.choice(channels("a", "b", "c", "d"))
        await trio.sleep(rng.uniform(0, 0.3))
        if link.holds(topic, ear) and rng.random() < 0.6:
            link.unsubscribe([topic], ear)
        with trio.move_on_after(rng.choice([0, 0.01, 0.1, 0.6, math.inf])):
            try:
                await link.subscribe([topic], ear)
            except CallTimeoutError:
                continue
    names = [topic for topic in channels("a", "b", "c", "d") if link.holds(topic, ear)]
    link.unsubscribe(names[1:], ear)
    held.extend((ear, topic) for topic in names[:1] if all(topic != taken for _, taken in held))
    link.unsubscribe([topic for topic in names[:1] if (ear, topic) not in held], ear)


def _hurt(scripted: ScriptedServer, rng: random.Random) -> None:
    session = rng.choice(scripted.sessions[-3:])
    scripted.latency = rng.choice([0, 0.05, 0.4])
    match rng.randrange(3):
        case 0:
            session.kill()
        case chosen:
            session.stall(on=chosen == 1)
