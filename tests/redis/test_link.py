"""One link in virtual time, on a server in memory: whole timelines, and what becomes of each call."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, ResponseError
from trio.testing import wait_all_tasks_blocked

from tests.redis.scripted import (
    ScriptedServer,
    batch,
    command,
    link_settings,
    make_connector,
    open_client,
    open_scripted,
    open_server,
    virtual,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.handshake import WrongRoleError
from trio_orchestrator.redis.link import Link
from trio_orchestrator.redis.pipe import SocketPipe
from trio_orchestrator.redis_event import RedisConnected, RedisLost, RedisReady, RedisReconnecting
from trio_orchestrator.testing import run_virtual

REFUSED = ConnectionRefusedError("nobody listens")


class Recorder(Instrument):
    """Notes what it is told, and when."""

    def __init__(self) -> None:
        self.events: list[tuple[float, object]] = []
        self._begun = trio.current_time()

    def _note(self, event: object) -> None:
        self.events.append((trio.current_time() - self._begun, event))

    redis_connected = redis_ready = redis_lost = redis_reconnecting = redis_failover = _note

    def timeline(self) -> list[tuple[float, str]]:
        """Return when which kind of event was told."""
        return [(at, type(event).__name__.removeprefix("Redis").lower()) for at, event in self.events]


def calls(link: Link, outcomes: list[Any]) -> Callable[[Call], Any]:
    """Return a function that makes a call and adds its outcome, with the time, to a list."""

    async def call(one: Call) -> None:
        try:
            answer = await link.call(one)
        except Exception as error:
            answer = error
        outcomes.append((trio.current_time(), answer))

    return call


async def fails(kind: type[Exception], link: Link, call: Call) -> Any:
    """Make a call that fails; return its error."""
    with pytest.raises(kind) as caught:
        await link.call(call)
    return caught.value


# --------------------------------------------------------------------------------------------- timelines


@virtual
async def test_the_whole_timeline_of_an_outage() -> None:
    recorder = Recorder()
    async with open_scripted() as scripted, open_server(scripted, instruments=[recorder]) as server:
        await trio.sleep(5)
        scripted.down = REFUSED
        scripted.kill()
        await trio.sleep(3.5)
        scripted.down = None
        assert not server.link.statistics().connected
        await trio.sleep(1)
        assert server.link.statistics().connected
        assert scripted.dials == [0, 5, 6, 7, 8, 9]
    assert recorder.timeline() == [
        (0, "connected"),
        (0, "ready"),
        (5, "lost"),
        (5, "reconnecting"),
        (6, "reconnecting"),
        (7, "reconnecting"),
        (8, "reconnecting"),
        (9, "connected"),
        (9, "ready"),
    ]
    events = [event for _, event in recorder.events]
    name, where = "redis at scripted:6379", "scripted:6379"
    assert events[0] == RedisConnected(name, where)
    assert events[1] == RedisReady(name, where, 0, 1)
    assert events[4] == RedisReconnecting(name, where, REFUSED, 1, 2)
    assert events[8] == RedisReady(name, where, 4, 5)
    assert isinstance(events[2], RedisLost)
    assert (str(events[2].cause), events[2].in_flight, events[2].unsent) == ("closed by the server", 0, 0)


@virtual
async def test_an_outage_counts_from_its_beginning_though_another_server_is_looked_for() -> None:
    recorder = Recorder()
    async with open_scripted() as scripted, open_server(scripted, instruments=[recorder]) as server:
        await trio.sleep(5)
        scripted.down = REFUSED
        scripted.kill()
        await trio.sleep(2.5)
        scripted.down = None
        server.link.drop(EOFError("a Sentinel names another one"))
        await trio.sleep(1)
    ready = [event for _, event in recorder.events if isinstance(event, RedisReady)]
    assert (ready[1].after, ready[1].attempts) == (2.5, 4)


@virtual
async def test_a_connection_that_is_lost_at_once_is_followed_by_a_pause() -> None:
    async with open_scripted() as scripted, open_server(scripted):
        for _ in range(3):
            scripted.kill()
            await trio.sleep(1)
            await wait_all_tasks_blocked()
        assert scripted.dials == [0, 1, 2, 3]


@virtual
async def test_a_connection_that_was_of_use_is_followed_at_once() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.latency = 0.125
        assert await server.link.call(command("INCR", "n")) == 1
        scripted.kill()
        await wait_all_tasks_blocked()
        assert await server.link.call(command("INCR", "n")) == 2
        assert scripted.dials == [0, 0.125]


@virtual
async def test_a_backoff_may_count_to_any_number() -> None:
    async with (
        open_scripted() as scripted,
        open_server(scripted, reconnect=ExponentialBackoff(cap=1, base=0.5), keepalive=10**6) as server,
    ):
        await trio.sleep(2)
        scripted.down = REFUSED
        scripted.kill()
        await trio.sleep(1200)
        scripted.down = None
        await trio.sleep(1)
        assert await server.link.call(command("INCR", "n")) == 1
        assert len(scripted.dials) > 1100


# -------------------------------------------------------------------------------------------------- entry


@virtual
async def test_a_server_that_is_not_there() -> None:
    async with open_scripted() as scripted:
        scripted.down = REFUSED
        with pytest.raises(LinkError) as caught:
            async with open_server(scripted):
                raise AssertionError
        assert str(caught.value) == "cannot connect to scripted:6379: nobody listens"
        assert caught.value.__cause__ is REFUSED
        assert trio.current_time() == 0


@virtual
async def test_a_server_that_never_answers() -> None:
    async with open_scripted() as scripted:
        scripted.stalled = True
        with pytest.raises(LinkError, match="no answer from scripted:6379 within 5 s"):
            async with open_server(scripted):
                raise AssertionError
        assert trio.current_time() == 5


@virtual
async def test_waiting_for_a_server_that_comes_up_later() -> None:
    async with open_scripted() as scripted:
        scripted.down = REFUSED

        async def come_up() -> None:
            await trio.sleep(3.5)
            scripted.down = None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_up)
            async with open_server(scripted, wait=10) as server:
                assert trio.current_time() == 4
                assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_the_last_attempt_is_made_when_the_time_is_up() -> None:
    async with open_scripted() as scripted:
        scripted.down = REFUSED
        with pytest.raises(LinkError):
            async with open_server(scripted, wait=2.5):
                raise AssertionError
        assert scripted.dials == [0, 1, 2, 2.5]


@virtual
async def test_a_server_that_loads_its_data_is_waited_for() -> None:
    async with open_scripted() as scripted:
        scripted.loading_until = 3
        async with open_server(scripted) as server:
            assert trio.current_time() == pytest.approx(3, abs=0.051)
            assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_a_server_that_loads_for_too_long() -> None:
    async with open_scripted() as scripted:
        scripted.loading_until = 30
        with pytest.raises(LinkError, match="within 2 s"):
            async with open_server(scripted, connect_timeout=2):
                raise AssertionError
        async with open_server(scripted, connect_timeout=2, wait=60):
            assert 30 <= trio.current_time() < 33


@virtual
async def test_a_loading_server_after_a_reconnect_gets_no_calls_before_it_is_ready() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)
        scripted.loading_until = 3
        scripted.kill()
        await wait_all_tasks_blocked()
        assert await server.link.call(command("INCR", "n")) == 1
        assert scripted.seen.count((b"INCR", b"n")) == 1


@pytest.mark.parametrize("wait", [0, 10])
@virtual
async def test_a_wrong_password_at_entry(wait: float) -> None:
    async with open_scripted() as scripted:
        scripted.password = "right"
        for password, text in (("wrong", "invalid username-password"), ("", "HELLO must be called")):
            with pytest.raises(AuthenticationError, match=text):
                async with open_server(scripted, password=password, wait=wait):
                    raise AssertionError
        assert trio.current_time() == 0
        async with open_server(scripted, password="right") as server:
            assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_a_password_that_is_changed_is_tried_until_it_is_right() -> None:
    async with open_scripted() as scripted:
        scripted.password = "old"
        async with open_server(scripted, password="old") as server:
            await trio.sleep(2)
            scripted.password = "new"
            scripted.kill()
            await wait_all_tasks_blocked()
            error = await fails(CallTimeoutError, server.link, command("INCR", "n"))
            assert not error.sent
            scripted.password = "old"
            assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_an_old_server() -> None:
    async with open_scripted() as scripted:
        scripted.product, scripted.version = "redis", "6.2.14"
        with pytest.raises(ResponseError, match=r"redis 6\.2\.14 is too old: at least 7\.0 is needed"):
            async with open_server(scripted, wait=10):
                raise AssertionError
        scripted.version = "7.0.1"
        async with open_server(scripted):
            pass


@virtual
async def test_a_wrong_role_is_tried_again_until_the_wait_is_over() -> None:
    async with open_scripted() as scripted:
        scripted.role = "slave"
        with pytest.raises(WrongRoleError, match="its role is slave, not master"):
            async with open_server(scripted, role="master", wait=2.5):
                raise AssertionError
        assert len(scripted.dials) == 4


@virtual
async def test_the_first_words() -> None:
    async with open_scripted() as scripted:
        scripted.password = "secret"
        async with open_server(scripted, password="secret", database=3, name="me"):
            assert scripted.session.database == 3
            assert scripted.session.name == "me"
            assert scripted.executed[0] == (b"HELLO", b"3", b"AUTH", b"default", b"secret", b"SETNAME", b"me")
        with pytest.raises(ResponseError, match="out of range"):
            async with open_server(scripted, password="secret", database=99):
                raise AssertionError


@virtual
async def test_a_credential_provider_that_fails_is_like_a_server_that_is_not_there() -> None:
    broken = False

    async def provide() -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        if broken:
            raise KeyError("token")
        return ()

    async with open_scripted() as scripted:
        settings = link_settings()
        connector = make_connector(scripted, settings, credentials=provide)
        async with open_server(scripted, connector=connector) as server:
            await trio.sleep(2)
            broken = True
            scripted.kill()
            await trio.sleep(5)
            broken = False
            assert await server.link.call(command("INCR", "n")) == 1
        broken = True
        with pytest.raises(LinkError, match="the credential provider failed: 'token'") as caught:
            async with open_server(scripted, connector=connector):
                raise AssertionError
        assert isinstance(caught.value.__cause__, KeyError)


# ----------------------------------------------------------------------------------------------- time-outs


@virtual
async def test_calls_time_out_exactly() -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=2, silent_after=100) as server:
        await trio.sleep(1)
        scripted.session.stall()
        scripted.connect_delay = 4
        outcomes: list[Any] = []
        call = calls(server.link, outcomes)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call, command("INCR", "n"))
                await trio.sleep(0.375)
        assert [at for at, _ in outcomes] == [3, 3.375, 3.75, 4.125]
        errors = [error for _, error in outcomes]
        assert all(isinstance(error, CallTimeoutError) for error in errors)
        assert str(errors[0]) == "no answer from scripted:6379 within 2 s to a call which was sent and may have run"
        assert server.link.statistics().timed_out == 4


@virtual
async def test_a_call_that_was_never_sent_times_out_and_says_so() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(1)
        scripted.down = REFUSED
        scripted.kill()
        await wait_all_tasks_blocked()
        error = await fails(CallTimeoutError, server.link, command("INCR", "n"))
        assert trio.current_time() == 3
        assert str(error).endswith("to a call which was never sent")
        scripted.down = None
        await trio.sleep(1)
        assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_several_replies_of_which_some_come_after_the_time_out_go_to_nobody() -> None:
    async with open_scripted() as scripted, open_server(scripted, silent_after=100) as server:
        scripted.takes_long = lambda words: 0.9 if words[0] == b"ECHO" else 0
        await fails(CallTimeoutError, server.link, batch(("ECHO", "a"), ("ECHO", "b"), ("ECHO", "c")))
        outcomes: list[Any] = []
        call = calls(server.link, outcomes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, batch(("INCR", "n"), ("INCR", "n")))
            await wait_all_tasks_blocked()
            nursery.start_soon(call, command("NEST", "x", 0))
        assert [answer for _, answer in outcomes] == [[1, 2], b"x"]
        assert len(scripted.sessions) == 1


@virtual
async def test_a_call_that_is_sent_once_more_has_no_second_time_out() -> None:
    async with open_scripted() as scripted, open_server(scripted, silent_after=100) as server:

        def refuse(words: tuple[bytes, ...]) -> str | None:
            if words[0] == b"INCR":
                scripted.down = REFUSED
                return "READONLY You can't write against a read only replica."
            return None

        scripted.refuse = refuse
        scripted.takes_long = lambda words: 1.5 if words[0] == b"INCR" else 0
        error = await fails(CallTimeoutError, server.link, command("INCR", "n"))
        assert trio.current_time() == 2
        assert not error.sent


@virtual
async def test_a_cancelled_call_ends_at_once_and_its_reply_goes_to_nobody() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.latency = 0.5
        with trio.move_on_after(0.25):
            await server.link.call(command("INCR", "n"))
        assert trio.current_time() == 0.25
        assert await server.link.call(command("ECHO", "mine")) == b"mine"
        assert scripted.ran("INCR") == [(b"INCR", b"n")]
        assert server.link.outbox.used == 0


# ------------------------------------------------------------------------------------- silence and liveness


@virtual
async def test_an_idle_server_is_asked_at_exact_times() -> None:
    async with open_scripted() as scripted, open_server(scripted, keepalive=10, silent_after=2) as server:
        await trio.sleep(13)
        await server.link.call(command("INCR", "n"))
        await trio.sleep(23)
        assert scripted.times("PING") == [0, 10, 23, 33]
        assert server.link.statistics().in_flight == 0


@virtual
async def test_a_silent_server_is_replaced_by_a_second_connection() -> None:
    recorder = Recorder()
    async with open_scripted() as scripted, open_server(scripted, command_timeout=9, instruments=[recorder]) as server:
        await trio.sleep(1)
        scripted.session.stall()
        outcomes: list[Any] = []
        call = calls(server.link, outcomes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, command("INCR", "n"))
            await wait_all_tasks_blocked()
            nursery.start_soon(call, command("GET", "n", resend=True))
        (at, lost), (read_at, answer) = sorted(outcomes, key=lambda one: one[1] is None)
        assert (at, read_at, answer) == (3, 3, None)
        assert isinstance(lost, LinkError)
        assert lost.sent
        assert "silent for" in str(lost)
        assert scripted.dials == [0, 3]
        assert [kind for _, kind in recorder.timeline()] == ["connected", "ready", "connected", "lost", "ready"]


@virtual
async def test_an_idle_server_that_is_gone_is_noticed_by_the_ping() -> None:
    async with open_scripted() as scripted, open_server(scripted, keepalive=10, silent_after=2):
        scripted.session.stall()
        await trio.sleep(15)
        assert scripted.dials == [0, 12]


@virtual
async def test_a_slow_script_is_not_taken_for_a_dead_server() -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=9) as server:
        outcomes: list[Any] = []
        call = calls(server.link, outcomes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, command("DEBUG", "SLEEP", 4))
            await trio.sleep(1)
            nursery.start_soon(call, command("INCR", "n"))
            await trio.sleep(2)
            assert server.link.statistics().doubted
            nursery.start_soon(call, command("INCR", "n"))
        assert outcomes == [(4, b"OK"), (4, 1), (4, 2)]
        statistics = server.link.statistics()
        assert (statistics.connections, statistics.lost, statistics.doubted) == (1, 0, False)
        assert scripted.dials == [0, 2]
        await wait_all_tasks_blocked()
        assert scripted.ends[1].closed
        assert not scripted.ends[0].closed


@virtual
async def test_a_call_that_timed_out_casts_doubt_and_later_calls_survive() -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=1, silent_after=50) as server:
        await trio.sleep(5)
        scripted.session.stall()
        scripted.connect_delay = 0.5
        await fails(CallTimeoutError, server.link, command("INCR", "a"))
        assert server.link.statistics().doubted
        assert await server.link.call(command("INCR", "b")) == 1
        assert trio.current_time() == 6.5
        assert [(one.session, one.words) for one in scripted.log if one.words[0] == b"INCR"] == [(1, (b"INCR", b"b"))]


def test_two_connections_that_answer_in_the_same_moment() -> None:
    kept: set[int] = set()

    async def run() -> None:
        async with open_scripted() as scripted, open_server(scripted, command_timeout=9) as server:
            await trio.sleep(1)
            first = scripted.session
            first.mute()
            outcomes: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
                await trio.sleep(1.5)
                scripted.latency = 0.25
                await trio.sleep(1)  # the second one says hello at 3, and is ready at 3.5
                first.mute(on=False)
            scripted.latency = 0
            assert await server.link.call(command("INCR", "n")) == 2
            ((_, answer),) = outcomes
            assert answer == 1 or (isinstance(answer, LinkError) and answer.sent)
            await wait_all_tasks_blocked()
            (open_one,) = [number for number, end in enumerate(scripted.ends) if not end.closed]
            kept.add(open_one)

    for seed in range(20):
        run_virtual(run, seed=seed)
    assert kept == {0, 1}, "it was not the same moment"


@virtual
async def test_a_doubted_connection_that_is_lost_is_replaced_by_the_one_that_is_being_made() -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=9) as server:
        await trio.sleep(1)
        scripted.session.stall()
        scripted.connect_delay = 1
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await trio.sleep(2.5)
            scripted.kill()
        assert [at for at, _ in outcomes] == [3.5]
        assert await server.link.call(command("INCR", "n")) == 1
        assert scripted.dials == [0, 3]


@virtual
async def test_a_big_value_on_a_slow_way_is_not_taken_for_silence() -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted, command_timeout=100) as server:
            scripted.takes, scripted.pace = (lambda n: 1000), 1.0
            assert await server.link.call(command("SET", "big", b"x" * 9000)) == b"OK"
            assert trio.current_time() == 9
            assert scripted.dials == [0]


# ------------------------------------------------------------------------------------------ the three states


@virtual
async def test_a_write_that_was_sent_is_not_repeated() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)
        scripted.kill_after = lambda words: words[0] == b"INCR"
        error = await fails(LinkError, server.link, command("INCR", "n"))
        assert error.sent
        assert (
            str(error) == "connection to scripted:6379 lost (closed by the server): the call was sent and may have run"
        )
        scripted.kill_after = lambda words: False
        assert await server.link.call(command("GET", "n")) == b"1"
        assert len(scripted.ran("INCR")) == 1


@virtual
async def test_a_read_that_was_sent_is_repeated() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.data[b"k"] = b"v"
        await trio.sleep(2)
        killed = iter([True, True])
        scripted.takes_long = lambda words: 0.125 if words[0] == b"MGET" else 0  # the first reply comes before the loss
        scripted.kill_after = lambda words: words[0] == b"MGET" and next(killed, False)
        replies = await server.link.call(batch(("GET", "k"), ("MGET", "k"), resend=True))
        assert replies == [b"v", [b"v"]]
        assert len(scripted.ran("MGET")) == 3


@virtual
async def test_a_read_that_was_sent_and_is_to_be_repeated_has_been_sent_if_it_times_out() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)

        def kill(words: tuple[bytes, ...]) -> bool:
            scripted.down = REFUSED
            return words[0] == b"INCR"

        scripted.kill_after = kill
        error = await fails(CallTimeoutError, server.link, command("INCR", "n", resend=True))
        assert error.sent
        assert len(scripted.ran("INCR")) == 1


@virtual
async def test_a_call_whose_bytes_still_wait_for_room_may_run_after_it_timed_out() -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted, silent_after=100) as server:
            scripted.full, scripted.connect_delay = True, 4
            error = await fails(CallTimeoutError, server.link, command("INCR", "n"))
            assert error.sent
            scripted.full = False
            scripted.stir()
            await wait_all_tasks_blocked()
            assert len(scripted.ran("INCR")) == 1


@virtual
async def test_a_writer_that_was_given_room_in_the_very_step_of_the_loss_sends_nothing() -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted) as server:
            await trio.sleep(2)
            scripted.full = True
            outcomes: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
                await wait_all_tasks_blocked()
                scripted.full = False
                scripted.stir()  # wakes the writer
                server.link.drop(ConnectionError("dropped"))
            assert [answer for _, answer in outcomes] == [1]
            assert len(scripted.ran("INCR")) == 1


@pytest.mark.parametrize("taken", [0, 1, 20])
@virtual
async def test_a_call_of_which_a_part_was_sent_is_executed_once(taken: int) -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted) as server:
            await trio.sleep(2)
            room = [taken]

            def take(n: int) -> int:
                count = min(n, room[0])
                room[0] -= count
                scripted.full = room[0] == 0
                return count

            scripted.takes, scripted.full = take, taken == 0
            async with trio.open_nursery() as nursery:
                outcomes: list[Any] = []
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "number"))
                await wait_all_tasks_blocked()
                scripted.takes, scripted.full = (lambda n: n), False
                scripted.kill()
            assert outcomes == [(2, 1)]
            assert len(scripted.ran("INCR")) == 1
            assert len(scripted.sessions) == 2


@pytest.mark.parametrize("exact", [False, True])
@virtual
async def test_what_was_queued_in_the_very_step_of_the_loss_is_executed_once(exact: bool) -> None:
    async with open_scripted() as scripted:
        scripted.exact = exact
        async with open_server(scripted) as server:
            await trio.sleep(2)
            scripted.latency = 0.5
            outcomes: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "first"))
                await wait_all_tasks_blocked()
                server.link.post(command("INCR", "second"))  # wakes the writer
                server.link.drop(ConnectionError("dropped"))  # in front of which the connection is lost
            assert await server.link.call(command("GET", "second")) == b"1"
            assert scripted.ran("INCR") == [(b"INCR", b"first"), (b"INCR", b"second")]


@virtual
async def test_a_socket_that_is_given_up_takes_nothing_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        pipe = SocketPipe(ours)
        assert await pipe.send(memoryview(b"one")) == 3
        pipe.stop()
        assert await pipe.send(memoryview(b"two")) == 0
        assert theirs.recv(100) == b"one"
        await pipe.aclose()


@virtual
async def test_what_was_not_sent_waits_for_the_next_connection() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)
        scripted.down = REFUSED
        scripted.kill()
        await wait_all_tasks_blocked()
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await trio.sleep(0.5)
            scripted.down = None
        assert sorted(answer for _, answer in outcomes) == [1, 2, 3]
        assert {at for at, _ in outcomes} == {3}


# ---------------------------------------------------------------------------------------------------- posts


@virtual
async def test_posts_go_first_on_the_next_connection() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)
        scripted.down = REFUSED
        scripted.kill()
        await wait_all_tasks_blocked()
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            server.link.post(command("ECHO", "first post"))
            nursery.start_soon(calls(server.link, outcomes), command("ECHO", "call"))
            await wait_all_tasks_blocked()
            server.link.post(command("ECHO", "second post"))
            scripted.down = None
        assert [words[1] for words in scripted.ran("ECHO")] == [b"first post", b"second post", b"call"] or (
            [words[1] for words in scripted.ran("ECHO")] == [b"first post", b"call", b"second post"]
        )


@virtual
async def test_a_post_comes_behind_the_call_that_was_cancelled_before_it() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.latency = 1
        with trio.move_on_after(0.5):
            await server.link.call(command("SET", "lock", "me", "NX"))
        server.link.post(command("DEL", "lock"))
        await trio.sleep(1)
        assert scripted.executed[-2:] == [(b"SET", b"lock", b"me", b"NX"), (b"DEL", b"lock")]
        assert scripted.data == {}


@virtual
async def test_a_post_needs_no_place_in_the_window() -> None:
    async with open_scripted() as scripted, open_server(scripted, max_in_flight=1, silent_after=100) as server:
        scripted.latency = 0.5
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
            server.link.post(command("ECHO", "post"))
            await wait_all_tasks_blocked()
            assert scripted.ran("ECHO") == [(b"ECHO", b"post")]
            assert len(scripted.ran("INCR")) == 1
        assert [answer for _, answer in outcomes] == [1, 2]


@virtual
async def test_a_post_that_was_sent_is_not_repeated() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await trio.sleep(2)
        scripted.kill_after = lambda words: words == (b"INCR", b"n")
        server.link.post(command("INCR", "n", resend=True))
        await trio.sleep(1)
        scripted.kill_after = lambda words: False
        assert await server.link.call(command("GET", "n")) == b"1"


# ------------------------------------------------------------------------------------------ another server


def read_only_until(scripted: ScriptedServer, sessions: int) -> None:
    """Refuse writes until so many connections were made."""

    def refuse(words: tuple[bytes, ...]) -> str | None:
        writes = words[0] == b"INCR" and len(scripted.sessions) < sessions
        return "READONLY You can't write against a read only replica." if writes else None

    scripted.refuse = refuse


@virtual
async def test_many_who_hear_that_a_server_is_read_only_make_one_new_connection() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        read_only_until(scripted, 2)
        scripted.latency = 0.125
        await trio.sleep(2)
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
        assert sorted(answer for _, answer in outcomes) == list(range(1, 21))
        assert scripted.dials == [0, 2.125]
        assert len(scripted.ran("INCR")) == 20
        await wait_all_tasks_blocked()
        assert scripted.ends[0].closed


@virtual
async def test_a_server_that_stays_read_only_is_told_to_the_caller() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        read_only_until(scripted, 99)
        await trio.sleep(2)
        await fails(ReadOnlyError, server.link, command("INCR", "n"))
        assert scripted.seen.count((b"INCR", b"n")) == 2
        assert scripted.ran("INCR") == []


@virtual
async def test_a_server_that_stays_read_only_is_not_connected_to_all_the_time() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        read_only_until(scripted, 10_000)
        scripted.latency = 0.01
        with trio.move_on_after(10):
            while True:
                await fails(ReadOnlyError, server.link, command("INCR", "n"))
        assert len(scripted.dials) < 20


@virtual
async def test_what_was_sent_before_a_renewal_is_still_answered() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.latency = 1
        await trio.sleep(2)
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
            server.link.renew()
            scripted.latency = 0
            nursery.start_soon(calls(server.link, outcomes), command("ECHO", "new"))
        assert outcomes == [(3, 1), (3, b"new")]  # it is the same server, so what is behind stays behind
        assert server.link.statistics().lost == 1


@virtual
async def test_a_retired_connection_that_is_silent_does_not_keep_its_places() -> None:
    async with open_scripted() as scripted, open_server(scripted, max_in_flight=2, silent_after=100) as server:
        await trio.sleep(2)
        scripted.session.stall()
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
            server.link.renew()
        assert [type(error) for _, error in outcomes] == [CallTimeoutError] * 2
        await wait_all_tasks_blocked()
        assert scripted.ends[0].closed
        assert server.link.outbox.used == 0
        assert await server.link.call(command("INCR", "n")) == 1


@virtual
async def test_the_window_holds_while_a_retired_connection_still_answers() -> None:
    async with open_scripted() as scripted, open_server(scripted, max_in_flight=2) as server:
        await trio.sleep(2)
        scripted.latency = 1
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
            server.link.renew()
            scripted.latency = 0
            await wait_all_tasks_blocked()
            assert server.link.statistics().connected
            nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
            assert server.link.statistics().waiting == 1
        assert sorted(outcomes) == [(3, 1), (3, 2), (3, 3)]


# ------------------------------------------------------------------------------------------------ the window


async def some_calls(
    link: Link, outcomes: list[Any], count: int, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    """Make some calls, and give the scope that they are in."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(calls(link, outcomes), command("INCR", "n"))
        await wait_all_tasks_blocked()
        task_status.started(nursery.cancel_scope)


