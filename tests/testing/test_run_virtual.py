from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.testing import Hung, SchedulerPasses, run_virtual, task_tree
from trio_orchestrator.testing import _trio as private

# ---------------------------------------------------------------------------------------------- virtual time


def test_returns_the_result_in_no_time_at_exact_times() -> None:
    async def main(hours: int) -> tuple[int, float]:
        await trio.sleep(hours * 3600)
        return hours, trio.current_time()

    assert run_virtual(main, 24) == (24, 86400.0)


def test_each_run_has_a_fresh_clock() -> None:
    async def main() -> float:
        await trio.sleep(5)
        return trio.current_time()

    assert [run_virtual(main), run_virtual(main)] == [5.0, 5.0]


def test_wait_all_tasks_blocked_comes_before_the_next_jump() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await trio.testing.wait_all_tasks_blocked()
            return trio.current_time()

    assert run_virtual(main) == 0.0


def test_an_exception_comes_out_as_it_is() -> None:
    error = KeyError("mine")

    async def main() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        run_virtual(main)
    assert caught.value is error
    assert (error.__cause__, error.__context__, getattr(error, "__notes__", [])) == (None, None, [])


def test_the_main_task_has_the_name_of_the_function() -> None:
    async def scenario() -> str:
        return trio.lowlevel.current_task().name

    assert run_virtual(scenario).endswith("<locals>.scenario")


# ----------------------------------------------------------------------------------------------------- seeds


async def arrivals() -> list[int]:
    order: list[int] = []

    async def arrive(n: int) -> None:
        await trio.lowlevel.checkpoint()
        order.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(6):
            nursery.start_soon(arrive, n)
    return order


@pytest.mark.parametrize("flag", [False, True])
def test_a_seed_stands_for_one_schedule(monkeypatch: pytest.MonkeyPatch, flag: bool) -> None:
    monkeypatch.setattr(private._scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", flag)
    orders = [run_virtual(arrivals, seed=seed) for seed in range(30)]
    assert orders == [run_virtual(arrivals, seed=seed) for seed in range(30)]
    assert len({tuple(order) for order in orders}) > 20


def test_a_seed_stands_for_one_jitter() -> None:
    async def main() -> float:
        return CHANCE.random()

    assert run_virtual(main, seed=1) == run_virtual(main, seed=1) != run_virtual(main, seed=2)


@pytest.mark.parametrize("flag", [False, True])
def test_chance_and_scheduler_are_as_before_after_the_run(monkeypatch: pytest.MonkeyPatch, flag: bool) -> None:
    def state() -> tuple[object, ...]:
        return CHANCE.getstate(), private.scheduler_random().getstate(), scheduler._ALLOW_DETERMINISTIC_SCHEDULING

    async def main() -> None:
        CHANCE.random()
        await arrivals()
        raise ValueError

    scheduler = private._scheduler
    monkeypatch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", flag)
    before = state()
    with pytest.raises(ValueError):
        run_virtual(main, seed=3)
    assert state() == before


async def lose_an_update() -> int:
    """Right if the second task reads after the first one wrote, in the same pass of the scheduler."""
    total = 0

    async def add_one(pauses: int) -> None:
        nonlocal total
        for _ in range(pauses):
            await trio.lowlevel.checkpoint()
        seen = total
        await trio.lowlevel.checkpoint()
        total = seen + 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add_one, 0)
        nursery.start_soon(add_one, 1)
    return total


def test_a_race_is_found_with_a_drawn_seed_and_hidden_without() -> None:
    quick = settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate])

    @quick
    @given(seed=st.integers(0, 2**32 - 1))
    def drawn(seed: int) -> None:
        assert run_virtual(lose_an_update, seed=seed) == 2

    @quick
    @given(unused=st.integers())
    def fixed(unused: int) -> None:
        assert run_virtual(lose_an_update) == 2

    fixed()
    with pytest.raises(AssertionError):
        drawn()


# ----------------------------------------------------------------------------------------------------- hangs


async def wait_for_ever() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.Event().wait, name="the waiter")


async def wait_shielded() -> None:
    with trio.CancelScope(shield=True), trio.CancelScope(shield=True):
        await wait_for_ever()


async def wait_shielded_again_when_cancelled() -> None:
    try:
        await wait_shielded()
    finally:
        await wait_shielded()


async def wait_deaf() -> None:
    await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)


async def wait_for_ever_swallowing() -> None:
    try:
        await wait_for_ever()
    except BaseException:
        pass


async def main_leaves_a_shielded_system_task() -> None:
    trio.lowlevel.spawn_system_task(wait_shielded, name="the waiter")


