"""Runs in virtual time, under a fixed schedule: a hang is a failure, and so is whatever is left behind."""

from __future__ import annotations

import gc
import math
import sys
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio.abc import Instrument
from trio.lowlevel import Task
from trio.testing import MockClock, active_thread_count

from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.testing import _trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TRIO_DIRECTORY = str(Path(trio.__file__).parent)
_UNSHIELDING_ROUNDS = 100
_MILLISECONDS_FOR_THREADS = 10_000
_JUMPS_TO_UNWIND = 10_000


class Hung(AssertionError):  # noqa: N818 - a verdict, as in "the scenario hung"
    """Every task was blocked for ever, or virtual time ran on without end. The message shows the task tree."""


# ------------------------------------------------------------------------------------------------ task tree


def task_tree() -> list[str]:
    """Return every living task of this run, one a line, indented by nursery, with the place where it waits.

    That place is the innermost frame outside Trio. Callable inside a run, from a task or an instrument; sync.
    """
    return _branch(_root(), 0)


def _branch(task: Task, depth: int) -> list[str]:
    lines = ["  " * depth + _short_name(task) + _place(task)]
    for child in sorted(_children(task), key=lambda child: child.name):
        lines += _branch(child, depth + 1)
    return lines


def _root() -> Task:
    root = trio.lowlevel.current_root_task()
    assert root is not None, "the run has not started yet"
    return root


