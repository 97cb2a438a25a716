"""The one file that touches Trio's private names. `tests/testing/test_private_names.py` checks each of them.

* `trio._core._run._r`, the scheduler's `Random`, and `_ALLOW_DETERMINISTIC_SCHEDULING`: pytest-trio uses them, too.
* `MockClock._autojump`: called when every task is blocked.
* `Task._cancel_status`, with its `_scope` and `_parent`: the way to the cancel scopes around a blocked task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from random import Random
from typing import Any, cast

from trio.lowlevel import Task
from trio.testing import MockClock

_scheduler: Any = import_module("trio._core._run")


def scheduler_random() -> Random:
    """Return the `Random` that orders the tasks of a batch."""
    return cast("Random", _scheduler._r)


@contextmanager
def fixed_schedule(seed: int) -> Generator[None, None, None]:
    """Make Trio's scheduler deterministic and seeded inside the block, and as it was before behind it."""
    random, flag = scheduler_random(), _scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    state = random.getstate()
    _scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    random.seed(seed)
    try:
        yield
    finally:
        _scheduler._ALLOW_DETERMINISTIC_SCHEDULING = flag
        random.setstate(state)


def intercept_autojump(clock: MockClock, on_idle: Callable[[], None]) -> Callable[[], None]:
    """Have `on_idle` called when every task is blocked, instead of the jump that is returned."""
    private = cast("Any", clock)
    jump = cast("Callable[[], None]", private._autojump)
    private._autojump = on_idle
    return jump


def unshield(task: Task) -> bool:
    """Remove the shields around a task, from the inside out. Return whether there was one."""
    found = False
    status = cast("Any", task)._cancel_status
    while status is not None:
        if status._scope.shield:
            status._scope.shield = False
            found = True
        status = status._parent
    return found
