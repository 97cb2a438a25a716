"""Everything that waits on a link, cancelled at each of its checkpoints under several schedules: nothing is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest
import trio
from trio.lowlevel import Task

from tests.redis.scripted import ScriptedServer, batch, command, open_scripted, open_server
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.server import Server
from trio_orchestrator.testing import CancelAt, cancelled_everywhere

SEEDS: Final = range(3)
Act = Callable[[ScriptedServer, Server], Awaitable[None]]
ACTS: dict[str, Act] = {}


def act(fn: Act) -> Act:
    """Register what is cancelled in the block of a link, which has to serve others afterwards."""
    ACTS[fn.__name__] = fn
    return fn


@act
async def calls_one_behind_the_other(scripted: ScriptedServer, server: Server) -> None:
    for n in range(3):
        assert await server.link.call(command("ECHO", n)) == b"%d" % n
    assert await server.link.call(batch(("ECHO", "a"), ("ECHO", "b"))) == [b"a", b"b"]


@act
async def calls_at_once(scripted: ScriptedServer, server: Server) -> None:
    async def call(n: int) -> None:
        assert await server.link.call(command("ECHO", n)) == b"%d" % n

    async with trio.open_nursery() as nursery:
        for n in range(5):
            nursery.start_soon(call, n)


@act
async def calls_through_a_loss(scripted: ScriptedServer, server: Server) -> None:
    assert await server.link.call(command("ECHO", "a")) == b"a"
    scripted.kill()
    try:
        await server.link.call(command("ECHO", "b"))
    except LinkError as error:
        assert error.sent
    assert await server.link.call(command("ECHO", "c", resend=True)) == b"c"


@act
async def calls_through_an_outage(scripted: ScriptedServer, server: Server) -> None:
    scripted.down = ConnectionRefusedError()
    scripted.kill()
    try:
        await trio.sleep(0.5)
        server.link.post(command("ECHO", "posted"))
        with trio.move_on_after(1):
            await server.link.call(command("ECHO", "b"))
    finally:
        scripted.down = None
    assert await server.link.call(command("ECHO", "c")) == b"c"


@act
async def calls_while_the_server_is_doubted(scripted: ScriptedServer, server: Server) -> None:
    scripted.session.stall()
    try:
        with pytest.raises(LinkError):
            await server.link.call(command("ECHO", "a"))
    finally:
        scripted.session.stall(on=False)
    assert await server.link.call(command("ECHO", "b")) == b"b"


@act
async def calls_to_a_server_that_is_read_only(scripted: ScriptedServer, server: Server) -> None:
    until = len(scripted.sessions) + 1
    scripted.refuse = lambda words: "READONLY no" if words[0] == b"SET" and len(scripted.sessions) < until else None
    assert await server.link.call(command("SET", "a", "b")) == b"OK"


@act
async def a_lock_that_is_given_back_by_a_post(scripted: ScriptedServer, server: Server) -> None:
    try:
        await server.link.call(command("SET", "lock", "me", "NX"))
        await trio.sleep(1)
    finally:
        server.link.post(command("DEL", "lock"))


@act
async def leases(scripted: ScriptedServer, server: Server) -> None:
    for _ in range(2):
        async with server.leases.lease() as connection:
            assert await connection.call(command("ECHO", "mine")) == b"mine"


@act
async def leases_of_which_there_are_too_few(scripted: ScriptedServer, server: Server) -> None:
    async def lease(n: int) -> None:
        async with server.leases.lease() as connection:
            assert await connection.call(command("ECHO", n)) == b"%d" % n
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(lease, n)


def anybody(task: Task) -> bool:
    """Count everybody's suspensions."""
    return True


@pytest.mark.parametrize("name", ACTS)
def test_what_is_cancelled_on_a_link_leaves_it_as_it_was(name: str) -> None:
    async def run(injector: CancelAt) -> None:
        async with open_scripted() as scripted:
            scripted.latency = 0.125
            async with open_server(scripted, dedicated=2, command_timeout=5, max_in_flight=3) as server:
                with injector.watch():
                    await ACTS[name](scripted, server)
                await check_usable(scripted, server)

    assert cancelled_everywhere(run, seeds=SEEDS) >= len(SEEDS)


