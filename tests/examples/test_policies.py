"""The examples of the policies: what the servers in them have seen is what they print, and what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 40.0  # for what takes seconds, on a machine that has better things to do
EXAMPLES = {
    "adaptive": ["adaptive.py", "--limit=gradient2", "--limit=aimd", "--seconds=1.6"],
    "http": ["http_client.py"],
    "outage": ["outage.py"],
    "naive outage": ["outage.py", "--naive"],
}
Printed = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def printed() -> Iterator[Printed]:
    """Start them together, since most of what they do is wait; the value gives the lines of one when it has ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        started: dict[str, subprocess.Popen[str]] = {}
        for name, (file, *options) in EXAMPLES.items():
            command = [sys.executable, str(ROOT / "examples" / file), *options]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started[name] = process
        outputs: dict[str, list[str]] = {}

        def lines(name: str) -> list[str]:
            if name not in outputs:
                outputs[name] = started[name].communicate(timeout=PATIENCE)[0].splitlines()
                assert started[name].returncode == 0
            return outputs[name]

        yield lines


# ------------------------------------------------------------------------------------------------------------ outage


def seconds_of(lines: list[str]) -> dict[int, list[int]]:
    """Return the rows of the timeline: calls made, answered, refused, failed."""
    rows = [line.split() for line in lines if re.match(r" *\d+  +\d+  +\d+", line)]
    return {int(second): [int(figure) for figure in figures[:4]] for second, *figures in rows}


def calls_while_down(lines: list[str]) -> int:
    found = re.fullmatch(r"While it was down, 600 users asked, and (\d+) calls reached it\.", lines[-1])
    assert found is not None
    return int(found[1])


def test_an_outage_is_asked_a_dozen_times_and_not_thousands(printed: Printed) -> None:
    careful, naive = calls_while_down(printed("outage")), calls_while_down(printed("naive outage"))
    assert 5 <= careful <= 30  # five failures open it, what was in flight then, and a probe now and then
    assert naive >= 2500  # nearly five for each of 600
    assert calls_while_down(printed("outage")) >= sum(
        calls for second, (calls, *_) in seconds_of(printed("outage")).items() if 10 <= second < 40
    )  # rows that repeat the one before are left out


def test_the_outage_ends_with_everybody_answered(printed: Printed) -> None:
    rows = seconds_of(printed("outage"))
    assert rows[1] == [20, 20, 0, 0]
    assert rows[max(rows)] == [20, 20, 0, 0]
    notes = [line.split("  ")[-1] for line in printed("outage") if "circuit" in line or "probe" in line]
    assert notes[-1].startswith("a probe goes, closed after ")


def test_the_stack_of_the_outage_is_in_order(printed: Printed) -> None:
    names = [line.split("(")[0] for line in printed("outage") if re.match(r"\d\. ", line)]
    assert names == ["1. Retry", "2. RetryBudget", "3. CircuitBreaker", "4. RateLimiter", "5. Timeout"]
    assert not any("warning" in line.lower() for line in printed("outage"))


# -------------------------------------------------------------------------------------------------------------- http


@pytest.mark.parametrize(
    ("trouble", "seen", "got"),
    [
        ("does not run yet", "1", r"200 welcome, after \d+\.\d s"),
        ("busy", "2", r"200 thank you for waiting, after [1-9]\d*\.\d s"),
        ("hangs, once", "2", r"200 here I am, after [1-9]\d*\.\d s"),
        ("busy, an order", "1", r"503, after \d+\.\d s"),
        ("busy, an order with a key", "2", r"200 thank you for waiting, after [1-9]\d*\.\d s"),
    ],
)
def test_what_the_server_saw_and_what_the_user_got(printed: Printed, trouble: str, seen: str, got: str) -> None:
    [row] = [line for line in printed("http") if line.startswith(f"{trouble}  ")]
    number, answer = row[len(trouble) :].split(maxsplit=1)
    assert number == seen
    assert re.fullmatch(got, answer)


def test_a_broken_server_is_spared(printed: Printed) -> None:
    found = re.fullmatch(r"broken, 60 users +(\d+)  (.*)", printed("http")[-1])
    assert found is not None
    assert 10 <= int(found[1]) <= 30  # ten failures open it, and what was in flight then
    answers = {what: int(count) for count, what in re.findall(r"(\d+) x ([^,]+)", found[2])}
    assert sum(answers.values()) == 60
    assert answers["refused: the circuit is open"] >= 30


# ---------------------------------------------------------------------------------------------------------- adaptive


def verdicts(lines: list[str]) -> dict[str, tuple[float, float, int, str]]:
    """Return the server's verdicts: refused (per cent), waited (ms), most at once, in words."""
    pattern = r"(\S.*?) +\d+ +\d+% +([\d.]+)% +(\d+) ms +(\d+)  (.+)"
    found = [match for line in lines if (match := re.fullmatch(pattern, line))]
    return {match[1]: (float(match[2]), float(match[3]), int(match[4]), match[5]) for match in found}


def test_without_a_limit_the_server_is_overloaded_and_with_one_it_is_not(printed: Printed) -> None:
    fixed = verdicts(printed("adaptive"))["fixed 100"]
    assert fixed[3] == "overloads the server"
    for rule in ("gradient2", "aimd"):
        refused, waited, most_at_once, words = verdicts(printed("adaptive"))[rule]
        assert refused <= 5 < fixed[0]
        assert waited < fixed[1]
        assert most_at_once < fixed[2]
        assert words != fixed[3]


def test_the_limits_have_grown_from_five(printed: Printed) -> None:
    lines = printed("adaptive")
    for rule in ("gradient2", "aimd"):
        rows = [line.split() for line in lines[lines.index(rule) + 2 :]]
        limits = [int(row[1]) for row in rows[: rows.index([])]]
        assert 5 < max(limits) <= 36
