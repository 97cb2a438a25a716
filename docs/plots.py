"""Make docs/plots/*.svg, and the table of scenarios in docs/policies.md: python docs/plots.py (from the root).

Half a minute. Everything is simulated with the library's own objects, in virtual time and with fixed seeds, by the
functions that the tests use (`tests/simulations`) and by examples/outage.py; so the same numbers come out each time.
`PLOTS` has for each drawing how its numbers are made, and how they are drawn.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the simulations and examples are not installed

from docs.chart import Axis, Numbers, Panel, Points, Series, draw  # noqa: E402
from docs.page import insert  # noqa: E402
from tests.simulations import EXPECTED  # noqa: E402
from tests.simulations.arc import SCENARIOS, PublishedARC, Trace, load_scenarios, simulate  # noqa: E402
from tests.simulations.backoff import STRATEGIES, table  # noqa: E402
from tests.simulations.overload import overload  # noqa: E402
from tests.simulations.runaway import CAPACITY, PublishedGradient2, saturate  # noqa: E402
from trio_orchestrator import AIMD, ARC, EnvoyGradient, FullJitter, Gradient2, SreThrottle, Stack, Vegas  # noqa: E402
from trio_orchestrator.abc import Backoff, Limit  # noqa: E402
from trio_orchestrator.testing import run_virtual  # noqa: E402

FOLDER: Final = ROOT / "docs" / "plots"
OUTAGE: Final = runpy.run_path(str(ROOT / "examples" / "outage.py"))


class Plot(NamedTuple):
    """One drawing: what makes its numbers, and what draws them."""

    numbers: Callable[[], Numbers]
    drawn: Callable[[Numbers], str]

    def svg(self) -> str:
        """Simulate and draw."""
        return self.drawn(self.numbers())


# --------------------------------------------------------------------------------------------- backoff and jitter


def backoff_numbers(clients: Iterable[int] = range(10, 101, 10)) -> Numbers:
    """Return calls and seconds by strategy and number of clients: ours, and as published."""
    aws = EXPECTED["aws_backoff"]
    ours = table(STRATEGIES, clients, trials=aws["trials"], seed=aws["seed"])
    published = {int(number): means for number, means in aws["means_ms_calls"].items() if int(number) <= 100}
    return {
        "calls": {name: [(n, round(got.calls, 1)) for n, got in row.items()] for name, row in ours.items()},
        "seconds": {
            name: [(n, round(got.milliseconds / 1000, 3)) for n, got in row.items()] for name, row in ours.items()
        },
        "published calls": {name: [(n, means[name][1]) for n, means in published.items()] for name in ours},
        "published seconds": {name: [(n, means[name][0] / 1000) for n, means in published.items()] for name in ours},
    }


def backoff_drawn(numbers: Numbers) -> str:
    """Draw calls and seconds side by side."""
    clients = Axis("clients that compete for one row", range(0, 101, 20))

    def panel(what: str, title: str, y: Axis) -> Panel:
        lines = [Series(points, look) for look, points in enumerate(numbers[what].values())]
        marks = [Series(points, look, "marks") for look, points in enumerate(numbers[f"published {what}"].values())]
        return Panel(title, clients, y, [*lines, *marks])

    return draw(
        "Backoff and jitter: each client writes once (lines: ours, circles: AWS's simulator)",
        [
            panel("calls", "Calls", Axis("", range(0, 2501, 500))),
            panel("seconds", "Time", Axis("seconds, log", (0.1, 1, 10, 100), log=True)),
        ],
        numbers=numbers,
        legend=list(numbers["calls"]),
        columns=2,
    )


# ---------------------------------------------------------------------------------------------- jitter and the cap

CLIENTS: Final = 1000
RETRY: Final = 8
BIN: Final = 0.25
CAP: Final = 10.0


def clipped(retry: int, rng: Random) -> float:
    """Return what a full jitter pauses that is clipped only when it has been drawn."""
    return min(CAP, rng.uniform(0, 2 ** (retry - 1)))


def cap_numbers() -> Numbers:
    """Return how many of the clients come back in each quarter of a second."""
    return {
        "capped, then drawn": _arrivals(FullJitter(base=1, cap=CAP)),
        "drawn, then clipped": _arrivals(clipped),
    }


def _arrivals(pause: Backoff | Callable[[int, Random], float]) -> Points:
    rng = Random(1)
    bins = Counter(int(pause(RETRY, rng) / BIN) for _ in range(CLIENTS))
    return [(number * BIN, bins[number]) for number in range(int(CAP / BIN) + 1)]


def cap_drawn(numbers: Numbers) -> str:
    """Draw a histogram of each."""
    x, y = Axis("seconds after they failed", range(0, 13, 2)), Axis("clients", range(0, 1001, 250))
    panels = [
        Panel(f"{name}: up to {_most(points)} in {BIN:g} s", x, y, [Series(points, look, "bars", BIN)])
        for look, (name, points) in enumerate(numbers.items())
    ]
    title = f"{CLIENTS:,} clients fail in one instant, for the {RETRY}th time: when they come back (cap {CAP:g} s)"
    return draw(title, panels, numbers=numbers, columns=2)


def _most(points: Points) -> float:
    return max(many for _, many in points)


# ------------------------------------------------------------------------------------------------------- throttle


def throttle_numbers() -> Numbers:
    """Return the calls forwarded in each second of an overload, for two values of k."""
    return {f"k = {k}": _forwarded(SreThrottle(k)) for k in (2, 1.1)}


def _forwarded(throttle: SreThrottle) -> Points:
    line = overload(throttle, seconds=60, offered=1000, capacity=lambda second: 100)
    return [(second, got.forwarded) for second, got in enumerate(line)]


def throttle_drawn(numbers: Numbers) -> str:
    """Draw them above the capacity."""
    series = [Series(points, look) for look, points in enumerate(numbers.values())]
    x, y = Axis("seconds", range(0, 61, 10)), Axis("", range(0, 601, 100))
    panel = Panel("Calls a second that reach the service", x, y, series, [(100, "capacity")])
    title = "SreThrottle: 1,000 calls a second for a service that can answer 100"
    return draw(title, [panel], numbers=numbers, legend=list(numbers))


# ------------------------------------------------------------------------------------------------ adaptive limits

RULES: Final[Mapping[str, Limit]] = {
    "AIMD": AIMD(),
    "Vegas": Vegas(),
    "ARC": ARC(),
    "Gradient2": Gradient2(),
    "Gradient2 as published": PublishedGradient2(),
    "EnvoyGradient": EnvoyGradient(),
}
SECONDS: Final = 30.0


def limit_numbers(seconds: float = SECONDS) -> Numbers:
    """Return the limit over time, by rule: a change each, and of those in one twentieth of a second the last."""
    return {name: _thinned(saturate(rule, seconds=seconds).limit.points) for name, rule in RULES.items()}


def _thinned(points: Iterable[tuple[float, float]]) -> Points:
    kept: dict[int, tuple[float, float]] = {}
    for at, limit in points:
        kept[int(at / 0.05)] = (round(at, 3), limit)
    return list(kept.values())


def limit_drawn(numbers: Numbers) -> str:
    """Draw a panel for each."""
    x, y = Axis("seconds", range(0, 31, 10)), Axis("limit", range(0, 201, 50))
    panels = [
        Panel(name, x, y, [Series(points, int("published" in name), "steps", solid=True)], [(CAPACITY, "")])
        for name, points in numbers.items()
    ]
    title = f"Adaptive limits: a service that serves {CAPACITY} at once (dashed), lets the others queue, and fails none"
    return draw(title, panels, numbers=numbers, columns=3)


# --------------------------------------------------------------------------------------------------------- outage


def outage_numbers() -> Numbers:
    """Return the calls that reach the dependency of examples/outage.py, by second."""
    careful = OUTAGE["careful"](OUTAGE["Narrator"]())
    return {"retries only": _reaching(OUTAGE["naive"]()), "retry, budget, breaker, limiter": _reaching(careful)}


def _reaching(stack: Stack) -> Points:
    dependency = OUTAGE["Dependency"]()
    run_virtual(OUTAGE["main"], stack, dependency)
    return [(second, dependency.calls[second]) for second in range(int(OUTAGE["END"]))]


def outage_drawn(numbers: Numbers) -> str:
    """Draw both, with the outage shaded."""
    series = [Series(points, look, "steps") for look, points in enumerate(numbers.values())]
    x, y = Axis("seconds", range(0, 61, 10)), Axis("", range(0, 141, 20))
    bands = [(OUTAGE["DIES"], OUTAGE["RETURNS"], "down")]
    panel = Panel("Calls a second that reach the dependency", x, y, series, bands=bands)
    title = f"An outage: {OUTAGE['CALLS_A_SECOND']} users a second"
    return draw(title, [panel], numbers=numbers, legend=list(numbers))


# ----------------------------------------------------------------------------------------------------- ARC's table

FIGURES: Final = ("in_flight.mean", "limit.mean")
HEAD: Final = (
    "| scenario | in flight, mean: ours | Vector's rule | range | limit, mean: ours | Vector's rule | range |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


class Score(NamedTuple):
    """One of Vector's scenarios, with the mean of each of `FIGURES`: under our rule, and under Vector's as ported."""

    name: str
    ours: tuple[float, ...]
    port: tuple[float, ...]

    def row(self) -> str:
        """Return its row of the table."""
        cells = [self.name]
        for figure, ours, port in zip(FIGURES, self.ours, self.port, strict=True):
            accepted = load_scenarios()[self.name]["published"].get(figure)
            cells += [_cell(ours, accepted), _cell(port, accepted)]
            cells.append("" if accepted is None else f"{accepted[0]:g} to {accepted[1]:g}")
        return f"| {' | '.join(cells)} |"

    def reasons(self) -> list[str]:
        """Return why figures are out of their range, where they are."""
        return [*self._reasons("ours", "ours"), *self._reasons("port", "Vector's rule")]

    def _reasons(self, key: str, who: str) -> dict[str, None]:
        scenario, values = load_scenarios()[self.name], getattr(self, key)
        starred = [
            name for name, value in zip(FIGURES, values, strict=True) if _beyond(value, scenario["published"].get(name))
        ]
        return dict.fromkeys(f"- {self.name}, {who}: {scenario[key][name]['reason']}" for name in starred)


def arc_scores(names: Iterable[str] = SCENARIOS) -> list[Score]:
    """Run the scenarios."""
    return [
        Score(
            name, _means(simulate(SCENARIOS[name], ARC())), _means(simulate(SCENARIOS[name], PublishedARC(), hold=True))
        )
        for name in names
    ]


def arc_table(scores: Iterable[Score]) -> str:
    """Return the table, and what is to be said of it."""
    scores = list(scores)
    reasons = [reason for score in scores for reason in score.reasons()]
    rows = [score.row() for score in scores]
    return "\n".join([*HEAD, *rows, "", "`*` Out of the published range, for a reason:", "", *reasons])


def _means(trace: Trace) -> tuple[float, ...]:
    return tuple(trace.figure(figure) for figure in FIGURES)


def _cell(value: float, accepted: list[float] | None) -> str:
    return f"{value:.2f}{' *' if _beyond(value, accepted) else ''}"


def _beyond(value: float, accepted: list[float] | None) -> bool:
    return accepted is not None and not accepted[0] - 1e-9 <= value <= accepted[1] + 1e-9


PLOTS: Final[Mapping[str, Plot]] = {
    "backoff": Plot(backoff_numbers, backoff_drawn),
    "cap": Plot(cap_numbers, cap_drawn),
    "throttle": Plot(throttle_numbers, throttle_drawn),
    "limits": Plot(limit_numbers, limit_drawn),
    "outage": Plot(outage_numbers, outage_drawn),
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, plot in PLOTS.items():
        (FOLDER / f"{name}.svg").write_text(plot.svg(), encoding="utf-8")
    insert("arc", arc_table(arc_scores()))
