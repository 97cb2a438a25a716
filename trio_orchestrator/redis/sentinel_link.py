"""One Sentinel: a link that has subscribed to its news, and what it said last of the master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast, final

import trio
from redis.exceptions import InvalidResponse, RedisError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.link import Link
from trio_orchestrator.redis.pipe import Dial
from trio_orchestrator.redis.settings import Target
from trio_orchestrator.redis.wire import pack

AGAIN: Final = 1.0
"""Seconds until a Sentinel is tried again that refuses to be listened to."""

NEWS: Final = ("+switch-master", "+promoted-slave", "+sentinel", "+sentinel-address-switch")
"""The channels on which a Sentinel says that it knows something new. At the second it names the new master already, if
it is asked where calls are to go, though the failover may last minutes, until the other replicas follow.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a Sentinel says of the master."""

    epoch: int
    """Its number grows with each failover, as long as the Sentinels keep what they know."""
    address: Address
    down: bool
    """Whether a quorum of Sentinels has found it down."""
    voters: int
    """How many Sentinels there are, as far as this one knows."""
    at: float
    """When it was said, on Trio's clock."""
    pushed: int = 0
    """How many pieces of news it is ahead of its epoch, since those do not tell theirs."""

    @property
    def rank(self) -> tuple[int, int]:
        """Of differing words that of the highest rank counts."""
        return self.epoch, self.pushed


class Listener(Protocol):
    """Who is told what a Sentinel says."""

    master: str
    settings: LinkSettings

    def tell(self) -> None:
        """Hear that it can be asked now."""

    def failed(self, link: SentinelLink, /) -> None:
        """Hear that it cannot be reached."""

    def heard(self, how: str, /) -> None:
        """Hear that its word is new."""

    def switched(self, link: SentinelLink, old: Address, new: Address, /) -> None:
        """Hear that it has told of a switch."""

    def identified(self, link: SentinelLink, /) -> None:
        """Hear that it has told who it is."""

    def learn(self, link: SentinelLink, /) -> None:
        """Hear that it has told of others."""


