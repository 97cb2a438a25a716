"""One function over many items, through a queue of its own."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence, Sized
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast, final, overload

import outcome
import trio
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled

from trio_orchestrator.abc import Instrument, Policy
from trio_orchestrator.algorithms.argument import count
from trio_orchestrator.block import open_block
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.failures import Failures
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.queue.handle import JobHandle
from trio_orchestrator.queue.opening import open_task_queue
from trio_orchestrator.queue.options import check_function
from trio_orchestrator.queue.settings import MeasuredSlots
from trio_orchestrator.queue.task_queue import TaskQueue

if TYPE_CHECKING:
    from rich.progress import Progress

A = TypeVar("A")
T = TypeVar("T")

Items: TypeAlias = Iterable[A] | AsyncIterable[A]


class MapOptions(TypedDict, total=False):
    """Options of the queue behind a map: as in `open_task_queue`."""

    limiter: trio.CapacityLimiter | MeasuredSlots | None
    retry: Retry | None
    protect: Policy | None
    cooldown: Cooldown | None
    attempt_timeout: float
    timeout: float
    name: str
    progress: bool | Progress
    instruments: Sequence[Instrument]


@overload
async def map_all(
    fn: Callable[[A], Awaitable[T]],
    items: Items[A],
    *,
    concurrency: float | None = None,
    outcomes: Literal[False] = False,
    **options: Unpack[MapOptions],
) -> list[T]: ...


@overload
async def map_all(
    fn: Callable[[A], Awaitable[T]],
    items: Items[A],
    *,
    concurrency: float | None = None,
    outcomes: Literal[True],
    **options: Unpack[MapOptions],
) -> list[outcome.Value[T] | outcome.Error]: ...


async def map_all(
    fn: Callable[[A], Awaitable[T]],
    items: Items[A],
    *,
    concurrency: float | None = None,
    outcomes: bool = False,
    **options: Unpack[MapOptions],
) -> list[T] | list[outcome.Value[T] | outcome.Error]:
    """Call `fn(item)` for every item, at most `concurrency` at once, and return the results in the order of the items.

    Items are taken as there is room for them, from a sync or async iterable; results are kept, so it must end. Always a
    checkpoint. Cancelling it cancels all calls and waits until they have left.

    Args:
        fn: An async function of one item.
        items: What to call it with.
        concurrency: As in `open_task_queue`; default 3.
        outcomes: Return `outcome.Value` or `outcome.Error` for each item, instead of raising.
        options: Further options of the queue.

    Raises:
        Exception: Without `outcomes`, the first failure, bare; the other calls are cancelled. What `items` raises.
    """
    await checkpoint()
    check_function(fn)
    failures = Failures.RECORD if outcomes else Failures.FAIL_FAST
    async with (
        open_task_queue(concurrency=concurrency, failures=failures, expected=_size(items), **options) as queue,
        aclosing(each(items)) as source,
    ):
        handles = [await queue.submit(fn, item) async for item in source]
    if outcomes:
        return [outcome.capture(handle.result_nowait) for handle in handles]
    return [handle.result_nowait() for handle in handles]


def _size(items: object) -> int | None:
    return len(items) if isinstance(items, Sized) else None


async def each(items: Items[A]) -> AsyncGenerator[A, None]:
    """Yield the items of a sync or async iterable. Closed, it closes an async generator, which nobody else could."""
    if isinstance(items, AsyncIterable):
        source = aiter(items)
        try:
            async for item in source:
                yield item
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
    elif isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        for item in items:
            yield item
    else:
        raise TypeError(f"items must be an iterable or an async iterable, got {items!r}")


@final
class MapOutcome(Generic[A, T]):
    """What became of one item."""

    __slots__ = ("_handle", "index", "item")

    index: int
    """The item's place in the source; 0 is the first."""
    item: A
    """The item itself."""

    def __init__(self, index: int, item: A, handle: JobHandle[T]) -> None:
        """Made by `open_map` only."""
        self.index = index
        self.item = item
        self._handle = handle

    def __repr__(self) -> str:
        return f"<MapOutcome {self.index} of {self.item!r}: {self._handle.state.value}>"

    @property
    def error(self) -> Exception | None:
        """What the call raised in the end, or None."""
        try:
            self._handle.result_nowait()
        except Exception as error:
            return error
        return None

    @property
    def attempts(self) -> int:
        """How many attempts were made."""
        return self._handle.attempts

    def result(self) -> T:
        """Return the result, or raise the error; as often as you like."""
        return self._handle.result_nowait()