@virtual
async def test_callers_wait_before_they_are_queued_and_those_who_left_keep_their_place() -> None:
    async with open_scripted() as scripted, open_server(scripted, max_in_flight=3, silent_after=100) as server:
        scripted.session.stall()
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            first = await nursery.start(some_calls, server.link, outcomes, 3)
            await nursery.start(some_calls, server.link, outcomes, 2)
            statistics = server.link.statistics()
            assert (statistics.in_flight, statistics.queued, statistics.waiting) == (3, 0, 2)
            first.cancel()
            await wait_all_tasks_blocked()
            statistics = server.link.statistics()
            assert (statistics.in_flight, statistics.queued, statistics.waiting) == (3, 0, 2)
            assert outcomes == []
            scripted.session.stall(on=False)
        assert sorted(answer for _, answer in outcomes) == [4, 5]
        assert server.link.outbox.used == 0


@virtual
async def test_calls_are_sent_in_the_order_in_which_one_task_made_them() -> None:
    async with open_scripted() as scripted, open_server(scripted, max_in_flight=4) as server:
        scripted.cut = lambda n: (1,) * n

        async def talk(name: str) -> None:
            for n in range(10):
                assert await server.link.call(command("ECHO", f"{name}{n}")) == f"{name}{n}".encode()

        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(talk, name)
        echoes = [words[1] for words in scripted.ran("ECHO")]
        for name in "abcdefgh":
            assert [echo for echo in echoes if echo[:1] == name.encode()] == [f"{name}{n}".encode() for n in range(10)]


