from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_orchestrator.abc import Control, Instrument, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.arc import ARC
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.algorithms.envoy import EnvoyGradient
from trio_orchestrator.algorithms.gradient2 import Gradient2
from trio_orchestrator.algorithms.vegas import Vegas
from trio_orchestrator.errors import CircuitOpenError, LimitExceededError
from trio_orchestrator.event import LimitChanged
from trio_orchestrator.policies.adaptive import AdaptiveLimiter, AdaptiveStatistics
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual


@final
@dataclass(frozen=True)
class Scripted(Limit):
    """Takes the given limits one after the other, one a sample, and keeps the samples."""

    limits: tuple[float, ...]
    samples: list[Sample]

    def control(self, rng: RandomSource) -> Control:
        return _Script(self)


@final
class _Script(Control):
    def __init__(self, rule: Scripted) -> None:
        self.rule = rule
        self.limit = rule.limits[0]

    def update(self, sample: Sample) -> tuple[float, str]:
        self.rule.samples.append(sample)
        self.limit = self.rule.limits[min(len(self.rule.samples), len(self.rule.limits) - 1)]
        return self.limit, f"sample {len(self.rule.samples)}"


def scripted(*limits: float) -> Scripted:
    return Scripted(limits, [])


@final
class Ear(Instrument):
    def __init__(self) -> None:
        self.heard: list[LimitChanged] = []

    def limit_changed(self, event: LimitChanged, /) -> None:
        self.heard.append(event)


async def refuse() -> None:
    raise CircuitOpenError("circuit", "open")


async def fail() -> None:
    await trio.sleep(0.25)
    raise OSError


async def answer_none() -> None:
    await trio.sleep(0.25)


# ------------------------------------------------------------------------------------------------- samples


async def test_a_sample_is_one_attempt_from_the_moment_it_holds_its_slot(autojump_clock: MockClock) -> None:
    rule = scripted(2)
    limiter = AdaptiveLimiter(limit=rule)

    async def run(seconds: float) -> None:
        async with limiter.slot():
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (1, 3, 1):
            nursery.start_soon(run, seconds)
            await wait_all_tasks_blocked()
    assert rule.samples == [Sample(0, 1, 1, False), Sample(1, 1, 2, False), Sample(0, 3, 2, False)]
    assert limiter.statistics() == AdaptiveStatistics("adaptive limit", 2, 2, 0, 0, 3, 3, 0, 0, 0)


async def test_vector_26123_pauses_between_attempts_are_in_no_sample(autojump_clock: MockClock) -> None:
    rule = scripted(2)
    limiter = AdaptiveLimiter(limit=rule)
    with pytest.raises(OSError):
        await Retry(on=OSError, attempts=4, backoff=Constant(8)).call(limiter.call, fail)
    assert [(sample.rtt, sample.dropped) for sample in rule.samples] == [(0.25, True)] * 4
    assert trio.current_time() == 25.0


# ------------------------------------------------------------------------------------------ three endings


Body = Callable[[AdaptiveLimiter], Awaitable[Any]]


async def by_call(limiter: AdaptiveLimiter, fn: Callable[[], Awaitable[Any]]) -> None:
    await limiter.call(fn)


async def by_slot(limiter: AdaptiveLimiter, fn: Callable[[], Awaitable[Any]]) -> None:
    async with limiter.slot():
        await fn()


async def by_slot_nowait(limiter: AdaptiveLimiter, fn: Callable[[], Awaitable[Any]]) -> None:
    with limiter.slot_nowait():
        await fn()


async def by_measured(limiter: AdaptiveLimiter, fn: Callable[[], Awaitable[Any]]) -> None:
    async with limiter.tokens:
        await limiter.measured.call(fn)


every_form = pytest.mark.parametrize("form", [by_call, by_slot, by_slot_nowait, by_measured])


def endings(limiter: AdaptiveLimiter) -> tuple[int, int, int]:
    statistics = limiter.statistics()
    return statistics.ok, statistics.dropped, statistics.ignored


