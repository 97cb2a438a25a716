"""Three promises about blocks, written once and used by all.

* `open_block`: tasks beside a block, whose inner nursery the user never sees. What the block raises comes out *bare*:
  the same object, in no group, with its `__context__` untouched.
* `TimeoutScope` and `settle_later`: the verdict on a call that a time-out *of ours* ended from outside an inner policy.
  The inner guard sees only `trio.Cancelled`, which might as well be somebody else's; it gives its permit back at once
  and leaves the verdict to the scope, which knows when it closes.
* `Hooks`: instruments that cost nothing unused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeAlias, cast, final

import trio
from trio import Nursery
from trio.lowlevel import RunVar, Task, current_task

from trio_orchestrator.abc import Instrument

_logger = logging.getLogger("trio_orchestrator")

Closing: TypeAlias = Callable[[BaseException | None], Awaitable[None]]


@final
class Block:
    """The inside of `open_block`: where background tasks live, and how they end the block."""

    __slots__ = ("_body", "failure", "nursery")

    def __init__(self, nursery: trio.Nursery, body: trio.CancelScope) -> None:
        self.nursery: trio.Nursery = nursery
        self._body = body
        self.failure: BaseException | None = None

    def fail(self, error: BaseException, reason: str) -> None:
        """Cancel the block and everything beside it; `error` comes out of the block, bare.

        The first failure counts, but a `KeyboardInterrupt` or the like comes before any `Exception`.
        """
        if self.failure is None or isinstance(self.failure, Exception) > isinstance(error, Exception):
            self.failure = error
        self._body.cancel(reason=reason)
        self.nursery.cancel_scope.cancel(reason=reason)


async def _open_block(
    closing: Closing,
) -> AsyncGenerator[Block, None]:
    error: BaseException | None = None
    block: Block | None = None
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            body = trio.CancelScope()
            block = Block(nursery, body)
            try:
                with body:
                    try:
                        yield block
                    except BaseException as exc:
                        if without_cancelled(exc) is not exc:  # some of it may be the scope's
                            raise
                        error = exc  # kept from the scope, which would make another group of a group
            except BaseException as exc:  # kept out of the nursery, so that it is never grouped
                error = exc
            await closing(error)
            if isinstance(error, trio.Cancelled):
                cancelled, error = error, None
                raise cancelled  # the nursery knows whose it is: it absorbs its own
    except BaseExceptionGroup as group:
        error = _verdict(group, error, None if block is None else block.failure)
    if block is not None and block.failure is not None:
        error = _failure_first(block.failure, error)
    if error is not None:
        raise_untouched(error)


open_block: Callable[[Closing], AbstractAsyncContextManager[Block]] = asynccontextmanager(_open_block)
"""Open a nursery beside a block: `async with open_block(closing) as block:`.

`closing(error)` runs when the block has left, with what it raised; it waits for, or cancels, what runs in
`block.nursery`. Leaving waits for every task of `block.nursery`.
"""


def _verdict(
    group: BaseExceptionGroup[BaseException], error: BaseException | None, failure: BaseException | None
) -> BaseException | None:
    """Choose what comes out when tasks beside the block (or the wait for them) raised `group`."""
    rest = cast("BaseExceptionGroup[BaseException] | None", without_cancelled(group))
    if rest is None:  # cancelled from outside, while the block ran or closed
        return error if error is not None else _first_leaf(group)
    fatal = rest.split(Exception)[1]
    if fatal is None and failure is not None:  # Trio's complaint about what `failure` names
        return error
    return _first_leaf(fatal if fatal is not None else rest)


def _failure_first(failure: BaseException, error: BaseException | None) -> BaseException:
    """Rank what a task beside the block reported against what the block itself raised."""
    if error is None or isinstance(error, trio.Cancelled) or not isinstance(failure, Exception):
        return failure
    if isinstance(error, Exception) and error is not failure:
        error.add_note(f"(meanwhile: {failure!r})")
    return error


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def without_cancelled(error: BaseException) -> BaseException | None:
    """Return what is left of `error` without `trio.Cancelled`: itself, a smaller group, or None."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        cancelled, rest = group.split(trio.Cancelled)
        return group if cancelled is None else rest
    return None if isinstance(error, trio.Cancelled) else error