async def check_usable(scripted: ScriptedServer, server: Server) -> None:
    """Fail unless the link serves others, and nothing is left on it."""
    assert server.leases.used == 0
    assert server.leases.waiting == 0
    await trio.sleep(4)  # whatever was lost has been noticed
    before = len(scripted.ran("INCR"))
    for n in range(1, 4):
        assert await server.link.call(command("INCR", "after")) == n
    assert len(scripted.ran("INCR")) == before + 3
    async with server.leases.lease() as connection:
        assert await connection.call(command("ECHO", "after")) == b"after"
    await trio.sleep(6)
    assert server.link.outbox.used == 0
    assert server.link.statistics().in_flight == 0
    assert b"lock" not in scripted.data
    assert len([end for end in scripted.ends if not end.closed]) <= 3, "the link's, and two that are leased"


@pytest.mark.parametrize("latency", [0, 0.125])
@pytest.mark.parametrize("down_until", [0, 2])
def test_opening_using_and_leaving_a_link(latency: float, down_until: float) -> None:
    async def run(injector: CancelAt) -> None:
        async with open_scripted() as scripted, trio.open_nursery() as nursery:
            scripted.latency = latency
            if down_until:
                nursery.start_soon(come_up, scripted, down_until)
            with injector.watch():
                async with open_server(scripted, wait=10) as server:
                    assert await server.link.call(command("INCR", "n")) == 1
                    server.link.post(command("INCR", "n"))
            scripted.check_closed()
            if not injector.scope.cancelled_caught:
                assert len(scripted.ran("INCR")) == 2
            nursery.cancel_scope.cancel()

    assert cancelled_everywhere(run, seeds=SEEDS) >= 4 * len(SEEDS)
    assert cancelled_everywhere(run, seeds=range(1), want=anybody) > 10


async def come_up(scripted: ScriptedServer, after: float) -> None:
    """Refuse connections for some time."""
    scripted.down = ConnectionRefusedError()
    await trio.sleep(after)
    scripted.down = None


@pytest.mark.parametrize("latency", [0, 0.125])
def test_a_tree_that_is_cancelled_from_above_still_speaks_inside(latency: float) -> None:
    async def run(injector: CancelAt) -> None:
        entered = False
        async with open_scripted() as scripted:
            scripted.latency = latency
            with injector.watch():
                async with open_server(scripted) as server, trio.open_nursery() as nursery:
                    entered = True
                    nursery.start_soon(trio.sleep, 1)
                    try:
                        await server.link.call(command("SET", "lock", "me", "NX"))
                        await trio.sleep(1)
                    finally:
                        with trio.CancelScope(shield=True):
                            assert await server.link.call(command("INCR", "goodbye")) == 1
                        server.link.post(command("DEL", "lock"))
            scripted.check_closed()
            assert len(scripted.ran("INCR", "goodbye")) == entered
            assert len(scripted.ran("DEL", "lock")) == entered
            assert scripted.data.keys() <= {b"goodbye"}

    assert cancelled_everywhere(run, seeds=SEEDS) >= 5 * len(SEEDS)
    assert cancelled_everywhere(run, seeds=range(1), want=anybody) > 20


def test_an_error_of_the_block_comes_out_bare_wherever_it_is_cancelled() -> None:
    async def run(injector: CancelAt) -> None:
        error = ValueError()
        async with open_scripted() as scripted:
            scripted.latency = 0.125
            with injector.watch():
                try:
                    async with open_server(scripted) as server:
                        await server.link.call(command("INCR", "n"))
                        server.link.post(command("INCR", "n"))
                        raise error
                except ValueError as caught:
                    assert caught is error
                    assert error.__context__ is None
            scripted.check_closed()

    assert cancelled_everywhere(run, seeds=range(1), want=anybody) > 20