@every_form
async def test_what_returns_is_ok_and_what_fails_is_dropped(autojump_clock: MockClock, form: Any) -> None:
    limiter = AdaptiveLimiter()
    await form(limiter, answer_none)
    assert endings(limiter) == (1, 0, 0)
    error = OSError("bare")
    error.__context__ = context = KeyError()

    async def raises() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(OSError) as caught:
        await form(limiter, raises)
    assert caught.value is error
    assert error.__context__ is context
    assert endings(limiter) == (1, 1, 0)
    assert limiter.statistics().rtt == 0.25  # of what was answered
    assert limiter.is_idle


@every_form
async def test_a_refusal_further_in_is_ignored(autojump_clock: MockClock, form: Any) -> None:
    limiter = AdaptiveLimiter()
    with pytest.raises(CircuitOpenError):
        await form(limiter, refuse)
    assert endings(limiter) == (0, 0, 1)


@every_form
async def test_an_exception_outside_on_and_one_in_neutral_say_nothing(autojump_clock: MockClock, form: Any) -> None:
    for limiter in (AdaptiveLimiter(on=ValueError), AdaptiveLimiter(neutral=OSError)):
        with pytest.raises(OSError):
            await form(limiter, fail)
        assert endings(limiter) == (0, 0, 1)
        assert limiter.statistics().rtt == 0


@every_form
async def test_somebody_elses_cancellation_is_ignored(autojump_clock: MockClock, form: Any) -> None:
    limiter = AdaptiveLimiter()
    with trio.move_on_after(1):
        await form(limiter, trio.sleep_forever)
    assert endings(limiter) == (0, 0, 1)
    assert limiter.is_idle


@every_form
async def test_a_time_out_of_ours_is_a_drop_wherever_it_stands(autojump_clock: MockClock, form: Any) -> None:
    inside, around, retried = AdaptiveLimiter(), AdaptiveLimiter(), AdaptiveLimiter()
    with pytest.raises(trio.TooSlowError):
        await form(inside, lambda: Timeout(3).call(trio.sleep_forever))
    with pytest.raises(trio.TooSlowError):
        await Timeout(3).call(form, around, trio.sleep_forever)
    with pytest.raises(trio.TooSlowError):
        await Retry(on=OSError, attempts=1, attempt_timeout=3).call(form, retried, trio.sleep_forever)
    assert [endings(limiter) for limiter in (inside, around, retried)] == [(0, 1, 0)] * 3


