"""The run of one retried call, and its attempts: `async for attempt in retry: with attempt: ...`."""

from __future__ import annotations

import math
from types import TracebackType
from typing import TYPE_CHECKING, final

import trio

from trio_orchestrator.block import TimeoutScope, raise_untouched
from trio_orchestrator.policies.decision import NO_RESULT, Name, settle
from trio_orchestrator.policies.failure import EXHAUSTIONS, GiveUp, is_misfit, mark_permanent, mark_timeout

if TYPE_CHECKING:
    from trio_orchestrator.policies.retry import Retry


@final
class Run:
    """The state of one call under a `Retry`. Belongs to one task."""

    __slots__ = ("attempt", "deadline", "error", "name", "retry", "since", "started_at", "wish")

    def __init__(self, retry: Retry, name: Name, started_at: float, since: int) -> None:
        self.retry: Retry = retry
        self.name: Name = name
        self.started_at: float = started_at
        self.since: int = since
        self.attempt: int = 1
        self.deadline: float = started_at + retry.timeout
        self.error: BaseException | None = None
        self.wish: float | None = None
        if retry.budget is not None:
            retry.budget.begin()

    def next_attempt(self) -> None:
        """Count the attempt that starts now."""
        self.attempt += 1
        self.since = EXHAUSTIONS.count
        self.wish = None

    def failed(
        self, error: BaseException | None, *, result: object = NO_RESULT, timed_out: bool = False
    ) -> tuple[float | None, BaseException | None]:
        """Return the pause before the next attempt, or None, and the failure; out of a `GiveUp`, if it is in one."""
        if isinstance(error, TypeError) and not isinstance(self.name, str) and is_misfit(error):
            mark_permanent(error)
        now = trio.current_time()
        decision = self.retry.decide(
            self.name,
            error,
            attempt=self.attempt,
            started_at=self.started_at,
            now=now,
            deadline=min(self.deadline, trio.current_effective_deadline()),
            result=result,
            timed_out=timed_out,
            wish=self.wish,
            since=self.since,
        )
        self.error = None if decision.delay is None else decision.error  # kept no longer: it holds our frames
        return decision.delay, decision.error

    def succeeded(self) -> None:
        """Tell the budget."""
        error, self.error = self.error, None
        if self.retry.budget is not None:
            settle(self.retry.budget, self.attempt, error)

    def timeout(self, now: float) -> tuple[float, str]:
        """Return until when the attempt that starts now may run, and the name of the time-out that says so."""
        own = now + self.retry.attempt_timeout
        return (own, "attempt_timeout") if own < self.deadline else (self.deadline, "timeout")


@final
class Attempt:
    """One attempt: `with attempt:` around the body, once. Neither half blocks.

    Leaving with an exception that is to be repeated swallows it; the loop then pauses and goes on. Leaving in any other
    way (also by `continue`) ends the loop. A time-out of the retry cancels the body.
    """

    __slots__ = ("_bad", "_left", "_limit", "_run", "_scope", "next_delay", "number")

    number: int
    """1 is the first."""
    next_delay: float | None
    """Seconds until the next attempt, known when this one has left; None if none follows."""

    def __init__(self, run: Run) -> None:
        self.number = run.attempt
        self.next_delay = None
        self._run = run
        self._scope: TimeoutScope | None = None
        self._limit = ""
        self._left: bool | None = None  # None: not entered
        self._bad = False

    @property
    def error(self) -> BaseException | None:
        """The failure that is repeated: of the attempt before, or of this one once it has left. None if none is."""
        return self._run.error

    @property
    def elapsed(self) -> float:
        """Seconds since the first attempt started."""
        return trio.current_time() - self._run.started_at

    @property
    def retries_left(self) -> float:
        """How many attempts may follow this one, as far as their number decides."""
        return self._run.retry.attempts - self.number

    @property
    def left(self) -> bool:
        """Whether the block has been left."""
        return self._left is True

    def retry_after(self, seconds: float) -> None:
        """Wish for a pause of at least this many seconds after this attempt, if it fails. Nonsense is ignored."""
        self._run.wish = seconds

    def refuses(self, result: object) -> bool:
        """Tell whether `result` is bad by the `on_result` of the retry *and* another attempt follows. Sync.

        For the body: `if not attempt.refuses(result): return result`. What `on_result` raises ends the run.
        """
        bad = self._run.retry.on_result
        try:
            self._bad = bad is not None and bool(bad(result))
            if self._bad:
                self.next_delay, _ = self._run.failed(None, result=result)
        except Exception as error:
            raise GiveUp(error) from None
        return self.next_delay is not None

    def __enter__(self) -> Attempt:
        if self._left is not None:
            raise RuntimeError(f"attempt {self.number} was entered before")
        self._left = False
        deadline, self._limit = self._run.timeout(trio.current_time())
        if deadline < math.inf:
            self._scope = TimeoutScope(deadline)
            self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._left = True
        failure, timed_out = self._close(kind, error, traceback)
        if isinstance(failure, Exception):
            self.next_delay, failure = self._run.failed(failure, timed_out=timed_out)
            if self.next_delay is not None:
                return True
        elif failure is not None:
            self._run.error = None  # kept no longer: it holds our frames
        elif not self._bad:
            self._run.succeeded()
        if failure is not error and failure is not None:
            try:
                raise_untouched(failure)
            finally:
                del failure, error
        return False

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> tuple[BaseException | None, bool]:
        """Leave our scope; return what the attempt failed with, and whether that is a time-out of ours."""
        if self._scope is None:
            return error, False
        try:
            self._scope.__exit__(kind, error, traceback)
        except BaseExceptionGroup as rest:  # what the body raised beside our Cancelled
            return rest, False
        return (self._too_slow(), True) if self._scope.timed_out else (error, False)

    def _too_slow(self) -> trio.TooSlowError:
        error = mark_timeout(
            trio.TooSlowError(f"{self._limit}={getattr(self._run.retry, self._limit):g} s was exceeded")
        )
        error.__cause__ = self._run.error
        return error


@final
class Attempts:
    """The loop: hands out attempts until one succeeds, with a pause before each but the first."""

    __slots__ = ("_attempt", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._attempt: Attempt | None = None

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Attempt:
        """Return the next attempt, after its pause. The first needs none, and is no checkpoint.

        Raises:
            RuntimeError: The last attempt was not used as a `with` block.
        """
        last = self._attempt
        if last is not None:
            if not last.left:
                raise RuntimeError(f"attempt {last.number} was not used: write `with attempt:` inside the loop")
            if last.next_delay is None:
                raise StopAsyncIteration
            try:
                await trio.sleep(last.next_delay)
            except BaseException:
                self._run.error = None  # kept no longer: it holds our frames
                raise
            self._run.next_attempt()
        self._attempt = Attempt(self._run)
        return self._attempt
