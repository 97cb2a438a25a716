"""The order of one connection without a socket: who gets which reply, what was sent, who has a place in the window."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis.exceptions import InvalidResponse

from tests.redis.scripted import Push, Refusal, encode, nest
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.conversation import Conversation
from trio_orchestrator.redis.outbox import BATCH, Outbox
from trio_orchestrator.redis.wire import reader, reply_error

WAITING: Any = object()


class Probe(Call):
    """A call whose waiter is no task: it notes its answer instead of being rescheduled."""

    def __init__(self, number: int, size: int, want: int) -> None:
        super().__init__(b"%d:" % number + b"x" * size)
        self.number = number
        self.want = want
        self.task = WAITING
        self.told: list[Any] = []

    def settle(self, answer: Any) -> None:
        """Note the answer."""
        if self.task is not None:
            self.task = None
            self.told.append(answer)

    def end_late(self, error: Exception) -> None:
        """Note it, too."""
        self.settle_late(error)

    def settle_late(self, error: Exception) -> None:
        """Note that it was ended by time."""
        if self.task is not None:
            self.task = None
            self.told.append(error)


@dataclass
class Expected:
    """What the model knows of a call."""

    call: Probe
    replies: list[Any]
    given_up: bool = False
    got: int = 0
    begins: int = -1
    ends: int = -1


def decoded(value: Any) -> Any:
    """Return a reply as the reader gives it."""
    match value:
        case Refusal():
            return reply_error(str(value))
        case str():
            return value.encode()
        case list():
            return [decoded(part) for part in value]
        case dict():
            return {decoded(key): decoded(part) for key, part in value.items()}
        case _:
            return value


def same(one: Any, other: Any) -> bool:
    """Compare replies; errors by their text."""
    if isinstance(other, Exception):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(other, list):
        return isinstance(one, list) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


REPLIES = st.one_of(
    st.integers(-5, 5),
    st.binary(max_size=9),
    st.sampled_from([None, True, "OK", Refusal("ERR no"), 1.5, [Refusal("ERR nested"), b"1"]]),
    st.builds(nest, st.binary(max_size=3), st.integers(0, 2)),
)


@dataclass
class Lost:
    """The calls of a connection that ended."""

    unsent: list[Call] = field(default_factory=list)
    sent: list[Call] = field(default_factory=list)


class Talk(RuleBasedStateMachine):
    """One outbox in front of one connection after another, against a model that knows every byte."""

    @initialize(calls=st.integers(1, 6), size=st.integers(1, 60))
    def begin(self, calls: int, size: int) -> None:
        self.calls, self.bytes = calls, size
        self.outbox = Outbox(calls, size)
        self.number = 0
        self.row: deque[Expected] = deque()  # written into the present connection, in order
        self.queue: list[Expected] = []  # not written yet, in line or not
        self.everything: list[Expected] = []
        self.pushed: list[Any] = []
        self.expected_pushes: list[Any] = []
        self.connect()

    def connect(self) -> None:
        """Begin another connection."""
        self.talk = Conversation(reader(), lambda push: self.pushed.append(list(push)))
        self.wire = b""
        self.written = b""

    # ------------------------------------------------------------------------------------------- our side

    @rule(data=st.data(), size=st.integers(0, 30), want=st.integers(1, 3), resend=st.booleans(), atomic=st.booleans())
    def queue_a_call(self, data: st.DataObject, size: int, want: int, resend: bool, atomic: bool) -> None:
        call = Probe(self.number, size, want)
        call.resend, call.atomic = resend, atomic
        room = self.outbox.used < self.calls and self.outbox.size < self.bytes and not self.outbox._line
        assert self.outbox.has_room() == room
        assert self.outbox.add(call) == room
        self._expect(call, [data.draw(REPLIES) for _ in range(want)])

    @rule(data=st.data(), size=st.integers(0, 30))
    def post_a_call(self, data: st.DataObject, size: int) -> None:
        call = Probe(self.number, size, 1)
        call.task, call.posted = None, True
        assert self.outbox.add(call)
        self._expect(call, [data.draw(REPLIES)])

    def _expect(self, call: Probe, replies: list[Any]) -> None:
        self.number += 1
        expected = Expected(call, replies)
        self.queue.append(expected)
        self.everything.append(expected)

    @rule(data=st.data(), late=st.booleans())
    def give_up(self, data: st.DataObject, late: bool) -> None:
        living = [one for one in self.everything if one.call.task is not None]
        if living:
            one = data.draw(st.sampled_from(living))
            one.given_up = True
            if late:
                one.call.end_late(TimeoutError())
                one.call.told.clear()
            else:
                one.call.give_up()

    @rule()
    def write(self) -> None:
        before = len(self.outbox)
        calls = self.outbox.take()
        assert before == 0 or len(self.outbox) < before or calls
        if calls:
            self.talk.write(calls)
        for call in calls:
            one = next(one for one in self.queue if one.call is call)
            assert not one.given_up, "a call that was given up is dropped unsent"
            self.queue.remove(one)
            one.begins = len(self.written)
            self.written += call.data
            one.ends = len(self.written)
            self.row.append(one)
        assert bytes(self.talk.rest) == self.written[self.talk.taken :]

    @rule(share=st.floats(0, 1))
    def the_socket_takes_some(self, share: float) -> None:
        count = round(len(self.talk.rest) * share)
        self.wire += bytes(self.talk.rest[:count])
        self.talk.took(count)
        assert self.wire == self.written[: len(self.wire)]
        assert len(self.wire) == self.talk.taken

    # ------------------------------------------------------------------------------------------ the server

    def _answerable(self) -> list[Expected]:
        return [one for one in self.row if one.ends <= len(self.wire)]

    @precondition(lambda self: bool(self._answerable()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Send replies to some calls, the last of them perhaps in part, with pushes anywhere, cut anywhere."""
        stream = b""
        count = data.draw(st.integers(1, sum(len(one.replies) - one.got for one in self._answerable())))
        done: list[Expected] = []
        for _ in range(count):
            if data.draw(st.booleans()):
                self.expected_pushes.append([b"message", b"%d" % len(self.expected_pushes)])
                stream += encode(Push(self.expected_pushes[-1]))
            one = self.row[0]
            stream += encode(one.replies[one.got])
            one.got += 1
            if one.got == len(one.replies):
                done.append(self.row.popleft())
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            self.talk.feed(stream[:size], self.outbox)
            stream = stream[size:]
        assert self.pushed == self.expected_pushes
        for one in done:
            self._check_answer(one)

    def _check_answer(self, one: Expected) -> None:
        call = one.call
        assert call.task is None
        if one.given_up or call.posted:
            assert call.told == []
        else:
            replies = [decoded(reply) for reply in one.replies]
            (answer,) = call.told
            assert same(answer, replies if call.want > 1 else replies[0])

    @rule()
    def nobody_is_owed_anything(self) -> None:
        if not self.row:
            with pytest.raises(InvalidResponse, match="nobody asked for"):
                self.talk.feed(b":1\r\n", self.outbox)
            self.connect()

    # ---------------------------------------------------------------------------------------------- the end

    @rule(share=st.floats(0, 1))
    def lose(self, share: float) -> None:
        """Take some last bytes, and lose the connection there; what is not sent goes back in front."""
        self.the_socket_takes_some(share)
        unsent, sent = self.talk.end()
        assert not self.talk.row
        for one in self.row:
            whole = len(self.wire) >= one.ends
            some = len(self.wire) > one.begins
            assert (one.call in sent) == (whole if one.call.atomic else some)
            assert (one.call in unsent) != (one.call in sent)
        self._give_back(unsent, sent)
        self.connect()

    def _give_back(self, unsent: list[Call], sent: list[Call]) -> None:
        again = unsent + [call for call in sent if call.resend and call.task is not None]
        for call in sent:
            if call not in again:
                self.outbox.left(call)
                call.settle(ConnectionError())
        for call in again:
            call.restart()
        self.outbox.put_back(again)
        back = [one for one in self.row if one.call in again and (one.call.posted or not one.given_up)]
        for one in back:
            one.got = 0
        queued = [one.call for one in self.everything if one.call in list(self.outbox._ready)]
        posts = [call for call in self.outbox._ready if call.posted]
        assert list(self.outbox._ready)[: len(posts)] == posts, "what was posted goes first"
        assert posts == [call for call in queued if call.posted], "in order"
        self.row.clear()
        self.queue = back + self.queue

    @invariant()
    def the_figures_are_right(self) -> None:
        if not hasattr(self, "outbox"):
            return
        outbox = self.outbox
        counted = [one for one in self.everything if one.call.counted]
        assert outbox.used == len(counted) <= self.calls
        assert outbox.size == sum(len(call.data) for call in outbox._ready)
        assert all(not call.posted for call in outbox._line)
        assert outbox.waiting == sum(call.task is not None for call in outbox._line)
        assert list(self.talk.row) == [one.call for one in self.row]
        held = {id(call) for call in (*outbox._ready, *outbox._line)}
        lost = [one for one in self.queue if id(one.call) not in held and (one.call.task or one.call.posted)]
        assert not lost, "a call that waits is in the outbox"
        if outbox.waiting:
            assert outbox.used == self.calls or outbox.size >= self.bytes, "there is room, but somebody waits in line"

    @invariant()
    def they_are_served_in_the_order_in_which_they_came(self) -> None:
        if hasattr(self, "outbox"):
            line = [call.number for call in self.outbox._line if isinstance(call, Probe)]
            assert line == sorted(line)

    def teardown(self) -> None:
        """Give everything up and answer it: no place in the window is left taken."""
        if not hasattr(self, "outbox"):
            return
        self.lose(1.0)
        for one in self.everything:
            one.call.give_up()
        while len(self.outbox):
            self.write()
        self.lose(1.0)
        assert self.outbox.used == 0
        assert self.outbox.size == 0
        assert not self.outbox.waiting


