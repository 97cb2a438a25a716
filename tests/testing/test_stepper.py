from __future__ import annotations

import math
from collections.abc import AsyncGenerator

import pytest
import trio

from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.testing import Hung, Stepper, run_virtual
from trio_orchestrator.testing import _trio as private


async def nap(seconds: float) -> float:
    await trio.sleep(seconds)
    return trio.current_time()


async def fail() -> None:
    await trio.lowlevel.checkpoint()
    raise KeyError("mine")


# ----------------------------------------------------------------------------------------------------- calls


def test_a_call_stays_blocked_until_its_time_has_come() -> None:
    with Stepper() as stepper:
        call = stepper.start(nap, 10)
        stepper.advance(9.5)
        assert (call.state, call.done, stepper.now) == ("blocked", False, 9.5)
        with pytest.raises(AssertionError, match="nap has no value: it is blocked"):
            _ = call.value
        stepper.advance(0.5)
        assert (call.state, call.done, call.value, call.value) == ("ok", True, 10.0, 10.0)


def test_advance_stops_at_every_deadline() -> None:
    async def tick(times: list[float]) -> None:
        while True:
            await trio.sleep(0.25)
            times.append(trio.current_time())

    times: list[float] = []
    with Stepper() as stepper:
        stepper.start(tick, times)
        stepper.advance(1)
        assert (times, stepper.now) == ([0.25, 0.5, 0.75, 1.0], 1.0)


def test_an_exception_is_kept_for_the_rule() -> None:
    with Stepper() as stepper:
        call = stepper.start(fail)
        assert (call.state, repr(call.error)) == ("raised", "KeyError('mine')")
        for _ in range(2):
            with pytest.raises(KeyError, match="mine"):
                _ = call.value


def test_call_returns_at_once_raises_or_fails_if_it_would_block() -> None:
    async def three() -> int:
        return 3

    with Stepper() as stepper:
        assert stepper.call(three) == 3
        with pytest.raises(KeyError):
            stepper.call(fail)
        with pytest.raises(AssertionError, match="it is blocked"):
            stepper.call(nap, 1)


def test_a_cancelled_call_says_so() -> None:
    with Stepper() as stepper:
        call, other = stepper.start(nap, 1), stepper.start(nap, 1)
        call.cancel()
        assert call.state == "blocked"
        stepper.settle()
        assert (call.state, other.state) == ("cancelled", "blocked")
        with pytest.raises(AssertionError, match="it is cancelled"):
            _ = call.value
        stepper.advance(1)
        assert other.state == "ok"


def test_calls_started_without_settling_begin_in_the_order_of_the_schedule() -> None:
    def order(seed: int) -> str:
        begun: list[str] = []

        async def begin(name: str) -> None:
            begun.append(name)

        with Stepper(seed) as stepper:
            for name in "abcd":
                stepper.start(begin, name, settle=False)
            assert begun == []
            stepper.settle()
        return "".join(begun)

    orders = [order(seed) for seed in range(20)]
    assert orders == [order(seed) for seed in range(20)]
    assert len(set(orders)) > 10


def test_sync_functions_work_between_steps() -> None:
    with Stepper() as stepper:
        event = trio.Event()
        call = stepper.start(event.wait)
        event.set()
        assert (call.state, trio.current_time()) == ("blocked", 0.0)
        stepper.settle()
        assert call.state == "ok"


def test_settle_takes_up_what_another_thread_would_have_sent() -> None:
    with Stepper() as stepper:
        event = trio.Event()
        call = stepper.start(event.wait)
        trio.lowlevel.current_trio_token().run_sync_soon(event.set)
        stepper.settle()
        assert call.state == "ok"


# ------------------------------------------------------------------------------------------------ hot loops


async def spin() -> None:
    while True:
        await trio.lowlevel.checkpoint()


def test_settle_detects_a_busy_loop() -> None:
    stepper = Stepper()
    with pytest.raises(
        AssertionError, match=r"busy loop: not idle after 10000 passes at 0.0 s:(.|\n)*spin @ test_stepper"
    ):
        stepper.start(spin)
    with pytest.raises(AssertionError, match="not idle after 50 passes"):
        stepper.settle(limit=50)
    stepper.close()


def test_advance_detects_a_loop_in_time() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110
            await trio.sleep(1)

    with Stepper() as stepper:
        stepper.start(poll)
        with pytest.raises(AssertionError, match=r"busy loop: 100 deadlines by 100\.0 s"):
            stepper.advance(3600, limit=100)


