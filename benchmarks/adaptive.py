"""The adaptive limits on the published scenarios, on a virtual clock: nothing here depends on the machine.

An ``arc_`` figure counts how many of a scenario's figures our rule has within the ranges that Vector *published*; its
``peer_arc_`` twin does so for Vector's own rule, ported and run on the same simulation. The reasons for each figure
outside stand in ``tests/simulations/arc_scenarios.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.measure import Figure, judged
from tests.simulations.arc import SCENARIOS, PublishedARC, Trace, load_scenarios, simulate
from tests.simulations.runaway import PublishedGradient2, feed, of_capacity
from trio_orchestrator.abc import Limit
from trio_orchestrator.algorithms.arc import ARC
from trio_orchestrator.algorithms.envoy import EnvoyGradient
from trio_orchestrator.algorithms.gradient2 import Gradient2
from trio_orchestrator.algorithms.vegas import Vegas

SETTLED: Final[dict[str, tuple[Limit, int, float]]] = {
    "vegas_on_50": (Vegas(), 1000, 55),
    "envoy_on_50": (EnvoyGradient(interval=0), 90, 70),  # it measures anew after a minute
    "gradient2_on_50": (Gradient2(), 1000, 100),
    "peer_gradient2_on_50": (PublishedGradient2(), 1000, 100),
}
"""The rule, how many updates it gets, and where it should be."""
NAMES: Final = [name.replace("-", "_") for name in SCENARIOS]
FIGURES: Final = (*SETTLED, *(f"{prefix}arc_{name}" for name in NAMES for prefix in ("", "peer_")))


def figures(quick: bool) -> Iterator[Figure]:
    """Yield every figure of this module; ``quick`` makes no difference, since a run takes seconds."""
    for name, (rule, updates, bound) in SETTLED.items():
        settled = feed(rule, of_capacity, updates)[-1]
        off = abs(settled - bound) / bound if name.startswith(("vegas", "envoy")) else settled / bound
        yield judged(name, settled, off)
    scenarios = load_scenarios()
    for name, scenario in SCENARIOS.items():
        figure = f"arc_{name.replace('-', '_')}"
        yield _scored(figure, simulate(scenario, ARC()), scenarios[name]["published"])
        yield _scored(f"peer_{figure}", simulate(scenario, PublishedARC(), hold=True), scenarios[name]["published"])


def _scored(figure: str, trace: Trace, published: dict[str, list[float]]) -> Figure:
    inside = sum(low - 1e-9 <= trace.figure(name) <= high + 1e-9 for name, (low, high) in published.items())
    return judged(figure, inside, 1 - inside / len(published))