# ------------------------------------------------------------------------------------------------ the end


@virtual
async def test_what_was_posted_is_executed_before_the_block_is_left() -> None:
    async with open_scripted() as scripted:
        scripted.latency = 0.25
        async with open_server(scripted) as server:
            before = trio.current_time()
            server.link.post(command("INCR", "n"))
        assert scripted.ran("INCR") == [(b"INCR", b"n")]
        assert trio.current_time() == before + 0.25


@virtual
async def test_a_silent_server_does_not_keep_anybody_from_leaving() -> None:
    async with open_scripted() as scripted:
        async with open_server(scripted, close_within=1.5) as server:
            scripted.session.stall()
            server.link.post(command("INCR", "n"))
            before = trio.current_time()
        assert trio.current_time() == before + 1.5


@virtual
async def test_a_server_that_is_down_does_not_keep_anybody_from_leaving() -> None:
    async with open_scripted() as scripted:
        async with open_server(scripted):
            await trio.sleep(2)
            scripted.down = REFUSED
            scripted.kill()
            await trio.sleep(0.5)
            before = trio.current_time()
        assert trio.current_time() == before


@virtual
async def test_posts_reach_a_server_that_comes_back_while_the_block_is_left() -> None:
    async with open_scripted() as scripted:

        async def come_back() -> None:
            await trio.sleep(1.5)
            scripted.down = None

        async with trio.open_nursery() as nursery:
            async with open_server(scripted, close_within=5, command_timeout=5) as server:
                await trio.sleep(2)
                scripted.down = REFUSED
                scripted.kill()
                await wait_all_tasks_blocked()
                server.link.post(command("INCR", "n"))
                nursery.start_soon(come_back)
            assert trio.current_time() == 4
        assert scripted.ran("INCR") == [(b"INCR", b"n")]


