"""Episodes: one start, one end, hysteresis in height and in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trio_orchestrator.algorithms.episode import Episodes

CALM = 10.0
keys = st.sampled_from("abc")


class EpisodeMachine(RuleBasedStateMachine):
    """Against a model that remembers everything that was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.episodes: Episodes[str] = Episodes(CALM)
        self.model: dict[str, list[float]] = {}  # key: [started_at, loud_at]
        self.balance = 0
        self.loud_still: set[str] = set()

    def expire(self) -> None:
        gone = {key for key, (_, loud_at) in self.model.items() if self.now - loud_at >= CALM}
        ended = self.episodes.over(self.now, self.loud_still.__contains__)
        for key in gone & self.loud_still:
            self.model[key][1] = self.now
        gone -= self.loud_still
        assert {episode.key for episode in ended} == gone
        assert [episode.loud_at for episode in ended] == sorted(episode.loud_at for episode in ended)
        for episode in ended:
            started_at, loud_at = self.model.pop(episode.key)
            assert (episode.started_at, episode.loud_at) == (started_at, loud_at)
            assert episode.seconds == loud_at - started_at
        self.balance -= len(ended)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 9.5, 10.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=keys)
    def stay_loud_without_a_look(self, key: str) -> None:
        self.loud_still ^= {key}

    @rule(key=keys, loudness=st.sampled_from([0.0, 0.3, 0.499, 0.5, 0.8, 1.0, 7.0]))
    def look(self, key: str, loudness: float) -> None:
        self.expire()
        begins = self.episodes.look(key, loudness, self.now)
        assert begins is (key not in self.model and loudness >= 1)
        if begins:
            self.model[key] = [self.now, self.now]
            self.balance += 1
        elif key in self.model and loudness >= 0.5:
            self.model[key][1] = self.now

    @rule(key=keys)
    def dismiss(self, key: str) -> None:
        self.expire()
        ended = self.episodes.end(key)
        assert (ended is not None) is (key in self.model)
        self.balance -= self.model.pop(key, None) is not None

    @invariant()
    def every_start_has_one_end(self) -> None:
        assert self.balance == len(self.episodes) == len(self.model)
        assert set(self.episodes.keys()) == set(self.model)


TestEpisodes = EpisodeMachine.TestCase


@given(st.lists(st.booleans(), max_size=30))
def test_calls_are_counted_up_to_the_last_loud_one(loud: list[bool]) -> None:
    episodes: Episodes[str] = Episodes(CALM)
    assert episodes.look("a", 1.0, 0.0, usual=2.5)
    episode = episodes.of("a")
    assert episode is not None
    for each in loud:
        episode.called()
        episodes.look("a", 0.5 if each else 0.4, 0.0)
    last = len(loud) - loud[::-1].index(True) if True in loud else 0
    assert (episode.calls, episode.usual) == (1 + last, 2.5)


def test_one_that_stays_loud_does_not_keep_another_from_its_end() -> None:
    episodes: Episodes[str] = Episodes(CALM)
    episodes.look("a", 1.0, 0.0)
    episodes.look("b", 1.0, 1.0)
    episodes.look("a", 1.0, 9.0)
    assert [episode.key for episode in episodes.over(11.0, lambda key: False)] == ["b"]
    assert [episode.key for episode in episodes.over(19.0, lambda key: False)] == ["a"]


def test_the_clock_of_another_run_ends_those_that_nobody_looks_at() -> None:
    episodes: Episodes[str] = Episodes(CALM)
    for key in "ab":
        episodes.look(key, 1.0, 5000.0)
    assert episodes.over(5000.0, lambda key: False) == []
    assert [episode.key for episode in episodes.over(4999.0, lambda key: key == "b")] == ["a"]
    assert episodes.over(4999.0, lambda key: False) == []  # seen to be loud just now
    assert [episode.seconds for episode in episodes.over(4999.0 + CALM, lambda key: False)] == [-1.0]