def _children(task: Task) -> list[Task]:
    return [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def living_tasks() -> set[Task]:
    """Return every living task of this run, system tasks included."""
    found = {_root()}
    todo = list(found)
    while todo:
        children = _children(todo.pop())
        found.update(children)
        todo += children
    return found


def _short_name(task: Task) -> str:
    return task.name.rpartition("<locals>.")[2]


def _place(task: Task) -> str:
    frames = [(frame, line) for frame, line in task.iter_await_frames() if not _is_trio(frame.f_code.co_filename)]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f" @ {Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _is_trio(filename: str) -> bool:
    return Path(filename).is_relative_to(_TRIO_DIRECTORY)


# ---------------------------------------------------------------------------------------------------- leaks


@contextmanager
def fixed_chance(seed: int) -> Generator[None, None, None]:
    """Seed Trio's scheduler and the library's own `Random` (jitter) inside the block; both are restored behind it."""
    state = CHANCE.getstate()
    with _trio.fixed_schedule(seed):
        CHANCE.seed(seed)
        try:
            yield
        finally:
            CHANCE.setstate(state)


@contextmanager
def watch_leaks(complaints: list[str]) -> Generator[None, None, None]:
    """Add a complaint for each task and async generator that was begun inside the block and is unfinished behind it."""
    before = living_tasks()
    hooks = sys.get_asyncgen_hooks()
    begun: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()

    def firstiter(generator: AsyncGenerator[Any, Any]) -> None:
        begun.add(generator)
        if hooks.firstiter is not None:
            hooks.firstiter(generator)

    sys.set_asyncgen_hooks(firstiter=firstiter)  # Trio sets all hooks back when the run ends
    try:
        yield
    finally:
        complaints += sorted(
            f"task {_short_name(task)}{_place(task)} outlived the scenario" for task in living_tasks() - before
        )
        complaints += sorted(
            f"async generator {_name_of(generator)} was left unfinished" for generator in begun if _is_open(generator)
        )


def _name_of(generator: AsyncGenerator[Any, Any]) -> str:
    return str(getattr(generator, "__qualname__", generator))


def _is_open(generator: AsyncGenerator[Any, Any]) -> bool:
    return getattr(generator, "ag_frame", None) is not None


@contextmanager
def _fail_on_complaints() -> Generator[list[str], None, None]:
    """Raise what was added to the list and every warning; on an exception already on its way they become notes."""
    complaints: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # "error" would be swallowed by the `__del__` of a coroutine
            try:
                yield complaints
            finally:
                gc.collect(1)  # coroutines in cycles warn when they are collected; the old generation is not ours
                complaints += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    except BaseException as exc:
        for complaint in complaints:
            exc.add_note(f"(also: {complaint})")
        raise
    if complaints:
        raise AssertionError("\n".join(complaints))


def assert_no_tokens(*limiters: trio.CapacityLimiter) -> None:
    """Fail if a token of one of the limiters is borrowed, or somebody waits for one."""
    for limiter in limiters:
        borrowers = limiter.statistics().borrowers
        assert not borrowers, f"{limiter.borrowed_tokens} tokens are still borrowed, by {borrowers}"
    assert_no_waiters(*limiters)


class _Waitable(Protocol):
    def statistics(self) -> object: ...


def assert_no_waiters(*primitives: _Waitable) -> None:
    """Fail if a task waits in one of these: a limiter, lock, event, condition, semaphore or memory channel."""
    for primitive in primitives:
        statistics = primitive.statistics()
        names = [name for name in dir(statistics) if name.startswith("tasks_waiting")]
        assert names, f"statistics() of {primitive!r} has no tasks_waiting"
        for name in names:
            assert not getattr(statistics, name), f"{name} == {getattr(statistics, name)} in {primitive!r}"


# --------------------------------------------------------------------------------------------- virtual time


@final
class _Watchdog:
    """Jumps the clock when every task is blocked; if no jump can help, unwinds the run, ever less politely."""

    def __init__(self, clock: MockClock, jumps: int) -> None:
        self.scope = trio.CancelScope()
        self.hung: Hung | None = None
        self._jumps = jumps
        self._rounds = _UNSHIELDING_ROUNDS
        self._patience = _MILLISECONDS_FOR_THREADS
        self._jump = _trio.intercept_autojump(clock, self._idle)

    def _idle(self) -> None:
        asleep = trio.lowlevel.current_statistics().seconds_to_next_deadline < math.inf
        if asleep and self._jumps > 0:
            self._jumps -= 1
            self._jump()
        else:
            self._unwind("the clock jumps on and on" if asleep else "every task is blocked for ever")

    def _unwind(self, verdict: str) -> None:
        self._jumps = _JUMPS_TO_UNWIND
        if self.hung is None:
            self.hung = _hung(verdict)
            self.scope.cancel(reason=f"harness: {verdict}")
        elif self._rounds > 0 and unshield_all():
            self._rounds -= 1
        elif self._patience > 0 and active_thread_count():
            self._patience -= 1
            time.sleep(0.001)  # real time: a thread cannot be cancelled, and would report to a run that is gone
        else:
            raise self.hung  # through Trio's run loop, which ends at once


def unshield_all() -> bool:
    """Remove every shield of the run, so that a cancellation from outside reaches every task."""
    shielded = [_trio.unshield(task) for task in living_tasks()]
    return any(shielded)


def _hung(verdict: str) -> Hung:
    threads = active_thread_count()
    hint = f" ({threads} threads are at work: virtual time does not wait for them)" if threads else ""
    return Hung("\n".join([verdict + hint + ":", *task_tree()]))


def run_virtual(
    fn: Callable[[Unpack[Ts]], Awaitable[T]],
    *args: *Ts,
    seed: int = 0,
    instruments: Sequence[Instrument] = (),
    max_jumps: int = 1_000_000,
) -> T:
    """Run `fn(*args)` with `trio.run` in virtual time, under the one schedule that `seed` stands for.

    The clock is a fresh `MockClock` that jumps to the next deadline whenever every task is blocked, so that an hour of
    sleep costs nothing and times are exact. Equal seeds give equal schedules and equal jitter (both random states are
    restored behind the run). Threads and sockets do not belong here: virtual time does not wait for them.

    The run fails if anything is left behind: a task in the system nursery, an unfinished async generator, an un-awaited
    coroutine; and if anything warns. An exception of the scenario's own comes out as `trio.run` gives it, with these
    complaints as notes.

    Args:
        fn: The async function to run.
        args: Its positional arguments.
        seed: Seeds the scheduler and the library's jitter. Draw it in every property-based test.
        instruments: Trio instruments for the run, such as `CancelAt` or `SchedulerPasses`.
        max_jumps: After this number of jumps of the clock the run counts as hung: some task sleeps again and again
            while the scenario never ends.

    Returns:
        What `fn` returned.

    Raises:
        Hung: Every task is blocked and no deadline is pending (or see `max_jumps`). Everything is cancelled first,
            inside shields too.
        AssertionError: Something was left behind, or warned.
    """
    clock = MockClock(autojump_threshold=0)
    watchdog = _Watchdog(clock, max_jumps)
    with fixed_chance(seed), _fail_on_complaints() as complaints:

        async def main() -> list[T]:
            trio.lowlevel.current_task().name = getattr(fn, "__qualname__", repr(fn))
            with watch_leaks(complaints), watchdog.scope:
                return [await fn(*args)]
            return []  # cancelled by the watchdog

        try:
            results = trio.run(main, clock=clock, instruments=list(instruments))
        except Exception as exc:
            if watchdog.hung is None:
                raise
            raise watchdog.hung from (None if exc.__cause__ is watchdog.hung else exc)
        if watchdog.hung is not None:
            raise watchdog.hung
        return results[0]


@final
class SchedulerPasses(Instrument):
    """Counts the passes of the scheduler in which a task ran: nothing that hot-loops stays hidden.

    A task that reads `count`, sleeps, and reads it again sees a difference of 1 if nothing else ran meanwhile.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._ran = False

    def before_task_step(self, task: Task) -> None:
        """Note that this pass is not an idle one."""
        self._ran = True

    def before_io_wait(self, timeout: float) -> None:
        """Count the pass that has just ended."""
        self.count += self._ran
        self._ran = False
