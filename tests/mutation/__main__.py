"""Change the rules in `algorithms/`, one small change at a time, and see whether their tests notice.

What no test notices has to stand in survivors.txt, with a reason, and nothing else may stand there.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator

from tests.mutation.mutant import Mutant, mutants
from tests.mutation.subject import UNCOVERED, files_of, module_of, modules, survivors
from tests.mutation.workshop import PROFILE, Workshop


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--only", action="append", metavar="MODULE", choices=modules(), help="this module; repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many of the mutants, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another sample")
    return parser.parse_args(words)


def judge(module: str, chosen: list[Mutant]) -> Iterator[Mutant]:
    """Yield the mutants of a module that survive. Ends the program if its tests fail without any change."""
    begin = time.monotonic()
    workshop = Workshop(module, files_of(module))
    unchanged = workshop.is_green()
    if not unchanged.survived:
        sys.exit(f"{unchanged.output}\n{module}: its tests fail without any change")
    alive = 0
    for verdict in workshop.judge(chosen):
        if verdict.survived and verdict.mutant is not None:
            alive += 1
            print(f"alive: {verdict.mutant.name}", flush=True)
            yield verdict.mutant
    killed = f"killed {len(chosen) - alive} of {len(chosen)}"
    print(f"{module}: {killed} ({time.monotonic() - begin:.0f} s)", flush=True)


def complaints(alive: set[str], chosen: set[str], existing: set[str], of: Iterable[str]) -> Iterator[str]:
    """Yield what differs between the survivors and the list."""
    listed = {name for name, _ in survivors() if module_of(name) in of}
    yield from (f"SURVIVED, and is not listed: {name}" for name in sorted(alive - listed))
    yield from (f"KILLED, and is listed: {name}" for name in sorted((listed & chosen) - alive))
    yield from (f"LISTED, and does not exist: {name}" for name in sorted(listed - existing))


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = arguments(words)
    judged = [module for module in options.only or modules() if module not in UNCOVERED]
    chosen = everything = [mutant for module in judged for mutant in mutants(module)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    alive: set[str] = set()
    for module in judged:
        if mine := [mutant for mutant in chosen if mutant.module == module]:
            alive |= {mutant.name for mutant in judge(module, mine)}
    found = list(complaints(alive, {mutant.name for mutant in chosen}, {mutant.name for mutant in everything}, judged))
    print(*found, *(f"NOT COVERED: {module}: {why}" for module, why in UNCOVERED.items()), sep="\n")
    print(f"killed {len(chosen) - len(alive)} of {len(chosen)}, {len(alive)} survivors{'' if found else ' listed'}")
    return int(bool(found) or not chosen)


if __name__ == "__main__":
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": PROFILE}
    if any(os.environ.get(name) != value for name, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]], os.environ | fixed)
    sys.exit(main())
