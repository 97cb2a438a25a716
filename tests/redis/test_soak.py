"""Each soak of `python -m benchmarks soak-redis`, for a moment: the same trouble, the same promises."""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks import redis_soak
from benchmarks.__main__ import arguments
from benchmarks.redis_load import Tally
from benchmarks.redis_peers import LATE
from benchmarks.redis_promise import Promise
from benchmarks.redis_trouble import Ledger
from trio_orchestrator.testing.server import RedisServer

SECONDS: Final = {"kills": 0.6, "black_hole": 0.5}


@pytest.mark.parametrize("name", redis_soak.SOAKS)
def test_what_a_soak_promises_holds_for_a_moment(name: str, clean_redis: RedisServer) -> None:
    promises = redis_soak.soaked(name, clean_redis, SECONDS.get(name, 0.3), seed=1)
    assert len(promises) > 5
    assert not [str(promise) for promise in promises if not promise.kept]


def test_a_promise_is_kept_within_its_bounds_only() -> None:
    assert [Promise("", "", value, least=2, most=3).kept for value in (1, 2, 3, 4)] == [False, True, True, False]
    assert str(Promise("a", "b", 1, most=0, why="because")).endswith("<= 0        BROKEN because")


def test_a_tally_knows_wrong_answers_from_late_ones() -> None:
    tally = Tally()
    for answer in (b"mine", b"yours", LATE, None):
        tally.take(answer, b"mine")
    tally.fail(ValueError("no"))
    assert (tally.answered, tally.wrong, tally.cancelled, tally.failed, tally.calls) == (1, 2, 1, 1, 5)
    assert tally.why == "1x ValueError: no"


def test_a_ledger_finds_what_the_server_has_not_done_once(clean_redis: RedisServer) -> None:
    ledger = Ledger(1)
    ledger.sure, ledger.maybe = ["1", "2"], {"3"}
    clean_redis.command("RPUSH", ledger.key, "2", "2", "3", "4")
    assert ledger.audit(clean_redis) == (1, 1, 1), "lost 1, 2 ran twice, 4 was never sent"


def test_a_broken_promise_makes_a_run_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(server: RedisServer, _seconds: float, _rng: object) -> list[Promise]:
        return [Promise("broken", "dbsize", server.command("DBSIZE"), most=1)]

    monkeypatch.setattr(redis_soak, "SOAKS", {"broken": (broken, 1.0)})
    assert redis_soak.run(None, 7, None) == 1
    said = capsys.readouterr().out
    assert "seed 7" in said
    assert "dbsize" in said
    assert said.count("BROKEN") == 1


def test_a_soak_can_be_chosen() -> None:
    options = arguments(["soak-redis", "--only", "kills", "--only", "big", "--seconds", "0.5", "--seed", "3"])
    assert (options.only, options.seconds, options.seed) == (["kills", "big"], 0.5, 3)
    with pytest.raises(SystemExit):
        arguments(["soak-redis", "--only", "nothing"])
