"""Trouble for as long as you like, and what must hold in it: ``python -m benchmarks soak-redis --seconds 60``.

Each soak opens a client of ours on a real server, breaks something for some seconds while many tasks call, and then
counts: at the callers, and at the server. All answers are checked. The plain tests run each for half a second.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final

import trio

from benchmarks.redis_bulk import big, flood, slow_script
from benchmarks.redis_load import fill
from benchmarks.redis_promise import Promise
from benchmarks.redis_trouble import black_hole, cancels, kills, locks, overload, stalls
from trio_orchestrator.testing.server import RedisServer, open_redis_server

Soak = Callable[[RedisServer, float, Random], Awaitable[list[Promise]]]
SOAKS: Final[Mapping[str, tuple[Soak, float]]] = MappingProxyType(
    {
        "cancels": (cancels, 20),
        "overload": (overload, 8),
        "locks": (locks, 10),
        "kills": (kills, 6),
        "stalls": (stalls, 10),
        "black_hole": (black_hole, 10),
        "flood": (flood, 5),
        "big": (big, 5),
        "slow_script": (slow_script, 5),
    }
)
"""Each soak, and how many seconds it lasts if nothing is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--seconds", type=float, help="how long each lasts (20 to 5, as it needs)")
    parser.add_argument("--seed", type=int, help="of all that is drawn (a fresh one, which is printed)")
    parser.add_argument("--only", action="append", metavar="NAME", choices=sorted(SOAKS), help="this soak")


def run(seconds: float | None, seed: int | None, only: Sequence[str] | None) -> int:
    """Run the soaks; print a line for each figure; return 1 if a promise was broken.

    Args:
        seconds: How long each lasts; None: as long as each does by itself.
        seed: Of all that is drawn; None: a fresh one, which is printed.
        only: The names of those to run; None: all.
    """
    seed, broken = secrets.randbelow(2**32) if seed is None else seed, 0
    with open_redis_server(unix=True, tcp=True) as server:
        print(f"{server.identity}, seed {seed}", flush=True)
        for name in only or SOAKS:
            for promise in soaked(name, server, seconds or SOAKS[name][1], seed):
                print(promise, flush=True)
                broken += not promise.kept
    print(f"promises broken: {broken}")
    return int(broken > 0)


def soaked(name: str, server: RedisServer, seconds: float, seed: int) -> list[Promise]:
    """Run one soak on a server, which loses its data; return what came of it."""
    server.command("FLUSHALL")
    fill(server)
    return trio.run(SOAKS[name][0], server, seconds, Random(f"{name} {seed}"))
