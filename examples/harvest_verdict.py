"""What became of a harvest, judged by two files: the client's results and, above all, the server's ledger."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from journal import read


@dataclass(frozen=True)
class Verdict:
    items: int
    attempts: int
    peak: int
    lost: int
    doubled: int

    def holds(self, limit: int) -> bool:
        return self.peak <= limit and self.lost == self.doubled == 0


def judge(codes: list[str], results: Path, ledger: Path) -> Verdict:
    """Compare what the client has with what the server did, item by item."""
    has = receipts(results)
    did = receipts(ledger)
    in_flight = [line["in_flight"] for line in read(ledger)]
    return Verdict(
        items=len(codes),
        attempts=len(in_flight),
        peak=max(in_flight, default=0),
        lost=sum(not set(has.get(code, [])) & set(did.get(code, [])) for code in codes),
        doubled=sum(len(has.get(code, [])) > 1 or len(did.get(code, [])) > 1 for code in codes),
    )


def receipts(journal: Path) -> dict[str, list[int]]:
    """Return the receipts that a journal has of each item: one, if all went well."""
    found: dict[str, list[int]] = {}
    for line in read(journal):
        if line["receipt"] is not None:
            found.setdefault(line["code"], []).append(line["receipt"])
    return found


def show(verdict: Verdict, *, limit: float, causes: Counter[str], seconds: float) -> None:
    """Print the table, and its gist as the last line. `limit` is how many requests were to be in flight at most."""
    setbacks = f"{causes.total()} {'retries' if limit < math.inf else 'failures'}"
    row("items", verdict.items)
    row("attempts", verdict.attempts, "in the server's ledger")
    row(setbacks.split()[1], causes.total(), ", ".join(f"{cause} {count}" for cause, count in causes.most_common()))
    row("peak in flight", verdict.peak, f"seen by the server; the limit is {limit}")
    row("lost", verdict.lost)
    row("doubled", verdict.doubled)
    row("wall time", f"{seconds:.1f} s")
    print(
        f"{verdict.items} items, {verdict.attempts} attempts, {setbacks}, {seconds:.1f} s, "
        f"peak {verdict.peak} of {limit}, lost {verdict.lost}, doubled {verdict.doubled}"
    )


def row(what: str, value: object, remark: str = "") -> None:
    print(f"{what:<16}{value:>8}  {remark}".rstrip())
