"""Figures, targets, and the one way to compare: contenders alternated within one run, by process CPU time.

A figure is judged by a *ratio* only. A time is set against a primitive or a hand-written twin that ran in the same
rounds. A size in bytes or MiB does not depend on how fast or how busy the machine is, so it is set against its
limit: ``ratio`` is the share of the limit that is used, ``target`` is 1. The peak of running jobs is a count:
``ratio`` is the share of the slots that stayed empty at the peak (or were overrun), ``target`` is 0.

``targets.json`` holds all targets and, once, the slack that every one of them is given. A target of so many
``times_as_fast`` is the ratio of 1 to it.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, final

T = TypeVar("T")
Reading = dict[str, float]

HERE = Path(__file__).parent
_STATED = json.loads((HERE / "targets.json").read_text())
SLACK: float = _STATED["slack"]
TARGETS: dict[str, dict[str, Any]] = _STATED["figures"]
for _stated in TARGETS.values():
    if "times_as_fast" in _stated:
        _stated["target"] = round(1 / _stated["times_as_fast"], 4)


class AbsentError(Exception):
    """A contender is not installed here; its figures are printed without a value."""


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report.

    Args:
        figure: The stable name, a key of ``targets.json``.
        value: What was measured of ours (of the peer, in a peer's row), in ``unit``; None if a contender is absent.
        unit: ``us`` are microseconds of CPU time per job or call.
        ratio: The median over the rounds of ours divided by the contender of the same round.
        against: Whom or what the ratio is against.
        target: The ratio allowed, before slack; None where none is set.
        ok: ``ratio <= target * (1 + slack)``; None if there is no ratio or no target.
    """

    figure: str
    value: float | None
    unit: str
    ratio: float | None
    against: str
    target: float | None
    ok: bool | None

    def as_json(self) -> str:
        """Return the figure as one JSON object on one line."""
        return json.dumps(asdict(self))


def judged(name: str, value: float | None, ratio: float | None = None) -> Figure:
    """Return the figure ``name`` with its unit, opponent, target and verdict from ``targets.json``.

    Args:
        name: A key of ``targets.json``.
        value: The absolute figure; None says that a contender is absent.
        ratio: What decides. A figure with a limit, or with slots to fill, gets it from ``value``.
    """
    stated = TARGETS[name]
    if value is not None and "limit" in stated:
        ratio = value / stated["limit"]
    if value is not None and "slots" in stated:
        ratio = abs(value - stated["slots"]) / stated["slots"]
    value, ratio = _short(value), _short(ratio)
    target = cast("float | None", stated["target"])
    ok = None if ratio is None or target is None else ratio <= target * (1 + SLACK)
    return Figure(name, value, stated["unit"], ratio, stated["against"], target, ok)


def _short(number: float | None) -> float | None:
    """Round to four digits that count."""
    if not number:
        return number
    return round(number, max(0, 3 - math.floor(math.log10(abs(number)))))


def alternate(contenders: Mapping[str, Callable[[], T]], rounds: int, *, seed: int = 1) -> dict[str, list[T]]:
    """Run every contender once a round, each round in a new random order, and return the readings by name.

    A contender that raises `AbsentError` or `ModuleNotFoundError` is left out of the result. In-process contenders
    warm up by themselves, or by one call of each before.

    Args:
        contenders: Name to callable; what it returns is one reading.
        rounds: Readings of each contender; the i-th readings of two contenders belong to the same round.
        seed: Of the order within the rounds.
    """
    order, present = random.Random(seed), list(contenders)
    readings: dict[str, list[T]] = {name: [] for name in contenders}
    for _ in range(rounds):
        order.shuffle(present)
        for name in tuple(present):
            try:
                readings[name].append(contenders[name]())
            except (AbsentError, ModuleNotFoundError):
                present.remove(name)
                del readings[name]
    return readings


def median(numbers: Sequence[float]) -> float:
    """Return the middle one."""
    return statistics.median(numbers)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds, which a slow spell of the machine moves least."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def child(contender: str, **parameters: object) -> Callable[[], Reading]:
    """Return a callable that runs one contender of `benchmarks.contenders` once, in a fresh process.

    Args:
        contender: Its registered name.
        parameters: Handed to it as keyword arguments; must fit into JSON.

    Raises:
        AbsentError: (the callable) A package that the contender needs is not installed.
        RuntimeError: (the callable) It failed; the message is its standard error.
    """
    return command(sys.executable, "-m", "benchmarks.contenders", contender, json.dumps(parameters))


ABSENT = 42
"""The exit code of a child that misses a package."""


def command(*words: str, **environment: str) -> Callable[[], Reading]:
    """Return a callable that runs a command whose last line of output is one JSON object of numbers.

    Args:
        words: The command.
        environment: Variables that it gets on top of ours.
    """

    def run() -> Reading:
        try:
            done = subprocess.run(words, capture_output=True, text=True, cwd=HERE.parent, env=_quiet() | environment)
        except FileNotFoundError as error:
            raise AbsentError(words[0]) from error
        if done.returncode == ABSENT:
            raise AbsentError(done.stderr.strip())
        if done.returncode:
            raise RuntimeError(f"{' '.join(words[-2:])} failed:\n{done.stderr}")
        return cast("Reading", json.loads(done.stdout.splitlines()[-1]))

    return run


def _quiet() -> dict[str, str]:
    """Return our environment without what would change the children's figures."""
    loud = ("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONMALLOC", "PYTHONDONTWRITEBYTECODE", "COVERAGE_PROCESS_START")
    return {key: value for key, value in os.environ.items() if key not in loud}
