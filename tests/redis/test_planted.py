"""What planted bugs of the Redis client have shown to be tested nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from redis.exceptions import ReadOnlyError
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from tests.redis.scripted import ADDRESS, batch, command, open_client, open_scripted, open_server, virtual
from tests.redis.scripted_commands import teach
from trio_orchestrator.abc import Instrument
from trio_orchestrator.redis import LinkError
from trio_orchestrator.redis.connection import Connection, ignore_push
from trio_orchestrator.redis.conversation import Conversation
from trio_orchestrator.redis.pipe import StreamPipe
from trio_orchestrator.redis.wire import reader
from trio_orchestrator.redis_event import RedisReady


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("missing", [0, 1, 5])
def test_a_call_has_been_sent_with_its_last_byte_and_one_of_several_parts_with_its_first(
    atomic: bool, missing: int
) -> None:
    conversation = Conversation(reader(), ignore_push)
    before, call, behind = command("ECHO", "before"), batch(("INCR", "a"), ("INCR", "b")), command("ECHO", "behind")
    call.atomic = atomic
    conversation.write([before, call, behind])
    conversation.took(len(before.data) + len(call.data) - missing)
    unsent, sent = conversation.end()
    assert (call in sent) is (missing == 0 or not atomic)
    assert (before in sent, behind in unsent) == (True, True)


@virtual
async def test_a_piece_of_a_stream_counts_as_sent_as_soon_as_it_is_handed_over() -> None:
    ours, theirs = lockstep_stream_pair()
    connection = Connection(StreamPipe(ours), ADDRESS, reader())

    async def call() -> None:
        with pytest.raises(LinkError) as caught:
            await connection.call(command("INCR", "n"))
        assert caught.value.sent

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        nursery.start_soon(call)
        assert len(await theirs.receive_some(5)) == 5
        await theirs.aclose()


@virtual
async def test_a_call_that_is_abandoned_before_it_is_sent_never_runs() -> None:
    async with open_scripted() as scripted, open_server(scripted) as server:
        scripted.down = ConnectionRefusedError()
        scripted.kill()
        await trio.sleep(0.5)
        with trio.move_on_after(0.1):
            await server.link.call(command("INCR", "n"))
        scripted.down = None
        assert await server.link.call(command("ECHO", "x")) == b"x"
        assert scripted.ran("INCR") == []


@virtual
async def test_what_is_said_as_a_connection_becomes_ready_comes_behind_what_has_waited() -> None:
    class Greeter(Instrument):
        def redis_ready(self, event: RedisReady) -> None:
            if len(scripted.sessions) == 2:
                server.link.post(command("APPEND", "log", "2"))

    async with open_scripted() as scripted, open_server(scripted, instruments=[Greeter()]) as server:
        scripted.down = ConnectionRefusedError()
        scripted.kill()
        await trio.sleep(0.5)
        scripted.down = None
        assert await server.link.call(command("APPEND", "log", "1")) == 1
        assert await server.link.call(command("GET", "log")) == b"12"


@virtual
async def test_what_was_posted_and_not_sent_comes_before_the_calls_on_the_next_connection() -> None:
    async with open_scripted() as scripted:
        scripted.exact = True
        async with open_server(scripted) as server, trio.open_nursery() as nursery:
            scripted.full = True
            nursery.start_soon(server.link.call, command("APPEND", "log", "call"))
            await wait_all_tasks_blocked()
            server.link.post(command("APPEND", "log", "post"))
            await wait_all_tasks_blocked()
            scripted.full = False
            scripted.kill()
        assert scripted.data == {b"log": b"postcall"}


@virtual
async def test_a_refusal_from_a_server_that_was_left_already_leaves_no_other() -> None:
    async with open_scripted() as scripted, open_server(scripted, command_timeout=9) as server:
        scripted.refuse = lambda words: "READONLY no" if words[0] == b"SET" and len(scripted.sessions) == 1 else None
        scripted.latency = 1
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.link.call, command("SET", "a", "1"))
            await trio.sleep(0.5)
            nursery.start_soon(server.link.call, command("SET", "b", "2"))
            await trio.sleep(0.1)
            scripted.latency = 0
        await trio.sleep(5)
        assert scripted.data == {b"a": b"1", b"b": b"2"}
        assert len(scripted.sessions) == 2


@virtual
async def test_idle_connections_to_a_server_that_is_read_only_are_not_kept() -> None:
    async with open_scripted() as scripted:
        teach(scripted)
        async with open_client(scripted) as redis:
            async with redis.dedicated() as one, redis.dedicated() as other:
                assert [await one.echo("1"), await other.echo("2")] == [b"1", b"2"]
            scripted.refuse = lambda words: "READONLY no" if words[0] == b"SET" else None
            with pytest.raises(ReadOnlyError):
                async with redis.dedicated() as one:
                    await one.set("key", "value")
            await trio.sleep(1)
            assert [session.number for session in scripted.sessions[1:3] if session.alive] == []


@virtual
async def test_a_pipeline_of_which_one_command_writes_is_not_repeated() -> None:
    async with open_scripted() as scripted:
        teach(scripted)
        async with open_client(scripted) as redis:
            scripted.kill_after = lambda words: words[0] == b"INCRBY"
            pipe: Any = redis.pipeline()
            with pytest.raises(LinkError) as caught:
                await pipe.get("key").incr("n").execute()
            assert caught.value.sent
            scripted.kill_after = lambda words: False
            assert await redis.get("n") == b"1"