async def test_a_time_out_of_ours_in_line_is_no_attempt(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter(limit=scripted(1))
    async with limiter.slot():
        with pytest.raises(trio.TooSlowError):
            await Timeout(3).call(limiter.call, trio.sleep_forever)
    assert endings(limiter) == (1, 0, 0)


@pytest.mark.parametrize("raises", [False, True])
async def test_what_the_slot_is_told_counts_whatever_comes_out(autojump_clock: MockClock, raises: bool) -> None:
    async def run(tell: str) -> tuple[int, int, int]:
        limiter = AdaptiveLimiter()
        with pytest.raises(OSError) if raises else trio.CancelScope():
            async with limiter.slot() as slot:
                getattr(slot, tell)()
                if raises:
                    raise OSError
        return endings(limiter)

    assert await run("drop") == (0, 1, 0)
    assert await run("ignore") == (0, 0, 1)


async def test_classify_tells_of_results(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter(classify=lambda result: result == 429)

    async def answer(status: int) -> int:
        await trio.lowlevel.checkpoint()
        return status

    assert [await limiter.call(answer, status) for status in (200, 429, 200)] == [200, 429, 200]
    assert endings(limiter) == (2, 1, 0)


async def test_what_classify_raises_comes_out_and_the_slot_is_back(autojump_clock: MockClock) -> None:
    def classify(result: object) -> bool:
        raise KeyError(result)

    limiter = AdaptiveLimiter(classify=classify)
    with pytest.raises(KeyError):
        await limiter.call(answer_none)
    assert endings(limiter) == (0, 0, 1)
    assert limiter.is_idle


@every_form
async def test_what_a_rule_raises_comes_out_and_the_slot_is_back(autojump_clock: MockClock, form: Any) -> None:
    limiter = AdaptiveLimiter(limit=scripted(5, math.nan))
    with pytest.raises(ValueError, match="NaN"):
        await form(limiter, answer_none)
    assert limiter.is_idle


async def test_each_attempt_ends_exactly_once(autojump_clock: MockClock) -> None:
    """A time-out of ours around the slot gives its verdict later: the slot is back at once, the count is right then."""
    limiter = AdaptiveLimiter()
    seen: list[AdaptiveStatistics] = []

    async def body() -> None:
        try:
            await limiter.call(trio.sleep_forever)
        finally:
            seen.append(limiter.statistics())

    with pytest.raises(trio.TooSlowError):
        await Timeout(3).call(body)
    assert (seen[0].in_flight, seen[0].dropped, limiter.statistics().dropped) == (0, 0, 1)


# ---------------------------------------------------------------------------------------- the limit moves


async def test_netflix_137_if_all_calls_time_out_the_limit_falls_to_its_minimum(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter(limit=AIMD())

    async def run() -> None:
        with pytest.raises(trio.TooSlowError):
            await limiter.call(Timeout(1).call, trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(run)
    assert limiter.limit == limiter.statistics().exact == 1
    assert limiter.statistics().dropped == 300


async def test_a_hundred_hung_calls_under_attempt_timeout_drive_the_limit_down(autojump_clock: MockClock) -> None:
    """And the same, ended by the user's own scope, does not."""

    async def hang(limiter: AdaptiveLimiter, ours: bool) -> None:
        retry = Retry(on=OSError, attempts=1, attempt_timeout=3 if ours else math.inf)
        with trio.move_on_after(math.inf if ours else 3):
            try:
                await retry.call(limiter.call, trio.sleep_forever)
            except trio.TooSlowError:
                return

    for ours, limit in ((True, 18), (False, 20)):
        limiter = AdaptiveLimiter(limit=AIMD())
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(hang, limiter, ours)
        assert limiter.limit == limit


async def test_the_limit_in_force_is_a_whole_number_and_does_not_flutter(autojump_clock: MockClock) -> None:
    ear = Ear()
    rule = scripted(10, 10.9, 9.1, 10.2, 9.5, 11, 10.1, 11.5, 10, 9.99, 12.7)
    limiter = AdaptiveLimiter(limit=rule, instruments=[ear], name="api")
    limits = []
    for _ in range(10):
        await limiter.call(answer_none)
        limits.append(limiter.limit)
    assert limits == [10, 10, 10, 10, 11, 11, 11, 10, 10, 12]
    assert ear.heard == [
        LimitChanged(10, 11, "api", "sample 5"),
        LimitChanged(11, 10, "api", "sample 8"),
        LimitChanged(10, 12, "api", "sample 10"),
    ]
    assert limiter.statistics().exact == 12.7
    assert limiter.tokens.total_tokens == 12


async def test_a_rule_without_bounds(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter(limit=scripted(3, math.inf, 0.2))
    await limiter.call(answer_none)
    assert limiter.limit == math.inf
    await limiter.call(answer_none)
    assert limiter.limit == 1


async def test_an_instrument_hears_of_the_change_when_it_has_been_made(autojump_clock: MockClock) -> None:
    heard: list[tuple[float, float]] = []

    class Look(Instrument):
        def limit_changed(self, event: LimitChanged, /) -> None:
            heard.append((event.new, limiter.limit))
            limiter.statistics()
            with limiter.slot_nowait():
                pass

    limiter = AdaptiveLimiter(limit=scripted(3, 5, 5), instruments=[Look()])
    await limiter.call(answer_none)
    assert heard == [(5, 5)]


async def test_a_higher_limit_starts_all_that_fit_and_a_lower_one_interrupts_nothing(
    autojump_clock: MockClock,
) -> None:
    limiter = AdaptiveLimiter(limit=scripted(2, 4, 1))
    starts: list[float] = []

    async def run(seconds: float) -> None:
        async with limiter.slot():
            starts.append(trio.current_time())
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (1, 5, 2, 6, 7, 1):
            nursery.start_soon(run, seconds)
            await wait_all_tasks_blocked()
        await trio.sleep(3.5)  # at 1 the limit rises and three more start, at 3 it falls
        assert (limiter.limit, limiter.statistics().in_flight) == (1, 3)
    assert starts == [0, 0, 1, 1, 1, 8]


async def test_a_limit_falls_before_the_slot_goes_on(autojump_clock: MockClock) -> None:
    """The attempt that shows overload gives its slot to nobody: the limit has fallen by then."""
    limiter = AdaptiveLimiter(limit=scripted(2, 1))
    starts: list[float] = []

    async def run(seconds: float) -> None:
        async with limiter.slot() as slot:
            starts.append(trio.current_time())
            await trio.sleep(seconds)
            slot.drop()

    async with trio.open_nursery() as nursery:
        for seconds in (1, 3, 1):
            nursery.start_soon(run, seconds)
            await wait_all_tasks_blocked()
    assert starts == [0, 0, 3]


# ------------------------------------------------------------------------------------------------ the line


async def test_waiting_is_bounded_as_in_a_bulkhead(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter(limit=scripted(1), max_waiting=1, max_wait=2, name="api")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.call, trio.sleep, 10)
        await wait_all_tasks_blocked()
        nursery.start_soon(expect_refusal, limiter, 2.0)
        await wait_all_tasks_blocked()
        assert limiter.statistics().waiting == 1
        await expect_refusal(limiter, 0.0)
        with pytest.raises(trio.WouldBlock), limiter.slot_nowait():
            pass
    assert (limiter.statistics().refused, endings(limiter)) == (2, (1, 0, 0))


async def expect_refusal(limiter: AdaptiveLimiter, at: float) -> None:
    with pytest.raises(LimitExceededError, match=r"^api: all 1 slots taken"):
        await limiter.call(trio.sleep, 1)
    assert trio.current_time() == at


async def test_what_runs_on_its_tokens_counts(autojump_clock: MockClock) -> None:
    """As a queue does: a token of its own, and `measured` around the attempt."""
    rule = scripted(2)
    limiter = AdaptiveLimiter(limit=rule)
    assert limiter.measured is limiter.measured
    assert limiter.tokens is limiter.tokens

    async def job() -> None:
        async with limiter.tokens:
            await limiter.measured.call(trio.sleep, 1)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(job)
        await wait_all_tasks_blocked()
        assert limiter.statistics().in_flight == 2
    assert {sample.in_flight for sample in rule.samples} <= {1, 2}
    assert [sample.rtt for sample in rule.samples] == [1] * 4
    assert trio.current_time() == 2


async def test_measured_without_a_token_counts_itself(autojump_clock: MockClock) -> None:
    rule = scripted(2)
    await AdaptiveLimiter(limit=rule).measured.call(trio.sleep, 1)
    assert rule.samples == [Sample(0, 1, 1, False)]


async def test_call_has_the_checkpoints_of_the_function_and_entering_is_one(autojump_clock: MockClock) -> None:
    limiter = AdaptiveLimiter()

    async def quick() -> None:
        return None

    with trio.testing.assert_no_checkpoints():
        await limiter.call(quick)
        await limiter.measured.call(quick)
    with trio.testing.assert_checkpoints():
        slot = await limiter.slot().__aenter__()
    with trio.testing.assert_no_checkpoints():
        await slot.__aexit__(None, None, None)


@pytest.mark.parametrize("around", [Timeout(100), Bulkhead(5)], ids=repr)
def test_cancelled_everywhere(around: Any) -> None:
    async def scenario(injector: CancelAt) -> None:
        limiter = AdaptiveLimiter(limit=AIMD(initial=1), max_waiting=2)
        before = limiter.statistics()

        async def victim() -> None:
            async with limiter.slot():
                await trio.sleep(0.5)
            await around.call(limiter.call, trio.sleep, 0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.call, trio.sleep, 1)
            with injector.watch():
                await victim()
        after = limiter.statistics()
        assert limiter.is_idle
        assert after.dropped == after.refused == 0
        if injector.fired:
            assert after.ok + after.ignored in (1, 2, 3)
        else:
            assert (after.ok, after.ignored) == (3, 0)
        assert replace(after, ok=0, ignored=0, rtt=0, limit=1, exact=1) == before

    assert cancelled_everywhere(scenario) > 10


# ----------------------------------------------------------------------------------------------- arguments


def test_what_it_refuses() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"limit": 20}, TypeError, "limit must be"),
        ({"on": 3}, TypeError, "on must be"),
        ({"neutral": "x"}, TypeError, "neutral must be"),
        ({"classify": 3}, TypeError, "classify must be"),
        ({"max_waiting": -1}, ValueError, "max_waiting must be"),
        ({"max_wait": math.nan}, ValueError, "max_wait must be"),
        ({"rng": 4}, TypeError, "rng must have"),
        ({"instruments": [3]}, TypeError, "instruments must be"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=f"^{message}"):
            AdaptiveLimiter(**options)


def test_it_is_made_of_values() -> None:
    limiter = AdaptiveLimiter(limit=Vegas(initial=7), name="api", rng=Random(1))
    assert repr(limiter) == "<AdaptiveLimiter 'api': 0 of 7 in flight, 0 waiting>"
    assert limiter.parameters()["limit"] == Vegas(initial=7)
    assert "AdaptiveLimiter 'api'" in repr(limiter.measured)
    assert AdaptiveLimiter().parameters()["limit"] == AIMD()
    assert AdaptiveLimiter(limit=ARC()).limit == 1


@pytest.mark.parametrize("option", ["on", "neutral", "classify"])
async def test_an_attempt_is_counted_although_a_predicate_raises(option: str, autojump_clock: MockClock) -> None:
    def broken(what: object) -> bool:
        raise ZeroDivisionError

    async def work() -> None:
        if option != "classify":
            raise OSError

    options: dict[str, Any] = {option: broken}
    limiter = AdaptiveLimiter(**options)
    with pytest.raises(ZeroDivisionError):
        await limiter.call(work)
    if option != "classify":
        with pytest.raises(ZeroDivisionError):
            async with limiter.slot():
                await work()
    found = limiter.statistics()
    assert (found.in_flight, found.ok, found.dropped) == (0, 0, 0)
    assert found.ignored == (1 if option == "classify" else 2)


@pytest.mark.parametrize("rule", [AIMD(), Vegas(), Gradient2(), EnvoyGradient(minimum=20), ARC(initial=20)], ids=repr)
def test_in_another_run_it_begins_anew(rule: Limit) -> None:
    """What was learned by the clock of an earlier run would stand against every step until that time is reached."""
    limiter = AdaptiveLimiter(limit=rule)

    async def main(begins_at: float, rounds: int) -> float:
        await trio.sleep(begins_at)
        for _ in range(rounds):
            async with trio.open_nursery() as nursery:
                for _ in range(int(limiter.limit)):
                    nursery.start_soon(limiter.call, trio.sleep, 0.125)
        return limiter.statistics().exact

    assert run_virtual(main, 5000, 12) > 22
    assert run_virtual(main, 0, 1) < 22
    assert run_virtual(main, 0, 12) > 22  # so few that there is no probe among them
