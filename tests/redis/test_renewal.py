"""Leaving a connection that still owes replies, and the calls that nobody waits for any more; in virtual time."""

from __future__ import annotations

import math
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.redis.scripted import ScriptedServer, command, open_scripted, open_server, virtual
from tests.redis.whereabouts import NEW, Whereabouts
from trio_orchestrator.redis import LinkError
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.deadline import Deadlines
from trio_orchestrator.redis.link import Link


async def outcome_of(link: Link, call: Call, outcomes: list[Any]) -> None:
    """Make a call; add what came of it to a list, with the time."""
    try:
        answer = await link.call(call)
    except Exception as error:
        answer = error
    outcomes.append((trio.current_time(), answer))


# ------------------------------------------------------------------------------------------------- deadlines


async def test_calls_that_were_given_up_do_not_collect_behind_a_patient_one() -> None:
    deadlines, patient = Deadlines(5), Call(b"")
    patient.begin()
    deadlines.add(patient)
    for _ in range(1000):
        call = Call(b"")
        call.begin()
        deadlines.add(call)
        call.give_up()
    assert len(deadlines) <= 65
    assert deadlines.next_after(patient.started + 1) == patient.started + 5
    assert deadlines.take_over(patient.started + 5) == [patient]


async def test_calls_that_wait_are_kept_in_order(autojump_clock: object) -> None:
    deadlines, waiting = Deadlines(500), list[Call]()
    for number in range(400):
        call = Call(b"")
        call.begin()
        deadlines.add(call)
        if number % 3:
            call.give_up()
        else:
            waiting.append(call)
        await trio.sleep(1)
    assert deadlines.next_after(trio.current_time()) == waiting[0].started + 500
    assert deadlines.take_over(waiting[99].started + 500) == waiting[:100]
    assert deadlines.take_over(math.inf) == waiting[100:]
    assert len(deadlines) == 0


@virtual
async def test_a_call_that_waits_long_does_not_keep_those_that_were_given_up() -> None:
    async with open_scripted() as scripted, open_server(scripted, silent_after=100, command_timeout=50) as server:
        scripted.session.stall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, server.link, command("INCR", "n"), [])
            await wait_all_tasks_blocked()
            for _ in range(300):
                with trio.move_on_after(0.01):
                    await server.link.call(command("INCR", "n"))
            assert len(server.link._deadlines) <= 65
            nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------- renewals


async def half_sent(scripted: ScriptedServer, link: Link) -> None:
    """Make a call of which a part is sent, and give it up."""
    scripted.takes, scripted.pace = lambda _count: 100, 0.25
    with trio.move_on_after(0.5):
        await link.call(command("SET", "key", "x" * 1000))
    assert scripted.ran("SET") == []


@virtual
async def test_a_post_stays_behind_a_call_that_was_sent_in_part_though_the_link_is_renewed() -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted) as server:
            await trio.sleep(2)
            await half_sent(scripted, server.link)
            server.link.renew()
            server.link.post(command("DEL", "key"))
            await trio.sleep(1)
            assert server.link.statistics().connections == 2
            assert server.link.statistics().queued == 1
            await trio.sleep(9)
            assert [words[0] for words in scripted.executed if words[0] in (b"SET", b"DEL")] == [b"SET", b"DEL"]
            assert scripted.data == {}
            assert server.link.statistics().lost == 1


@virtual
async def test_what_is_sent_to_another_server_does_not_wait_for_the_old_one() -> None:
    where, outcomes = Whereabouts(), list[Any]()
    async with open_scripted() as scripted:
        async with open_server(scripted, connector=where.connector(scripted)) as server:
            await trio.sleep(2)
            scripted.latency = 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, server.link, command("ECHO", "old"), outcomes)
                await wait_all_tasks_blocked()
                scripted.latency = 0
                where.address = NEW
                server.link.renew()
                nursery.start_soon(outcome_of, server.link, command("ECHO", "new"), outcomes)
    assert outcomes == [(2, b"new"), (3, b"old")]


@virtual
async def test_a_retired_connection_that_falls_silent_ends_though_calls_may_wait_for_ever() -> None:
    outcomes: list[Any] = []
    async with (
        open_scripted() as scripted,
        open_server(scripted, command_timeout=math.inf, silent_after=3) as server,
        trio.open_nursery() as nursery,
    ):
        await trio.sleep(2)
        scripted.session.mute()
        nursery.start_soon(outcome_of, server.link, command("INCR", "n"), outcomes)
        await wait_all_tasks_blocked()
        server.link.renew()
        await trio.sleep(4)
        ((at, error),) = outcomes
        assert (at, type(error), error.sent) == (5, LinkError, True)
        assert await server.link.call(command("INCR", "n")) == 2


@virtual
async def test_a_retired_connection_lives_as_long_as_something_comes() -> None:
    outcomes: list[Any] = []
    async with (
        open_scripted() as scripted,
        open_server(scripted, command_timeout=20, silent_after=2) as server,
        trio.open_nursery() as nursery,
    ):
        scripted._do_slow = lambda _session: ...  # type: ignore[attr-defined]
        await trio.sleep(2)
        nursery.start_soon(outcome_of, server.link, command("SLOW"), outcomes)
        await wait_all_tasks_blocked()
        session = scripted.session
        server.link.renew()
        for piece in (b"$5", b"\r\nab", b"cde", b"\r\n"):
            await trio.sleep(1.5)
            session.say_raw(piece)
    assert outcomes == [(8, b"abcde")]


@virtual
async def test_a_retired_connection_lives_as_long_as_something_leaves() -> None:
    outcomes: list[Any] = []
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted, command_timeout=20, silent_after=1) as server, trio.open_nursery() as nursery:
            await trio.sleep(2)
            scripted.takes, scripted.pace = lambda _count: 100, 0.25
            nursery.start_soon(outcome_of, server.link, command("APPEND", "key", "x" * 1000), outcomes)
            await wait_all_tasks_blocked()
            server.link.renew()
            await trio.sleep(6)
    assert outcomes == [(4.5, 1000)]
    assert len(scripted.ran("APPEND")) == 1


@virtual
async def test_a_connection_that_must_not_speak_yet_is_not_asked_whether_it_is_there() -> None:
    async with open_scripted() as scripted:
        async with open_server(scripted, keepalive=1, command_timeout=9, silent_after=9, close_within=9) as server:
            await trio.sleep(0.5)
            scripted.session.mute()
            server.link.post(command("INCR", "n"))
            server.link.renew()
            await trio.sleep(5)
            assert server.link.statistics().connections == 2
            assert len(server.link.outbox) == 0
            server.link.post(command("INCR", "n"))
        assert trio.current_time() == 9.5  # which is when the retired one has been silent for long
        assert scripted.data == {b"n": b"2"}
