from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from trio_orchestrator.testing import (
    CancelAt,
    assert_no_tokens,
    assert_no_waiters,
    cancelled_everywhere,
    every_checkpoint,
    run_virtual,
)


class Pool:
    def __init__(self) -> None:
        self.free = ["a"]

    async def use_leaking(self) -> None:
        item = self.free.pop()
        await trio.lowlevel.checkpoint()  # a cancellation here loses the item
        try:
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)
        finally:
            self.free.append(item)

    async def use(self) -> None:
        item = self.free.pop()
        try:
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await trio.sleep(1)
        finally:
            self.free.append(item)


def leaks(use: Callable[[Pool], Awaitable[None]]) -> tuple[int, list[int | None]]:
    """Count the injected cancellations, and list the checkpoints at which one lost the item."""
    found: list[int | None] = []

    async def scenario(injector: CancelAt) -> Pool:
        pool = Pool()
        with injector.watch():
            await use(pool)
        return pool

    def check(n: int | None, pool: Pool) -> None:
        if not pool.free:
            found.append(n)

    return every_checkpoint(scenario, check, seeds=range(3)), found


def test_a_planted_leak_is_found_at_its_checkpoint_and_nowhere_else() -> None:
    assert leaks(Pool.use_leaking) == (9, [1, 1, 1])


def test_no_leak_is_found_in_the_repaired_pool() -> None:
    assert leaks(Pool.use) == (9, [])


def test_the_checkpoint_itself_raises() -> None:
    async def scenario(injector: CancelAt) -> tuple[list[int], bool]:
        passed: list[int] = []
        with injector.watch() as scope:
            for n in range(1, 5):
                await trio.lowlevel.checkpoint()
                passed.append(n)
        return passed, scope.cancelled_caught

    def check(n: int | None, result: tuple[list[int], bool]) -> None:
        assert result == (list(range(1, n or 5)), n is not None)

    assert every_checkpoint(scenario, check) == 4


async def work(_: object = None) -> None:
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()


def test_want_takes_the_steps_of_other_tasks_too() -> None:
    async def scenario(injector: CancelAt) -> None:
        with injector.watch():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)

    own = every_checkpoint(scenario, lambda n, result: None)
    everybody = every_checkpoint(scenario, lambda n, result: None, want=lambda task: True)
    assert (own, everybody) == (1, 4)  # two checkpoints of the child, and its last step


def test_a_failing_check_says_where() -> None:
    async def scenario(injector: CancelAt) -> None:
        with injector.watch():
            await work()

    def check(n: int | None, result: None) -> None:
        assert n != 2

    with pytest.raises(AssertionError) as caught:
        every_checkpoint(scenario, check, seeds=[7])
    assert caught.value.__notes__ == ["(seed 7, cancelled at checkpoint 2)"]


def test_a_scenario_that_tests_nothing_fails() -> None:
    async def outside(injector: CancelAt) -> None:
        await work()

    async def empty(injector: CancelAt) -> None:
        with injector.watch():
            pass

    with pytest.raises(AssertionError, match=r"did not enter injector.watch"):
        every_checkpoint(outside, lambda n, result: None)
    with pytest.raises(AssertionError, match="no checkpoint inside"):
        every_checkpoint(empty, lambda n, result: None)


def test_a_scenario_that_changes_from_run_to_run_fails() -> None:
    rounds = iter([3, 1, 1])

    async def scenario(injector: CancelAt) -> None:
        with injector.watch():
            for _ in range(next(rounds)):
                await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="the scenario is not deterministic"):
        every_checkpoint(scenario, lambda n, result: None)


def test_a_want_that_raises_is_not_lost() -> None:
    def want(task: trio.lowlevel.Task) -> bool:
        raise LookupError("want is broken")

    async def scenario(injector: CancelAt) -> None:
        with injector.watch():
            await work()

    with pytest.raises(LookupError, match="want is broken"):
        every_checkpoint(scenario, lambda n, result: None, want=want)


def test_cancelled_everywhere_runs_the_scenario_at_every_n_and_already_cancelled() -> None:
    seen: list[tuple[int | None, bool]] = []

    async def scenario(injector: CancelAt) -> None:
        with injector.watch() as scope:
            at_once = scope.cancel_called
            await work()
        assert scope.cancelled_caught == (injector.n is not None)
        seen.append((injector.n, at_once))

    assert cancelled_everywhere(scenario, seeds=iter([0, 1])) == 4
    runs = [(None, False), (1, False), (2, False)]
    assert seen == [(0, True), (0, True), *runs, *runs]


def test_cancelled_everywhere_lets_the_invariants_of_the_scenario_fail() -> None:
    async def scenario(injector: CancelAt) -> None:
        pool = Pool()
        with injector.watch():
            await pool.use_leaking()
        assert pool.free

    with pytest.raises(AssertionError):
        cancelled_everywhere(scenario)


def test_n_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="n must be >= 0, got -1"):
        CancelAt(-1)


# ------------------------------------------------------------------------------------------------ assertions


def test_assert_no_tokens_finds_a_borrower_and_a_waiter() -> None:
    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        assert_no_tokens(limiter)
        async with trio.open_nursery() as nursery:
            await limiter.acquire_on_behalf_of("job")
            with pytest.raises(AssertionError, match=r"1 tokens are still borrowed, by .*job"):
                assert_no_tokens(limiter)
            limiter.release_on_behalf_of("job")
            limiter.total_tokens = 0
            nursery.start_soon(limiter.acquire)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(AssertionError, match="tasks_waiting == 1"):
                assert_no_tokens(limiter)
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_assert_no_waiters_finds_a_waiter_in_each_primitive() -> None:
    async def main() -> None:
        event, lock, semaphore = trio.Event(), trio.Lock(), trio.Semaphore(0)
        send, receive = trio.open_memory_channel[int](0)
        waits: list[
            tuple[
                trio.Event | trio.Lock | trio.Semaphore | trio.MemoryReceiveChannel[int],
                Callable[[], Awaitable[object]],
            ]
        ]
        waits = [(event, event.wait), (lock, lock.acquire), (semaphore, semaphore.acquire), (receive, receive.receive)]
        await lock.acquire()
        async with trio.open_nursery() as nursery:
            for primitive, wait in waits:
                assert_no_waiters(primitive)
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(AssertionError, match=r"tasks_waiting.* == 1"):
                    assert_no_waiters(primitive)
            nursery.cancel_scope.cancel()
        assert_no_waiters(event, lock, semaphore, receive, send)

    run_virtual(main)
