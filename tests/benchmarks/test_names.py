"""The report of the benchmarks: every figure has a target line, and every line has the seven keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import adaptive, policies, queue, redis_link, retry
from benchmarks.measure import SLACK, TARGETS, AbsentError, Figure, alternate, judged, median_ratio

ROOT = Path(__file__).parents[2]
KEYS = ["figure", "value", "unit", "ratio", "against", "target", "ok"]


def test_every_declared_figure_is_in_the_targets_and_the_other_way_round() -> None:
    declared = [*queue.FIGURES, *retry.FIGURES, *policies.FIGURES, *adaptive.FIGURES, *redis_link.FIGURES]
    assert len(set(declared)) == len(declared)
    assert set(declared) == set(TARGETS)


def test_every_line_of_json_has_the_seven_keys_and_follows_its_target() -> None:
    name = "import_memory"
    words = (sys.executable, "-m", "benchmarks", "queue", "--quick", "--json", "--only", name)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    [line] = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(line) == KEYS
    assert (line["figure"], line["target"]) == (name, TARGETS[name]["target"])
    assert line["ok"] == (line["ratio"] <= line["target"] * (1 + SLACK))


def test_a_races_own_figures_are_the_declared_ones() -> None:
    assert {row.figure for race in queue.RACES for row in race(True).rows} < set(queue.FIGURES)


def test_the_slack_decides_up_to_its_end() -> None:
    assert judged("trivial_job", 2.0, 1.62) == Figure(
        "trivial_job", 2.0, "us", 1.62, "bare worker pool on a memory channel", 1.35, True
    )
    assert judged("trivial_job", 2.0, 1.6211).ok is False


def test_a_size_is_a_share_of_its_limit() -> None:
    assert judged("bytes_waiting_plain", 312.0).ratio == 1.2
    assert judged("bytes_waiting_plain", 312.0).ok is True
    assert judged("bytes_waiting_plain", 313.0).ok is False


def test_without_a_contender_or_a_target_nothing_is_judged() -> None:
    assert judged("trivial_job", None).ok is None
    assert judged("peer_aiometer", 20.0, 8.4).ok is None


def test_an_absent_contender_leaves_the_others_in_the_race() -> None:
    def absent() -> float:
        raise AbsentError("not here")

    assert alternate({"a": lambda: 2.0, "b": absent, "c": lambda: 1.0}, 3) == {"a": [2.0] * 3, "c": [1.0] * 3}


def test_the_ratio_is_taken_within_each_round() -> None:
    assert median_ratio([1.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == 2.0
