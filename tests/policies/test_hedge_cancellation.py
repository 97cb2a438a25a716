"""A cancellation, wherever it strikes, ends all copies; and what the guards inside a hedge learn from their end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio

from tests.policies.service import Purse
from trio_orchestrator.abc import Policy
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, SUCCESS, Judge, Verdict
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Guard(Policy):
    """What a circuit breaker does with a call: one verdict each."""

    def __init__(self) -> None:
        self.judge = Judge(OSError)
        self.verdicts: list[Verdict] = []
        self.inside = 0

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        self.inside += 1
        try:
            result = await fn(*args)
        except BaseException as error:
            self.judge.report(error, self.verdicts.append)
            raise
        else:
            self.verdicts.append(SUCCESS)
            return result
        finally:
            self.inside -= 1


class Body:
    """Each invocation sleeps as told; a cancelled one cleans up behind a shield first."""

    def __init__(self, *seconds: float, cleanup: float = 0) -> None:
        self.seconds = seconds
        self.cleanup = cleanup
        self.starts = self.inside = 0

    async def __call__(self) -> int:
        number = self.starts
        self.starts += 1
        self.inside += 1
        try:
            await trio.sleep(self.seconds[number] / 2)
            await trio.sleep(self.seconds[number] / 2)
            return number
        except trio.Cancelled:
            if self.cleanup:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.cleanup)
            raise
        finally:
            self.inside -= 1


def assert_rest(hedge: Hedge, body: Body, guard: Guard) -> None:
    statistics = hedge.statistics()
    assert (statistics.in_flight, statistics.running, statistics.late_failures) == (0, 0, 0)
    assert hedge.is_idle
    assert body.inside == guard.inside == 0
    assert len(guard.verdicts) == body.starts


# -------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("cleanup", [0, 0.25])
@pytest.mark.parametrize("everybody", [False, True])
def test_cancelled_at_every_checkpoint(everybody: bool, cleanup: float) -> None:
    async def scenario(injector: CancelAt) -> None:
        body, guard, hedge = Body(5, 5, 1, cleanup=cleanup), Guard(), Hedge(after=1, copies=2, budget=Purse(9))
        results: list[int] = []
        with injector.watch() as scope:
            results.append(await hedge.call(guard.call, body))
        assert_rest(hedge, body, guard)
        assert results in ([2], [])
        assert scope.cancelled_caught is (not results)
        assert guard.verdicts.count(SUCCESS) == len(results)
        assert guard.verdicts.count(NEUTRAL) == body.starts - len(results)
        if not injector.fired:
            assert results == [2]

    want: Any = (lambda task: True) if everybody else None
    assert cancelled_everywhere(scenario, seeds=range(5), want=want) >= 5 * (12 if everybody else 3)


@pytest.mark.parametrize("everybody", [False, True])
def test_failures_cancelled_at_every_checkpoint(everybody: bool) -> None:
    """A failure that came before the cancellation is superseded by it."""

    async def scenario(injector: CancelAt) -> None:
        guard, hedge, starts, inside = Guard(), Hedge(after=1, copies=2), 0, 0
        ended: list[str] = []
        error = OSError()

        async def body() -> None:
            nonlocal starts, inside
            starts += 1
            inside += 1
            try:
                await trio.sleep(1.5)
                raise error
            finally:
                inside -= 1

        with injector.watch() as scope:
            try:
                await hedge.call(guard.call, body)
            except OSError as caught:
                assert caught is error
                ended.append("failed")
        assert scope.cancelled_caught is (not ended)
        assert ended == ["failed"] or injector.fired
        assert inside == guard.inside == hedge.statistics().in_flight == hedge.statistics().running == 0
        assert len(guard.verdicts) == starts

    want: Any = (lambda task: True) if everybody else None
    cancelled_everywhere(scenario, seeds=range(5), want=want)


def test_a_cancellation_from_outside_is_awaited_and_not_grouped() -> None:
    body, guard, hedge = Body(9, 9, 9, cleanup=3), Guard(), Hedge(after=1, copies=2)

    async def main() -> None:
        with trio.move_on_after(2.5) as scope:
            try:
                await hedge.call(guard.call, body)
            except BaseException as error:
                assert type(error) is trio.Cancelled
                raise
        assert scope.cancelled_caught
        assert trio.current_time() == 5.5
        assert_rest(hedge, body, guard)

    run_virtual(main)
    assert guard.verdicts == [NEUTRAL] * 3


def test_a_failure_of_the_original_is_superseded_by_a_later_cancellation() -> None:
    async def body(turn: list[int]) -> None:
        turn.append(1)
        await trio.sleep(1.5 if len(turn) == 1 else 9)
        raise OSError

    async def main() -> None:
        with trio.move_on_after(3) as scope:
            await Hedge(after=1).call(body, [])
        assert scope.cancelled_caught

    run_virtual(main)


def test_a_result_is_returned_though_a_cancellation_arrives_while_losers_unwind() -> None:
    body, guard, hedge = Body(9, 1, cleanup=3), Guard(), Hedge(after=1)

    async def main() -> None:
        with trio.move_on_after(3) as scope:
            assert await hedge.call(guard.call, body) == 1
        assert trio.current_time() == 5
        assert not scope.cancelled_caught

    run_virtual(main)
    assert sorted(guard.verdicts, key=str) == [NEUTRAL, SUCCESS]


def test_a_copy_that_ignores_the_cancellation_still_wins() -> None:
    async def body(turn: list[int]) -> str:
        turn.append(1)
        if len(turn) == 1:
            await trio.sleep(9)
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        return "copy"

    async def main() -> None:
        with trio.move_on_after(2) as scope:
            assert await Hedge(after=1).call(body, []) == "copy"
        assert (trio.current_time(), scope.cancelled_caught) == (3, False)

    run_virtual(main)


@pytest.mark.parametrize("original", [True, False])
def test_what_is_raised_while_unwinding_after_a_cancellation(original: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The original's error comes out, as it would without a hedge; a copy's is logged."""
    caplog.set_level(logging.WARNING, "trio_orchestrator")
    hedge, error = Hedge(after=1), KeyError("while cleaning up")

    async def body(turn: list[int]) -> None:
        turn.append(1)
        mine = len(turn) == (1 if original else 2)
        try:
            await trio.sleep(9)
        finally:
            if mine:
                raise error

    async def main() -> None:
        found: list[BaseException] = []
        with trio.move_on_after(2) as scope:
            try:
                await hedge.call(body, [])
            except KeyError as caught:
                found.append(caught)
        assert found == ([error] if original else [])
        assert scope.cancelled_caught is not original

    run_virtual(main)
    assert hedge.statistics().late_failures == len(caplog.records) == (not original)


