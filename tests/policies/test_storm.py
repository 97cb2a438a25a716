"""The alarm: each rule fires at its bound and not before, once an episode, and the end is told when it is read."""

from __future__ import annotations

import logging
from contextlib import suppress
from math import inf
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.policies.service import AT_ONCE, FORMS, Form, Service
from trio_orchestrator import Failures, open_task_queue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.storm import StormAlarm, StormStatistics
from trio_orchestrator.policy_event import StormEnded, StormStarted
from trio_orchestrator.testing import CancelAt, Stepper, cancelled_everywhere, run_virtual


class Siren(Instrument):
    def __init__(self) -> None:
        self.heard: list[tuple[float, StormStarted | StormEnded]] = []

    def storm_started(self, event: StormStarted, /) -> None:
        self.heard.append((trio.current_time(), event))

    def storm_ended(self, event: StormEnded, /) -> None:
        self.heard.append((trio.current_time(), event))

    @property
    def started(self) -> list[tuple[float, StormStarted]]:
        return [(at, event) for at, event in self.heard if isinstance(event, StormStarted)]

    @property
    def ended(self) -> list[tuple[float, StormEnded]]:
        return [(at, event) for at, event in self.heard if isinstance(event, StormEnded)]


async def push() -> None:
    pass


async def fail() -> None:
    raise OSError("always the same")


# ------------------------------------------------------------------------------------------------- the rules


@given(calls=st.integers(1, 50))
def test_so_many_calls_are_a_storm_and_one_fewer_is_none(calls: int) -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=calls, per=60, instruments=[siren])
        for number in range(2 * calls):
            await alarm.call(push)
            assert len(siren.started) == (number + 1 >= calls)
            assert alarm.storming("push") is (number + 1 >= calls)
        assert [event for _, event in siren.heard] == [StormStarted("push", "calls", calls, calls)]

    run_virtual(main)


def test_as_many_calls_in_a_longer_time_are_none() -> None:
    async def main() -> None:
        alarm = StormAlarm(calls=31, per=60)
        for _ in range(1000):
            await alarm.call(push)
            await trio.sleep(2)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


def test_thousands_of_calls_a_minute_are_noticed_within_seconds() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=1000, per=60, instruments=[siren])
        for _ in range(2000):  # a million an hour
            await alarm.call(push)
            await trio.sleep(0.0036)

    run_virtual(main)
    [(at, event)] = siren.started
    assert at == pytest.approx(999 * 0.0036)
    assert event.key == "push"


def test_a_share_of_retries_needs_a_minimum_of_calls() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(retries_ratio=0.5, minimum=8, instruments=[siren])
        service = Service(*[OSError(), "fine"] * 100)
        for number in range(1, 10):  # every other one is a retry
            with suppress(OSError):
                await alarm.call(service)
            assert len(siren.started) == (number >= 8)
        assert siren.started == [(0.0, StormStarted("Service", "retries", 0.5, 0.5))]

    run_virtual(main)


def test_a_smaller_share_is_no_storm() -> None:
    async def main() -> None:
        alarm = StormAlarm(retries_ratio=0.5, minimum=3)
        service = Service(*[OSError(), "fine", "fine"] * 100)
        for _ in range(300):
            with suppress(OSError):
                await alarm.call(service)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(("pause", "storms"), [(0.0, 1), (0.099, 1), (0.1, 0), (3.0, 0)])
def test_ten_identical_failures_near_to_each_other_are_a_storm(form: Form, pause: float, storms: int) -> None:
    siren = Siren()
    alarm = StormAlarm(spacing=0.1, instruments=[siren])
    service = Service(OSError("always the same"))

    async def main() -> None:
        with suppress(OSError):
            await form(Retry(on=OSError, attempts=30, backoff=Constant(pause)), alarm.wrap(service))

    run_virtual(main)
    assert len(siren.started) == storms
    if storms:
        [(at, event)] = siren.started
        assert at == pytest.approx(9 * pause)  # at the tenth failure
        assert (event.reason, event.bound) == ("spacing", 0.1)
        assert event.value == pytest.approx(pause)


def test_failures_that_differ_are_no_row() -> None:
    async def main() -> None:
        alarm = StormAlarm(spacing=0.1)
        service = Service(*[OSError("a"), OSError("b")] * 30)
        for _ in range(60):
            with suppress(OSError):
                await alarm.call(service)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