@final
class _Outcomes(Generic[A, T]):
    """The stream of outcomes, and the pump that keeps the queue filled."""

    def __init__(self, queue: TaskQueue, fn: Callable[[A], Awaitable[T]], *, ordered: bool, ahead: float) -> None:
        self._queue = queue
        self._fn = fn
        self._ordered = ordered
        self._ahead = ahead  # items that may be out: taken from the source, their outcome not yet taken
        self._out = 0
        self._pulled = 0
        self._exhausted = False
        self._ready: deque[MapOutcome[A, T]] = deque()  # unordered: ended; ordered: all that are out
        self._items: dict[JobHandle[Any], MapOutcome[A, T]] = {}
        self._changed = ParkingLot()

    def __aiter__(self) -> AsyncIterator[MapOutcome[A, T]]:
        return self

    async def __anext__(self) -> MapOutcome[A, T]:
        await checkpoint()
        while not self._has_next():
            if self._exhausted and not self._out:
                raise StopAsyncIteration
            await self._changed.park()
            await checkpoint_if_cancelled()  # woken and cancelled in one tick: what has ended by that is no outcome
        self._out -= 1
        self._changed.unpark_all()
        return self._ready.popleft()

    def _has_next(self) -> bool:
        return bool(self._ready) and (not self._ordered or self._ready[0]._handle.done)

    async def pump(self, items: Items[A]) -> None:
        """Take items from the source while there is room ahead of the consumer."""
        source = each(items)
        try:
            while True:
                while self._out >= self._ahead:
                    await self._changed.park()
                self._out += 1
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    break
                self._send(item, await self._queue.submit(self._fn, item))
        finally:
            with trio.CancelScope(shield=True):  # closes a generator that is ours; the user's source closes with it
                await source.aclose()
        self._out -= 1
        self._exhausted = True
        self._changed.unpark_all()

    def _send(self, item: A, job: JobHandle[T]) -> None:
        out = MapOutcome(self._pulled, item, job)
        self._pulled += 1
        if self._ordered:
            self._ready.append(out)
        else:
            self._items[job] = out
        if job.done:
            self._settle(job)
        else:
            job._waiters = self

    def _settle(self, job: JobHandle[Any], /) -> None:
        """A call has ended."""
        if not self._ordered:
            self._ready.append(self._items.pop(job))
        self._changed.unpark_all()


async def _open_map(
    fn: Callable[[A], Awaitable[T]],
    items: Items[A],
    ordered: bool,
    buffer: float,
    opening: AbstractAsyncContextManager[TaskQueue],
) -> AsyncGenerator[AsyncIterator[MapOutcome[A, T]], None]:
    async with opening as queue:
        outcomes = _Outcomes(queue, fn, ordered=ordered, ahead=queue.concurrency + buffer)

        async def leave(error: BaseException | None) -> None:
            block.nursery.cancel_scope.cancel(reason="the block of the map was left")
            queue._engine.abort("the block of the map was left")

        async def pump() -> None:
            try:
                await outcomes.pump(items)
            except Exception as error:  # the source's own: it comes out of the block, bare
                block.fail(error, "the source of the map raised")

        async with open_block(leave) as block:
            block.nursery.start_soon(pump, name=f"source of {queue.name}")
            yield outcomes


_opened = asynccontextmanager(_open_map)


def open_map(
    fn: Callable[[A], Awaitable[T]],
    items: Items[A],
    *,
    concurrency: float | None = None,
    ordered: bool = True,
    buffer: int = 0,
    **options: Unpack[MapOptions],
) -> AbstractAsyncContextManager[AsyncIterator[MapOutcome[A, T]]]:
    """Stream the outcomes of `fn(item)` over items, lazily on both ends.

    `async with open_map(fn, items) as outcomes:` and then `async for outcome in outcomes:`.

    Takes sync and async iterables, endless ones too: never more than `concurrency + buffer` items are ahead of what the
    block has taken. Entering does not wait. Leaving, at whatever point, cancels what is still out and waits until it
    has left. What the block, or the source, raises comes out bare; a call's own error is in its outcome.

    Args:
        fn: An async function of one item.
        items: What to call it with.
        concurrency: As in `open_task_queue`; default 3.
        ordered: Outcomes come in the order of the items; if False, as they are ready.
        buffer: How many more items than `concurrency` may be ahead, >= 0.
        options: Further options of the queue.

    Raises:
        TypeError, ValueError: An argument is wrong; the message starts with its name.
    """
    check_function(fn)
    if not isinstance(cast("object", items), (Iterable, AsyncIterable)):
        raise TypeError(f"items must be an iterable or an async iterable, got {items!r}")
    ahead = count("buffer", buffer, 0)
    opening = open_task_queue(
        concurrency=concurrency, failures=Failures.RECORD, max_waiting=math.inf, expected=_size(items), **options
    )
    return _opened(fn, items, ordered, ahead, opening)
