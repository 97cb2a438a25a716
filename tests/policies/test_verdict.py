"""A time-out of ours, seen by a guard inside it as a mere cancellation, is a failure; somebody else's is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio

from tests.policies.service import AT_ONCE, Form, Service, three_forms
from trio_orchestrator.abc import Policy
from trio_orchestrator.block import settle_later
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Guard(Policy):
    """What a circuit breaker will be: counts failures, and what is neutral."""

    def __init__(self) -> None:
        self.failures = self.neutral = self.inside = 0

    def settle(self, failed: bool) -> None:
        self.failures += failed
        self.neutral += not failed

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        self.inside += 1
        try:
            return await fn(*args)
        except trio.Cancelled:
            settle_later(self.settle)
            raise
        except Exception:
            self.failures += 1
            raise
        finally:
            self.inside -= 1


async def hang() -> None:
    await trio.sleep_forever()


async def run_100(fn: Callable[[], Awaitable[Any]], kind: type[Exception] = trio.TooSlowError) -> None:
    async def run() -> None:
        with pytest.raises(kind):
            await fn()

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(run)


@three_forms
def test_100_hung_calls_under_attempt_timeout_are_100_failures(form: Form) -> None:
    guard = Guard()
    retry = Retry(on=OSError, attempts=1, attempt_timeout=3)
    run_virtual(run_100, lambda: form(retry, lambda: guard.call(hang)))
    assert (guard.failures, guard.neutral, guard.inside) == (100, 0, 0)


@three_forms
def test_every_attempt_that_timed_out_is_a_failure(form: Form) -> None:
    guard = Guard()
    retry = Retry(on=OSError, attempts=3, attempt_timeout=3, backoff=AT_ONCE)
    run_virtual(run_100, lambda: form(retry, lambda: guard.call(hang)))
    assert (guard.failures, guard.neutral) == (300, 0)


@three_forms
def test_the_total_time_out_is_a_failure_too(form: Form) -> None:
    guard = Guard()
    run_virtual(run_100, lambda: form(Retry(on=OSError, timeout=3), lambda: guard.call(hang)))
    assert (guard.failures, guard.neutral) == (100, 0)


def test_timeout_is_a_failure_wherever_it_stands() -> None:
    outside, inside = Guard(), Guard()
    run_virtual(run_100, lambda: Timeout(3).call(lambda: outside.call(hang)))
    run_virtual(run_100, lambda: inside.call(lambda: Timeout(3).call(hang)))
    assert (outside.failures, outside.neutral) == (100, 0)
    assert (inside.failures, inside.neutral) == (100, 0)


@three_forms
def test_100_hung_calls_under_the_users_own_scope_are_none(form: Form) -> None:
    guard = Guard()
    retry = Retry(on=OSError, attempt_timeout=30, timeout=60)

    async def run() -> None:
        with trio.fail_after(3):
            await form(retry, lambda: guard.call(hang))

    run_virtual(run_100, run)
    assert (guard.failures, guard.neutral) == (0, 100)


def test_of_two_time_outs_of_ours_the_one_that_fired_counts() -> None:
    for inner, outer in ((3, 30), (30, 3)):
        guard = Guard()
        retry = Retry(on=OSError, attempts=1, attempt_timeout=outer)
        limit = Timeout(inner)
        run_virtual(run_100, lambda: retry.call(lambda: limit.call(lambda: guard.call(hang))))
        assert (guard.failures, guard.neutral) == (100, 0)


def test_a_guard_between_two_time_outs_hears_of_the_outer_one() -> None:
    outer, inner = Guard(), Guard()
    retry = Retry(on=OSError, attempts=1, attempt_timeout=3)
    run_virtual(run_100, lambda: retry.call(lambda: outer.call(lambda: Timeout(30).call(lambda: inner.call(hang)))))
    assert (outer.failures, outer.neutral) == (100, 0)
    assert (inner.failures, inner.neutral) == (100, 0)


def test_a_user_scope_between_two_time_outs_of_ours_is_neutral_for_both() -> None:
    guard = Guard()

    async def run() -> None:
        async def body() -> None:
            with trio.move_on_after(3):
                await Timeout(30).call(lambda: guard.call(hang))
            raise OSError

        await Retry(on=(), attempt_timeout=60).call(body)

    run_virtual(run_100, run, OSError)
    assert (guard.failures, guard.neutral) == (0, 100)


def test_a_failure_and_a_success_are_settled_by_the_guard_itself() -> None:
    guard = Guard()
    retry = Retry(on=OSError, attempt_timeout=3, backoff=AT_ONCE)
    service = Service(OSError(), "fine")
    run_virtual(lambda: retry.call(lambda: guard.call(service)))
    assert (guard.failures, guard.neutral) == (1, 0)


def test_what_the_users_scope_ended_before_is_no_failure_when_our_time_out_fires_later() -> None:
    async def main() -> None:
        guard = Guard()

        async def body() -> None:
            for ended in range(1, 6):
                with trio.move_on_after(1):
                    await guard.call(trio.sleep_forever)
                assert guard.neutral == ended  # known at once: our time-out has not passed
            await trio.sleep_forever()

        with pytest.raises(trio.TooSlowError):
            await Timeout(10).call(body)
        assert (guard.failures, guard.neutral) == (0, 5)

    run_virtual(main)


def test_of_two_time_outs_the_outer_one_that_fired_is_found_past_the_inner_one_that_did_not() -> None:
    async def main() -> None:
        guard = Guard()
        with pytest.raises(trio.TooSlowError):
            await Timeout(3).call(Timeout(10).call, guard.call, trio.sleep_forever)
        assert (guard.failures, guard.neutral) == (1, 0)

    run_virtual(main)
