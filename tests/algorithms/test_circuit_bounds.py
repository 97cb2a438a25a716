"""What a new circuit says of itself, and what an opening or a closing must leave behind."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from trio_orchestrator.algorithms.circuit import Circuit, CircuitState, Permit, Rules
from trio_orchestrator.algorithms.trip import Consecutive


def make(**rules: Any) -> Circuit:
    defaults: dict[str, Any] = {
        "trip": Consecutive(2),
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


def end(circuit: Circuit, now: float, failed: bool) -> None:
    circuit.settle(admit(circuit, now), now, failed, slow=False)


def test_a_new_circuit_has_never_been_open() -> None:
    circuit = make()
    assert (circuit.mode, circuit.plain, circuit.holds, circuit.openings) == (CircuitState.CLOSED, True, 0, 0)
    assert (circuit.cooldown, circuit.first_opened_at, circuit.opened_at) == (0.0, -math.inf, -math.inf)
    assert (circuit.admitted, circuit.refused, circuit.late, circuit.neutral) == (0, 0, 0, 0)


def test_the_last_opening_and_the_first_of_a_row_are_remembered() -> None:
    circuit = make()
    circuit.open(5.0)
    end(circuit, 35.0, failed=True)
    assert (circuit.first_opened_at, circuit.opened_at) == (5.0, 35.0)


def test_closed_by_hand_it_lets_everything_through_at_once() -> None:
    circuit = make(ramp=50.0)
    circuit.open(0.0)
    circuit.close(1.0)
    assert circuit.plain
    assert all(isinstance(circuit.admit(1.0), Permit) for _ in range(20))


def test_what_was_counted_before_it_opened_is_forgotten_when_it_closes() -> None:
    circuit = make()
    for _ in range(2):
        end(circuit, 0.0, failed=True)
    end(circuit, 30.0, failed=False)
    assert circuit.is_idle(30.0)
    end(circuit, 30.0, failed=True)
    assert circuit.mode is CircuitState.CLOSED


def test_a_probe_of_an_earlier_round_keeps_no_place_in_the_next_one() -> None:
    circuit = make(probes=2, probe_lease=1000.0)
    circuit.open(0.0)
    first, _second = admit(circuit, 30.0), admit(circuit, 30.0)
    circuit.settle(first, 30.0, failed=True, slow=False)
    assert not circuit.out
    admit(circuit, 60.0)
    admit(circuit, 60.0)


def leases(cooldown: float, times: int, **rules: Any) -> list[float]:
    """Let each probe hang until its lease is over; return how long the leases were."""
    circuit = make(cooldown=cooldown, **rules)
    circuit.open(0.0)
    now, lengths = cooldown, list[float]()
    for _ in range(times):
        ends_at = admit(circuit, now).lease_ends_at
        lengths.append(ends_at - now)
        now = ends_at
    return lengths


def test_a_lease_that_ran_out_is_doubled_unless_it_was_named() -> None:
    assert leases(10.0, 7) == [10, 20, 40, 80, 160, 300, 300]
    assert leases(0.25, 4) == [0.25, 1, 2, 4]
    assert leases(512.0, 3) == [512, 512, 512]
    assert leases(10.0, 3, probe_lease=4.0) == [4, 4, 4]


class Highest:
    """A random source that always draws the most."""

    def random(self) -> float:
        return 1.0

    def uniform(self, a: float, b: float) -> float:
        return b


def test_who_is_refused_in_a_ramp_comes_back_before_its_end() -> None:
    circuit = make(ramp=10.0, rng=Highest())
    circuit.open(0.0)
    end(circuit, 30.0, failed=False)
    admit(circuit, 30.0)
    answer = circuit.admit(39.5)
    assert not isinstance(answer, Permit)
    assert answer.retry_after == 0.5
