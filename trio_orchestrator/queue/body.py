"""How a body is called: open to Ctrl-C, unlike the engine around it, and inside `protect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CodeType
from typing import Any, final

from trio.lowlevel import disable_ki_protection

from trio_orchestrator.abc import CALL_FRAMES, Policy
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.failure import mark_permanent


@disable_ki_protection
async def call_unprotected(fn: Callable[..., Awaitable[Any]], args: object) -> Any:
    """Call the body so that Ctrl-C interrupts it, and never the engine around it."""
    return await (fn(*args) if type(args) is tuple else fn(args))


@final
class Refused(Exception):  # noqa: N818 - it says what happened, and never leaves the queue
    """`protect` refused an attempt: its body never ran."""

    def __init__(self, refusal: RejectedError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


@final
class _Body:
    """A body inside `protect`, and whether it was called. Called as a policy is, so that its function can be seen."""

    __slots__ = ("bad_calls", "entered")

    def __init__(self) -> None:
        self.entered = False
        self.bad_calls: list[TypeError] = []

    async def call(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self.entered = True
        try:
            return await call_unprotected(fn, args)
        except TypeError as error:
            if _innermost(error) in LEADING_FRAMES:  # the call itself failed, and not the body: nobody shall repeat it
                self.bad_calls.append(mark_permanent(error))
            raise


async def call_protected(protect: Policy, fn: Callable[..., Awaitable[Any]], args: object) -> Any:
    """Call the body inside `protect`. A `RejectedError` of the body itself passes unchanged.

    Raises:
        Refused: `protect` raised a `RejectedError`, and had not called the body.
    """
    body = _Body()
    arguments: tuple[Any, ...] = args if type(args) is tuple else (args,)  # pyright: ignore[reportUnknownVariableType]
    try:
        return await call_unprotected(protect.call, (body.call, fn, *arguments))
    except TypeError as error:
        if error in body.bad_calls:
            error.__traceback__ = None  # as if it came from here, without a policy between
        raise
    except RejectedError as refusal:
        if body.entered:
            raise
        raise Refused(refusal) from None


def _innermost(error: TypeError) -> CodeType:
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code


CALL_FRAMES.add(_Body.call.__code__)
LEADING_FRAMES = {call_unprotected.__code__, call_protected.__code__}
"""Code of ours that leads the traceback of every body; a worker and the engine add theirs."""
