from __future__ import annotations

import math

import pytest
import trio

from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual


async def slow(seconds: float, result: str) -> str:
    await trio.sleep(seconds)
    return result


def test_a_call_in_time_is_untouched() -> None:
    assert run_virtual(lambda: Timeout(3).call(slow, 2.9, "result")) == "result"
    assert run_virtual(lambda: Timeout(math.inf).call(slow, 1e9, "result")) == "result"


def test_a_slow_call_is_cancelled_and_named() -> None:
    async def main() -> float:
        with pytest.raises(trio.TooSlowError) as caught:
            await Timeout(3).call(slow, 10, "late")
        assert str(caught.value) == "timeout=3 s was exceeded"
        assert (caught.value.__context__, caught.value.__cause__) == (None, None)
        return trio.current_time()

    assert run_virtual(main) == 3


def test_as_a_decorator_it_keeps_the_signature() -> None:
    @Timeout(3).wrap
    async def fetch(seconds: float, *, result: str) -> str:
        return await slow(seconds, result)

    async def main() -> None:
        assert await fetch(1, result="a") == "a"
        with pytest.raises(trio.TooSlowError):
            await fetch(4, result="a")

    assert fetch.__name__ == "fetch"
    run_virtual(main)


def test_the_callees_own_too_slow_error_passes() -> None:
    own = trio.TooSlowError("own")

    async def body() -> None:
        raise own

    with pytest.raises(trio.TooSlowError) as caught:
        run_virtual(Timeout(3).call, body)
    assert caught.value is own


def test_trio_1054_a_cancellation_from_outside_is_not_a_time_out() -> None:
    async def main() -> float:
        with trio.move_on_after(1) as scope:
            await Timeout(3).call(slow, 10, "late")
        assert scope.cancelled_caught
        return trio.current_time()

    assert run_virtual(main) == 1


def test_what_the_call_raises_while_it_cleans_up_comes_out() -> None:
    async def body() -> None:
        try:
            await trio.sleep(10)
        finally:
            raise KeyError("while cleaning up")

    with pytest.raises(KeyError):
        run_virtual(Timeout(3).call, body)


def test_around_a_retry_it_bounds_all_attempts_and_inside_each_one() -> None:
    starts: list[float] = []

    async def body() -> None:
        starts.append(trio.current_time())
        await trio.sleep(10)

    async def inside() -> None:
        retry = Retry(on=trio.TooSlowError, attempts=2)
        with pytest.raises(trio.TooSlowError):
            await retry.call(lambda: Timeout(3).call(body))
        assert len(starts) == 2

    async def around() -> None:
        retry = Retry(on=trio.TooSlowError, attempts=9)
        with pytest.raises(trio.TooSlowError):
            await Timeout(3).call(lambda: retry.call(body))
        assert len(starts) == 3
        assert trio.current_time() == 3

    run_virtual(inside)
    run_virtual(around)


def test_repr_and_seconds() -> None:
    assert repr(Timeout(2.5)) == "Timeout(2.5)"
    assert Timeout(2).seconds == 2