@pytest.mark.parametrize(
    "scenario",
    [
        wait_for_ever,
        wait_shielded,
        wait_shielded_again_when_cancelled,
        wait_deaf,
        wait_for_ever_swallowing,
        main_leaves_a_shielded_system_task,
    ],
)
def test_a_hang_is_a_failure(scenario: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(Hung, match="every task is blocked for ever") as caught:
        run_virtual(scenario)
    tree = str(caught.value).splitlines()[1:]
    assert tree[0] == "<init>"
    assert any("the waiter" in line or "@ test_run_virtual.py:" in line for line in tree)
    assert run_virtual(arrivals)  # the thread is fit for another run


def test_the_tree_of_a_hang_shows_who_waits_where() -> None:
    with pytest.raises(Hung) as caught:
        run_virtual(wait_shielded)
    *_, main, waiter = str(caught.value).splitlines()
    line = wait_for_ever.__code__.co_firstlineno + 1
    assert (
        main
        == f"  tests.testing.test_run_virtual.wait_shielded @ test_run_virtual.py:{line} in wait_for_ever".replace(
            "tests.testing.test_run_virtual.", ""
        )
    )
    assert waiter == "    the waiter"


def test_clean_up_of_a_hung_scenario_may_take_its_time() -> None:
    left: list[float] = []

    async def main() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(7, shield=True):
                await trio.sleep_forever()
            left.append(trio.current_time())

    with pytest.raises(Hung):
        run_virtual(main)
    assert left == [7.0]


def test_an_error_of_the_clean_up_is_the_cause_of_a_hang_and_does_not_hide_it() -> None:
    async def main() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("while cleaning up")

    with pytest.raises(Hung) as caught:
        run_virtual(main)
    assert isinstance(caught.value.__cause__, KeyError)


def test_time_that_runs_on_without_end_is_a_hang() -> None:
    cleaned: list[float] = []

    async def beat() -> None:
        try:
            while True:  # noqa: ASYNC110
                await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            cleaned.append(trio.current_time())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            await trio.sleep_forever()

    with pytest.raises(Hung, match=r"the clock jumps on and on(.|\n)*beat @ test_run_virtual"):
        run_virtual(main, max_jumps=50)
    assert cleaned == [55.0]


def test_a_thread_at_work_is_mentioned_and_may_finish() -> None:
    finished: list[int] = []

    async def main() -> None:
        token, cancelled = trio.lowlevel.current_trio_token(), threading.Event()

        def work() -> None:
            assert cancelled.wait(30)  # at work until the hang was found, however slow the machine is
            finished.append(trio.from_thread.run_sync(int, trio_token=token))

        async def tell() -> None:
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await trio.to_thread.run_sync(work)

    with pytest.raises(Hung, match="1 threads are at work: virtual time does not wait for them"):
        run_virtual(main)
    assert finished == [0]


def test_task_tree_names_tasks_by_nursery() -> None:
    async def main() -> list[str]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_ever, name="a")
            for name in "febdc":
                nursery.start_soon(trio.sleep, 1, name=name)
            await trio.testing.wait_all_tasks_blocked()
            tree = task_tree()
            nursery.cancel_scope.cancel()
        return tree

    lines = [line.partition(" @")[0] for line in run_virtual(main)]
    assert lines[:5] == ["<init>", "  <TrioToken.run_sync_soon task>", "  main", "    a", "      the waiter"]
    assert lines[5:] == ["    b", "    c", "    d", "    e", "    f"]


# ------------------------------------------------------------------------------------------------ instruments


def test_scheduler_passes_shows_a_hot_loop() -> None:
    passes = SchedulerPasses()

    async def poll() -> None:
        while True:  # noqa: ASYNC110
            await trio.sleep(60)

    async def hour(*, polled: bool) -> int:
        async with trio.open_nursery() as nursery:
            if polled:
                nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            before = passes.count
            await trio.sleep(3599)
            after = passes.count
            nursery.cancel_scope.cancel()
        return after - before

    async def quiet() -> int:
        return await hour(polled=False)

    async def busy() -> int:
        return await hour(polled=True)

    assert (run_virtual(quiet, instruments=[passes]), run_virtual(busy, instruments=[passes])) == (1, 60)


def test_it_needs_neither_pytest_nor_hypothesis() -> None:
    code = "import sys; sys.modules |= dict.fromkeys(['pytest', 'hypothesis']); import trio_orchestrator.testing"
    subprocess.run([sys.executable, "-c", code], check=True)
