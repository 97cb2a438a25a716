"""Which tests judge a module, and which mutants they are known to let live."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutant import ROOT, RULES

SURVIVORS = Path(__file__).with_name("survivors.txt")
"""A line for each: the name of the mutant, a tab, and why no test can or need tell it from the original."""

_LIMITS = ("tests/algorithms/test_limits_bounds.py", "tests/algorithms/test_round_trip.py")

OTHER_TESTS: dict[str, tuple[str, ...]] = {
    "account": ("tests/policies/test_spend.py",),
    "aimd": _LIMITS,
    "arc": _LIMITS,
    "backoff": ("tests/policies/test_bad_input.py",),
    "envoy": _LIMITS,
    "gradient2": _LIMITS,
    "lane": ("tests/algorithms/test_schedule.py",),
    "retry_after": ("tests/algorithms/test_aws_retry_after.py",),
    "round_trip": (*_LIMITS, *(f"tests/algorithms/test_{rule}.py" for rule in ("aimd", "vegas", "gradient2"))),
    "trip": ("tests/policies/test_breaker_bad_input.py",),
    "vegas": _LIMITS,
}
"""The files of tests, beside `tests/algorithms/test_<module>*.py`."""

UNCOVERED: dict[str, str] = {
    "chance": "one statement, which its test runs in a process of its own",
}
"""Modules that are not judged, and why."""


def modules() -> list[str]:
    """Return the modules of the rules, those that are judged and those that are not."""
    return sorted(path.stem for path in RULES.glob("*.py") if path.stem != "__init__")


def files_of(module: str) -> list[str]:
    """Return the files of tests that judge a module."""
    own = [f"tests/algorithms/test_{module}.py", f"tests/algorithms/test_{module}_bounds.py"]
    return list(dict.fromkeys([*(file for file in own if (ROOT / file).exists()), *OTHER_TESTS.get(module, ())]))


def survivors() -> list[tuple[str, str]]:
    """Return the listed mutants and the reasons."""
    lines = SURVIVORS.read_text(encoding="utf-8").splitlines()
    parts = [line.partition("\t") for line in lines if line and not line.startswith("#")]
    return [(name, reason.strip()) for name, _, reason in parts]


def module_of(name: str) -> str:
    """Return the module of a mutant."""
    return name.partition(":")[0].partition(".")[0]
