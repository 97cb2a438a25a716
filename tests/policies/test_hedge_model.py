"""Drawn latencies, failures, budgets and schedules against a model: who wins, when, and how many copies ran."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.service import Purse
from trio_orchestrator.policies.hedge import Hedge, HedgeStatistics
from trio_orchestrator.policies.race import Race
from trio_orchestrator.testing import run_virtual

T = TypeVar("T")


class Failed(Exception):
    """What a copy raises: `args` is its number."""


@dataclass(frozen=True)
class Plan:
    """What each copy does, in the order in which they start, and how many the budget lets start."""

    after: int
    copies: int
    coins: int
    latencies: list[float]  # odd and a bit, while `after` is even: no two starts or ends are in the same instant
    failing: list[bool]
    cleanups: list[int]


@dataclass
class Expected:
    starts: list[int] = field(default_factory=list)
    winner: int | None = None
    at: float = 0
    refused: int = 0


def expected(plan: Plan) -> Expected:
    """Play the call through, start by start."""
    found = Expected(starts=[0])
    while True:
        ends = [start + plan.latencies[n] for n, start in enumerate(found.starts)]
        answers = [end for n, end in enumerate(ends) if not plan.failing[n]]
        over = min(answers, default=max(ends))
        following = len(found.starts) * plan.after
        if len(found.starts) > plan.copies or following > over or found.refused:
            found.at = over
            found.winner = ends.index(over) if answers else None
            return found
        if len(found.starts) > plan.coins:
            found.refused = 1
        else:
            found.starts.append(following)


def unwound(plan: Plan, model: Expected) -> float:
    """Tell when the last loser has cleaned up."""
    losers = [n for n, start in enumerate(model.starts) if start + plan.latencies[n] > model.at]
    return model.at + max((plan.cleanups[n] for n in losers), default=0)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    copies = draw(st.integers(1, 5))

    def one_each(kind: st.SearchStrategy[T]) -> list[T]:
        return draw(st.lists(kind, min_size=copies + 1, max_size=copies + 1))

    return Plan(
        after=draw(st.sampled_from([2, 4, 8])),
        copies=copies,
        coins=draw(st.integers(0, 6)),
        latencies=[2 * half + 1 + n / 16 for n, half in enumerate(one_each(st.integers(0, 20)))],
        failing=one_each(st.booleans()),
        cleanups=one_each(st.sampled_from([0, 0, 3])),
    )


@dataclass
class Body:
    plan: Plan
    starts: list[float] = field(default_factory=list)
    inside: int = 0

    async def __call__(self) -> int:
        number = len(self.starts)
        self.starts.append(trio.current_time())
        self.inside += 1
        try:
            await trio.sleep(self.plan.latencies[number])
            if self.plan.failing[number]:
                raise Failed(number)
            return number
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.plan.cleanups[number])
            raise
        finally:
            self.inside -= 1


@given(plan=plans(), seed=st.integers(0, 2**16))
def test_the_call_ends_as_the_model_says(plan: Plan, seed: int) -> None:
    model, body, purse = expected(plan), Body(plan), Purse(plan.coins)
    hedge = Hedge(after=plan.after, copies=plan.copies, budget=purse)

    async def main() -> float:
        try:
            winner = await hedge.call(body)
        except Failed as error:
            assert model.winner is None
            assert error.args == (0,)
            assert error.__context__ is None
        else:
            assert winner == model.winner
        assert body.inside == 0
        return trio.current_time()

    assert run_virtual(main, seed=seed) == unwound(plan, model)
    assert body.starts == model.starts
    assert len(purse.deposits) == (model.winner is not None)
    copies = len(model.starts) - 1
    statistics = hedge.statistics()
    assert (statistics.copies, statistics.hedged, statistics.refused) == (copies, min(copies, 1), model.refused)
    assert len(purse.asked) == copies + model.refused
    assert (statistics.in_flight, statistics.running, statistics.late_failures) == (0, 0, 0)
    assert hedge.is_idle


@given(drawn=st.lists(plans(), min_size=1, max_size=20), seed=st.integers(0, 2**16))
def test_failsafe_go_136_one_hedge_is_shared_by_tasks(drawn: list[Plan], seed: int) -> None:
    """Calls side by side neither see nor disturb each other."""
    hedge = Hedge(after=2, copies=1)
    won = 0

    async def one(plan: Plan) -> None:
        nonlocal won
        plan = Plan(2, 1, 9, plan.latencies, plan.failing, plan.cleanups)
        model, body = expected(plan), Body(plan)
        try:
            winner = await hedge.call(body)
        except Failed:
            assert model.winner is None
        else:
            assert winner == model.winner
            won += winner
        assert body.inside == 0
        assert body.starts == model.starts

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for plan in drawn:
                nursery.start_soon(one, plan)

    run_virtual(main, seed=seed)
    statistics = hedge.statistics()
    assert (statistics.calls, statistics.in_flight, statistics.running) == (len(drawn), 0, 0)
    assert statistics.won_by_copy == won


@given(ends=st.lists(st.integers(0, 3), min_size=2, max_size=6), seed=st.integers(0, 2**16))
def test_whatever_happens_in_the_same_instant_one_wins_and_all_are_awaited(ends: list[int], seed: int) -> None:
    """Copies start and end at the same times: any order is right, but all counts agree."""
    hedge = Hedge(after=1, copies=len(ends) - 1)
    starts: list[float] = []
    inside = answers = 0

    async def body() -> int:
        nonlocal inside, answers
        assert not answers  # a copy that has lost before its first step never calls the function
        number = len(starts)
        starts.append(trio.current_time())
        inside += 1
        try:
            await trio.sleep(ends[number])
            answers += 1
            return number
        finally:
            inside -= 1

    async def main() -> None:
        winner = await hedge.call(body)
        assert trio.current_time() == min(n + ends[n] for n in range(len(ends)) if n < len(starts))
        assert trio.current_time() == starts[winner] + ends[winner]
        assert inside == 0

    run_virtual(main, seed=seed)
    statistics = hedge.statistics()
    assert len(starts) <= 1 + statistics.copies <= len(starts) + 1
    assert (statistics.in_flight, statistics.running, statistics.late_failures) == (0, 0, 0)


def test_failsafe_go_134_ten_thousand_calls_leave_nothing() -> None:
    hedge = Hedge(after=1)
    results: list[weakref.ref[object]] = []

    class Result:
        pass

    async def body(turn: list[int]) -> Result:
        turn.append(1)
        if len(turn) == 2:
            result = Result()
            results.append(weakref.ref(result))
            return result
        await trio.sleep(3)
        raise OSError

    async def main() -> None:
        for _ in range(100):
            await hedge.call(body, [])
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10_000):
            await hedge.call(body, [])
        results.clear()
        gc.collect()
        assert len(gc.get_objects()) - before < 100
        assert trio.lowlevel.current_task().child_nurseries == []

    run_virtual(main)
    assert hedge.statistics() == HedgeStatistics(10_100, 0, 0, 10_100, 10_100, 10_100, 0, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_errors_are_freed_without_the_garbage_collector(fails: bool) -> None:
    class Big(Exception):
        pass

    dead: list[weakref.ref[Big]] = []

    async def body(turn: list[int]) -> None:
        turn.append(1)
        if fails or len(turn) == 1:
            await trio.sleep(2)
            error = Big()
            dead.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error
        await trio.sleep(2)

    async def main() -> None:
        try:
            await Hedge(after=1).call(body, [])
        except Big:
            assert fails
        assert [ref() for ref in dead] == [None] * len(dead)
        assert len(dead) == 1 + fails
        assert not [found for found in gc.get_objects() if isinstance(found, Race)]

    gc.collect()
    gc.disable()
    try:
        run_virtual(main)
    finally:
        gc.enable()
