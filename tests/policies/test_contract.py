"""Every policy keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isabstract

import pytest

from tests.policies.contract import CHECKS, Check, Subject
from tests.policies.subjects import SUBJECTS
from trio_orchestrator.abc import Policy


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_contract(subject: Subject, check: Check) -> None:
    cases = check(subject)
    assert cases > 0 or (subject.waits and check.__name__ == "no_checkpoint_of_its_own")


def test_every_policy_of_the_package_is_under_contract() -> None:
    kinds = {type(subject.make()) for subject in SUBJECTS}
    public = {kind for kind in _below(Policy) if kind.__module__.startswith("trio_orchestrator.policies.")}
    ours = {kind for kind in public if not kind.__name__.startswith("_") and not isabstract(kind)}
    assert ours == kinds, ours ^ kinds


def _below(kind: type[object]) -> Iterator[type[object]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