def test_a_pause_begins_another_row() -> None:
    async def main() -> None:
        alarm = StormAlarm(spacing=0.1, alike=3)
        for _ in range(20):
            for _ in range(2):
                with suppress(OSError):
                    await alarm.call(fail)
            await trio.sleep(1)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


def test_a_pause_of_the_very_spacing_is_long_enough() -> None:
    async def main() -> None:
        alarm = StormAlarm(spacing=0.125, alike=4)
        for number in range(40):
            with suppress(OSError):
                await alarm.call(fail)
            await trio.sleep(0.125 * (number % 2))
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


def test_a_hundred_tasks_that_fail_together_are_no_loop() -> None:
    async def main() -> None:
        alarm = StormAlarm(spacing=0.1, retries_ratio=0.1)

        async def once() -> None:
            with suppress(OSError):
                await alarm.call(fail)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(once)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"spacing": 0.1}, "spacing"), ({"retries_ratio": 0.5}, "retries"), ({"calls": 25}, "calls")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_queue_that_hammers_is_noticed(options: dict[str, Any], reason: str) -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(**options, instruments=[siren])
        async with open_task_queue(
            concurrency=1,
            retry=Retry(on=OSError, attempts=50, backoff=AT_ONCE),
            failures=Failures.RECORD,
            instruments=[alarm],
            protect=alarm,
        ) as queue:
            await queue.submit(fail)

    run_virtual(main)
    assert [event.reason for _, event in siren.started] == [reason]


def test_a_queue_with_pauses_is_not() -> None:
    async def main() -> None:
        alarm = StormAlarm(spacing=0.1, calls=1000)
        async with open_task_queue(
            concurrency=10,
            retry=Retry(on=OSError, attempts=50, backoff=Constant(1)),
            failures=Failures.RECORD,
            instruments=[alarm],
            protect=alarm,
        ) as queue:
            for _ in range(10):
                await queue.submit(fail)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


async def at_rate(alarm: StormAlarm, a_minute: int, minutes: float) -> None:
    for _ in range(int(a_minute * minutes)):
        await alarm.call(push)
        await trio.sleep(60 / a_minute)


def test_ten_times_the_usual_is_a_storm_at_any_hour() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(times_usual=10, instruments=[siren])
        await at_rate(alarm, 6, 30)
        await at_rate(alarm, 45, 30)  # 7.5 times
        assert siren.started == []
        began = trio.current_time()
        await at_rate(alarm, 600, 2)
        [(at, event)] = siren.started
        assert 0 < at - began < 60
        assert event.reason == "times_usual"
        assert event.value == pytest.approx(10, rel=0.1)

    run_virtual(main)


def test_nothing_is_usual_before_the_warm_up() -> None:
    async def main() -> None:
        alarm = StormAlarm(times_usual=2, warmup=600)
        await at_rate(alarm, 6, 8)
        await at_rate(alarm, 600, 1)
        assert alarm.statistics() == StormStatistics(0, ())

    run_virtual(main)


def test_a_multiple_of_next_to_nothing_needs_a_minimum_of_calls() -> None:
    async def main() -> None:
        alarm = StormAlarm(times_usual=2, minimum=20)
        await at_rate(alarm, 1, 60)
        await at_rate(alarm, 18, 30)
        assert alarm.statistics() == StormStatistics(0, ())
        await at_rate(alarm, 60, 1)
        assert alarm.statistics() == StormStatistics(1, ("push",))

    run_virtual(main)


def test_a_storm_does_not_become_usual_until_it_is_dismissed() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(times_usual=5, instruments=[siren])
        await at_rate(alarm, 3, 60)
        await at_rate(alarm, 24, 300)  # five hours
        assert [type(event) for _, event in siren.heard] == [StormStarted]
        alarm.dismiss("push")
        [_, (_, ended)] = siren.heard
        assert isinstance(ended, StormEnded)
        await at_rate(alarm, 24, 60)
        assert alarm.statistics() == StormStatistics(1, ())
        alarm.dismiss("push")
        assert len(siren.heard) == 2

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ public reports


