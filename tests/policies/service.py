"""A scripted dependency, the three forms of a retry, and listeners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import pytest
import trio

from trio_orchestrator.abc import Budget, Instrument
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.event import GaveUp, RetryScheduled
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.testing import run_virtual

AT_ONCE = Constant(0)


@final
class Service:
    """Answers each call with the next outcome, the last one for ever: an exception is raised, the rest is returned."""

    def __init__(self, *outcomes: object, seconds: float = 0) -> None:
        self.outcomes = outcomes
        self.seconds = seconds
        self.starts: list[float] = []

    async def __call__(self) -> Any:
        self.starts.append(trio.current_time())
        outcome = self.outcomes[min(len(self.starts), len(self.outcomes)) - 1]
        if self.seconds:
            await trio.sleep(self.seconds)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


Form = Callable[[Retry, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def by_call(retry: Retry, fn: Callable[[], Awaitable[Any]]) -> Any:
    return await retry.call(fn)


async def by_wrap(retry: Retry, fn: Callable[[], Awaitable[Any]]) -> Any:
    @retry.wrap
    async def wrapped() -> Any:
        return await fn()

    return await wrapped()


async def by_loop(retry: Retry, fn: Callable[[], Awaitable[Any]]) -> Any:
    async for attempt in retry:
        with attempt:
            return await fn()
    raise AssertionError("the loop ended without a result or an error")


FORMS: tuple[Form, ...] = (by_call, by_wrap, by_loop)


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


three_forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def outcome(form: Form, retry: Retry, service: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Return the result, or the exception, and the virtual time at which it came."""

    async def main() -> tuple[Any, float]:
        try:
            result = await form(retry, service)
        except Exception as error:
            return error, trio.current_time()
        return result, trio.current_time()

    return run_virtual(main)


class Purse(Budget):
    def __init__(self, coins: int) -> None:
        self.coins = coins
        self.asked: list[BaseException | None] = []
        self.deposits: list[int] = []

    def withdraw(self, error: BaseException | None) -> bool:
        self.asked.append(error)
        self.coins -= 1
        return self.coins >= 0

    def deposit(self, attempts: int) -> None:
        self.deposits.append(attempts)


class Ear(Instrument):
    def __init__(self) -> None:
        self.heard: list[RetryScheduled | GaveUp] = []

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        self.heard.append(event)

    def gave_up(self, event: GaveUp, /) -> None:
        self.heard.append(event)
