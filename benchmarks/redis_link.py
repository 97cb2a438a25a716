"""The figures of the Redis client: everybody on the same server, in the same run, alternated; every reply is checked.

Unlike elsewhere, what counts is elapsed time, not CPU time: a client that sleeps through round trips is slow too. A
figure is the time of one call; its ratio is ours divided by the peer's of the same round, and a target of "5 times as
fast" is a ratio of a fifth. A peer's ratio says how many times our time it takes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final, final

from benchmarks.measure import AbsentError, Figure, alternate, judged, median, median_ratio
from benchmarks.redis_load import (
    KEYS,
    KNOWN,
    PAUSE,
    STALL,
    STALLS,
    VALUES,
    Tally,
    WrongReplyError,
    cancelled_load,
    disturbed,
    fill,
)
from benchmarks.redis_peers import CONTENDERS, OURS, PEERS, Client, World
from trio_orchestrator.testing.server import RedisServer, open_redis_server

PIPELINE: Final = 1000
TASKS_CANCELLED: Final = 200

Measure = Callable[[World, Client, float], Coroutine[Any, Any, float]]


# --------------------------------------------------------------------------------------------------- what is measured


async def gets_and_sets(world: World, client: Client, seconds: float, *, tasks: int) -> float:
    """Set and get known keys in many tasks for some time; return the microseconds a call."""
    tally, get, put = Tally(), client.get, client.set

    async def task(n: int) -> None:  # bare, since the fastest call takes microseconds
        key, value = KEYS[n % KNOWN], VALUES[n % KNOWN]
        pairs = wrong = 0
        while not pairs or time.perf_counter() < until:
            await put(key, value)
            if await get(key) != value:
                wrong += 1
            pairs += 1
        tally.answered += pairs - wrong
        tally.wrong += wrong

    began = time.perf_counter()
    until = began + seconds
    await world.together(tasks, task)
    spent = time.perf_counter() - began
    tally.check()
    return spent / (2 * tally.calls) * 1e6


async def slowest(world: World, client: Client, seconds: float, *, tasks: int) -> float:
    """Get known keys; return the microseconds within which 99 % of the calls were answered."""
    tally, took = Tally(), list[float]()

    async def once(n: int) -> None:
        key, value = KEYS[n % KNOWN], VALUES[n % KNOWN]
        began = time.perf_counter()
        answer = await client.get(key)
        took.append(time.perf_counter() - began)
        tally.take(answer, value)

    await _spent(world, tasks, seconds, once)
    tally.check()
    return sorted(took)[int(0.99 * len(took))] * 1e6


async def lock_cycles(world: World, client: Client, seconds: float, *, tasks: int) -> float:
    """Claim and release locks, each task its own; return the microseconds a cycle."""
    tally = Tally()

    async def once(n: int) -> None:
        key, token = f"lock:{n}", f"token of {n}"
        claimed = await client.claim(key, token)
        tally.take((bool(claimed), await client.release(key, token)), (True, 1))

    spent = await _spent(world, tasks, seconds, once)
    tally.check()
    return spent / tally.calls * 1e6


async def pipelines(world: World, client: Client, seconds: float) -> float:
    """Count by pipelines, one after the other; return the microseconds a command."""
    tally = Tally()
    [last] = await client.count("counted", 1)

    async def once(_n: int) -> None:
        nonlocal last
        tally.take(await client.count("counted", PIPELINE), [*range(last + 1, last + PIPELINE + 1)])
        last += PIPELINE

    spent = await _spent(world, 1, seconds, once)
    tally.check()
    return spent / (tally.calls * PIPELINE) * 1e6


async def _spent(world: World, tasks: int, seconds: float, once: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    """Do something once, and again for some time, in many tasks; return how long that took in all."""
    began = time.perf_counter()
    until = began + seconds

    async def task(n: int) -> None:
        await once(n)
        while time.perf_counter() < until:
            await once(n)

    await world.together(tasks, task)
    return time.perf_counter() - began


# ------------------------------------------------------------------------------------------------------------- races


@final
@dataclass(frozen=True)
class Race:
    """Contenders that do the same thing.

    Args:
        key: What it is called in the names of the peers' figures.
        measure: What is done; returns microseconds.
        against: Our figures, and whom each is against.
        unix: Whether by the Unix socket; then peers have no figures of their own.
    """

    key: str
    measure: Measure
    against: Mapping[str, str]
    unix: bool = False

    @property
    def peers(self) -> dict[str, str]:
        """The peers' figures, and whose each is."""
        return {} if self.unix else {f"peer_{peer}_{self.key}": peer for peer in PEERS}

    @property
    def figures(self) -> tuple[str, ...]:
        """All figures that come out of it."""
        return (*self.against, *self.peers)


RACES: Final = (
    Race("1_task", partial(gets_and_sets, tasks=1), {"redis_1_task": "uvloop"}),
    Race("1_task_unix", partial(gets_and_sets, tasks=1), {"redis_1_task_unix": "uvloop"}, unix=True),
    Race(
        "100_tasks",
        partial(gets_and_sets, tasks=100),
        {"redis_100_tasks": "uvloop", "redis_100_tasks_glide": "glide"},
    ),
    Race("100_tasks_unix", partial(gets_and_sets, tasks=100), {"redis_100_tasks_unix": "uvloop"}, unix=True),
    Race("1000_tasks", partial(gets_and_sets, tasks=1000), {"redis_1000_tasks": "asyncio"}),
    Race("p99", partial(slowest, tasks=100), {"redis_p99": "asyncio"}),
    Race("lock_cycle", partial(lock_cycles, tasks=100), {"redis_lock_cycle": "asyncio"}),
    Race("pipeline", pipelines, {"redis_pipeline": "asyncio"}),
)
CANCELS: Final = {
    "redis_unanswered": OURS,
    "redis_reconnects": OURS,
    **{f"peer_{peer}_{key}": peer for peer in PEERS for key in ("unanswered", "reconnects")},
}
"""The figures under cancels, and whose each is."""
FIGURES: Final = (*(name for race in RACES for name in race.figures), *CANCELS)


