from __future__ import annotations

import math

import pytest
import trio

from tests.policies.service import AT_ONCE
from trio_orchestrator.algorithms.backoff import Constant, Exponential
from trio_orchestrator.policies.retry import Attempt, GiveUp, Retry
from trio_orchestrator.testing import SchedulerPasses, run_virtual


def test_an_attempt_knows_its_place() -> None:
    seen: list[tuple[object, ...]] = []
    errors = [OSError("a"), OSError("b")]

    async def main() -> None:
        async for attempt in Retry(on=OSError, attempts=3, backoff=Exponential()):
            seen.append((attempt.number, attempt.retries_left, attempt.error, attempt.next_delay, attempt.elapsed))
            with attempt:
                await trio.sleep(0.5)
                if attempt.number < 3:
                    raise errors[attempt.number - 1]
            seen.append((attempt.number, attempt.retries_left, attempt.error, attempt.next_delay, attempt.elapsed))

    run_virtual(main)
    assert seen == [
        (1, 2, None, None, 0),
        (1, 2, errors[0], 1, 0.5),
        (2, 1, errors[0], None, 1.5),
        (2, 1, errors[1], 2, 2),
        (3, 0, errors[1], None, 4),
        (3, 0, None, None, 4.5),
    ]


def test_endless_attempts_have_endless_retries_left() -> None:
    async def main() -> float:
        async for attempt in Retry(on=OSError, attempts=math.inf):
            with attempt:
                return attempt.retries_left
        return 0

    assert run_virtual(main) == math.inf


def test_the_loop_ends_after_a_success_a_break_or_a_continue() -> None:
    async def main() -> list[str]:
        told: list[str] = []
        retry = Retry(on=OSError, backoff=AT_ONCE)
        async for attempt in retry:
            with attempt:
                told.append("success")
        async for attempt in retry:
            with attempt:
                told.append("break")
                break
        async for attempt in retry:
            with attempt:
                told.append("continue")
                continue
        return told

    assert run_virtual(main) == ["success", "break", "continue"]


def test_a_first_attempt_is_no_checkpoint_and_needs_no_clean_up() -> None:
    async def main() -> int:
        passes = SchedulerPasses()
        trio.lowlevel.add_instrument(passes)
        await trio.lowlevel.checkpoint()
        before = passes.count
        async for attempt in Retry(on=OSError):
            with attempt:
                break
        await trio.lowlevel.checkpoint()
        return passes.count - before - 1

    assert run_virtual(main) == 0


def test_an_attempt_that_is_not_entered_is_an_error_and_no_endless_loop() -> None:
    async def main() -> None:
        async for _ in Retry(on=OSError):
            pass

    with pytest.raises(RuntimeError) as caught:
        run_virtual(main)
    assert str(caught.value) == "attempt 1 was not used: write `with attempt:` inside the loop"


def test_an_attempt_is_entered_once() -> None:
    async def main() -> None:
        async for attempt in Retry(on=OSError):
            with attempt:
                pass
            with attempt:
                pass

    with pytest.raises(RuntimeError) as caught:
        run_virtual(main)
    assert str(caught.value) == "attempt 1 was entered before"


def test_the_loop_stays_ended_if_its_error_is_caught_inside() -> None:
    async def main() -> list[int]:
        numbers: list[int] = []
        async for attempt in Retry(on=OSError, attempts=2, backoff=AT_ONCE):
            try:
                with attempt:
                    numbers.append(attempt.number)
                    raise OSError
            except OSError:
                numbers.append(-attempt.number)
        return numbers

    assert run_virtual(main) == [1, 2, -2]


def test_two_loops_in_one_another_keep_their_own_state() -> None:
    async def main() -> list[tuple[int, int]]:
        retry = Retry(on=OSError, attempts=2, backoff=Constant(1), retry_exhausted=True)
        seen: list[tuple[int, int]] = []
        with pytest.raises(OSError):
            async for outer in retry:
                with outer:
                    async for inner in retry:
                        with inner:
                            seen.append((outer.number, inner.number))
                            raise OSError
        return seen

    assert run_virtual(main) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_an_attempt_that_was_the_last_one_says_so() -> None:
    attempts: list[Attempt] = []

    async def main() -> None:
        async for attempt in Retry(on=OSError):
            attempts.append(attempt)
            with attempt:
                raise GiveUp(KeyError())

    with pytest.raises(KeyError):
        run_virtual(main)
    assert (attempts[0].next_delay, attempts[0].left) == (None, True)


def test_a_type_error_of_the_block_itself_is_repeated() -> None:
    async def main() -> int:
        async for attempt in Retry(on=TypeError, backoff=AT_ONCE):
            with attempt:
                if attempt.number < 3:
                    raise TypeError
                return attempt.number
        return 0

    assert run_virtual(main) == 3


async def test_the_loop_works_under_pytest_trio(autojump_clock: trio.testing.MockClock) -> None:
    retry = Retry(on=OSError, backoff=Constant(2))
    async for attempt in retry:
        with attempt:
            if attempt.number < 3:
                raise OSError
    assert trio.current_time() == 4