@virtual
async def test_calls_in_flight_end_when_the_block_is_left_and_later_ones_are_refused() -> None:
    async with open_scripted() as scripted, trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        async with open_server(scripted, max_in_flight=2) as server:
            scripted.session.stall()
            for _ in range(3):
                nursery.start_soon(calls(server.link, outcomes), command("INCR", "n"))
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        errors = [error for _, error in outcomes]
        assert [type(error) for error in errors] == [LinkError] * 3
        assert sorted(error.sent for error in errors) == [False, True, True]
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            await server.link.call(command("INCR", "n"))
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            server.link.post(command("INCR", "n"))
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            async with server.leases.lease():
                raise AssertionError
        assert server.leases.used == 0


@virtual
async def test_a_connection_that_is_made_while_the_block_is_left_is_closed() -> None:
    async with open_scripted() as scripted, trio.open_nursery() as nursery:

        async def lease() -> None:
            with pytest.raises((trio.ClosedResourceError, LinkError)):
                async with server.leases.lease():
                    raise AssertionError

        async with open_server(scripted) as server:
            scripted.connect_delay = 1
            nursery.start_soon(lease)
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        scripted.check_closed()


@pytest.mark.parametrize("when", [0.25, 0.75, 1.25])
@virtual
async def test_opening_is_cancelled_amid_the_handshake(when: float) -> None:
    async with open_scripted() as scripted:
        scripted.connect_delay, scripted.latency = 0.5, 0.5
        with trio.move_on_after(when) as scope:
            async with open_server(scripted):
                raise AssertionError
        assert scope.cancelled_caught
        assert trio.current_time() == when
        scripted.check_closed()