# ------------------------------------------------------------------------------------------------------ verdicts


def test_a_losers_end_is_neutral() -> None:
    guard, body = Guard(), Body(9, 9, 0.5)
    run_virtual(Hedge(after=1, copies=2).call, guard.call, body)
    assert guard.verdicts == [SUCCESS, NEUTRAL, NEUTRAL]


def test_a_time_out_of_ours_around_is_a_failure_of_every_copy() -> None:
    guard, body, hedge = Guard(), Body(9, 9, 9), Hedge(after=1, copies=2)

    async def main() -> None:
        with pytest.raises(trio.TooSlowError):
            await Timeout(2.5).call(hedge.call, guard.call, body)

    run_virtual(main)
    assert guard.verdicts == [FAILURE] * 3
    assert_rest(hedge, body, guard)


def test_a_time_out_of_ours_inside_is_a_failure_of_that_copy() -> None:
    guard, body, limit = Guard(), Body(9, 1), Timeout(1.75)
    assert run_virtual(lambda: Hedge(after=1).call(guard.call, limit.call, body)) == 1
    assert guard.verdicts == [FAILURE, SUCCESS]


def test_a_loser_is_neutral_though_a_time_out_further_out_fires_later() -> None:
    guard = Guard()

    async def block() -> None:
        await Hedge(after=1).call(guard.call, Body(9, 0.5))
        await trio.sleep(9)

    async def main() -> None:
        with pytest.raises(trio.TooSlowError):
            await Timeout(3).call(block)

    run_virtual(main)
    assert guard.verdicts == [SUCCESS, NEUTRAL]


def test_a_loser_is_neutral_though_the_time_out_fires_while_it_unwinds() -> None:
    guard, body = Guard(), Body(9, 0.5, cleanup=3)

    async def block() -> None:
        assert await Hedge(after=1).call(guard.call, body) == 1
        assert trio.current_time() == 4.5
        await trio.lowlevel.checkpoint()  # only here does the time-out strike

    async def main() -> None:
        with pytest.raises(trio.TooSlowError):
            await Timeout(3).call(block)

    run_virtual(main)
    assert guard.verdicts == [SUCCESS, NEUTRAL]


def test_attempts_that_time_out_are_failures_of_all_their_copies() -> None:
    guard, hedge = Guard(), Hedge(after=1)
    retry = Retry(on=(), attempts=2, attempt_timeout=3)

    async def main() -> None:
        with pytest.raises(trio.TooSlowError):
            await retry.call(hedge.call, guard.call, Body(9, 9, 9, 9))

    run_virtual(main)
    assert guard.verdicts == [FAILURE] * 4
    assert (hedge.statistics().calls, hedge.statistics().running) == (2, 0)


def test_a_guard_in_a_task_of_a_loser_is_neutral_too() -> None:
    guard = Guard()

    async def body(turn: list[int]) -> None:
        turn.append(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.call, trio.sleep, 9 if len(turn) == 1 else 1)

    run_virtual(lambda: Timeout(99).call(Hedge(after=1).call, body, []))
    assert guard.verdicts == [SUCCESS, NEUTRAL]


def test_100_concurrent_callers_each_with_a_loser() -> None:
    guard, hedge = Guard(), Hedge(after=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(hedge.call, guard.call, Body(9, 0.5 + n / 128))

    run_virtual(main)
    assert (guard.verdicts.count(SUCCESS), guard.verdicts.count(NEUTRAL), guard.inside) == (100, 100, 0)
    statistics = hedge.statistics()
    assert (statistics.calls, statistics.won_by_copy, statistics.in_flight, statistics.running) == (100, 100, 0, 0)
