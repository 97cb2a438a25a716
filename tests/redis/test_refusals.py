"""What becomes of a command that a server refuses: once more on the master, and never twice if it may have run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from redis.exceptions import ReadOnlyError, ResponseError

from tests.redis.scripted import Refusal, ScriptedServer, Session, open_client, open_scripted, virtual
from tests.redis.scripted_cluster import open_scripted_cluster
from tests.redis.scripted_commands import teach
from trio_orchestrator.redis.error import CallTimeoutError


def refusing(scripted: ScriptedServer, name: str, text: str, sessions: float = math.inf) -> None:
    """Have a server refuse a command on the first so many connections."""

    def refuse(words: tuple[bytes, ...]) -> str | None:
        return text if words[0].decode().upper() == name and len(scripted.sessions) <= sessions else None

    scripted.refuse = refuse


def seen(scripted: ScriptedServer, name: str) -> int:
    """Return how often a command came in, executed or refused."""
    return sum(words[0].decode().upper() == name for words in scripted.seen)


@virtual
async def test_what_was_posted_to_a_server_that_is_read_only_is_posted_to_the_master() -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        await trio.sleep(2)
        refusing(scripted, "DEL", "READONLY no", sessions=1)
        scripted.data[b"lock"] = b"token"
        redis.post("DEL", "lock")
        await trio.sleep(1)
        assert scripted.data == {}
        assert redis.statistics().connections == 2


@virtual
async def test_what_every_server_refuses_is_posted_once_more_only() -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        await trio.sleep(2)
        refusing(scripted, "DEL", "READONLY no")
        redis.post("DEL", "lock")
        await trio.sleep(9)
        assert (seen(scripted, "DEL"), redis.statistics().connections) == (2, 2)


@virtual
async def test_what_is_refused_for_another_reason_is_not_posted_again() -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        await trio.sleep(2)
        refusing(scripted, "DEL", "NOPERM no")
        redis.post("DEL", "lock")
        await trio.sleep(9)
        assert (seen(scripted, "DEL"), redis.statistics().connections) == (1, 1)


def odd(error: ResponseError) -> bool:
    """Tell nothing: a function of a user's with a mistake in it."""
    raise KeyError(str(error))


@virtual
async def test_a_function_of_the_users_that_raises_about_a_post_costs_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_scripted() as scripted, open_client(scripted, reconnect_on=odd) as redis:
        refusing(scripted, "DEL", "NOPERM no")
        redis.post("DEL", "lock")
        assert await redis.echo("x") == b"x"
        assert redis.statistics().connections == 1
    assert "reconnect_on" in caplog.text


def is_wrong_type(error: ResponseError) -> bool:
    """Have another server looked for because of what a script may well have said itself."""
    return "WRONGTYPE" in str(error) or isinstance(error, ReadOnlyError)


@pytest.mark.parametrize("how", ["call", "post", "pipeline", "transaction"])
@pytest.mark.parametrize("name", ["EVAL", "EVALSHA", "FCALL", "eval"])
@virtual
async def test_a_script_that_failed_is_not_executed_again(name: str, how: str) -> None:
    async with open_scripted() as scripted, open_client(scripted, reconnect_on=is_wrong_type) as redis:
        await trio.sleep(2)
        upper = name.upper()
        setattr(scripted, f"_do_{upper.lower()}", lambda *_args: Refusal("WRONGTYPE no list, script: 1"))
        await speak(redis, how, name)
        assert seen(scripted, upper) == 1
        assert redis.statistics().connections == 2  # another server was looked for all the same


@pytest.mark.parametrize("how", ["call", "post", "pipeline", "transaction"])
@virtual
async def test_a_script_that_a_replica_refused_goes_to_the_master(how: str) -> None:
    async with open_scripted() as scripted, open_client(scripted, reconnect_on=is_wrong_type) as redis:
        teach(scripted)
        await trio.sleep(2)
        execute = scripted._do_eval  # type: ignore[attr-defined]

        def evaluate(session: Session, *args: bytes) -> Any:
            return execute(session, *args) if session.number else Refusal("READONLY no")

        scripted._do_eval = evaluate  # type: ignore[attr-defined]
        await speak(redis, how, "EVAL")
        assert scripted.data == {b"n": b"1"}


async def speak(redis: Any, how: str, name: str) -> None:
    """Have a script executed in one of the ways; take no notice of what it is answered."""
    if how == "post":
        redis.post(name, "text", 1, "n")
    elif how == "call":
        await quietly(redis.execute_command(name, "text", 1, "n"))
    else:
        pipe = redis.pipeline(how == "transaction")
        pipe.execute_command(name, "text", 1, "n")
        await pipe.execute(raise_on_error=False)
    await trio.sleep(1)


async def quietly(call: Any) -> None:
    """Wait for something that the server may refuse."""
    try:
        await call
    except ResponseError:
        await trio.lowlevel.checkpoint()


@virtual
async def test_a_cluster_executes_a_script_that_failed_once() -> None:
    options: dict[str, Any] = {"reconnect_on": is_wrong_type}
    async with open_scripted_cluster(1) as scripted, scripted.open(**options) as cluster:
        server = scripted.servers[0]
        refusing(server, "EVAL", "WRONGTYPE no list, script: 1")
        await speak(cluster, "call", "EVAL")
        assert seen(server, "EVAL") == 1
        pipe: Any = cluster.pipeline()
        pipe.execute_command("EVAL", "text", 1, "n")
        await pipe.execute(raise_on_error=False)
        assert seen(server, "EVAL") == 2


@virtual
async def test_a_script_whose_text_must_be_sent_has_one_time_for_both() -> None:
    async with open_scripted() as scripted, open_client(scripted, command_timeout=2, silent_after=9) as redis:
        teach(scripted)
        scripted.takes_long = lambda words: 1.5 if words[0].startswith(b"EVAL") else 0
        with pytest.raises(CallTimeoutError) as caught:
            await redis.register_script("text")(keys=["n"])
        assert trio.current_time() == 2
        assert (caught.value.after, caught.value.sent) == (2, True)
