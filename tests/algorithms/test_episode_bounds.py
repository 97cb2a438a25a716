"""Episodes that are asked about, and what is usual if nobody says."""

from __future__ import annotations

from trio_orchestrator.algorithms.episode import Episodes


def test_nothing_is_usual_if_nobody_says() -> None:
    episodes: Episodes[str] = Episodes(10.0)
    episodes.look("a", 1.0, 0.0)
    episode = episodes.of("a")
    assert episode is not None
    assert episode.usual == 0


def test_one_that_is_loud_still_does_not_keep_those_behind_it() -> None:
    episodes: Episodes[str] = Episodes(10.0)
    for now, key in enumerate("abc"):
        episodes.look(key, 1.0, float(now))
    assert [episode.key for episode in episodes.over(20.0, lambda key: key in "ab")] == ["c"]
    assert episodes.keys() == ("a", "b")
    assert [episode.key for episode in episodes.over(30.0, lambda key: False)] == ["a", "b"]
