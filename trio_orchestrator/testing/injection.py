"""Cancel a block at each of its checkpoints in turn, and look at what is left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar, final

import trio
from trio.abc import Instrument
from trio.lowlevel import Task

from trio_orchestrator.testing.harness import run_virtual

T = TypeVar("T")

Want = Callable[[Task], bool]


@final
class CancelAt(Instrument):
    """Cancel a block during the n-th suspension inside it.

    Pass it to `run_virtual(..., instruments=[injector])` and put the victim, in one place, inside
    `with injector.watch():`. A task that has just been suspended is parked in a checkpoint; a cancellation at that
    moment makes this very checkpoint raise, if it can be cancelled (a shielded one ends, and the next one raises).

    Args:
        n: Which suspension, from 1; 0 cancels the block before its first step; None only counts.
        want: Whose suspensions count. By default those of the task that entered the block;
            `lambda task: True` takes those of all tasks.
    """

    def __init__(self, n: int | None = None, want: Want | None = None) -> None:
        if n is not None and n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        self.n = n
        self.count: int = 0
        """Suspensions seen so far."""
        self.fired: bool = False
        """Whether the cancellation was injected."""
        self.scope: trio.CancelScope = trio.CancelScope()
        """The scope around the watched block; `scope.cancelled_caught` tells whether the block was cut short."""
        self._want = want
        self._victim: Task | None = None
        self._armed = False
        self._error: Exception | None = None

    @property
    def entered(self) -> bool:
        """Whether the scenario has entered the watched block."""
        return self._victim is not None

    @contextmanager
    def watch(self) -> Generator[trio.CancelScope, None, None]:
        """Enter the block that is to be cancelled; only once. Gives its scope, which absorbs the cancellation."""
        with self.scope:
            self._victim, self._armed = trio.lowlevel.current_task(), True
            if self.n == 0:
                self._fire()
            try:
                yield self.scope
            finally:
                self._armed = False
        if self._error is not None:
            raise self._error

    def after_task_step(self, task: Task) -> None:
        """Count the suspension, and cancel if it is the n-th."""
        if self._armed and self._counts(task):
            self.count += 1
            if self.count == self.n:
                self._fire()

    def _counts(self, task: Task) -> bool:
        if self._want is None:
            return task is self._victim
        try:
            return self._want(task)
        except Exception as exc:
            self._error, self._armed = exc, False
            self.scope.cancel(reason="want raised")
            return False

    def _fire(self) -> None:
        self.fired = True
        self.scope.cancel(reason=f"injected at checkpoint {self.n}")


def every_checkpoint(
    scenario: Callable[[CancelAt], Awaitable[T]],
    check: Callable[[int | None, T], object],
    *,
    seeds: Iterable[int] = (0,),
    want: Want | None = None,
) -> int:
    """Run a scenario once as it is and then once per checkpoint with a cancellation there, each time in `run_virtual`.

    Args:
        scenario: An async function of the injector, with its victim inside `with injector.watch():`.
        check: Called after each run as `check(n, result)`, with n = None for the run without a cancellation. An
            exception gets a note that says which seed and checkpoint it was.
        seeds: The schedules to try.
        want: Whose suspensions count, as for `CancelAt`. By default the victim's own.

    Returns:
        The number of cancellations, over all seeds.

    Raises:
        AssertionError: The scenario never entered `watch()`, had no checkpoint in it, or behaved differently under the
            same seed.
    """
    total = 0
    for seed in seeds:
        checkpoints = _inject(scenario, check, None, seed, want)
        assert checkpoints > 0, f"no checkpoint inside injector.watch(): nothing was tested (seed {seed})"
        for n in range(1, checkpoints + 1):
            _inject(scenario, check, n, seed, want)
        total += checkpoints
    return total


def cancelled_everywhere(
    scenario: Callable[[CancelAt], Awaitable[object]], *, seeds: Iterable[int] = range(5), want: Want | None = None
) -> int:
    """Run `every_checkpoint` on a scenario that asserts its own invariants behind the watched block.

    In addition the block is entered already cancelled, once per seed (not counted).
    """
    seeds = tuple(seeds)
    for seed in seeds:
        _inject(scenario, _no_check, 0, seed, want)
    return every_checkpoint(scenario, _no_check, seeds=seeds, want=want)


def _no_check(n: int | None, result: object) -> None:
    pass


def _inject(
    scenario: Callable[[CancelAt], Awaitable[T]],
    check: Callable[[int | None, T], object],
    n: int | None,
    seed: int,
    want: Want | None,
) -> int:
    injector = CancelAt(n, want)
    try:
        result = run_virtual(scenario, injector, seed=seed, instruments=[injector])
        assert injector.entered, "the scenario did not enter injector.watch()"
        assert injector.fired or n is None, "checkpoint not reached: the scenario is not deterministic"
        check(n, result)
    except BaseException as exc:
        exc.add_note(f"(seed {seed}, {'no cancellation' if n is None else f'cancelled at checkpoint {n}'})")
        raise
    return injector.count