@virtual
async def test_what_the_block_raises_comes_out_bare() -> None:
    async with open_scripted() as scripted:
        error = ValueError()
        with pytest.raises(ValueError) as caught:
            async with open_server(scripted):
                raise error
        assert caught.value is error
        assert error.__context__ is None


# ------------------------------------------------------------------------------------------------- bad replies


@pytest.mark.parametrize("data", [b"?what is this\r\n", b":1\r\n", b"*-5\r\n"])
@virtual
async def test_a_server_that_is_out_of_step_is_dropped(data: bytes) -> None:
    recorder = Recorder()
    async with open_scripted() as scripted, open_server(scripted, instruments=[recorder]) as server:
        await trio.sleep(2)
        scripted.session.say_raw(data)
        await wait_all_tasks_blocked()
        assert scripted.dials == [0, 2]
        assert await server.link.call(command("INCR", "n")) == 1
        (lost,) = [event for _, event in recorder.events if isinstance(event, RedisLost)]
        assert type(lost.cause).__name__ == "InvalidResponse"


@virtual
async def test_a_value_that_cannot_be_decoded_hurts_nobody_else() -> None:
    async with open_scripted() as scripted, open_client(scripted, decode_responses=True) as client:
        scripted.data[b"bad"], scripted.data[b"good"] = b"\xff", b"g"
        outcomes: list[Any] = []

        async def get(key: str) -> None:
            try:
                outcomes.append(await client.get(key))
            except UnicodeDecodeError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            for key in ("good", "bad", "good"):
                nursery.start_soon(get, key)
        assert sorted(map(str, outcomes))[1:] == ["g", "g"]
        assert len(scripted.sessions) == 1