TestTalk = Talk.TestCase
TestTalk.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


# ------------------------------------------------------------------------------------------------- single cases


def test_places_that_become_free_while_calls_are_put_back_are_given_to_those_in_line() -> None:
    outbox = Outbox(2, 100)
    calls = [Probe(number, 1, 1) for number in range(4)]
    for call in calls:
        outbox.add(call)
    talk = Conversation(reader(), lambda push: None)
    talk.write(outbox.take())
    calls[0].give_up()
    calls[1].give_up()
    outbox.put_back(talk.end()[0])
    assert list(outbox._ready) == calls[2:]
    assert outbox.used == 2
    assert outbox.size == sum(len(call.data) for call in calls[2:])


def test_one_call_may_go_over_the_bound_on_bytes_and_the_next_one_waits() -> None:
    outbox = Outbox(100, 10)
    big, small = Probe(0, 1000, 1), Probe(1, 1, 1)
    assert outbox.add(big)
    assert not outbox.add(small)
    assert outbox.take() == [big]
    assert outbox.take() == [small]


def test_what_is_posted_needs_no_place_in_the_window() -> None:
    outbox = Outbox(1, 10)
    posts = [Probe(number, 100, 1) for number in range(3)]
    for post in posts:
        post.task, post.posted = None, True
        assert outbox.add(post)
    assert outbox.take() == posts
    assert outbox.used == 0


