"""What every policy promises, as functions of a policy: run by the suite for each of them, and for each ordered pair.

A *subject* makes a policy that lets these calls pass: the error that they raise is none that it acts on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, final

import trio

from trio_orchestrator.abc import Policy
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, every_checkpoint, run_virtual

LONG = 100_000.0
"""Seconds after which every window has expired."""


@final
@dataclass(frozen=True)
class Subject:
    """A policy under contract."""

    name: str
    make: Callable[[], Policy]
    waits: bool = False
    """Whether its `call` may wait, and so has checkpoints of its own."""
    seeds: int = 3
    """Under how many schedules it is cancelled."""

    def __str__(self) -> str:
        return self.name


@final
class Foreign(Exception):
    """An error that no subject acts on."""


@final
class Fatal(BaseException):
    """What must end everything, as `KeyboardInterrupt` does."""


@final
class Dependency:
    """Counts who is in it, from the inside."""

    def __init__(self, seconds: float = 0.0, error: BaseException | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.entered = 0
        self.left = 0
        self.returned = 0

    async def __call__(self, value: object = None) -> object:
        self.entered += 1
        try:
            await trio.lowlevel.checkpoint()
            if self.seconds:
                await trio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            self.returned += 1
            return value
        finally:
            self.left += 1


def statistics_of(policy: Policy) -> list[Any]:
    """Return the statistics of a policy, of each member if it is a stack."""
    members = policy.policies if isinstance(policy, Stack) else (policy,)
    return [getattr(member, "statistics")() for member in members if hasattr(member, "statistics")]


def as_new(policy: Policy) -> bool:
    """Tell whether nothing is in a policy, and all it remembers has expired."""
    members = policy.policies if isinstance(policy, Stack) else (policy,)
    return all(getattr(member, "is_idle", True) for member in members)


async def assert_whole(policy: Policy) -> None:
    """Nothing is held, nothing in flight; calls pass, and after a long time it is as new."""
    for statistics in statistics_of(policy):
        for count in ("in_flight", "waiting", "probes"):
            assert getattr(statistics, count, 0) == 0, f"{count} in {statistics}"
    token = object()
    assert await policy.call(Dependency(), token) is token
    await trio.sleep(LONG)
    assert as_new(policy), statistics_of(policy)


Check = Callable[[Subject], int]
"""Returns how many cases it ran."""


def result_passes(subject: Subject) -> int:
    """The very object, from a function with arguments; by `wrap` too, which keeps name and signature."""

    async def main() -> None:
        policy, token = subject.make(), object()
        assert await policy.call(Dependency(), token) is token

        @policy.wrap
        async def named(value: object, *, other: object = None) -> tuple[object, object]:
            await trio.lowlevel.checkpoint()
            return value, other

        assert await named(token, other=policy) == (token, policy)
        assert named.__name__ == "named"
        await assert_whole(policy)

    run_virtual(main)
    return 1


def exception_passes_bare(subject: Subject) -> int:
    """The same object, in no group, its context untouched: an exception, a group, and a fatal one."""
    cause = KeyError("an older one")
    errors: list[BaseException] = [Foreign(), Fatal(), ExceptionGroup("both", [Foreign(), Foreign()])]

    async def main(error: BaseException) -> None:
        policy = subject.make()
        error.__context__ = cause
        try:
            await policy.call(Dependency(error=error))
        except BaseException as caught:
            assert caught is error
        else:
            raise AssertionError("it was swallowed")
        assert error.__context__ is cause
        await trio.sleep(LONG)
        await assert_whole(policy)

    for error in errors:
        run_virtual(main, error)
    return len(errors)


def cancelled_is_neutral(subject: Subject) -> int:
    """Cancelled at each of its checkpoints, it gives everything back, learns nothing, and calls pass again."""

    async def scenario(injector: CancelAt) -> None:
        policy, dependency = subject.make(), Dependency(seconds=0.25)
        with injector.watch() as scope:
            await policy.call(dependency)
        assert scope.cancelled_caught is not bool(dependency.returned), "a result was lost, or made up"
        assert dependency.returned or injector.fired
        assert dependency.entered == dependency.left
        for statistics in statistics_of(policy):
            assert getattr(statistics, "failures", 0) == getattr(statistics, "dropped", 0) == 0, statistics
        await assert_whole(policy)

    return cancelled_everywhere(scenario, seeds=range(subject.seeds))


def cancelled_among_others(subject: Subject) -> int:
    """Ten at once, all cancelled at each checkpoint of any of them: nothing is left."""

    async def scenario(injector: CancelAt) -> None:
        policy, dependency = subject.make(), Dependency(seconds=0.25)
        call: Callable[..., Awaitable[object]] = policy.call
        with injector.watch():
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(call, dependency)
        assert dependency.entered == dependency.left
        await assert_whole(policy)

    return every_checkpoint(scenario, lambda n, result: None, want=lambda task: True)


def time_out_around_is_a_failure(subject: Subject) -> int:
    """A `Timeout` outside ends the call, and comes out as `TooSlowError`; a policy that learns has learned."""

    async def main() -> None:
        policy, dependency = subject.make(), Dependency(seconds=50)
        start, call = trio.current_time(), policy.wrap(dependency.__call__)
        try:
            await Timeout(3).call(call)
        except trio.TooSlowError:
            assert trio.current_time() == start + 3
        else:
            raise AssertionError("it was not ended")
        assert dependency.entered == dependency.left
        for statistics in statistics_of(policy):
            for learned in ("failures", "dropped"):
                assert getattr(statistics, learned, 1) >= 1, f"{learned}: {statistics}"
        await trio.sleep(LONG)
        await assert_whole(policy)

    run_virtual(main)
    return 1


def re_entry(subject: Subject) -> int:
    """One task may be in it twice."""

    async def main() -> None:
        policy, token = subject.make(), object()
        assert await policy.call(policy.call, Dependency(seconds=0.5), token) is token
        await assert_whole(policy)

    run_virtual(main)
    return 1


def hundred_callers(subject: Subject) -> int:
    """All pass, each with its own result, under several schedules."""

    async def main() -> None:
        policy, dependency = subject.make(), Dependency(seconds=0.25)
        results: list[object] = []

        async def caller(number: int) -> None:
            results.append(await policy.call(dependency, number))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(caller, number)
        assert sorted(results, key=lambda result: int(str(result))) == list(range(100))
        await assert_whole(policy)

    for seed in range(subject.seeds):
        run_virtual(main, seed=seed)
    return subject.seeds


def no_checkpoint_of_its_own(subject: Subject) -> int:
    """What does not wait has the checkpoints of the function and no others."""
    if subject.waits:
        return 0

    async def quick() -> int:  # no checkpoint: then there must be none
        return 1

    async def main() -> None:
        policy = subject.make()
        await trio.lowlevel.checkpoint()
        with trio.CancelScope() as scope:
            scope.cancel()
            assert await policy.call(quick) == 1
        assert not scope.cancelled_caught

    run_virtual(main)
    return 1


def virtual_time_only(subject: Subject) -> int:
    """A day passes while the function runs, and takes no time."""

    async def main() -> None:
        policy = subject.make()
        await policy.call(Dependency(seconds=0.125))
        start = trio.current_time()
        assert math.isfinite(start)
        await policy.call(Dependency(seconds=0.5))
        assert trio.current_time() - start == 0.5

    run_virtual(main)
    return 1


CHECKS: tuple[Check, ...] = (
    result_passes,
    exception_passes_bare,
    cancelled_is_neutral,
    cancelled_among_others,
    time_out_around_is_a_failure,
    re_entry,
    hundred_callers,
    no_checkpoint_of_its_own,
    virtual_time_only,
)
