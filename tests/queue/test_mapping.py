"""`map_all` and `open_map`: order, laziness on both ends, and what comes out bare."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import outcome
import pytest
import trio

from tests.queue.timeline import Flop, Timeline, briefly, clean_up, pauses, virtual
from trio_orchestrator import map_all, open_map


async def slow(number: int) -> int:
    """Take the longer the smaller the number, of five."""
    await trio.sleep(5 - number % 5)
    return number * number


class Source:
    """Endless numbers, sync or async; tells how many were taken. An async one has to be closed: who else could?"""

    def __init__(self, limit: float = math.inf, error: Exception | None = None) -> None:
        self.taken = 0
        self.limit = limit
        self.error = error
        self.closed = False

    def numbers(self) -> Iterator[int]:
        try:
            for number in count():
                if number >= self.limit:
                    if self.error is not None:
                        raise self.error
                    return
                self.taken += 1
                yield number
        finally:
            self.closed = True

    async def numbers_async(self) -> AsyncIterator[int]:
        try:
            for number in self.numbers():
                yield number
        finally:
            self.closed = True


Numbers = Callable[[Source], Iterator[int] | AsyncIterator[int]]
kinds = pytest.mark.parametrize("numbers", [Source.numbers, Source.numbers_async])

# ------------------------------------------------------------------------------------------------- map_all


@virtual
@kinds
async def test_map_all_returns_a_list_in_order(numbers: Numbers) -> None:
    assert await map_all(slow, numbers(Source(7)), concurrency=3) == [0, 1, 4, 9, 16, 25, 36]
    assert await map_all(slow, numbers(Source(0))) == []


@virtual
async def test_map_all_keeps_its_limit() -> None:
    line = Timeline()

    async def work(number: int) -> None:
        await line.work("x", 1)

    await map_all(work, range(10), concurrency=4)
    assert (line.peak, trio.current_time()) == (4, 3)
    await map_all(work, range(10))
    assert trio.current_time() == 3 + 4


@briefly
async def test_map_all_takes_items_as_there_is_room() -> None:
    source = Source(5000)

    async def work(number: int) -> int:
        assert source.taken <= number + 1000 + 1 + 1
        return number

    assert len(await map_all(work, source.numbers(), concurrency=1)) == 5000


@virtual
@kinds
async def test_the_first_failure_comes_out_bare_and_cancels_the_others(numbers: Numbers) -> None:
    error, source, ends = Flop(), Source(), list[float]()

    async def work(number: int) -> None:
        try:
            await trio.sleep(number)
            if number >= 3:
                raise error
            await clean_up(2)
        finally:
            ends.append(trio.current_time())

    with pytest.raises(Flop) as caught:
        await map_all(work, numbers(source), concurrency=4)
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 5
    assert source.closed or numbers is not Source.numbers_async


@virtual
async def test_outcomes_instead_of_raising() -> None:
    error = Flop()

    async def work(number: int) -> int:
        if number == 1:
            raise error
        return number

    found = await map_all(work, range(3), outcomes=True)
    assert found == [outcome.Value(0), outcome.Error(error), outcome.Value(2)]
    with pytest.raises(Flop):
        found[1].unwrap()


@virtual
@kinds
@pytest.mark.parametrize("outcomes", [False, True])
async def test_what_the_source_raises_comes_out_bare(numbers: Numbers, outcomes: bool) -> None:
    error = KeyError("source")
    source = Source(3, error)
    with pytest.raises(KeyError) as caught:
        if outcomes:
            await map_all(slow, numbers(source), outcomes=True)
        else:
            await map_all(slow, numbers(source))
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 0


@virtual
@kinds
async def test_cancelling_map_all_waits_until_the_calls_have_left(numbers: Numbers) -> None:
    source = Source()
    with trio.move_on_after(1) as scope:
        await map_all(lambda _: clean_up(3), numbers(source), concurrency=5)
    assert scope.cancelled_caught
    assert trio.current_time() == 4
    assert source.closed or numbers is not Source.numbers_async


@virtual
async def test_map_all_retries_and_is_always_a_checkpoint() -> None:
    line = Timeline()
    bodies = [line.flaky(str(number)) for number in range(3)]
    assert await map_all(lambda number: bodies[number](), range(3), retry=pauses(5)) == ["0", "1", "2"]
    assert trio.current_time() == 7
    with trio.CancelScope() as scope:
        scope.cancel()
        await map_all(slow, [])
    assert scope.cancelled_caught


# ------------------------------------------------------------------------------------------------ open_map


@virtual
@kinds
async def test_a_stream_in_order(numbers: Numbers) -> None:
    found = []
    async with open_map(slow, numbers(Source(7)), concurrency=3) as outcomes:
        async for out in outcomes:
            found.append((out.index, out.item, out.result(), out.error, out.attempts))
    assert found == [(number, number, number * number, None, 1) for number in range(7)]


@virtual
@kinds
async def test_a_stream_as_they_are_ready(numbers: Numbers) -> None:
    found = []
    async with open_map(slow, numbers(Source(5)), concurrency=5, ordered=False) as outcomes:
        async for out in outcomes:
            found.append((trio.current_time(), out.index, out.result()))
    assert found == [(1, 4, 16), (2, 3, 9), (3, 2, 4), (4, 1, 1), (5, 0, 0)]


@virtual
@kinds
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("buffer", [0, 3])
async def test_never_more_than_that_is_pulled_ahead(numbers: Numbers, ordered: bool, buffer: int) -> None:
    source, taken = Source(60), 0
    async with open_map(slow, numbers(source), concurrency=4, ordered=ordered, buffer=buffer) as outcomes:
        async for _ in outcomes:
            taken += 1
            assert source.taken - taken <= 4 + buffer
            if taken % 10 == 0:
                await trio.sleep(100)
                assert source.taken - taken == min(4 + buffer, 60 - taken)
    assert taken == 60


@virtual
@kinds
@pytest.mark.parametrize("ordered", [True, False])
async def test_leaving_early_cancels_what_is_out_and_closes_an_endless_source(numbers: Numbers, ordered: bool) -> None:
    source, left = Source(), list[float]()

    async def work(number: int) -> int:
        try:
            if number > 5:
                await clean_up(3)
        finally:
            left.append(trio.current_time())
        return number

    found = []
    async with open_map(work, numbers(source), concurrency=3, ordered=ordered) as outcomes:
        async for out in outcomes:
            found.append(out.result())
            if len(found) == 5:
                await trio.sleep(1)
                break
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert trio.current_time() == 4
    assert source.closed or numbers is not Source.numbers_async
    assert len(left) == source.taken


@virtual
@kinds
async def test_a_consumer_that_takes_nothing_may_leave(numbers: Numbers) -> None:
    source = Source()
    async with open_map(slow, numbers(source)):
        pass
    async with open_map(slow, numbers(source)):
        await trio.sleep(1)
    assert trio.current_time() == 1


@virtual
@kinds
async def test_a_source_that_raises_ends_the_block_bare(numbers: Numbers) -> None:
    error = KeyError("source")
    source = Source(2, error)
    found = []
    with pytest.raises(KeyError) as caught:
        async with open_map(slow, numbers(source), concurrency=5) as outcomes:
            async for out in outcomes:
                found.append(out.index)
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 0


@virtual
async def test_what_the_block_raises_comes_out_bare() -> None:
    error = KeyError("block")
    with pytest.raises(KeyError) as caught:
        async with open_map(lambda _: clean_up(2), count()):
            await trio.sleep(1)
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 3


@virtual
async def test_an_error_of_a_call_is_in_its_outcome() -> None:
    error = Flop()

    async def work(number: int) -> int:
        if number % 2:
            raise error
        return number

    async with open_map(work, range(4)) as outcomes:
        found = [out async for out in outcomes]
    assert [out.error for out in found] == [None, error, None, error]
    assert "1 of 1: failed" in repr(found[1])
    for _ in range(2):
        with pytest.raises(Flop) as caught:
            found[1].result()
        assert caught.value is error


@virtual
async def test_an_async_source_may_wait() -> None:
    async def ticks() -> AsyncIterator[int]:
        for number in range(4):
            await trio.sleep(10)
            yield number

    async def work(number: int) -> int:
        await trio.sleep(1)
        return number

    found = []
    async with open_map(work, ticks()) as outcomes:
        async for out in outcomes:
            found.append((trio.current_time(), out.result()))
    assert found == [(11, 0), (21, 1), (31, 2), (41, 3)]


@virtual
async def test_several_tasks_may_take_from_one_stream() -> None:
    found: list[int] = []

    async def take() -> None:
        async for out in outcomes:
            found.append(out.index)
            await trio.sleep(0.1)

    async with open_map(slow, range(20)) as outcomes, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(take)
    assert found == list(range(20))


@virtual
async def test_retries_of_a_stream_keep_its_order() -> None:
    line = Timeline()
    bodies = [line.flaky(str(number), failures=number % 2) for number in range(4)]
    async with open_map(lambda number: bodies[number](), range(4), retry=pauses(5)) as outcomes:
        found = [(out.result(), out.attempts) async for out in outcomes]
    assert found == [("0", 1), ("1", 2), ("2", 1), ("3", 2)]