def test_a_batch_is_bounded_in_bytes() -> None:
    outbox = Outbox(math.inf, math.inf)
    calls = [Probe(number, BATCH // 2, 1) for number in range(5)]
    for call in calls:
        outbox.add(call)
    assert [len(outbox.take()) for _ in range(4)] == [2, 2, 1, 0]


def test_those_who_gave_up_in_line_do_not_pile_up() -> None:
    outbox = Outbox(1, 10)
    outbox.add(Probe(0, 1, 1))
    patient = [Probe(number, 1, 1) for number in (1, 2)]
    outbox.add(patient[0])
    for number in range(10_000):
        hasty = Probe(number, 1, 1)
        outbox.add(hasty)
        hasty.give_up()
    outbox.add(patient[1])
    assert outbox.waiting == 2
    assert len(outbox._line) < 200
    assert [call for call in outbox._line if call.task is not None] == patient


async def test_a_call_that_timed_out_amid_its_replies_still_takes_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outbox = Outbox(10, 1000)
    talk = Conversation(reader(), lambda push: None)
    several, one = Call(b"several"), Call(b"one")
    several.want = 3
    errors: list[Exception] = []

    async def wait() -> None:
        several.begin()
        with pytest.raises(TimeoutError):
            await several.wait()

    async def wait_for_one() -> None:
        one.begin()
        assert await one.wait() == 4

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait_for_one)
        await trio.testing.wait_all_tasks_blocked()
        for call in (several, one):
            outbox.add(call)
        talk.write(outbox.take())
        talk.feed(b":1\r\n", outbox)
        several.end_late(TimeoutError())
        talk.feed(b":2\r\n:3\r\n:4\r\n", outbox)
    assert outbox.used == 0
    assert errors == []


def test_a_reply_that_cannot_be_decoded_is_the_error_of_its_caller_only() -> None:
    outbox = Outbox(10, 1000)
    talk = Conversation(reader("utf-8"), lambda push: None)
    calls = [Probe(number, 0, 1 + (number == 1)) for number in range(3)]
    for call in calls:
        outbox.add(call)
    talk.write(outbox.take())
    talk.feed(b"$1\r\n\xff\r\n+a\r\n*1\r\n$1\r\n\xff\r\n+b\r\n", outbox)
    assert isinstance(calls[0].told[0], UnicodeDecodeError)
    assert calls[1].told[0][0] == "a"
    assert isinstance(calls[1].told[0][1], UnicodeDecodeError)
    assert calls[2].told == ["b"]


def test_replies_that_came_before_the_connection_was_lost_are_forgotten_when_a_call_is_sent_again() -> None:
    outbox = Outbox(10, 1000)
    call = Probe(0, 0, 2)
    for replies in (b":1\r\n", b":2\r\n:3\r\n"):
        talk = Conversation(reader(), lambda push: None)
        outbox.put_back([call])
        talk.write(outbox.take())
        talk.feed(replies, outbox)
        call.restart()
    assert call.told == [[2, 3]]