@final
class SentinelLink:
    """A link to one Sentinel.

    Args:
        target: How it is reached.
        dial: Connects to it.
        identity: The id by which another one knows it; empty if it was given by the user.
        listener: Who is told what it says.
    """

    def __init__(self, target: Target, dial: Dial, identity: bytes, listener: Listener) -> None:
        self.target: Target = target
        self.identity: bytes = identity
        self.learned: bool = bool(identity)
        """Whether another Sentinel told of it, and not the user."""
        self.word: Word | None = None
        """What it said last."""
        self.others: Mapping[bytes, Address] = {}
        """The other Sentinels that it knows, by their ids."""
        self.failure: Exception | None = None
        """Why it cannot be asked; None while it can, or nobody knows yet."""
        self._dial = dial
        self._listener = listener
        self._subscribed: Connection | None = None
        self._scope = trio.CancelScope()
        self._link = self._new_link()

    def __str__(self) -> str:
        return f"the Sentinel at {self.target.address}"

    def _new_link(self) -> Link:
        name, settings, target = f"Sentinel at {self.target.address}", self._listener.settings, self.target
        connector = Connector(name, self._where, self._dial, Handshake(target.credentials, name=target.name), settings)
        return Link(name, connector, settings, self._push, self._adopted, self._fail)

    async def _where(self) -> Address:
        await trio.lowlevel.checkpoint()
        return self.target.address

    async def run(self) -> None:
        """Keep the link, until it is cancelled or stopped."""
        with self._scope:
            while True:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._link.run(patience=float("inf"))
                    nursery.cancel_scope.cancel(reason="the Sentinel refuses the connection")
                await trio.sleep(AGAIN)
                self._link = self._new_link()

    def stop(self) -> None:
        """End it. Sync."""
        self._scope.cancel(reason="no Sentinel knows it any more, or it is reached at another address")

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked, and would tell what is new."""
        return self._subscribed is not None and self._link.connection is self._subscribed

    # ------------------------------------------------------------------------------------------ what it says

    async def ask(self) -> None:
        """Ask for the master.

        Raises:
            RedisError: It does not know, or does not answer.
        """
        name = self._listener.master
        questions = Call(pack(("SENTINEL", "MASTER", name)) + pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)))
        questions.want, questions.resend = 2, True
        description, address = await self._link.call(questions)
        if isinstance(description, Exception):
            raise description
        self.word = _word(description, address)

    def _push(self, push: list[Any]) -> None:
        if push[0] == b"message":
            words = push[2].split(b" ")
            if self._listener.master.encode() in words:
                self._take(push[1], [word.decode() for word in words])
                self._nursery.start_soon(self._catch_up)

    def _take(self, channel: bytes, words: list[str]) -> None:
        if channel == b"+switch-master" and len(words) == 5 and words[0] == self._listener.master:
            _, old, old_port, new, new_port = words
            self._listener.switched(self, Address(old, int(old_port)), Address(new, int(new_port)))

    async def _catch_up(self) -> None:
        """Ask what has changed, and for the other Sentinels."""
        try:
            await self.ask()
            self._listener.heard(f"{self} says")
            self.others = _others(await self._ask_sentinel("SENTINELS", self._listener.master))
            self._listener.learn(self)
        except RedisError:
            return  # it does not know, or its next connection asks again

    async def _ask_sentinel(self, *words: str) -> Any:
        return await self._link.call(Call(pack(("SENTINEL", *words))))

    # ------------------------------------------------------------------------------------- its connections

    def _adopted(self, connection: Connection) -> None:
        self.failure = None
        self._nursery.start_soon(self._listen, connection)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._listener.failed(self)

    async def _listen(self, connection: Connection) -> None:
        """Subscribe, and only then ask, so that nothing is missed in between."""
        while self._link.connection is connection and not await self._subscribe(connection):  # noqa: ASYNC110 - no event
            await trio.sleep(AGAIN)
        if self._link.connection is connection:
            await self._identify()
            await self._catch_up()

    async def _subscribe(self, connection: Connection) -> bool:
        try:
            await self._link.call(_Subscribe())
        except RedisError as error:
            if self._link.connection is connection:
                self._fail(error)
            return False
        if self._link.connection is connection:
            self._subscribed, self.failure = connection, None
            self._listener.tell()
        return True

    async def _identify(self) -> None:
        try:
            identity = await self._ask_sentinel("MYID")
        except RedisError:
            return  # it may be forbidden: then it may be asked twice
        if isinstance(identity, bytes):
            self.identity = identity
            self._listener.identified(self)


@final
class _Subscribe(Call):
    """A subscription, which is answered by pushes or by an error, and a PING behind it, which ends the answer."""

    want = 0
    refusal: Exception | None = None

    def __init__(self) -> None:
        super().__init__(pack(("SUBSCRIBE", *NEWS)) + pack(("PING",)))

    def take(self, reply: Any) -> bool:
        if isinstance(reply, Exception) and "'ping'" not in str(reply).lower():  # some may do all but PING
            self.refusal = reply
            return False
        self.answer = self.refusal or b"PONG"
        return True


def _word(description: Any, address: Any) -> Word:
    """Return what the replies to the two questions say together.

    While a promoted replica is not yet followed by all others, they differ, and the second one is right.
    """
    try:
        facts = _pairs(description)
        host, port = (facts[b"ip"], facts[b"port"]) if isinstance(address, Exception) else address
        return Word(
            epoch=int(facts[b"config-epoch"]),
            address=Address(host.decode(), int(port)),
            down=b"o_down" in facts[b"flags"].split(b",") and (host, port) == (facts[b"ip"], facts[b"port"]),
            voters=int(facts.get(b"num-other-sentinels", 0)) + 1,
            at=trio.current_time(),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidResponse(f"this is no answer of a Sentinel: {description!r:.200} and {address!r:.100}") from error


def _others(reply: Any) -> dict[bytes, Address]:
    try:
        described = [_pairs(one) for one in reply]
        return {one[b"runid"]: Address(one[b"ip"].decode(), int(one[b"port"])) for one in described}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidResponse(f"these are no Sentinels: {reply!r:.200}") from error


def _pairs(reply: Any) -> Mapping[bytes, bytes]:
    flat = cast("list[bytes]", reply)  # RESP2 has no maps
    return dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(reply, list) else reply
