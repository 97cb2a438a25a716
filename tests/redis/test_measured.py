"""What `python -m benchmarks redis` measures: every contender does the same, and a wrong reply ends it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measure import AbsentError
from benchmarks.redis_link import CANCELS, FIGURES, RACES, Race, Track, gets_and_sets, under_cancels
from benchmarks.redis_load import KNOWN, VALUES, WrongReplyError, fill
from benchmarks.redis_peers import CONTENDERS, Client, Contender, TrioWorld, World
from trio_orchestrator.testing.server import RedisServer

HERE = ("ours", "asyncio", "threads")
"""Those that need nothing but redis-py."""
RUNS = [(name, race) for name in HERE for race in RACES if name == "ours" or not race.unix]
"""Who runs where; others' Unix sockets are not ours to test."""


@pytest.fixture
def track(clean_redis: RedisServer) -> Track:
    fill(clean_redis)
    return Track(clean_redis, seconds=0.01, rounds=1, warm_up=0.005)


@pytest.mark.parametrize(("name", "race"), RUNS, ids=[f"{name}-{race.key}" for name, race in RUNS])
def test_a_contender_runs_a_race_with_right_replies(name: str, race: Race, track: Track) -> None:
    assert 0 < track.reading(name, race) < 1e6


def test_a_race_yields_the_figures_that_are_wanted(track: Track) -> None:
    figures = list(track.run(RACES[-1], {"redis_pipeline", "peer_asyncio_pipeline", "redis_1_task"}))
    assert [figure.figure for figure in figures] == ["redis_pipeline", "peer_asyncio_pipeline"]
    mine, theirs = figures
    assert mine.ratio is not None
    assert theirs.ratio is not None
    assert mine.ratio * theirs.ratio == pytest.approx(1, rel=0.01)
    assert mine.target == 0.2857
    assert theirs.ok is None


def test_without_a_wanted_figure_nothing_runs(track: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_track: Track, _name: str, _race: Race) -> float:
        raise AssertionError

    monkeypatch.setattr(Track, "reading", fail)
    assert list(track.run(RACES[0], {"redis_pipeline"})) == []


@pytest.mark.parametrize("broken", ["not installed: a_package_that_nobody_has", "failed: OSError: no such server"])
def test_a_contender_that_cannot_run_is_printed_with_the_reason(
    broken: str, track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_main: object) -> float:
        raise OSError("no such server")

    absent = ("a_package_that_nobody_has",) if "package" in broken else ()
    peer = Contender("peer", CONTENDERS["asyncio"].open, run, packages=absent)
    monkeypatch.setattr("benchmarks.redis_link.CONTENDERS", {**CONTENDERS, "asyncio": peer})
    [figure] = track.run(RACES[-1], {"peer_asyncio_pipeline"})
    assert (figure.value, figure.ratio, figure.ok) == (None, None, None)
    assert figure.against == f"our redis_pipeline; peer {broken}"
    [cancelled] = under_cancels(track, 0.1, {"peer_asyncio_unanswered"})
    assert cancelled.ok is None
    assert cancelled.against.endswith(broken)


def test_a_failure_of_ours_is_raised(track: Track) -> None:
    track.server.command("SET", "counted", "no hash")
    with pytest.raises(Exception, match="WRONGTYPE"):
        track.reading("ours", RACES[-1])
    with pytest.raises(AbsentError):
        track.reading("asyncio", RACES[-1])


async def test_a_wrong_reply_ends_the_measurement() -> None:
    async def somebody_elses(*_args: Any) -> bytes:
        return VALUES[1]

    client = Client(somebody_elses, somebody_elses, somebody_elses, somebody_elses, somebody_elses)
    with pytest.raises(WrongReplyError, match="replies were wrong"):
        await gets_and_sets(TrioWorld(), client, 0.01, tasks=3)


def test_a_wrong_reply_of_a_peer_is_no_reason_to_go_on(track: Track) -> None:
    async def wrong(world: World, client: Client, seconds: float) -> float:
        raise WrongReplyError("1 of 1 replies were wrong")

    with pytest.raises(WrongReplyError):
        track.reading("asyncio", Race("wrong", wrong, {}))


def test_calls_with_short_deadlines_are_counted(track: Track) -> None:
    figures = {figure.figure: figure for figure in under_cancels(track, 0.2, CANCELS.keys() & set(mine()))}
    assert figures.keys() == set(mine())
    unanswered, reconnects = figures["redis_unanswered"], figures["redis_reconnects"]
    assert unanswered.value is not None
    assert 0 < unanswered.value < 0.9
    assert (reconnects.value, reconnects.ok) == (0, True)


def mine() -> list[str]:
    return [name for name in FIGURES if name in {"redis_unanswered", "redis_reconnects"}]


def test_each_known_key_has_a_value_of_its_own() -> None:
    assert len(set(VALUES)) == KNOWN