def test_keep_ecdsa_395_a_retry_loop_without_a_delay_is_noticed_at_its_tenth_failure() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(spacing=0.1, instruments=[siren])

        async def generate() -> None:
            await trio.sleep(0.001)  # an early step fails quickly
            raise OSError("no key")

        with trio.move_on_after(1):
            while True:
                with suppress(OSError), alarm.guard():
                    await generate()

    run_virtual(main)
    [(at, event)] = siren.started
    assert at == pytest.approx(0.010)
    assert event.value == pytest.approx(0.001)


def test_storyblok_811_endless_retries_of_a_429_are_a_storm_that_can_be_ended() -> None:
    async def main() -> None:
        service = Service(OSError("429"))
        with trio.CancelScope() as scope:
            alarm = StormAlarm(retries_ratio=0.9, on_storm=lambda event: scope.cancel())
            with pytest.raises(OSError, match="429"):  # the last one: no retry would start before the cancellation
                await Retry(on=OSError, attempts=inf, backoff=Constant(1)).call(alarm.wrap(service))
        assert len(service.starts) == 20  # the least that says something

    run_virtual(main)


def test_codestream_1914_three_layers_of_three_attempts_show_as_27_calls() -> None:
    async def main() -> None:
        alarm = StormAlarm(calls=10)
        layer = Retry(on=OSError, attempts=3, backoff=AT_ONCE, retry_exhausted=True)
        with suppress(OSError):
            await layer.wrap(layer.wrap(layer.wrap(alarm.wrap(fail))))()
        found = alarm.meter.statistics("fail")
        assert (found.calls, found.retries) == (27, 26)
        assert alarm.storming("fail")

    run_virtual(main)


# ---------------------------------------------------------------------------------------------- the episodes


def test_one_event_begins_an_episode_and_one_ends_it() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=100, per=10, calm=30, instruments=[siren])
        for _ in range(500):
            await alarm.call(push)
            await trio.sleep(0.05)  # 200 in ten seconds
        for _ in range(70):
            await alarm.call(push)
            await trio.sleep(1)  # 10 in ten seconds: quiet, from about 7.5 s on

    run_virtual(main)
    [(started_at, started), (ended_at, ended)] = siren.heard
    assert started_at == pytest.approx(99 * 0.05)
    assert started == StormStarted("push", "calls", 100, 100)
    assert isinstance(ended, StormEnded)
    assert started_at + ended.seconds + 30 <= ended_at <= started_at + ended.seconds + 31
    assert 25 + 6 <= started_at + ended.seconds <= 25 + 8
    assert ended.calls == 401 + int(started_at + ended.seconds - 25) + 1


def test_the_end_is_told_when_it_is_read() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=5, calm=60, instruments=[siren])
        for _ in range(7):
            await alarm.call(push)
        await trio.sleep(59.9)
        assert alarm.storming("push")
        await trio.sleep(3600)
        assert siren.ended == []
        assert not alarm.storming("push")
        assert siren.ended == [(3659.9, StormEnded("push", 0.0, 3))]
        assert alarm.statistics() == StormStatistics(1, ())

    run_virtual(main)


def test_a_pause_in_a_storm_does_not_end_it_while_its_window_is_full() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=1000, per=3600, calm=60, instruments=[siren])
        for _ in range(1000):
            await alarm.call(push)
        for _ in range(8):
            await trio.sleep(300)  # it ends neither here ...
            await alarm.call(push)
        assert [type(event) for _, event in siren.heard] == [StormStarted]
        await trio.sleep(1200)
        assert siren.ended == []
        assert not alarm.storming("push")  # ... but when the window has passed
        assert siren.ended == [(3600, StormEnded("push", 2400, 9))]

    run_virtual(main)


def test_any_key_tells_of_the_end_of_another() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=5, instruments=[siren])
        for _ in range(5):
            await alarm.call(push)
        await trio.sleep(60)
        with alarm.guard("other"):
            assert [event.key for _, event in siren.ended] == ["push"]

    run_virtual(main)


def test_another_storm_is_another_episode() -> None:
    siren = Siren()

    async def main() -> None:
        alarm = StormAlarm(calls=5, per=10, calm=20, instruments=[siren])
        for _ in range(3):
            for _ in range(50):
                await alarm.call(push)
            await trio.sleep(20)

    run_virtual(main)
    assert [(at, type(event)) for at, event in siren.heard] == [
        (0, StormStarted),
        (20, StormEnded),
        (20, StormStarted),
        (40, StormEnded),
        (40, StormStarted),
    ]


