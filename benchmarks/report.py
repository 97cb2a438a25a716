"""Figures for people: a line each, or the table of ``docs/performance.md``."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from benchmarks.measure import SLACK, Figure

PACKAGES = (
    "trio",
    "trio_orchestrator",
    "aiometer",
    "tenacity",
    "stamina",
    "backoff",
    "purgatory",
    "aiolimiter",
    "limits",
    "redis",
    "hiredis",
    "uvloop",
    "coredis",
    "valkey-glide",
)
VERDICT = {True: "ok", False: "RED", None: "-"}


def as_text(figure: Figure) -> str:
    """Return one aligned line."""
    ratio = f"{_number(figure.ratio)}x" if figure.ratio is not None else ""
    allowed = f"<= {figure.target}x" if figure.target is not None else ""
    value = f"{_number(figure.value)} {figure.unit}"
    return (f"{figure.figure:26}{value:>14}  {ratio:>9}  {allowed:9}  {VERDICT[figure.ok]:4} {figure.against}").rstrip()


def as_markdown(figures: Iterable[Figure]) -> str:
    """Return the table with its date, machine and versions."""
    head = ("figure", "value", "ratio", "target", "against", "ok")
    rows = [_row(head), _row(["---"] * len(head))]
    for each in figures:
        value = f"{_number(each.value)} {each.unit}"
        rows.append(
            _row((f"`{each.figure}`", value, _number(each.ratio), _number(each.target), each.against, VERDICT[each.ok]))
        )
    return "\n".join((_conditions(), "", *rows))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:g}"


def _conditions() -> str:
    day = dt.datetime.now(tz=dt.UTC).date().isoformat()
    versions = ", ".join((f"Python {platform.python_version()}", *_installed()))
    return f"{day}; {_machine()}; {versions}. Slack on every target: {SLACK:.0%}."


def _machine() -> str:
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _installed() -> Iterable[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    if shutil.which("node"):
        yield f"node {subprocess.run(['node', '--version'], capture_output=True, text=True).stdout.strip()}"
