"""Each ordered pair of policies keeps the contract, cancelled at every checkpoint."""

from __future__ import annotations

from typing import Final

import pytest

from tests.policies.contract import CHECKS, Subject
from tests.policies.subjects import SUBJECTS
from trio_orchestrator.abc import Policy
from trio_orchestrator.policies.stack import Stack

LEFT_OUT: Final = ("Retry with a time-out", "CircuitBreaker watching", "Stack", "empty Stack")
KINDS: Final = [subject for subject in SUBJECTS if subject.name not in LEFT_OUT]
FEWEST_CASES: Final = 18
"""Of each pair: at least so many runs, most of them with a cancellation."""


def pair(outer: Subject, inner: Subject) -> Subject:
    def make() -> Policy:
        return Stack(outer.make(), inner.make())

    return Subject(f"{outer} outside {inner}", make, waits=outer.waits or inner.waits, seeds=1)


@pytest.mark.parametrize("outer", KINDS, ids=str)
def test_each_pair_keeps_the_contract(outer: Subject) -> None:
    total = 0
    for inner in KINDS:
        both = pair(outer, inner)
        cases = 0
        for check in CHECKS:
            try:
                cases += check(both)
            except BaseException as error:
                error.add_note(str(both))
                raise
        assert cases >= FEWEST_CASES, both
        total += cases
    print(f"{outer} outside {len(KINDS)} others: {total} cases")
    assert total >= 350
