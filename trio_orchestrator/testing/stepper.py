"""Drive one Trio run from synchronous code, step by step: for Hypothesis' `RuleBasedStateMachine`.

No thread and no real time: a guest run whose host loop is a deque that we pump by hand, on a clock that only we move.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio.abc import Clock, Instrument

from trio_orchestrator.testing.harness import (
    Hung,
    SchedulerPasses,
    fixed_chance,
    task_tree,
    unshield_all,
    watch_leaks,
)

if TYPE_CHECKING:
    from outcome import Outcome

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

State = Literal["blocked", "ok", "raised", "cancelled"]

_QUIET_PASSES = 2  # one may be quiet because the wake-up from `run_sync_soon` has not been read yet
_UNSHIELDING_ROUNDS = 100
_JUMPS_TO_UNWIND = 10_000


@final
class StepClock(Clock):
    """A clock that stands still until `now` is assigned."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self.broken: Exception | None = None
        """If set, raised in Trio's run loop at the next pass: the emergency exit of a run that cannot be unwound."""

    def start_clock(self) -> None:
        """Do nothing: there is nothing to start."""

    def current_time(self) -> float:
        """Return `now`."""
        if self.broken is not None:
            raise self.broken
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return 0: a guest run that may sleep would wait in a thread."""
        return 0


@final
class Call(Generic[T]):
    """An async call that a rule started; it may still be blocked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: State = "blocked"
        """`"blocked"`, `"ok"`, `"raised"` or `"cancelled"`."""
        self.error: Exception | None = None
        """What it raised, if it raised."""
        self._results: list[T] = []
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Call {self.name}: {self.state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state != "blocked"

    @property
    def value(self) -> T:
        """What it returned. Raises what it raised; `AssertionError` if it is still blocked, or was cancelled."""
        if self.error is not None:
            raise self.error
        assert self.state == "ok", f"{self.name} has no value: it is {self.state}"
        return self._results[0]

    def cancel(self) -> None:
        """Cancel it. The cancellation takes effect in the next `settle()`, `start()` or `advance()` of the stepper."""
        self._scope.cancel(reason="cancelled by a rule")

    async def _run(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> None:
        try:
            with self._scope:
                self._results.append(await fn(*args))
                self.state = "ok"
        except Exception as exc:
            self.state, self.error = "raised", exc
        finally:
            if self.state == "blocked":  # cancelled by `cancel()` or by the end of the run
                self.state = "cancelled"


@final
class _Observer(Instrument):
    """What the stepper knows about the pass that has just ended."""

    def __init__(self) -> None:
        self.ran = False
        self.runnable = True
        self.until_deadline = math.inf

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.ran = True

    def before_io_wait(self, timeout: float) -> None:
        statistics = trio.lowlevel.current_statistics()
        self.until_deadline = statistics.seconds_to_next_deadline
        self.runnable = statistics.tasks_runnable > 0 or self.until_deadline <= 0

    def take_quiet(self) -> bool:
        """Return whether nothing ran since the last look and nothing is ready to run."""
        ran, self.ran = self.ran, False
        return not (ran or self.runnable)


@final
class Stepper:
    """One Trio run, driven by synchronous code.

    Rules `start` operations that may stay blocked, move the clock with `advance`, cancel calls and `settle`. Between
    these methods the run stands still, and sync functions of Trio objects may be called as from inside it. The run
    ends with `close()`: call it in `teardown`, or use the stepper as a context manager. Until then no other run can
    start in this thread.

    `trio.testing.wait_all_tasks_blocked` never returns in such a run; `settle()` takes its place.

    Args:
        seed: The schedule, and the library's jitter. Draw it in `@initialize`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._clock = StepClock()
        self._host: deque[Callable[[], object]] = deque()
        self._over = False
        self._crash: BaseException | None = None
        self._complaints: list[str] = []
        self._passes = SchedulerPasses()
        self._observer = _Observer()
        with ExitStack() as restore:
            restore.enter_context(fixed_chance(seed))
            self._begin()
            self._restore = restore.pop_all()

    def _begin(self) -> None:
        trio.lowlevel.start_guest_run(
            self._main,
            clock=self._clock,
            instruments=[self._observer, self._passes],
            run_sync_soon_threadsafe=self._host.append,
            run_sync_soon_not_threadsafe=self._host.append,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,
        )
        self.settle()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as exc:
            if error is None:
                raise
            error.add_note(f"(also, when the stepper was closed: {exc})")

    @property
    def now(self) -> float:
        """The time of the run, in seconds; it begins at 0."""
        return self._clock.now

    @property
    def passes(self) -> int:
        """Passes of the scheduler so far in which a task ran; an idle hour adds none."""
        return self._passes.count

    def start(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, settle: bool = True) -> Call[T]:
        """Start `fn(*args)` in a task and run until it has ended or everything is blocked at the present instant.

        With `settle=False` it does not run yet, so that several calls begin in one batch, in the order of the schedule.
        """
        self._assert_running()
        call = Call[T](getattr(fn, "__name__", repr(fn)))
        self._nursery.start_soon(call._run, fn, *args, name=call.name)  # pyright: ignore[reportPrivateUsage]
        if settle:
            self.settle()
        return call

    def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Return what `fn(*args)` returns, or raise what it raises. Fails if that takes virtual time."""
        return self.start(fn, *args).value

    def settle(self, limit: int = 10_000) -> None:
        """Run until nothing is left to do at the present instant.

        Raises:
            AssertionError: A busy loop: after `limit` passes of the scheduler there was still something to do.
        """
        quiet = 0
        for _ in range(limit):
            if self._crash is not None:
                raise self._crash
            if self._over:
                return
            self._tick()
            quiet = quiet + 1 if self._observer.take_quiet() else 0
            if quiet == _QUIET_PASSES:
                return
        raise AssertionError("\n".join([f"busy loop: not idle after {limit} passes at {self.now} s:", *task_tree()]))

    def advance(self, dt: float, limit: int = 100_000) -> None:
        """Move the clock by `dt` seconds, from deadline to deadline, settling at each.

        Raises:
            AssertionError: A busy loop, at one instant (`settle`) or in time: more than `limit` deadlines passed.
        """
        if not 0 <= dt < math.inf:
            raise ValueError(f"dt must be finite and >= 0, got {dt}")
        self._assert_running()
        target = self.now + dt
        self.settle()
        for _ in range(limit):
            if self.now + self._observer.until_deadline > target:
                break
            self._jump()
        else:
            raise AssertionError("\n".join([f"busy loop: {limit} deadlines by {self.now} s:", *task_tree()]))
        self._clock.now = target
        self.settle()

    def close(self) -> None:
        """Cancel every call, let it clean up (the clock moves if it must), and end the run. A second time is a no-op.

        Raises:
            Hung: A task could not be cancelled: shielded (the shield is then removed) or deaf.
            AssertionError: A task or an async generator was left behind.
        """
        try:
            if not self._over:
                self._wind_up()
        finally:
            self._restore.close()
        complaints, self._complaints = self._complaints, []
        assert not complaints, "\n".join(complaints)

    def _wind_up(self) -> None:
        self._nursery.cancel_scope.cancel(reason="the stepper is closed")
        hung: Hung | None = None
        for _ in range(_UNSHIELDING_ROUNDS):
            try:
                self._unwind()
            except AssertionError as exc:
                hung = hung or Hung(str(exc))
            if self._over or not unshield_all():
                break
        if not self._over:
            self._break_off(hung)
        if hung is not None:
            raise hung

    def _unwind(self) -> None:
        """Run until the run has ended, moving the clock for those who clean up."""
        self.settle()
        for _ in range(_JUMPS_TO_UNWIND):
            if self._over or self._observer.until_deadline == math.inf:
                break
            self._jump()
        if not self._over:
            raise AssertionError("\n".join(["a cancelled call does not end:", *task_tree()]))

    def _break_off(self, hung: Hung | None) -> None:
        self._clock.broken = hung
        while not self._over:
            self._tick()

    def _jump(self) -> None:
        self._clock.now += self._observer.until_deadline
        self.settle()

    def _tick(self) -> None:
        assert self._host, "the run waits in a thread, which no stepper can drive"
        self._host.popleft()()

    def _assert_running(self) -> None:
        assert not self._over, "the stepper is closed"

    def _ended(self, end: Outcome[Any]) -> None:
        self._over = True
        self._crash = getattr(end, "error", None)

    async def _main(self) -> None:
        with watch_leaks(self._complaints):
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
