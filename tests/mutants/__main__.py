"""Plant bugs in a copy of the library, one at a time, and see whether the tests notice: python -m tests.mutants"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.mutants.bug import Bug, bugs
from tests.mutants.workshop import CAUGHT, Verdict, Workshop

_WORKSHOPS = 2


def arguments(words: list[str] | None, known: Iterable[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the planted bugs and their tests, and run nothing")
    parser.add_argument("--only", action="append", metavar="NAME", choices=sorted(known), help="this bug; repeatable")
    return parser.parse_args(words)


def is_green(workshops: Sequence[Workshop], planted: Iterable[Bug]) -> bool:
    """Run every named test once without any bug; print what fails. It also compiles everything."""
    tests = sorted({bug.test for bug in planted})
    shares = [tests[number :: len(workshops)] for number in range(len(workshops))]
    with ThreadPoolExecutor(len(workshops)) as pool:
        runs = list(pool.map(lambda shop, share: shop.run(share), workshops, shares))
    red = [run for run, share in zip(runs, shares, strict=True) if share and not run.green]
    for run in red:
        print(run.output)
    print(f"{len(tests)} tests without a bug: {'RED' if red else 'green'}", flush=True)
    return not red


def verdicts(workshops: Iterable[Workshop], planted: Iterable[Bug]) -> Iterator[Verdict]:
    """Yield a verdict on each bug, by name; as many at a time as there are workshops."""
    free: SimpleQueue[Workshop] = SimpleQueue()
    for workshop in workshops:
        free.put(workshop)

    def judge(bug: Bug) -> Verdict:
        workshop = free.get()
        try:
            return workshop.judge(bug)
        finally:
            free.put(workshop)

    with ThreadPoolExecutor(free.qsize()) as pool:
        yield from pool.map(judge, planted)


def as_text(verdict: Verdict) -> str:
    """Return a verdict as a line; more of them if something is wrong."""
    line = f"{verdict.word:8} {verdict.seconds:4.1f} s  {verdict.bug.name}"
    if verdict.word == CAUGHT:
        return f"{line}: {textwrap.shorten(verdict.why, 100)}"
    return f"{line}\n{textwrap.indent(verdict.why, '    ')}"


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    planted = bugs()
    options = arguments(words, (bug.name for bug in planted))
    if options.only:
        planted = [bug for bug in planted if bug.name in options.only]
    if options.list:
        for bug in planted:
            print(f"{bug.name}: {bug.text}\n    {bug.test}")
        return 0
    begin = time.monotonic()
    with TemporaryDirectory(prefix="planted-bugs-") as directory:
        root = Path(directory)
        workshops = [Workshop(root / str(n), root / "compiled") for n in range(min(_WORKSHOPS, len(planted)))]
        if not is_green(workshops, planted):
            return 1
        caught = 0
        for verdict in verdicts(workshops, planted):
            print(as_text(verdict), flush=True)
            caught += verdict.word == CAUGHT
    print(f"{time.monotonic() - begin:.0f} s")
    print(f"caught {caught} of {len(planted)}")
    return int(not planted or caught < len(planted))


if __name__ == "__main__":
    sys.exit(main())
