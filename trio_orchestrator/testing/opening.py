"""One way to start something that takes a while, for `with` and for `async with`: the steps are written once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Final, Generic, TypeAlias, TypeVar, final

import trio

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""What yields whenever it has to wait a moment, and returns what it made."""

_PAUSE: Final = 0.005
_END: Final = object()


@final
class Opening(Generic[T]):
    """What `open_redis_server` and its like return: enter it with `async with`, or with `with`.

    The second form is for code without Trio, such as a session-scoped fixture of pytest. It waits in the thread.

    Entering waits until everything is ready to be used, and can be cancelled at any moment: what was started until then
    is ended. Leaving ends it within milliseconds, by its own handle, whatever happens around it. An exception of the
    block passes untouched. It may be entered again after it was left, and then starts anew.
    """

    def __init__(self, steps: Callable[[ExitStack], Steps[T]]) -> None:
        """Made by the functions that open something."""
        self._steps = steps
        self._stack: ExitStack | None = None

    def __enter__(self) -> T:
        with ExitStack() as stack:
            opened = finish(self._steps(stack))
            self._keep(stack)
            return opened

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    async def __aenter__(self) -> T:
        with ExitStack() as stack:
            opened = await finish_async(self._steps(stack))
            self._keep(stack)
            return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        await trio.lowlevel.cancel_shielded_checkpoint()  # a Cancelled from here would hide what the block raised

    def _keep(self, stack: ExitStack) -> None:
        if self._stack is not None:
            raise RuntimeError("it is open already: make another one")
        self._stack = stack.pop_all()

    def _close(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()


def finish(steps: Steps[T]) -> T:
    """Take every step, and sleep in this thread between them."""
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            time.sleep(_PAUSE)


async def finish_async(steps: Steps[T]) -> T:
    """Take every step, and sleep in Trio between them. Cancelled, it closes `steps`."""
    with closing(steps):
        await trio.lowlevel.checkpoint()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await trio.sleep(_PAUSE)


def side_by_side(each: Iterable[Steps[None]]) -> Steps[None]:
    """Take the steps of all of them in turn, until the last has ended."""
    going = list(each)
    while going := [steps for steps in going if next(steps, _END) is not _END]:
        yield


def until(deadline: float, holds: Callable[[], bool], complain: Callable[[], str]) -> Steps[None]:
    """Wait until `holds()` is true; at `deadline` (of `time.monotonic`) raise with what `complain` says.

    The clock is the real one on purpose: another process does not live in Trio's virtual time.

    Raises:
        RuntimeError: It did not hold in time.
    """
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(complain())
        yield
