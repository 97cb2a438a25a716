"""Any policies in any order, with limits that do refuse, under any load: what each promises holds in the body."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.layers import (
    BUDGETS,
    LAYERS,
    LONG,
    SECONDS,
    SUBSTITUTE,
    Boom,
    Circuits,
    Copies,
    Gauge,
    Layer,
    Repeats,
    as_caller,
    check_budget,
)
from trio_orchestrator.abc import Budget, Policy
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.failure import leaves
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.testing import run_virtual

KINDS = ("returns", "returns", "raises", "raises a group", "hangs", "cleans up", "returns late", "raises late")
CALLS_TO_CLOSE = 8
"""Calls after which a circuit is closed for good: up to 4 that meet old ones in a window of 5, and 3 good probes."""
HANGS = 500.0
"""Seconds: longer than any limit, but not for ever, since nobody need have one."""


@final
@dataclass
class Service:
    """Does the next thing at each call, round and round; counts who is in it, and remembers what it raised."""

    script: list[tuple[str, float]]
    inside: int = 0
    calls: int = 0
    raised: dict[int, tuple[BaseException, BaseException | None]] = field(default_factory=dict)
    well: bool = False

    async def __call__(self, token: object) -> object:
        kind, seconds = ("returns", 0.0) if self.well else self.script[self.calls % len(self.script)]
        self.calls += 1
        self.inside += 1
        try:
            await self._act(kind, seconds)
        except Exception as error:
            self.raised[id(error)] = error, error.__context__
            raise
        finally:
            self.inside -= 1
        return token

    async def _act(self, kind: str, seconds: float) -> None:
        if kind in ("returns", "raises", "raises a group"):
            await trio.sleep(seconds)
        if kind == "raises":
            raise Boom
        if kind == "raises a group":
            raise ExceptionGroup("several", [Boom(), Boom()])
        if kind == "hangs":
            await trio.sleep(HANGS)
        if kind == "cleans up":
            await self._hang_and_clean_up(seconds)
        if kind == "returns late":
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
        if kind == "raises late":
            try:
                await trio.sleep(HANGS)
            finally:
                raise Boom

    async def _hang_and_clean_up(self, seconds: float) -> None:
        try:
            await trio.sleep(HANGS)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)


@final
@dataclass(frozen=True)
class Caller:
    """When it calls, how long it waits, and whether it is one of those that are cancelled together."""

    at: float
    patience: float
    together: bool


CALLERS = st.builds(
    Caller,
    at=st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0]),
    patience=st.just(math.inf) | st.just(math.inf) | SECONDS,
    together=st.booleans(),
)


@final
class World:
    """A stack with gauges, a service and callers, and what became of each."""

    def __init__(self, layers: list[Layer], budget: Budget | None, script: list[tuple[str, float]]) -> None:
        self.layers = layers
        self.outside = Gauge()
        self.service = Service(script)
        self.budget = budget if any(isinstance(each, (Repeats, Copies)) for each in layers) else None
        parts: list[Policy | Budget] = [] if self.budget is None else [self.budget]
        for layer in layers:
            parts += (layer.policy, layer.gauge)
        self.stack = Stack(self.outside, *parts)
        self.ends = Counter[str]()

    async def call(self, number: int, caller: Caller) -> None:
        await trio.sleep(caller.at)
        as_caller(number)
        token = object()
        with trio.move_on_after(caller.patience) as scope:
            try:
                result = await self.stack.call(self.service, token)
            except Exception as error:
                self.ends[self._judge(error)] += 1
            else:
                assert result is token or result is SUBSTITUTE
                self.ends["result"] += 1
        self.ends["impatient"] += scope.cancelled_caught

    def _judge(self, error: Exception) -> str:
        """Tell what it is; an error of the service's is bare."""
        if id(error) in self.service.raised:
            assert error.__context__ is self.service.raised[id(error)][1]
            return "own"
        if isinstance(error, (RejectedError, trio.TooSlowError)):
            return type(error).__name__
        assert isinstance(error, ExceptionGroup), error  # a time-out took its part out of a group with more in it
        assert all(isinstance(leaf, Boom) for leaf in leaves(error)), error
        return "own"

    async def operate(self, at: float, place: int, number: int) -> None:
        await trio.sleep(at)
        await self.layers[place % len(self.layers)].operate(number)

    async def run(self, callers: list[Caller], operations: list[tuple[float, int, int]], cancel_at: float) -> None:
        """Have all call, operate on some policies, cancel some callers together, and look at what is left."""
        together = trio.CancelScope()

        async def group() -> None:
            with together:
                async with trio.open_nursery() as nursery:
                    for number, caller in enumerate(callers):
                        if caller.together:
                            nursery.start_soon(self.call, number, caller)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(group)
            for operation in operations:
                nursery.start_soon(self.operate, *operation)
            for number, caller in enumerate(callers):
                if not caller.together:
                    nursery.start_soon(self.call, number, caller)
            await trio.sleep(cancel_at)
            together.cancel(reason="all together")
        left = len(callers) - self.ends.total()
        assert 0 <= left <= (sum(caller.together for caller in callers))
        self.check()

    def check(self) -> None:
        assert self.service.inside == self.outside.in_flight == 0
        outside = self.outside
        for layer in self.layers:
            layer.ended(outside)
            outside = layer.gauge
        assert self.service.calls == len(outside.starts)
        check_budget(self.budget, self._repeats())

    def _repeats(self) -> int:
        """Return how many retries and copies were started, at least, by those that ask the common budget."""
        repeats, outside = 0, self.outside
        for layer in self.layers:
            if isinstance(layer.policy, (Retry, Hedge)):
                repeats += max(0, len(layer.gauge.starts) - len(outside.starts))
            outside = layer.gauge
        return repeats

    async def rest(self) -> None:
        """After a long time all is as new, and calls pass; a circuit that is not closed is, after that."""
        await trio.sleep(LONG)
        for layer in self.layers:
            layer.rested()
        self.service.well = True
        for _ in range(CALLS_TO_CLOSE if any(isinstance(layer, Circuits) for layer in self.layers) else 1):
            token = object()
            assert await self.stack.call(self.service, token) is token
            await trio.sleep(LONG)
        for layer in self.layers:
            layer.rested()
            assert not isinstance(layer.policy, CircuitBreaker) or layer.policy.state is CircuitState.CLOSED
        self.check()


@given(
    layers=st.lists(LAYERS, min_size=2, max_size=5),
    make_budget=BUDGETS,
    script=st.lists(st.tuples(st.sampled_from(KINDS), SECONDS | st.just(0.0)), min_size=1, max_size=8),
    callers=st.integers(1, 30).flatmap(lambda number: st.lists(CALLERS, min_size=number, max_size=number)),
    operations=st.lists(st.tuples(SECONDS, st.integers(0, 4), st.integers(0, 11)), max_size=3),
    cancel_at=st.integers(0, 48).map(lambda quarters: quarters / 4) | st.just(10 * HANGS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_stack_keeps_all_promises(
    layers: list[Layer],
    make_budget: Callable[[], Budget | None],
    script: list[tuple[str, float]],
    callers: list[Caller],
    operations: list[tuple[float, int, int]],
    cancel_at: float,
    seed: int,
) -> None:
    async def main() -> None:
        world = World(layers, make_budget(), script)
        await world.run(callers, operations, cancel_at)
        await world.rest()

    run_virtual(main, seed=seed)
