"""Trio's private names, one by one: a Trio that renames or changes one must fail here, by name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

import trio_orchestrator.testing
from trio_orchestrator.testing import _trio as private

PACKAGE = Path(trio_orchestrator.testing.__file__).parents[1]
USED = "trio_orchestrator/testing/_trio.py uses it"


async def shuffled() -> list[int]:
    order: list[int] = []

    async def arrive(n: int) -> None:
        order.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(arrive, n)
    return order


def test_the_random_of_the_scheduler() -> None:
    scheduler = import_module("trio._core._run")
    assert isinstance(getattr(scheduler, "_r", None), Random), f"trio._core._run._r is no Random any more: {USED}"
    assert private.scheduler_random() is scheduler._r


def test_the_flag_of_the_scheduler() -> None:
    scheduler = import_module("trio._core._run")
    flag = getattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", None)
    assert isinstance(flag, bool), f"trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING is no bool any more: {USED}"


def test_flag_and_random_together_decide_the_order() -> None:
    def order(seed: int) -> list[int]:
        with private.fixed_schedule(seed):
            return trio.run(shuffled)

    orders = [order(seed) for seed in range(20)]
    changed = "_ALLOW_DETERMINISTIC_SCHEDULING and _r do not decide the order of tasks any more: "
    assert orders == [order(seed) for seed in range(20)], changed + USED
    assert len({tuple(order) for order in orders}) > 10, changed + USED  # not just a batch and its reverse


def test_the_flag_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = import_module("trio._core._run")
    monkeypatch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", False)
    orders = {tuple(trio.run(shuffled)) for _ in range(30)}
    assert len(orders) <= 2, f"_ALLOW_DETERMINISTIC_SCHEDULING does not switch the shuffling on any more: {USED}"


def test_the_autojump_of_the_mock_clock() -> None:
    assert callable(getattr(MockClock(), "_autojump", None)), f"MockClock._autojump is gone: {USED}"


def test_the_autojump_is_called_when_every_task_is_blocked_and_jumps_to_the_next_deadline() -> None:
    clock = MockClock(autojump_threshold=0)
    idle_at: list[float] = []

    def on_idle() -> None:
        idle_at.append(clock.current_time())
        jump()

    jump = private.intercept_autojump(clock, on_idle)

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        await trio.sleep(3)
        await trio.sleep(4)

    trio.run(main, clock=clock)
    assert idle_at == [0.0, 3.0], f"MockClock._autojump is not called when every task is blocked any more: {USED}"


def test_the_child_nurseries_of_a_task() -> None:
    async def main() -> None:
        task = trio.lowlevel.current_task()
        assert getattr(task, "_child_nurseries", None) == [], f"Task._child_nurseries is no list any more: {USED}"
        async with trio.open_nursery() as nursery:
            assert getattr(task, "_child_nurseries", None) == [nursery], (
                "queue/leaks.py uses it to find an open nursery"
            )

    trio.run(main)


def test_the_cancel_status_of_a_task() -> None:
    async def main() -> None:
        task = trio.lowlevel.current_task()
        assert hasattr(task, "_cancel_status"), f"Task._cancel_status is gone: {USED}"
        with trio.CancelScope() as outer, trio.CancelScope() as inner:  # noqa: ASYNC100
            status = task._cancel_status
            assert getattr(status, "_scope", None) is inner, f"Task._cancel_status._scope is not the scope: {USED}"
            same = getattr(inner, "_cancel_status", None) is status
            assert same, "CancelScope._cancel_status is not the status of its task: queue/leaks.py uses it"
            parent = getattr(status, "_parent", None)
            assert getattr(parent, "_scope", None) is outer, f"Task._cancel_status._parent is not the outer one: {USED}"

    trio.run(main)


def test_without_its_shields_a_blocked_task_is_cancelled() -> None:
    async def main() -> tuple[bool, bool, bool]:
        inside: list[trio.lowlevel.Task] = []

        async def wait() -> None:
            inside.append(trio.lowlevel.current_task())
            with trio.CancelScope(shield=True), trio.CancelScope(), trio.CancelScope(shield=True):
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            still_there = len(nursery.child_tasks) == 1
            found = private.unshield(inside[0])
            again = private.unshield(inside[0])
        return still_there, found, again

    assert trio.run(main) == (True, True, False), f"shields cannot be removed any more: {USED}"


def test_no_other_file_touches_a_private_name_of_trio() -> None:
    pattern = re.compile(r"trio\._[a-z]|_ALLOW_DETERMINISTIC|\._autojump|_cancel_status\b")
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())}
    assert "testing/_trio.py" in files
    assert files <= {"testing/_trio.py", "queue/leaks.py"}