@final
@dataclass
class Track:
    """The server that all contenders run on, and why some of them do not."""

    server: RedisServer
    seconds: float
    rounds: int
    warm_up: float = 0.1
    """Seconds before each reading: a pool of 100 connections is made in less."""
    out: dict[str, str] = field(default_factory=dict)

    def run(self, race: Race, wanted: Collection[str]) -> Iterator[Figure]:
        """Run those contenders of a race that the wanted figures need."""
        named = {name: peer for name, peer in {**race.against, **race.peers}.items() if name in wanted}
        names = dict.fromkeys((OURS, *named.values())) if named else {}
        readings = alternate({name: partial(self.reading, name, race) for name in names}, self.rounds)
        for figure, peer in named.items():
            yield self._figure(figure, peer, readings, ours=figure in race.against)

    def reading(self, name: str, race: Race) -> float:
        """Return one reading of a contender.

        Raises:
            AbsentError: It cannot run.
        """

        async def work(world: World, client: Client) -> float:
            await race.measure(world, client, self.warm_up)
            return await race.measure(world, client, self.seconds)

        return float(self.attempt(name, lambda: CONTENDERS[name].work(work, self.server, unix=race.unix)))

    def attempt(self, name: str, run: Callable[[], Any]) -> Any:
        """Return what a contender comes to; a peer that cannot do it is out of the race, and a line says why.

        Raises:
            AbsentError: It is out.
            WrongReplyError: Of ours, or of a peer: then all figures are worth nothing.
        """
        if absent := CONTENDERS[name].absent:
            self.out[name] = f"not installed: {absent}"
            raise AbsentError(absent)
        gc.collect()
        try:
            return run()
        except WrongReplyError:
            raise
        except Exception as error:
            if name == OURS:
                raise
            self.out[name] = f"failed: {type(error).__name__}: {error!s:.80}"
            raise AbsentError(name) from error

    def _figure(self, figure: str, peer: str, readings: Mapping[str, list[float]], *, ours: bool) -> Figure:
        if peer not in readings:
            return self.explained(judged(figure, None), peer)
        mine, theirs = readings[OURS], readings[peer]
        value, ratio = (mine, median_ratio(mine, theirs)) if ours else (theirs, median_ratio(theirs, mine))
        return judged(figure, median(value), ratio)

    def explained(self, figure: Figure, peer: str) -> Figure:
        """Return the figure of a peer that is out, with the reason."""
        return replace(figure, against=f"{figure.against}; {CONTENDERS[peer].name} {self.out[peer]}")


# ------------------------------------------------------------------------------------------------------ under cancels


def under_cancels(track: Track, seconds: float, wanted: Collection[str]) -> Iterator[Figure]:
    """Yield which share of calls with deadlines of 0 to 2 ms got no answer, and how many connections that cost."""
    for name in CONTENDERS:
        figures = [figure for figure, whose in CANCELS.items() if whose == name and figure in wanted]
        if not figures:
            continue
        try:
            values = track.attempt(name, partial(_cancelled, track.server, name, seconds))
        except AbsentError:
            yield from (track.explained(judged(figure, None), name) for figure in figures)
        else:
            yield from (judged(figure, values[figure.rpartition("_")[2]]) for figure in figures)


def _cancelled(server: RedisServer, name: str, seconds: float) -> dict[str, float]:
    async def work(world: World, client: Client) -> tuple[Tally, int]:
        await gets_and_sets(world, client, 0.1, tasks=TASKS_CANCELLED)
        before = _connections(server)
        tally = await cancelled_load(
            world, client, seconds=seconds, pause=PAUSE, tasks=TASKS_CANCELLED, rng=Random(name)
        )
        return tally, _connections(server) - before - 1  # it is asked on a connection of its own

    with disturbed(server, 1 / STALLS, *STALL):
        tally, connections = CONTENDERS[name].work(work, server)
    tally.check()
    return {"unanswered": 1 - tally.answered / tally.calls, "reconnects": connections * 10 / seconds}


def _connections(server: RedisServer) -> int:
    return int(server.info("stats")["total_connections_received"])


def figures(quick: bool, wanted: Collection[str] = FIGURES) -> Iterator[Figure]:
    """Start a server, run the races, and yield each figure as its race ends.

    Args:
        quick: Fewer rounds, and shorter ones.
        wanted: The figures to measure; the rest costs nothing.
    """
    with open_redis_server(unix=True, tcp=True) as server:
        fill(server)
        track = Track(server, *((0.06, 2) if quick else (0.4, 9)))
        for race in RACES:
            where = f"{_version(server)}, {'Unix socket' if race.unix else 'TCP'}"
            yield from (_at(figure, where) for figure in track.run(race, wanted))
        where = f"{_version(server)}, TCP"
        yield from (_at(figure, where) for figure in under_cancels(track, 0.6 if quick else 10, wanted))


def _version(server: RedisServer) -> str:
    identity = server.identity
    return f"{identity.name} {identity.version}"


def _at(figure: Figure, where: str) -> Figure:
    return replace(figure, against=f"{figure.against} ({where})")
