"""One hedged call: the original, its copies, and who was first."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, final

import trio

from trio_orchestrator.abc import CALL_FRAMES, Budget
from trio_orchestrator.algorithms.quantile import Quantile
from trio_orchestrator.block import NeutralScope, emit, raise_untouched, without_cancelled
from trio_orchestrator.policies.failure import leaves
from trio_orchestrator.policy_event import HedgeStarted

T = TypeVar("T")

_logger = logging.getLogger("trio_orchestrator")


@final
class Tally:
    """What all calls of a hedge share: what is counted, and what is learned."""

    __slots__ = (
        "_fixed",
        "_recent",
        "calls",
        "copies",
        "hedged",
        "in_flight",
        "late_failures",
        "refused",
        "running",
        "wins",
    )

    def __init__(self, after: float | Quantile) -> None:
        self.calls: int = 0
        self.in_flight: int = 0
        self.running: int = 0
        self.hedged: int = 0
        self.copies: int = 0
        self.wins: int = 0
        self.refused: int = 0
        self.late_failures: int = 0
        self._recent = after.recent() if isinstance(after, Quantile) else None
        self._fixed = math.inf if isinstance(after, Quantile) else after

    def after(self) -> float:
        """Return after how many seconds a call that begins now gets a copy."""
        return self._fixed if self._recent is None else self._recent.at(trio.current_time())

    def learn(self, began_at: float) -> None:
        """Take in how long a call took that has now succeeded."""
        if self._recent is not None:
            now = trio.current_time()
            self._recent.add(now - began_at, now)


@final
class Race(Generic[T]):
    """One call: the original (number 0), its copies, and how they ended. No task raises into the nursery."""

    __slots__ = (
        "_after",
        "_began_at",
        "_budget",
        "_call",
        "_failure",
        "_fatal",
        "_hooks",
        "_interrupted",
        "_name",
        "_nursery",
        "_over",
        "_results",
        "_running",
        "_scopes",
        "_tally",
        "_unwound",
    )

    def __init__(
        self,
        call: Callable[[], Awaitable[T]],
        name: str,
        after: float,
        budget: Budget | None,
        hooks: list[Callable[[HedgeStarted], None]],
        tally: Tally,
    ) -> None:
        self._call = call
        self._name = name
        self._after = after
        self._budget = budget
        self._hooks = hooks
        self._tally = tally
        self._began_at = trio.current_time()
        self._over = trio.Event()
        self._scopes: list[NeutralScope] = []
        self._running = 0
        self._results: list[T] = []
        self._failure: BaseException | None = None  # of the original; nobody asks for the others
        self._unwound = False
        self._fatal: BaseException | None = None
        self._interrupted: BaseException | None = None

    async def run(self, copies: int) -> T:
        """Run the original and up to `copies` copies; return the first result, or raise."""
        try:
            async with trio.open_nursery(strict_exception_groups=True) as self._nursery:
                try:
                    self._start(0)
                    await self._add_copies(copies)
                except trio.Cancelled as error:  # kept out of the nursery, so that it is never grouped
                    self._interrupted = error
                except BaseException as error:
                    self._abort(error)
        except BaseExceptionGroup as group:  # Ctrl-C while the nursery waited
            self._fatal = next(leaf for leaf in leaves(group) if isinstance(leaf, KeyboardInterrupt))
        return self._outcome()

    async def _add_copies(self, copies: int) -> None:
        """Start a copy whenever `after` seconds have passed without an end; return when all is over."""
        for number in range(1, copies + 1):
            with trio.move_on_after(self._after):
                await self._over.wait()
            if self._over.is_set() or not self._is_allowed():
                break
            self._start(number)
            self._announce(number)
        await self._over.wait()

    def _is_allowed(self) -> bool:
        if self._budget is None or self._budget.withdraw(None):
            return True
        self._tally.refused += 1
        return False

    def _announce(self, number: int) -> None:
        self._tally.copies += 1
        self._tally.hedged += number == 1
        if self._hooks:
            emit(self._hooks, HedgeStarted(self._name, number, trio.current_time() - self._began_at))

    def _start(self, number: int) -> None:
        scope = NeutralScope()
        self._scopes.append(scope)
        self._running += 1
        self._tally.running += 1
        self._nursery.start_soon(self._attempt, number, scope, name=f"copy {number} of {self._name}")

    async def _attempt(self, number: int, scope: NeutralScope) -> None:
        """Be one of the copies. Raises nothing."""
        try:
            with scope:
                if not self._over.is_set():
                    self._win(number, await self._call())
        except BaseException as error:
            self._fail(number, error)
        finally:
            self._running -= 1
            self._tally.running -= 1
            if not self._running:
                self._over.set()

    def _win(self, number: int, result: T) -> None:
        """Take a result, unless there is one already."""
        if self._over.is_set():
            return
        self._results.append(result)
        self._tally.wins += number > 0
        self._tally.learn(self._began_at)
        self._end("another copy was first", but=number)

    def _fail(self, number: int, error: BaseException) -> None:
        """Take what a copy raised."""
        rest = without_cancelled(error)
        if self._fatal is None and rest is not None and not isinstance(rest, Exception):
            self._abort(error)
        elif self._over.is_set():
            self._log_late(number, rest)
        elif number == 0:
            self._failure, self._unwound = error, rest is not None and _is_cancelled()
        elif _is_cancelled():
            self._log_late(number, rest)

    def _abort(self, error: BaseException) -> None:
        """End all because of what is no failure of a copy."""
        self._fatal = error
        self._end(f"{type(error).__name__} elsewhere")

    def _end(self, reason: str, but: int = -1) -> None:
        """Cancel all copies. Shielded: they are cancelled already, and a result that is there shall not be lost."""
        self._nursery.cancel_scope.shield = True
        self._over.set()
        for number, scope in enumerate(self._scopes):
            if number != but:
                scope.cancel(reason)

    def _log_late(self, number: int, error: BaseException | None) -> None:
        if error is not None:
            self._tally.late_failures += 1
            _logger.warning("copy %d of %r raised when it had lost", number, self._name, exc_info=error)

    def _outcome(self) -> T:
        """Return the result or raise. Forgets the errors: no cycle through a traceback."""
        error = self._error()
        self._fatal = self._failure = self._interrupted = None
        if error is None:
            return self._results[0]
        try:
            raise_untouched(error)
        finally:
            del error

    def _error(self) -> BaseException | None:
        """Choose what is raised; None: nothing, there is a result."""
        if self._fatal is not None or self._results:
            return self._fatal
        return self._failure if self._interrupted is None or self._unwound else self._interrupted

    # these surround the function, as `call` does
    CALL_FRAMES.update(method.__code__ for method in (run, _attempt, _outcome, raise_untouched))


def _is_cancelled() -> bool:
    return trio.current_effective_deadline() == -math.inf
