"""``python -m benchmarks queue | retry | policies | adaptive | redis | explore | soak-redis``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module

from benchmarks import explore, redis_soak
from benchmarks.measure import TARGETS, Figure
from benchmarks.report import as_markdown, as_text

_MODULES = {
    "queue": "jobs, slots, waiting, imports",
    "retry": "one call under a retry policy",
    "policies": "breaker, rate limiter, stacks: price and accuracy",
    "adaptive": "adaptive limits on the scenarios of the published controllers",
    "redis": "the Redis client beside others, on one server",
}
_FILES = {"redis": "redis_link"}
"""Whose module has another name."""
_CHOOSY = {"queue", "redis"}
"""Those that measure only what is asked for."""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _MODULES.items():
        _add_figures(commands.add_parser(name, help=text))
    _add_explore(commands.add_parser("explore", help="property tests with fresh seeds", allow_abbrev=False))
    redis_soak.add_arguments(commands.add_parser("soak-redis", help="the Redis client in trouble, and what must hold"))
    options, rest = parser.parse_known_args(words)
    if rest and options.command != "explore":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.pytest = rest
    return options


def _add_explore(parser: argparse.ArgumentParser) -> None:
    parser.usage = "python -m benchmarks explore [--minutes N] [PYTEST ARGS]"
    parser.add_argument("--minutes", type=float, default=10.0, help="for so long (10)")


def _add_figures(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object a line")
    form.add_argument("--markdown", action="store_true", help="the table of docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="fewer jobs and rounds, under 45 s")
    parser.add_argument("--only", action="append", metavar="NAME", choices=sorted(TARGETS), help="this figure")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a figure is over its target and slack")


def measured(command: str, quick: bool, only: list[str] | None) -> Iterator[Figure]:
    """Yield the figures of one command, or those named."""
    module = import_module(f"benchmarks.{_FILES.get(command, command)}")
    if command in _CHOOSY:
        yield from module.figures(quick, only or module.FIGURES)
    else:
        yield from (figure for figure in module.figures(quick) if not only or figure.figure in only)


def shown(figures: Iterable[Figure], options: argparse.Namespace) -> Iterator[Figure]:
    """Print the figures as asked for, each as soon as it is known, and yield them."""
    if options.markdown:
        figures = list(figures)
        print(as_markdown(figures))
    for figure in figures:
        if not options.markdown:
            print(figure.as_json() if options.json else as_text(figure), flush=True)
        yield figure


def main() -> int:
    """Run the command; return its exit code."""
    options = arguments()
    if options.command == "explore":
        return explore.run(options.minutes, options.pytest)
    if options.command == "soak-redis":
        return redis_soak.run(options.seconds, options.seed, options.only)
    figures = list(shown(measured(options.command, options.quick, options.only), options))
    return int(options.gate and any(figure.ok is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
