"""The same calls on `redis.asyncio` over asyncio and on our client over Trio, on the same server: the same answers."""

from __future__ import annotations

import ast
import asyncio
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import pytest
import redis.asyncio
import trio
from redis.exceptions import DataError

from tests.redis.calls import Case
from tests.redis.server_calls import CALLS
from trio_orchestrator.redis import open_redis
from trio_orchestrator.testing.server import RedisServer

OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "decoded": {"decode_responses": True},
    "unified": {"legacy_responses": False},
    "unified-decoded": {"legacy_responses": False, "decode_responses": True},
    "resp3": {"protocol": 3},
}

Answers = dict[str, Any]


@final
@dataclass(frozen=True)
class Run:
    """What both clients have answered, by the call."""

    theirs: Answers
    ours: Answers

    def answered(self) -> dict[str, Any]:
        return {name: answer for name, answer in self.theirs.items() if not is_unknown(answer)}


async def ask_all(client: Any) -> Answers:
    answers: Answers = {}
    for case in CALLS:
        try:
            answers[str(case)] = await case.call(client)
        except Exception as error:
            answers[str(case)] = error
    return answers


async def ask_theirs(url: str, options: Mapping[str, Any]) -> Answers:
    async with redis.asyncio.Redis.from_url(url, **options) as client:
        return await ask_all(client)


async def ask_ours(url: str, options: Mapping[str, Any]) -> Answers:
    named = {name: value for name, value in options.items() if name != "protocol"}
    query = "?protocol=3" if "protocol" in options else ""
    async with open_redis(url + query, allow_keys=True, **named) as client:
        return await ask_all(client)


COMMANDS: Final = "FLUSHALL|SCRIPT FLUSH|FUNCTION FLUSH|CONFIG RESETSTAT|SLOWLOG RESET|LATENCY RESET|ACL LOG RESET"


def prepare(server: RedisServer) -> None:
    """The same start for both."""
    for command in COMMANDS.split("|"):
        server.command(*command.split())


@contextmanager
def hasty(server: RedisServer) -> Iterator[None]:
    """What blocks with a time-out is looked after so many times a second, and by default only ten times."""
    hz = server.info("server")["configured_hz"]
    server.command("CONFIG", "SET", "hz", 500)
    yield
    server.command("CONFIG", "SET", "hz", hz)


@pytest.fixture(scope="module")
def runs(redis_server: RedisServer) -> dict[str, Run]:
    found = {}
    with warnings.catch_warnings(), hasty(redis_server):
        warnings.simplefilter("ignore", DeprecationWarning)  # redis-py's, of some methods
        for name, options in OPTIONS.items():
            prepare(redis_server)
            theirs = asyncio.run(ask_theirs(redis_server.url, options))
            prepare(redis_server)
            found[name] = Run(theirs, trio.run(ask_ours, redis_server.url, options))
    return found


# ---------------------------------------------------------------------------------------------- comparison


def exact(value: Any) -> Any:
    """Return something that is equal for two answers only if they are of the same types, throughout."""
    if isinstance(value, DataError):
        return type(value)  # of what is never sent, each says it in its own words
    if isinstance(value, BaseException):
        return type(value), text(value)
    if isinstance(value, dict):
        return type(value), [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exact(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(exact(item) for item in value)
    return type(value), "nan" if value != value else value


def text(error: BaseException) -> str:
    """Return the text of an error. Of one in a pipeline redis-py shows it as a tuple, we as it is."""
    head, caused, cause = str(error).partition(" of pipeline caused error: ")
    return head + caused + (ast.literal_eval(cause)[0] if cause.startswith("(") else cause)


def shape(value: Any) -> Any:
    """Return what two answers have in common that depend on the time, on chance, or on the state of the server."""
    if isinstance(value, BaseException):
        return exact(value)
    if isinstance(value, dict):
        return type(value), [(exact(key), shape(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(item) for item in value]
    return type(value)


def is_unknown(answer: Any) -> bool:
    """Return whether the server does not know the command, being too old or another one."""
    return isinstance(answer, Exception) and str(answer).lower().startswith("unknown command")


def is_structured(answer: Any) -> bool:
    """Return whether an answer is a map, a set, a double, null, an error, or an array with any of these or an array."""
    if isinstance(answer, (list, tuple)):
        return any(isinstance(item, (list, tuple)) or is_structured(item) for item in answer)
    return answer is None or isinstance(answer, (dict, set, float, Exception))


# --------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_the_answers_are_those_of_redis_py(runs: dict[str, Run], case: Case) -> None:
    compare = exact if case.exact else shape
    for options, run in runs.items():
        assert (options, compare(run.ours[str(case)])) == (options, compare(run.theirs[str(case)]))


@pytest.mark.parametrize("options", OPTIONS)
def test_enough_is_compared(runs: dict[str, Run], options: str) -> None:
    run = runs[options]
    answered = run.answered()
    structured = sum(map(is_structured, answered.values()))
    groups = {name.split(":")[0] for name in answered}
    print(f"{options}: {len(answered)} answers, {structured} structured; {len(CALLS) - len(answered)} unknown here")
    assert len({str(case) for case in CALLS}) == len(CALLS) == len(run.theirs) == len(run.ours)
    assert len(answered) >= 300
    assert structured >= 100
    assert len(groups) >= 14


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (b"a", "a"), ([1], (1,)), ({1}, [1]), ({1}, {True}), (None, False), (0.0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([[1]], [[True]]), ({"a": [b"x"]}, {"a": ["x"]}),
        (ValueError("a"), ValueError("b")), (ValueError("a"), TypeError("a")), (math.nan, math.inf),
    ],
)  # fmt: skip
def test_the_comparison_notices_every_difference(one: Any, other: Any) -> None:
    assert exact(one) == exact(one)
    assert exact(one) != exact(other)
