"""The listed survivors exist, once each and with a reason; every module is judged or named; the names of mutants last.

`python -m tests.mutation` runs the mutants.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import mutant
from tests.mutation.__main__ import complaints
from tests.mutation.mutant import ROOT, mutants
from tests.mutation.subject import OTHER_TESTS, UNCOVERED, files_of, module_of, modules, survivors

EXISTING = {one.name for module in modules() for one in mutants(module)}


def test_every_listed_mutant_exists() -> None:
    assert [name for name, _ in survivors() if name not in EXISTING] == []


def test_none_is_listed_twice() -> None:
    assert [name for name, times in Counter(name for name, _ in survivors()).items() if times > 1] == []


def test_each_has_a_reason() -> None:
    assert [name for name, reason in survivors() if len(reason.split()) < 3] == []


def test_the_list_is_sorted() -> None:
    listed = [module_of(name) for name, _ in survivors()]
    assert listed == sorted(listed)


@pytest.mark.parametrize("module", modules())
def test_every_module_is_judged_by_tests_or_named_as_not_covered(module: str) -> None:
    files = files_of(module)
    assert all((ROOT / file).exists() for file in files)
    assert files or module in UNCOVERED


def test_the_tables_name_nothing_else() -> None:
    assert {*OTHER_TESTS, *UNCOVERED} <= {*modules()}
    assert all(why.strip() for why in UNCOVERED.values())


SOURCE = '''
"""Not this 1."""
LIMIT = 5


class Gate:
    """Nor this."""

    __slots__ = ("a",)

    def admits(self, now: float, by: float = 0.5) -> bool:
        """Nor 1 < 2."""
        if self.shut or not self.open:
            self.count += 1
            raise ValueError(f"{now + 1}")
        self.last = now
        return min(self.a, -1) <= now < self.b

    def __repr__(self) -> str:
        return str(1 + 1)
'''
NAMES = [
    "gate: LIMIT = 5 -> LIMIT = 6",
    "gate.Gate.admits: self, now: float, by: float=0.5 -> self, now: float, by: float=1.5",
    "gate.Gate.admits: self.shut or not self.open -> self.shut and (not self.open)",
    "gate.Gate.admits: self.shut or not self.open -> self.shut or self.open",
    "gate.Gate.admits: self.count += 1 -> self.count -= 1",
    "gate.Gate.admits: self.count += 1 -> pass",
    "gate.Gate.admits: self.count += 1 -> self.count += 2",
    "gate.Gate.admits: raise ValueError(f'{now + 1}') -> pass",
    "gate.Gate.admits: self.last = now -> pass",
    "gate.Gate.admits: return min(self.a, -1) <= now < self.b -> return None",
    "gate.Gate.admits: min(self.a, -1) <= now < self.b -> min(self.a, -1) < now < self.b",
    "gate.Gate.admits: min(self.a, -1) <= now < self.b -> min(self.a, -1) > now < self.b",
    "gate.Gate.admits: min(self.a, -1) <= now < self.b -> min(self.a, -1) <= now <= self.b",
    "gate.Gate.admits: min(self.a, -1) <= now < self.b -> min(self.a, -1) <= now >= self.b",
    "gate.Gate.admits: min(self.a, -1) -> max(self.a, -1)",
    "gate.Gate.admits: min(self.a, -1) -> min(self.a, 1)",
    "gate.Gate.admits: min(self.a, -1) -> min(self.a, -2)",
]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(mutant, "RULES", tmp_path)
    (tmp_path / "gate.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "gate.py"


def test_what_is_changed_and_what_it_is_called(gate: Path) -> None:
    assert [one.name for one in mutants("gate")] == NAMES
    for one in mutants("gate"):
        one.code()


def test_a_name_outlives_edits_elsewhere_and_a_second_one_is_numbered(gate: Path) -> None:
    gate.write_text(SOURCE.replace("self.last = now\n", "self.last = now\n        self.count += 1\n"), encoding="utf-8")
    names = [one.name for one in mutants("gate")]
    assert [name for name in names if not name.endswith(" (2)")] == NAMES
    assert [name for name in names if name.endswith(" (2)")] == [f"{name} (2)" for name in NAMES[4:7]]


def test_making_a_mutant_leaves_the_others_alone(gate: Path) -> None:
    several = mutants("gate")
    before = ast.dump(several[0]._tree)
    assert len({one.code().co_consts for one in several}) > 1
    assert ast.dump(several[0]._tree) == before


def test_each_difference_from_the_list_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [("gate.a: x -> y", "why"), ("lane: p -> q", "why")]
    monkeypatch.setattr("tests.mutation.__main__.survivors", lambda: listed)
    a, b, c = "gate.a: x -> y", "gate.b: x -> y", "gate.c: x -> y"
    assert list(complaints({a}, {a, b, c}, {a, b, c}, ["gate"])) == []
    assert list(complaints({a, b}, {a, b, c}, {a, b, c}, ["gate"])) == [f"SURVIVED, and is not listed: {b}"]
    assert list(complaints(set(), {a, b, c}, {a, b, c}, ["gate"])) == [f"KILLED, and is listed: {a}"]
    assert list(complaints(set(), {b, c}, {b, c}, ["gate"])) == [f"LISTED, and does not exist: {a}"]
    assert list(complaints(set(), {b}, {a, b, c}, ["gate"])) == []  # of a sample, it was not drawn