@virtual
async def test_a_hook_that_raises_is_removed_and_the_link_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instrument):
        def redis_ready(self, event: object) -> None:
            raise ValueError(event)

        def redis_lost(self, event: object) -> None:
            raise ValueError(event)

    caplog.set_level(logging.ERROR)
    async with open_scripted() as scripted, open_server(scripted, instruments=[Broken()]) as server:
        for n in range(3):
            assert await server.link.call(command("INCR", "n")) == n + 1
            scripted.kill()
            await trio.sleep(2)
    assert [record.message.count("raised and was removed") for record in caplog.records] == [1, 1]


@virtual
async def test_pushes_between_the_replies_disturb_nobody() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.pushes = lambda: [b"invalidate", [b"k"]]
        scripted.cut = lambda n: (3,) * (n // 3)
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(calls(server.link, outcomes), batch(("ECHO", n), ("NEST", n, 2), ("FAIL", "ERR no")))
        assert sorted(answer[0] for _, answer in outcomes) == [b"0", b"1", b"2", b"3", b"4"]
        assert all(isinstance(answer[2], ResponseError) for _, answer in outcomes)


@virtual
async def test_an_error_reply_is_raised_and_the_server_that_loads_again_says_so() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        await fails(ResponseError, server.link, command("FAIL", "ERR no"))
        scripted.loading_until = 5
        await fails(BusyLoadingError, server.link, command("INCR", "n"))
        assert len(scripted.sessions) == 1