def raise_untouched(error: BaseException) -> NoReturn:
    """Raise `error` with the `__context__` that it has, whatever is being handled now."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # no cycle through the traceback


# ------------------------------------------------------------------------------------------------ verdicts


@final
class Verdict:
    """The end, not yet known, of a call under a scope of ours. Guards inside it report through `settle_later`."""

    __slots__ = ("_nurseries", "_reports", "_scope", "outer", "task")

    def __init__(self, task: Task, scope: trio.CancelScope, outer: Verdict | None = None) -> None:
        self.task: Task | None = task
        """Where the call is made; None once the end is known, since a context may hold on to this for long."""
        self.outer: Verdict | None = outer if outer is not None and outer.task is task else None
        """The next one out in the same task."""
        self._scope = scope
        self._nurseries = len(task.child_nurseries)  # they are around the scope; later ones are inside
        self._reports: list[Callable[[bool], None]] = []

    def is_asked(self, nursery: Nursery | None) -> bool:
        """Tell whether its scope may be what just cancelled a call: one that is not cancelled yet cannot be.

        `nursery` is that of the task in which the call is made, or of which that is a part; None: in this very task.
        """
        if self.task is None or not self._scope.cancel_called:
            return False
        return nursery is None or nursery in self.task.child_nurseries[self._nurseries :]

    def add(self, report: Callable[[bool], None]) -> None:
        """Have `report` called when the end is known."""
        self._reports.append(report)

    def close(self, *, timed_out: bool, outside: Task | None, nursery: Nursery | None = None) -> None:
        """Settle the reports: our time-out is a failure; somebody else's cancellation is left to the next one out.

        `outside` is the task in which to look for that one (None: it was not somebody else's, so it is neutral), and
        `nursery` the one in it that the call was made in, if any.
        """
        self.task = self.outer = None
        reports, self._reports = self._reports, []
        outer = None if timed_out or not reports else _verdict_around(outside, nursery)
        for report in reports:
            if outer is not None:
                outer.add(report)
            else:
                report(timed_out)


class VerdictHost(Protocol):
    """A task that runs call after call under time-outs of ours, and makes a verdict only if one is asked for."""

    def open_verdict(self) -> Verdict | None:
        """Return the verdict on the present call, or None if nothing of ours has cancelled it."""
        ...


_here: ContextVar[Verdict | None] = ContextVar("trio_orchestrator.verdict", default=None)
_hosts: RunVar[dict[Task, VerdictHost]] = RunVar("trio_orchestrator.verdict_hosts")


def verdict_hosts() -> dict[Task, VerdictHost]:
    """Return the tasks of this run that host verdicts, for them to enter and to leave."""
    try:
        return _hosts.get()
    except LookupError:
        hosts: dict[Task, VerdictHost] = {}
        _hosts.set(hosts)
        return hosts


def _verdict_around(task: Task | None, nursery: Nursery | None = None) -> Verdict | None:
    """Look, in a task and those around it, for the innermost scope of ours that may have cancelled a call just now.

    The context of the call alone would not do: a task may be started into a nursery further out than the scope in
    which that is done, or with another context, and a job runs in its submitter's. So each task is asked for the
    scopes that it has open now around the nursery that leads to the call.
    """
    hosts = verdict_hosts()
    while task is not None:
        here = task.context.get(_here)
        while here is not None and here.task is task:
            if here.is_asked(nursery):
                return here
            here = here.outer
        host = hosts.get(task)
        verdict = host.open_verdict() if host is not None else None
        if verdict is not None:
            return verdict
        nursery = task.parent_nursery
        task = nursery.parent_task if nursery is not None else None
    return None


def settle_later(report: Callable[[bool], None]) -> None:
    """For a guard whose call ended with `trio.Cancelled`: have `report(failed)` called once that is known.

    `failed` is True if a time-out of ours ended the call (a failure, for the guard), False if the cancellation was
    somebody else's (neutral). If no time-out of ours has passed by now, `report(False)` is called at once. Sync; never
    raises unless `report` does.
    """
    verdict = _verdict_around(current_task())
    if verdict is None:
        report(False)
    else:
        verdict.add(report)


class _VerdictScope:
    """A cancel scope that gives the guards inside it their verdict when it closes."""

    __slots__ = ("_scope", "_token", "_verdict")

    failing: ClassVar[bool]
    """Whether a call that this scope ended has failed."""

    def __init__(self, deadline: float = math.inf) -> None:
        self._scope = trio.CancelScope(deadline=deadline)

    def __enter__(self) -> Self:
        self._verdict = Verdict(current_task(), self._scope, _here.get())
        self._token: Token[Verdict | None] = _here.set(self._verdict)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallow: bool | None = False
        try:
            if error is None or without_cancelled(error) is not error:
                swallow = self._scope.__exit__(kind, error, traceback)
            else:  # kept from the scope, which would make another group of a group
                self._scope.__exit__(None, None, None)
        finally:
            _here.reset(self._token)
            caught = self._scope.cancelled_caught
            ours = caught or (not self.failing and self._scope.cancel_called)  # a time-out further out came too late
            self._verdict.close(timed_out=caught and self.failing, outside=None if ours else self._verdict.task)
        return swallow


@final
class TimeoutScope(_VerdictScope):
    """A cancel scope of ours around one call: if its deadline ends the call, that is a failure for the guards inside.

    `with TimeoutScope(deadline) as scope:` and then `scope.timed_out`. Entering and leaving do not block.
    """

    __slots__ = ()
    failing = True

    @property
    def timed_out(self) -> bool:
        """Whether our deadline ended the call, once the scope is left."""
        return self._scope.cancelled_caught


@final
class NeutralScope(_VerdictScope):
    """A cancel scope of ours around a call that may become superfluous: `cancel()` is neutral for the guards inside.

    Without it a guard would look for a time-out further out, and take the end of a loser for a failure if that time-out
    fires later.
    """

    __slots__ = ()
    failing = False

    def cancel(self, reason: str) -> None:
        """Cancel the call. Sync."""
        self._scope.cancel(reason=reason)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` ended the call, once the scope is left."""
        return self._scope.cancelled_caught


# --------------------------------------------------------------------------------------------------- hooks


@final
class Hooks:
    """The overridden methods of some instruments, bound once, by hook.

    `hooks.of("retry_scheduled")` gives a list to test for truth before an event is built, and to pass to `emit`.
    """

    __slots__ = ("_hooks",)

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self._hooks: dict[str, list[Callable[[Any], None]]] = {}
        for instrument in instruments:
            if not isinstance(instrument, Instrument):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"instruments must be Instrument objects, got {instrument!r}")
        for name in (name for name in vars(Instrument) if not name.startswith("_")):
            self._hooks[name] = [
                getattr(instrument, name)
                for instrument in instruments
                if getattr(type(instrument), name) is not getattr(Instrument, name)
            ]

    def of(self, name: str) -> list[Callable[[Any], None]]:
        """Return the live list of hooks called `name`: empty if nobody listens."""
        return self._hooks[name]


def emit(hooks: list[Callable[[Any], None]], event: object) -> None:
    """Call each hook with `event`. One that raises an `Exception` is logged and removed; the others still hear it."""
    for hook in tuple(hooks):
        try:
            hook(event)
        except Exception:
            hooks.remove(hook)
            _logger.exception("instrument hook %r raised and was removed", hook)