class AlarmMachine(RuleBasedStateMachine):
    """Starts and ends alternate, for every key by itself, and agree with what was called."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.stepper = Stepper(seed)
        self.siren = Siren()
        self.alarm = StormAlarm(calls=6, per=30, spacing=0.5, alike=4, calm=20, instruments=[self.siren])
        self.calls: dict[str, list[float]] = {"a": [], "b": []}

    def teardown(self) -> None:
        if hasattr(self, "stepper"):
            self.stepper.close()

    @rule(key=st.sampled_from("ab"), number=st.integers(1, 8), outcome=st.sampled_from(["fine", OSError("no")]))
    def call(self, key: str, number: int, outcome: object) -> None:
        async def use() -> None:
            for _ in range(number):
                with suppress(OSError), self.alarm.guard(key):
                    await Service(outcome)()

        self.stepper.call(use)
        self.calls[key] += [self.stepper.now] * number
        if number >= 6 or (number >= 4 and outcome != "fine"):
            assert self.alarm.storming(key)

    @rule(seconds=st.sampled_from([0.1, 1.0, 15.0, 20.0, 31.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.stepper.advance(seconds)

    @rule(key=st.sampled_from("ab"))
    def dismiss(self, key: str) -> None:
        self.alarm.dismiss(key)
        assert not self.alarm.storming(key)

    @invariant()
    def starts_and_ends_alternate(self) -> None:
        if not hasattr(self, "stepper"):
            return
        for key, calls in self.calls.items():
            storming = self.alarm.storming(key)
            events = [(at, event) for at, event in self.siren.heard if event.key == key]
            assert [type(event) for _, event in events] == ([StormStarted, StormEnded] * len(events))[: len(events)]
            assert storming is (len(events) % 2 == 1)
            for (start, _), (end, event) in zip(events[::2], events[1::2], strict=False):
                assert isinstance(event, StormEnded)
                assert 0 <= event.seconds <= end - start
                assert 1 <= event.calls <= sum(start <= at <= end for at in calls)
            if calls and self.stepper.now - calls[-1] >= 30 + 20:
                assert not storming
        assert self.alarm.statistics().storms == len(self.siren.started)


TestAlarm = AlarmMachine.TestCase


# ------------------------------------------------------------------------------------------------ the meter


def test_an_alarm_may_watch_a_meter_that_others_use() -> None:
    sirens = [Siren(), Siren()]

    async def main() -> None:
        meter = CallMeter()
        alarms = [
            StormAlarm(meter=meter, calls=5, instruments=[sirens[0]]),
            StormAlarm(meter=meter, spacing=1, alike=3, instruments=[sirens[1]]),
        ]
        for _ in range(4):
            with suppress(OSError):
                await meter.call(fail)
        assert all(alarm.meter is meter for alarm in alarms)
        assert [len(siren.started) for siren in sirens] == [0, 1]
        with suppress(OSError):
            await alarms[0].call(fail)
        assert [len(siren.started) for siren in sirens] == [1, 1]
        assert meter.statistics("fail").calls == 5

    run_virtual(main)


async def hand_written(alarm: StormAlarm) -> None:
    with alarm.guard():
        await trio.lowlevel.checkpoint()


def test_hand_written_code_has_a_name_too() -> None:
    async def main() -> None:
        alarm = StormAlarm(calls=3, key=lambda fn, args: "one")
        for _ in range(3):
            await hand_written(alarm)
        assert alarm.statistics() == StormStatistics(1, ("hand_written",))
        assert alarm.storming("hand_written")
        assert repr(alarm) == "<StormAlarm 'storm alarm' 1 storming, 1 storms>"
        await alarm.call(push)
        assert alarm.meter.keys() == ("hand_written", "one")

    run_virtual(main)


def test_on_storm_is_called_once_an_episode_in_the_task_that_broke_the_rule() -> None:
    async def main() -> None:
        heard: list[StormStarted] = []
        with trio.CancelScope() as scope:

            def stop(event: StormStarted) -> None:
                heard.append(event)
                scope.cancel()

            alarm = StormAlarm(calls=1000, on_storm=stop)
            while True:
                await alarm.call(push)
                await trio.lowlevel.checkpoint()
        assert heard == [StormStarted("push", "calls", 1000, 1000)]
        assert alarm.meter.statistics().calls == 1000

    run_virtual(main)


def test_an_on_storm_that_raises_breaks_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(event: StormStarted) -> None:
        raise ValueError(event)

    async def main() -> None:
        alarm = StormAlarm(calls=3, per=1, calm=1, on_storm=break_down)
        for _ in range(3):
            for _ in range(3):
                await alarm.call(push)
            await trio.sleep(1)
        assert alarm.statistics().storms == 3

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    assert len(caplog.records) == 1


def test_results_errors_and_cancellations_pass() -> None:
    async def scenario(injector: CancelAt) -> None:
        siren, ended = Siren(), list[str]()
        alarm = StormAlarm(calls=2, spacing=1, alike=2, instruments=[siren])

        async def body() -> None:
            try:
                await trio.lowlevel.checkpoint()
                await trio.sleep(1)
                ended.append("returned")
            except trio.Cancelled:
                ended.append("cancelled")
                raise

        with injector.watch():
            await alarm.call(body)
        assert ended == ["cancelled" if injector.fired else "returned"]
        assert siren.heard == []
        error = OSError("mine")
        with pytest.raises(OSError, match="mine") as caught:
            await alarm.call(Service(error))
        assert caught.value is error
        assert error.__context__ is None

    assert cancelled_everywhere(scenario, seeds=range(2)) == 2 * 2


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, "calls must be given, or retries_ratio, spacing or times_usual"),
        ({"calls": 0}, ValueError, "calls must be >= 1, got 0"),
        ({"calls": 1.5}, ValueError, "calls must be a whole number or math.inf, got 1.5"),
        ({"calls": 5, "per": inf}, ValueError, "per must be > 0 and finite, got inf"),
        ({"retries_ratio": 0}, ValueError, "retries_ratio must be > 0, got 0"),
        ({"retries_ratio": 1.1}, ValueError, "retries_ratio must be <= 1 or math.inf, got 1.1"),
        ({"spacing": -1}, ValueError, "spacing must be >= 0 and finite, got -1"),
        ({"spacing": 1, "alike": 1}, ValueError, "alike must be >= 2 and finite, got 1"),
        ({"spacing": 1, "alike": 2.5}, ValueError, "alike must be a whole number or math.inf, got 2.5"),
        ({"times_usual": 1}, ValueError, "times_usual must be > 1, got 1"),
        ({"times_usual": 2, "minimum": inf}, ValueError, "minimum must be >= 1 and finite, got inf"),
        ({"times_usual": 2, "warmup": -1}, ValueError, "warmup must be >= 0 and finite, got -1"),
        ({"calls": 5, "calm": 0}, ValueError, "calm must be > 0 and finite, got 0"),
        ({"calls": True}, TypeError, "calls must be a number, got True"),
        ({"calls": 5, "meter": 3}, TypeError, "meter must be a CallMeter, got 3"),
        ({"calls": 5, "meter": CallMeter(window=9)}, ValueError, "per must be the window of the meter, 9, got 60.0"),
        (
            {"calls": 5, "meter": CallMeter(), "key": lambda fn, args: 1},
            ValueError,
            "key must be given to the meter, not to the alarm that watches it",
        ),
        ({"calls": 5, "on_storm": push}, TypeError, "on_storm must be a plain function, got the async function .*"),
        ({"calls": 5, "instruments": [3]}, TypeError, "instruments must be Instrument objects, got 3"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        StormAlarm(**options)


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_storm_of_an_earlier_run_is_over_and_another_may_begin(looked_at: bool) -> None:
    siren = Siren()
    alarm = StormAlarm(calls=100, instruments=[siren])

    async def hammer(begins_at: float) -> None:
        await trio.sleep(begins_at)
        for _ in range(120):
            await alarm.call(push)

    async def second() -> None:
        if looked_at:
            assert alarm.statistics() == StormStatistics(1, ())
        await hammer(0)

    run_virtual(hammer, 5000)
    run_virtual(second)
    assert [at for at, _ in siren.started] == [5000, 0]
    assert [(event.calls, event.seconds) for _, event in siren.ended] == [(21, 0)]
