"""What docs/plots.py and docs/explain.py have written is what they write now.

The quick plots and the accounts are compared to the byte. Of the slow ones the drawing is, from the numbers that stand
in it, and a part of those numbers is simulated anew.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from docs import explain
from docs.chart import numbers_of
from docs.page import PAGE, rewritten, written

plots: Any = import_module("docs.plots")  # the folder of that name hides it from the type checker

NAMES = sorted(plots.PLOTS)
SLOW = {"backoff", "limits"}
every_plot = pytest.mark.parametrize("name", NAMES)


def committed(name: str) -> str:
    svg: str = (plots.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    return svg


def as_json(numbers: Any) -> Any:
    return json.loads(json.dumps(numbers))


# ------------------------------------------------------------------------------------------------------- drawings


@pytest.mark.parametrize("name", sorted(set(NAMES) - SLOW))
def test_a_quick_plot_is_current(name: str) -> None:
    assert plots.PLOTS[name].svg() == committed(name)


@every_plot
def test_a_plot_is_drawn_from_the_numbers_in_it(name: str) -> None:
    assert plots.PLOTS[name].drawn(numbers_of(committed(name))) == committed(name)


@every_plot
def test_a_plot_is_small_well_formed_and_has_a_scheme_for_the_dark(name: str) -> None:
    svg = committed(name)
    assert len(svg.encode()) < 60_000
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "@media(prefers-color-scheme:dark)" in svg
    assert "nan" not in svg


def test_all_that_is_there_is_written_by_the_script_and_shown_on_the_page() -> None:
    assert sorted(path.name for path in plots.FOLDER.iterdir()) == [f"{name}.svg" for name in NAMES]
    page = PAGE.read_text(encoding="utf-8")
    assert all(page.count(f"](plots/{name}.svg)") == 1 for name in NAMES)


# --------------------------------------------------------------------------------------------- numbers of the slow


def test_the_numbers_of_backoff_up_to_twenty_clients_are_current() -> None:
    few = as_json(plots.backoff_numbers((10, 20)))
    for key, lines in numbers_of(committed("backoff")).items():
        assert {name: [point for point in few[key][name] if point[0] <= 20] for name in lines} == {
            name: [point for point in points if point[0] <= 20] for name, points in lines.items()
        }


def test_the_first_second_of_the_limits_is_current() -> None:
    now, before = as_json(plots.limit_numbers(seconds=1)), numbers_of(committed("limits"))
    assert now.keys() == before.keys()
    for name, points in before.items():
        assert [point for point in now[name] if point[0] < 0.95] == [point for point in points if point[0] < 0.95]


def test_what_the_page_says_of_the_limits() -> None:
    def at_the_end(name: str) -> float:
        return float(numbers[name][-1][1])

    numbers = numbers_of(committed("limits"))
    assert at_the_end("Gradient2 as published") == 200
    assert at_the_end("AIMD") > 2 * plots.CAPACITY
    assert at_the_end("Vegas") < plots.CAPACITY
    assert all(plots.CAPACITY < at_the_end(name) < 2 * plots.CAPACITY for name in ("Gradient2", "EnvoyGradient"))


def test_what_the_page_says_of_the_outage_and_the_throttle() -> None:
    alone, careful = ([calls for _, calls in points] for points in numbers_of(committed("outage")).values())
    assert 4.5 < sum(alone[11:40]) / 29 / 20 < 5
    assert sum(careful[11:40]) == 4
    for points, k in zip(numbers_of(committed("throttle")).values(), (2, 1.1), strict=True):
        assert sum(calls for _, calls in points[1:]) / 59 == pytest.approx(100 * k, rel=0.05)


# --------------------------------------------------------------------------------------------------------- the page


def test_rows_of_the_table_of_scenarios_are_current() -> None:
    quick = ("constant-link", "slow-send-1", "slow-send-2", "defers-at-high-concurrency")
    table = written(PAGE.read_text(encoding="utf-8"), "arc").splitlines()
    for score in plots.arc_scores(quick):
        assert score.row() in table
        assert [line for line in table if line.startswith(f"- {score.name},")] == score.reasons()


def test_the_table_has_a_row_for_each_scenario_and_a_reason_for_each_star() -> None:
    table = written(PAGE.read_text(encoding="utf-8"), "arc").splitlines()
    assert [line.split()[1] for line in table if line.startswith("| ")][2:] == list(plots.SCENARIOS)
    starred = {line.split()[1] for line in table if line.startswith("|") and "*" in line}
    assert starred == {line.split()[1].rstrip(",") for line in table if line.startswith("- ")}


def test_the_accounts_of_the_ready_made_stacks_are_current() -> None:
    assert written(PAGE.read_text(encoding="utf-8"), "explain") == explain.block(), "python docs/explain.py --write"


def test_only_what_is_between_the_comments_is_replaced() -> None:
    page = "a\n\n<!-- it: made by x -->\n\nold\n\nolder\n\n<!-- end of it -->\n\nb\n"
    assert written(page, "it") == "old\n\nolder"
    assert rewritten(page, "it", "new \\1") == "a\n\n<!-- it: made by x -->\n\nnew \\1\n\n<!-- end of it -->\n\nb\n"
    with pytest.raises(ValueError, match="name must be"):
        written(page, "other")
