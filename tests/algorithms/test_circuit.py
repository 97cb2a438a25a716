"""The state machine of a breaker, with time as an argument: epochs, probes and their leases, the ramp."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.abc import Backoff
from trio_orchestrator.algorithms.backoff import Constant, Custom, FullJitter
from trio_orchestrator.algorithms.circuit import Circuit, CircuitState, Permit, Refusal, Rules
from trio_orchestrator.algorithms.trip import Consecutive

CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState


def make(**rules: Any) -> Circuit:
    defaults: dict[str, Any] = {
        "trip": Consecutive(1),
        "cooldown": 30.0,
        "probes": 1,
        "probe_lease": None,
        "needed": 1,
        "tolerated": 0,
        "ramp": 0.0,
        "rng": Random(1),
    }
    return Circuit(Rules(**(defaults | rules)))


def admit(circuit: Circuit, now: float) -> Permit:
    permit = circuit.admit(now)
    assert isinstance(permit, Permit)
    return permit


def refuse(circuit: Circuit, now: float) -> Refusal:
    refusal = circuit.admit(now)
    assert isinstance(refusal, Refusal)
    return refusal


def end(circuit: Circuit, permit: Permit, now: float, failed: bool | None) -> None:
    circuit.settle(permit, now, failed, slow=False)


def fail(circuit: Circuit, now: float) -> None:
    end(circuit, admit(circuit, now), now, failed=True)


def test_the_whole_round() -> None:
    circuit = make()
    fail(circuit, 5.0)
    assert refuse(circuit, 5.0) == Refusal(OPEN, 30.0)
    assert refuse(circuit, 34.75) == Refusal(OPEN, 0.25)
    assert (circuit.state(34.75), circuit.state(35.0)) == (OPEN, HALF_OPEN)  # without a call
    assert circuit.mode is OPEN
    probe = admit(circuit, 35.0)
    assert refuse(circuit, 35.0) == Refusal(HALF_OPEN, math.inf)
    end(circuit, probe, 36.0, failed=False)
    assert (circuit.mode, circuit.plain, circuit.openings) == (CLOSED, True, 0)
    assert (circuit.admitted, circuit.refused, circuit.successes, circuit.failures) == (2, 3, 1, 1)


def test_an_end_of_another_epoch_changes_totals_only() -> None:
    circuit = make()
    good, bad, none = (admit(circuit, 0.0) for _ in range(3))
    fail(circuit, 0.0)
    for failed, permit in ((False, good), (True, bad), (None, none)):
        end(circuit, permit, 1.0, failed)
    assert (circuit.mode, circuit.openings, circuit.opens_in(1.0)) == (OPEN, 1, 29.0)
    assert (circuit.late, circuit.neutral, circuit.in_flight) == (2, 1, 0)


def test_std_7306_a_probe_of_an_earlier_round_frees_no_place() -> None:
    circuit = make(probe_lease=5.0)
    fail(circuit, 0.0)
    first = admit(circuit, 30.0)
    second = admit(circuit, 35.0)  # the lease of the first is over
    end(circuit, second, 35.0, failed=True)
    third = admit(circuit, 65.0)
    for failed in (False, True, None):
        copy = first if failed is None else Permit(first.epoch, 30.0, 35.0)
        end(circuit, copy, 66.0, failed)
    assert list(circuit.out) == [third]
    assert refuse(circuit, 66.0) == Refusal(HALF_OPEN, math.inf)
    assert circuit.mode is HALF_OPEN


def test_a_probe_may_be_replaced_from_the_end_of_its_lease_on_and_not_before() -> None:
    circuit = make(probes=2, probe_lease=4.0)
    fail(circuit, 0.0)
    first, second = admit(circuit, 30.0), admit(circuit, 31.0)
    assert refuse(circuit, 33.999).state is HALF_OPEN
    third = admit(circuit, 34.0)
    assert refuse(circuit, 34.0).state is HALF_OPEN  # the second one still has its place
    fourth = admit(circuit, 35.0)
    assert (first.replaced, second.replaced, list(circuit.out)) == (True, True, [third, fourth])
    end(circuit, first, 36.0, failed=True)  # says nothing any more
    end(circuit, second, 36.0, failed=False)
    assert (circuit.mode, circuit.late, len(circuit.out)) == (HALF_OPEN, 2, 2)


def test_the_lease_is_the_present_cooldown_or_what_was_given() -> None:
    growing: Backoff = Custom(lambda opening, rng: 10.0 * opening)
    circuit = make(cooldown=growing)
    fail(circuit, 0.0)
    fail(circuit, 10.0)
    assert admit(circuit, 30.0).lease_ends_at == 50.0
    circuit = make(probe_lease=3.0)
    fail(circuit, 0.0)
    assert admit(circuit, 30.0).lease_ends_at == 33.0


def test_a_lease_that_was_not_used_up_is_no_lease_of_a_later_probe() -> None:
    circuit = make(probes=1, probe_lease=10.0)
    fail(circuit, 0.0)
    end(circuit, admit(circuit, 30.0), 31.0, failed=None)
    assert admit(circuit, 35.0).lease_ends_at == 45.0
    assert refuse(circuit, 41.0).state is HALF_OPEN


@pytest.mark.parametrize("cooldown", [Constant(0), FullJitter(base=1e-300), 30.0], ids=repr)
@pytest.mark.parametrize("restored", [False, True])
def test_no_cooldown_is_so_short_that_more_than_the_probes_pass_at_once(
    cooldown: float | Backoff, restored: bool
) -> None:
    circuit = make(probes=3, cooldown=cooldown)
    circuit.open(0.0, seconds=0.0 if restored else None, openings=2 if restored else None)
    now = 30.0
    assert [isinstance(circuit.admit(now), Permit) for _ in range(100)] == [True] * 3 + [False] * 97


def test_what_is_restored_shortens_the_wait_and_not_the_lease() -> None:
    circuit = make()
    circuit.open(0.0, seconds=0.5, openings=4)
    assert (circuit.openings, circuit.opens_in(0.0), circuit.cooldown) == (4, 0.5, 0.5)
    assert admit(circuit, 0.5).lease_ends_at == 30.5


def test_give_back_lets_the_next_one_in_and_settle_still_counts() -> None:
    circuit = make()
    fail(circuit, 0.0)
    first = admit(circuit, 30.0)
    circuit.give_back(first)
    second = admit(circuit, 30.0)
    assert (circuit.in_flight, len(circuit.out)) == (2, 1)
    circuit.give_back(first)  # again: nobody else's place is touched
    assert list(circuit.out) == [second]
    end(circuit, first, 33.0, failed=True)
    assert (circuit.mode, circuit.failures) == (OPEN, 2)
    end(circuit, second, 33.0, failed=False)
    assert (circuit.mode, circuit.late, circuit.in_flight) == (OPEN, 1, 0)


def test_a_verdict_that_comes_after_the_probe_was_replaced_is_late() -> None:
    circuit = make(probe_lease=5.0)
    fail(circuit, 0.0)
    first = admit(circuit, 30.0)
    second = admit(circuit, 35.0)
    circuit.give_back(first)
    assert list(circuit.out) == [second]
    end(circuit, first, 36.0, failed=True)
    assert (circuit.mode, circuit.late) == (HALF_OPEN, 1)


def test_a_neutral_end_returns_the_place_and_the_state_stays() -> None:
    circuit = make(probes=2)
    fail(circuit, 0.0)
    for n in range(100):
        end(circuit, admit(circuit, 30.0 + n), 30.0 + n, failed=None)
    assert (circuit.mode, len(circuit.out), circuit.neutral, circuit.opens_in(200.0)) == (HALF_OPEN, 0, 100, 0.0)


@pytest.mark.parametrize(
    ("results", "mode"),
    [("..F.", CLOSED), ("FF", OPEN), ("F..", HALF_OPEN), ("...", CLOSED), (".F.F", OPEN), ("F...", CLOSED)],
)
def test_of_four_probes_three_must_succeed(results: str, mode: CircuitState) -> None:
    circuit = make(probes=4, needed=3, tolerated=1)
    circuit.open(0.0)
    for result in results:
        end(circuit, admit(circuit, 30.0), 30.0, failed=result == "F")
    assert circuit.mode is mode


def test_good_probes_of_an_earlier_round_do_not_close() -> None:
    circuit = make(probes=2, needed=2)
    circuit.open(0.0)
    end(circuit, admit(circuit, 30.0), 30.0, failed=False)
    fail(circuit, 30.0)
    end(circuit, admit(circuit, 60.0), 60.0, failed=False)
    assert circuit.mode is HALF_OPEN


def test_a_slow_probe_has_failed_although_it_succeeded() -> None:
    circuit = make()
    circuit.open(0.0)
    circuit.settle(admit(circuit, 30.0), 99.0, failed=False, slow=True)
    assert (circuit.mode, circuit.successes, circuit.failures, circuit.openings) == (OPEN, 1, 0, 2)


def test_the_cooldown_grows_with_each_opening_in_a_row_and_begins_anew_after_closing() -> None:
    growing: Backoff = Custom(lambda opening, rng: 5.0 * 2 ** (opening - 1))
    circuit = make(cooldown=growing)
    now, found = 0.0, list[float]()
    for _ in range(4):
        fail(circuit, now)
        found.append(circuit.cooldown)
        now += circuit.opens_in(now)
    assert found == [5.0, 10.0, 20.0, 40.0]
    assert circuit.first_opened_at == 0.0
    end(circuit, admit(circuit, now), now, failed=False)
    fail(circuit, now)
    assert (circuit.cooldown, circuit.openings, circuit.first_opened_at) == (5.0, 1, now)


def test_a_backoff_that_raises_leaves_the_circuit_as_it_was() -> None:
    circuit = make(cooldown=Custom(lambda opening, rng: math.nan))
    with pytest.raises(ValueError, match="nan"):
        circuit.open(3.0)
    assert (circuit.mode, circuit.openings, circuit.epoch, circuit.plain) == (CLOSED, 0, 0, True)


def close_with_ramp(ramp: float, at: float = 30.0) -> Circuit:
    circuit = make(ramp=ramp, trip=Consecutive(5))
    circuit.open(at - 30.0)
    end(circuit, admit(circuit, at), at, failed=False)
    return circuit


def test_semian_146_the_share_of_calls_that_pass_grows_linearly_from_none_to_all() -> None:
    circuit = close_with_ramp(100.0)
    passed, due = 0, 1.0  # the first one passes
    for n in range(10_000):
        now = 30.0 + n / 100
        due += n / 10_000
        answer = circuit.admit(now)
        if isinstance(answer, Permit):
            passed += 1
        else:
            assert answer.state is CLOSED
            assert 0 <= answer.retry_after <= 130.0 - now
        assert abs(passed - due) <= 1
    assert passed == 5000
    assert circuit.refused == 5000
    assert all(isinstance(circuit.admit(130.0 + n / 100), Permit) for n in range(100))
    assert circuit.plain


@given(ramp=st.integers(1, 100), callers=st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_at_any_instant_of_a_ramp_as_many_have_passed_as_their_shares_add_up_to(
    ramp: int, callers: list[float]
) -> None:
    circuit, passed, due = close_with_ramp(float(ramp)), 0, 1.0
    for share in sorted(callers):
        due += share
        passed += isinstance(circuit.admit(30.0 + share * ramp), Permit) and share < 1
        assert passed <= due + 1e-6
        assert share == 1 or passed > due - 1 - 1e-6


def test_semian_146_1000_callers_at_the_instant_of_closing_do_not_all_pass() -> None:
    circuit = close_with_ramp(10.0)
    answers = [circuit.admit(30.0) for _ in range(1000)]
    assert sum(isinstance(answer, Permit) for answer in answers) == 1
    waits = sorted(answer.retry_after for answer in answers if isinstance(answer, Refusal))
    assert 0 <= waits[0] < 0.02
    assert 0.8 < waits[-1] <= 1  # soon: the share that passes has grown by then
    assert 0.4 < waits[499] < 0.6  # spread, so that they do not all come back at once


def test_a_failure_in_the_ramp_counts() -> None:
    circuit = make(ramp=10.0)
    circuit.open(0.0)
    end(circuit, admit(circuit, 30.0), 30.0, failed=False)
    fail(circuit, 30.0)
    assert (circuit.mode, circuit.openings, circuit.opens_in(30.0)) == (OPEN, 1, 30.0)


def test_a_call_let_in_during_the_ramp_counts_when_it_is_over() -> None:
    circuit = close_with_ramp(10.0)
    permit = admit(circuit, 30.0)
    admit(circuit, 40.0)
    end(circuit, permit, 41.0, failed=True)
    assert (circuit.failures, circuit.late) == (1, 0)


@pytest.mark.parametrize("during", ["closed", "open", "half-open", "ramp"])
def test_isolated_in_each_state_it_goes_on_where_it_was_and_what_was_in_it_is_late(during: str) -> None:
    circuit = make(ramp=0.0 if during == "closed" else 10.0)
    permits = [admit(circuit, 0.0)] if during == "closed" else []
    now = {"closed": 0.0, "open": 0.0, "half-open": 30.0, "ramp": 31.0}[during]
    if during != "closed":
        circuit.open(0.0)
    if during == "half-open":
        permits = [admit(circuit, 30.0)]
    if during == "ramp":
        end(circuit, admit(circuit, 30.0), 30.0, failed=False)
        permits = [admit(circuit, 30.0)]
    mode, opens_in = circuit.mode, circuit.opens_in(now)
    circuit.isolate()
    circuit.isolate()
    assert circuit.state(now) is ISOLATED
    assert refuse(circuit, now) == Refusal(ISOLATED, math.inf)
    circuit.release()
    assert refuse(circuit, now) == Refusal(ISOLATED, math.inf)
    circuit.release()
    for permit in permits:
        end(circuit, permit, now, failed=True)
    assert circuit.late == len(permits)
    assert (circuit.mode, circuit.opens_in(now)) == (mode, opens_in)
    assert isinstance(circuit.admit(now), Refusal if during == "open" else Permit) or during == "ramp"


def test_the_cooldown_goes_on_while_it_is_isolated() -> None:
    circuit = make()
    circuit.open(0.0)
    circuit.isolate()
    assert refuse(circuit, 100.0) == Refusal(ISOLATED, math.inf)
    circuit.release()
    assert circuit.state(100.0) is HALF_OPEN
    admit(circuit, 100.0)


def test_released_when_the_ramp_is_over_it_is_as_new() -> None:
    circuit = close_with_ramp(10.0)
    circuit.isolate()
    circuit.release()
    assert not circuit.is_idle(39.9)
    assert circuit.is_idle(40.0)
    assert circuit.plain


def test_idle_means_that_nothing_is_in_it_and_nothing_remembered() -> None:
    circuit = make(trip=Consecutive(2))
    assert circuit.is_idle(0.0)
    permit = admit(circuit, 0.0)
    assert not circuit.is_idle(0.0)
    end(circuit, permit, 0.0, failed=True)
    assert not circuit.is_idle(1e9)  # one of two
    end(circuit, admit(circuit, 0.0), 0.0, failed=False)
    assert circuit.is_idle(0.0)
    circuit.isolate()
    assert not circuit.is_idle(0.0)
    circuit.release()
    assert circuit.is_idle(0.0)
    circuit.open(0.0)
    assert not circuit.is_idle(1e9)


@given(
    probes=st.integers(1, 5),
    lease=st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["ask", "ask", "neutral", "give back"])), max_size=80),
)
def test_at_no_time_do_more_than_the_probes_hold_an_unexpired_lease(
    probes: int, lease: int, steps: list[tuple[int, str]]
) -> None:
    circuit, now, out = make(probes=probes, probe_lease=float(lease)), 30.0, list[Permit]()
    circuit.open(0.0)
    for dt, what in steps:
        now += dt
        held = [permit for permit in out if now < permit.lease_ends_at]
        if what == "ask":
            answer = circuit.admit(now)
            assert isinstance(answer, Permit) is (len(held) < probes)
            out += [answer] if isinstance(answer, Permit) else []
        elif out:
            permit = out.pop(0)
            circuit.give_back(permit)
            if what == "neutral":
                end(circuit, permit, now, failed=None)
        assert len(circuit.out) <= probes
        assert circuit.state(now) is HALF_OPEN


def test_a_cooldown_that_the_clock_of_another_run_began_is_over() -> None:
    circuit = make()
    fail(circuit, 5000.0)
    assert refuse(circuit, 5000.0) == Refusal(OPEN, 30.0)
    for now in (0.0, 4999.0):
        assert (circuit.state(now), circuit.opens_in(now)) == (HALF_OPEN, 0)
    end(circuit, admit(circuit, 3.0), 3.0, failed=True)
    assert refuse(circuit, 4.0) == Refusal(OPEN, 29.0)


def test_a_ramp_that_the_clock_of_another_run_began_is_over() -> None:
    circuit = close_with_ramp(100.0, at=5000.0)
    assert not circuit.is_idle(5000.0)
    end(circuit, admit(circuit, 5000.0), 5000.0, failed=False)
    assert refuse(circuit, 5000.0).state is CLOSED
    for _ in range(10):
        end(circuit, admit(circuit, 12.0), 12.0, failed=False)
    assert circuit.plain