def test_an_idle_hour_takes_no_pass() -> None:
    with Stepper() as stepper:
        stepper.start(nap, math.inf)
        before = stepper.passes
        stepper.advance(3600)
        assert stepper.passes == before
        stepper.start(nap, 60)
        stepper.advance(3600)
        assert stepper.passes > before


@pytest.mark.parametrize("dt", [-1, math.nan, math.inf])
def test_time_moves_forward_by_a_finite_step(dt: float) -> None:
    with Stepper() as stepper, pytest.raises(ValueError, match="dt must be finite and >= 0, got"):
        stepper.advance(dt)


# ----------------------------------------------------------------------------------------------------- close


def test_close_cancels_what_is_blocked_and_lets_it_clean_up_in_time() -> None:
    cleaned: list[float] = []

    async def tidy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            cleaned.append(trio.current_time())

    stepper = Stepper()
    call = stepper.start(tidy)
    stepper.close()
    stepper.close()
    assert (cleaned, call.state) == ([5.0], "cancelled")
    with pytest.raises(AssertionError, match="the stepper is closed"):
        stepper.start(nap, 1)
    with pytest.raises(AssertionError, match="the stepper is closed"):
        stepper.advance(1)


async def wait_shielded() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def spin_deaf() -> None:
    while True:
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            pass


async def beat_shielded() -> None:
    with trio.CancelScope(shield=True):
        while True:  # noqa: ASYNC110
            await trio.sleep(1)


def test_close_fails_on_a_shielded_call_and_ends_the_run_all_the_same() -> None:
    unwound: list[str] = []

    async def wait() -> None:
        try:
            await wait_shielded()
        except trio.Cancelled:
            unwound.append("wait")
            raise

    stepper = Stepper()
    stepper.start(wait)
    with pytest.raises(Hung, match=r"a cancelled call does not end:(.|\n)*wait @ test_stepper"):
        stepper.close()
    assert unwound == ["wait"]
    assert run_virtual(nap, 1) == 1.0


def test_close_fails_on_a_shielded_loop_in_time() -> None:
    stepper = Stepper()
    stepper.start(beat_shielded)
    with pytest.raises(Hung, match=r"a cancelled call does not end:(.|\n)*beat_shielded @ test_stepper"):
        stepper.close()


def test_close_fails_on_a_loop_that_swallows_its_cancellation() -> None:
    stepper = Stepper()
    with pytest.raises(AssertionError, match="busy loop"):
        stepper.start(spin_deaf)
    with pytest.raises(Hung, match="busy loop"):
        stepper.close()
    assert run_virtual(nap, 1) == 1.0


def test_close_fails_on_a_leaked_task() -> None:
    async def leak() -> None:
        trio.lowlevel.spawn_system_task(trio.sleep_forever, name="the straggler")

    stepper = Stepper()
    stepper.call(leak)
    with pytest.raises(AssertionError, match="task the straggler outlived the scenario"):
        stepper.close()
    stepper.close()


def test_close_fails_on_an_unfinished_async_generator() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    async def leak() -> int:
        return await anext(generator)

    generator = numbers()
    stepper = Stepper()
    stepper.call(leak)
    with pytest.raises(AssertionError, match="numbers was left unfinished"):
        stepper.close()


def test_a_failure_inside_the_block_is_not_masked_by_the_one_of_close() -> None:
    with pytest.raises(LookupError, match="mine") as caught, Stepper() as stepper:
        stepper.start(wait_shielded)
        raise LookupError("mine")
    assert "a cancelled call does not end" in caught.value.__notes__[0]


def test_a_crash_of_the_run_comes_out_of_the_step() -> None:
    async def crash() -> None:
        raise SystemExit(3)

    stepper = Stepper()
    with pytest.raises(BaseExceptionGroup) as caught:
        stepper.start(crash)
    assert caught.group_contains(SystemExit)
    stepper.close()
    assert run_virtual(nap, 1) == 1.0


def test_chance_and_scheduler_are_as_before_after_close() -> None:
    def state() -> tuple[object, object]:
        return CHANCE.getstate(), private.scheduler_random().getstate()

    before = state()
    with Stepper(5) as stepper:
        first = CHANCE.random()
        stepper.start(nap, 1)
        with pytest.raises(RuntimeError):
            Stepper(6)  # a run is under way; its failure must not unseed ours
        assert CHANCE.random() != first
    assert state() == before
    with Stepper(5):
        assert CHANCE.random() == first
