"""A link in trouble, in virtual time: failovers amid a search, and answers of another kind."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import hiredis
import pytest
import trio
from redis.backoff import AbstractBackoff
from redis.exceptions import AskError, DataError, InvalidResponse, ResponseError
from trio.testing import wait_all_tasks_blocked

from tests.redis.scripted import (
    Refusal,
    ScriptedServer,
    command,
    link_settings,
    open_client,
    open_scripted,
    open_server,
    virtual,
)
from tests.redis.scripted_cluster import open_scripted_cluster
from tests.redis.whereabouts import NEW, OLD, Whereabouts
from trio_orchestrator.redis import LinkError, open_redis
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.wire import NOTHING, reply_error

REFUSED = ConnectionRefusedError("nobody listens")


# ---------------------------------------------------------------------------------------------- a failover


@virtual
async def test_a_failover_interrupts_the_search_beside_a_doubted_connection() -> None:
    where = Whereabouts()
    async with open_scripted() as scripted:
        connector = where.connector(scripted)
        async with open_server(scripted, connector=connector) as server:
            scripted.session.stall()
            scripted.connect_delay = 3
            with pytest.raises(CallTimeoutError):
                await server.link.call(command("INCR", "n"))
            await trio.sleep(1)
            assert server.link.statistics().doubted
            where.address = NEW
            server.link.drop(EOFError("the master is another"))
            await trio.sleep(3.5)
            assert scripted.dials == [0, 2, 3]
            assert server.link.statistics().address == str(NEW)
            assert server.link.statistics().connections == 2


@pytest.mark.parametrize("how", ["drop", "renew"])
@virtual
async def test_a_failover_interrupts_a_dedicated_connection_that_is_being_made(how: str) -> None:
    where = Whereabouts()
    async with open_scripted() as scripted:
        async with open_server(scripted, connector=where.connector(scripted)) as server, trio.open_nursery() as nursery:
            scripted.connect_delay = 3
            found: list[tuple[float, Address]] = []

            async def take() -> None:
                async with server.leases.lease() as connection:
                    found.append((trio.current_time(), connection.address))

            nursery.start_soon(take)
            await trio.sleep(1)
            where.address = NEW
            server.leases.renew() if how == "renew" else server.leases.drop(EOFError("the master is another"))
            await trio.sleep(4)
            assert (scripted.dials, found) == ([0, 0, 1], [(4, NEW)])


@virtual
async def test_a_dedicated_connection_that_became_ready_in_the_very_step_of_a_failover_is_not_used() -> None:
    where = Whereabouts()
    async with open_scripted() as scripted:
        async with open_server(scripted, connector=where.connector(scripted)) as server:

            def fail_over(_address: Address) -> bool:
                if where.address == OLD:
                    where.address = NEW
                    server.leases.renew()
                return True

            where.still = fail_over
            async with server.leases.lease() as connection:
                assert connection.address == NEW
            await wait_all_tasks_blocked()
            assert [end.closed for end in scripted.ends] == [False, True, False]


@virtual
async def test_a_connection_that_became_ready_in_the_very_step_of_a_failover_is_not_used() -> None:
    where = Whereabouts()
    async with open_scripted() as scripted:
        async with open_server(scripted, connector=where.connector(scripted)) as server:

            def fail_over(_address: Address) -> bool:
                if where.address == OLD:
                    where.address = NEW
                    server.link.drop(EOFError("the master is another"))
                return True

            where.still = fail_over
            await trio.sleep(2)
            scripted.kill()
            await trio.sleep(2)
            assert server.link.statistics().address == str(NEW)


# -------------------------------------------------------------------------------- what cannot be understood

ODD_ERRORS = ["ASK me later", "MOVED x", "MOVED 1 nowhere", "ASK", "MOVED", "MOVED x y:z", "ASK 1 :"]


@pytest.mark.parametrize("text", [*ODD_ERRORS, "TRYAGAIN", "", "-", "MASTERDOWN"])
def test_any_text_of_an_error_makes_an_error(text: str) -> None:
    error = reply_error(text)
    assert isinstance(error, ResponseError)


def test_a_redirection_is_still_one() -> None:
    error = reply_error("ASK 7 host:1")
    assert isinstance(error, AskError)
    assert error.args[0] == "7 host:1"


@pytest.mark.parametrize("text", ["ASK me later", "MOVED x"])
@virtual
async def test_an_error_that_begins_like_a_redirection_ends_its_own_call_only(text: str) -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted._do_nested = lambda _session: [b"a", Refusal(text), [Refusal(text)]]  # type: ignore[attr-defined]
        with pytest.raises(ResponseError, match=text):
            await server.link.call(command("FAIL", text))
        first, error, (inner,) = await server.link.call(command("NESTED"))
        assert (first, str(error), str(inner)) == (b"a", text, text)
        assert isinstance(error, ResponseError)
        assert isinstance(inner, ResponseError)
        assert server.link.statistics().connections == 1


def broken_reader() -> hiredis.Reader:
    """Return a reader that raises something odd where an error reply comes."""

    def raises(text: str) -> Exception:
        raise KeyError(text)

    return hiredis.Reader(protocolError=InvalidResponse, replyError=raises, notEnoughData=NOTHING)


@virtual
async def test_what_cannot_be_made_a_reply_costs_the_connection_and_nothing_else() -> None:
    async with open_scripted() as scripted, open_server(scripted, reader=broken_reader) as server:
        await trio.sleep(2)
        with pytest.raises(LinkError, match=r"a reply could not be read: KeyError\('ERR odd'\)") as caught:
            await server.link.call(command("FAIL", "ERR odd"))
        assert caught.value.sent
        assert await server.link.call(command("ECHO", "x")) == b"x"
        assert server.link.statistics().connections == 2


# ------------------------------------------------------------------------------------- commands without a name

NAMELESS: list[tuple[Any, ...]] = [(" ",), (b"  ",), (), (None,), (5,), (bytearray(b"GET"), "a"), (["GET"], "a")]


@pytest.mark.parametrize("how", ["client", "post", "pipeline", "transaction", "dedicated", "watch"])
@virtual
async def test_a_command_without_a_name_is_refused_before_anything_is_sent(how: str) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        async with redis.dedicated() as own, redis.watch() as tx:
            executors: dict[str, Any] = {"client": redis, "dedicated": own, "watch": tx}
            pipes = {"pipeline": redis.pipeline(), "transaction": redis.pipeline(True)}
            seen = len(scripted.seen)
            for args in NAMELESS:
                with pytest.raises(DataError, match="must begin with its name"):
                    if how == "post":
                        redis.post(*args)
                    elif how in pipes:
                        _ = pipes[how].execute_command(*args)
                    else:
                        await executors[how].execute_command(*args)
            assert not any(map(len, pipes.values()))
            assert await redis.echo("in step") == b"in step"
            assert scripted.seen[seen:] == [(b"ECHO", b"in step")]


@virtual
async def test_a_cluster_refuses_a_command_without_a_name() -> None:
    async with open_scripted_cluster(1) as scripted, scripted.open() as cluster:
        pipe = cluster.pipeline()
        seen = len(scripted.servers[0].seen)
        for args in NAMELESS:
            with pytest.raises(DataError, match="must begin with its name"):
                await cluster.execute_command(*args)
            with pytest.raises(DataError, match="must begin with its name"):
                cluster.post(*args)
            with pytest.raises(DataError, match="must begin with its name"):
                _ = pipe.execute_command(*args)
        assert await cluster.set("key", "in step") is True
        assert scripted.servers[0].seen[seen:] == [(b"SET", b"key", b"in step")]


# ------------------------------------------------------------------------------------------- odd greetings

ODD_GREETINGS: list[Any] = ["OK", 1, [], None, {b"server": b"redis", b"version": 7}, {b"server": None}]


def greet_with(scripted: ScriptedServer, answer: Any) -> None:
    """Have a server answer this to HELLO."""
    scripted._do_hello = lambda *_args: answer  # type: ignore[method-assign]


@pytest.mark.parametrize("answer", ODD_GREETINGS, ids=repr)
@virtual
async def test_an_odd_greeting_at_entry_is_an_error_of_the_link(answer: Any) -> None:
    async with open_scripted() as scripted:
        greet_with(scripted, answer)
        with pytest.raises(LinkError, match="scripted:6379 cannot be spoken with as a Redis server"):
            async with open_server(scripted):
                raise AssertionError
        await wait_all_tasks_blocked()
        scripted.check_closed()


@pytest.mark.parametrize("answer", ODD_GREETINGS, ids=repr)
@virtual
async def test_an_odd_greeting_later_is_a_failed_attempt(answer: Any) -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=5) as server:
        usual = scripted._do_hello
        await trio.sleep(2)
        greet_with(scripted, answer)
        scripted.kill()
        await trio.sleep(1.5)
        scripted._do_hello = usual  # type: ignore[method-assign]
        assert await server.link.call(command("INCR", "n")) == 1
        assert scripted.dials == [0, 2, 3, 4]


@pytest.mark.parametrize("version", ["", "unstable"])
@virtual
async def test_a_server_of_another_name_may_say_any_version(version: str) -> None:
    async with open_scripted() as scripted:
        scripted.product, scripted.version = "other", version
        async with open_server(scripted) as server:
            assert await server.link.call(command("INCR", "n")) == 1


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".com"])
async def test_a_host_that_is_no_name_is_an_error_of_the_link(host: str) -> None:
    with pytest.raises(LinkError, match="cannot be spoken with as a Redis server"):
        async with open_redis(f"redis://{host}:1"):
            raise AssertionError


# ------------------------------------------------------------------------------------------------ pauses


class Computed(AbstractBackoff):
    """A backoff that computes whatever it is told to."""

    def __init__(self, compute: Callable[[int], Any]) -> None:
        self._compute = compute

    def compute(self, failures: int) -> Any:
        return self._compute(failures)


ODD_PAUSES: list[Callable[[int], Any]] = [
    lambda _failures: math.nan,
    lambda _failures: -0.001,
    lambda _failures: -math.inf,
    lambda _failures: None,
    lambda failures: 1 / (failures - failures),
    lambda _failures: "soon",
]


@pytest.mark.parametrize("compute", ODD_PAUSES)
def test_a_backoff_that_errs_is_told_and_replaced(
    compute: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert link_settings(reconnect=Computed(compute)).pause(0) == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the pause that reconnect=" in caplog.text


@pytest.mark.parametrize("seconds", [0, 0.5, 7])
def test_a_backoff_that_is_right_is_obeyed(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def compute(failures: int) -> float:
        asked.append(failures)
        return seconds

    settings = link_settings(reconnect=Computed(compute))
    assert [settings.pause(5), settings.pause(10**6)] == [seconds, seconds]
    assert asked == [5, 64]
    assert caplog.records == []


@pytest.mark.parametrize("compute", ODD_PAUSES[:5])
@virtual
async def test_a_link_goes_on_with_a_backoff_that_errs(compute: Callable[[int], Any]) -> None:
    async with (
        open_scripted() as scripted,
        open_server(scripted, reconnect=Computed(compute), command_timeout=10) as server,
    ):
        await trio.sleep(2)
        scripted.down = REFUSED
        scripted.kill()
        await trio.sleep(4)
        scripted.down = None
        assert await server.link.call(command("INCR", "n")) == 1
        assert scripted.dials == [0, 2, 5, 8]
