"""Where the master is: asked of every Sentinel that can be reached, and heard from each when it changes.

What counts is the last word of each Sentinel: a new one of the same Sentinel replaces it, whatever it was, and of the
words of several the one of the latest epoch counts. So a Sentinel that lags behind cannot bring an old master back, not
even if those that know better are out of reach; and Sentinels that were set up anew, and count from 0 again, are
believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import trio
from redis.exceptions import RedisError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connector import LinkSettings
from trio_orchestrator.redis.error import LinkError, reason
from trio_orchestrator.redis.pipe import Dial, SocketDial
from trio_orchestrator.redis.sentinel_link import SentinelLink, Word
from trio_orchestrator.redis.settings import Target
from trio_orchestrator.redis.wire import reader

OTHERS: Final = 0.05
"""Seconds that further Sentinels may take to answer, or to be connected to, once one has: one of them may know more."""

SPREAD: Final = 5.0
"""Seconds after which all Sentinels that can know of a change do: they tell each other every 2 s."""


@final
class SwitchedError(ConnectionError):
    """A Sentinel says that another server is the master now."""


@final
class Sentinels:
    """The Sentinels of one master: their links, what they said last, and what to do when they name another one.

    Args:
        master: The name by which they know it.
        targets: How each is reached; those that these know of are asked as well.
        settings: Of the master's links. The Sentinels' have shorter times, so that they leave some for the master.
        dial: Connects to them; None: by sockets.
    """

    def __init__(
        self,
        master: str,
        targets: Sequence[Target],
        settings: LinkSettings,
        dial: Dial | None = None,
    ) -> None:
        self.master: str = master
        whole = settings.connect_timeout
        self.settings: LinkSettings = replace(
            settings, reader=reader, connect_timeout=whole / 2, command_timeout=whole / 4
        )
        self.moved: Callable[[BaseException], None] = _nothing
        """Called with the reason when the master is another one than was resolved last."""
        self._dial = dial
        self._given = {target.address: target for target in targets}
        self._links: dict[Address, SentinelLink] = {}
        self._nursery: trio.Nursery | None = None
        self._news = trio.Event()
        self._current: Address | None = None

    def __str__(self) -> str:
        return f"{self.master!r} by the Sentinels at {', '.join(map(str, self._given))}"

    async def run(self) -> None:
        """Keep a link to every Sentinel, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for target in self._given.values():
                self._add(target, b"")
            self.tell()
            await trio.sleep_forever()

    def _add(self, target: Target, identity: bytes) -> None:
        assert self._nursery is not None
        dial = self._dial or SocketDial(target.tls, self.settings.keepalive)
        link = self._links[target.address] = SentinelLink(target, dial, identity, self)
        self._nursery.start_soon(link.run, name=f"link to the Sentinel at {target.address}")

    def _remove(self, link: SentinelLink) -> None:
        if self._links.get(link.target.address) is link:
            del self._links[link.target.address]
        link.stop()

    # --------------------------------------------------------------------------------------------- the answer

    async def resolve(self) -> Address:
        """Ask where the master is.

        Raises:
            LinkError: None of them can be reached, or none knows of a master that is up.
        """
        await self._wait_reachable()
        answered, refusals = await self._ask()
        if not answered:
            raise LinkError(f"no Sentinel says where the master {self.master!r} is: {_causes(refusals)}")
        self._forget_outdated(answered)
        latest = self._latest({*self._links.values(), *answered})
        assert latest is not None
        self._settle(latest, "the Sentinels were asked")
        if self._is_down(latest, answered):
            raise LinkError(f"the Sentinels say that the master {self.master!r} at {latest.address} is down")
        return latest.address

    def is_current(self, address: Address) -> bool:
        """Return whether the master is still thought to be there."""
        return address == self._current

    async def _wait_reachable(self) -> None:
        """Wait until one can be asked, and a little for those of which nobody knows yet whether they can."""
        while not any(link.is_ready for link in self._links.values()):
            failures = {where: link.failure for where, link in self._links.items() if link.failure is not None}
            if self._links and len(failures) == len(self._links):
                raise LinkError(f"no Sentinel of {self.master!r} can be reached: {_causes(failures)}")
            await self._news.wait()
        with trio.move_on_after(OTHERS):
            while any(not link.is_ready and link.failure is None for link in self._links.values()):
                await self._news.wait()

    async def _ask(self) -> tuple[list[SentinelLink], dict[Address, Exception]]:
        """Ask all that can be reached, and wait a little for the others once one has answered.

        News, if they are what counts, are waited for to be confirmed: they may be late, and taken back already.
        """
        answered: list[SentinelLink] = []
        refusals: dict[Address, Exception] = {}

        async def ask(link: SentinelLink) -> None:
            try:
                await link.ask()
            except (RedisError, trio.ClosedResourceError) as error:  # it does not know this master, or is gone
                refusals[link.target.address] = error
                return
            answered.append(link)
            latest = self._latest(self._links.values())
            if latest is None or not latest.pushed:
                scope.deadline = min(scope.deadline, trio.current_time() + OTHERS)

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for link in self._links.values():
                    if link.is_ready:
                        nursery.start_soon(ask, link)
        return answered, refusals

    def _is_down(self, latest: Word, answered: Iterable[SentinelLink]) -> bool:
        """Return whether most of those who name this master say that it is down."""
        said = [link.word.down for link in answered if link.word is not None and link.word.address == latest.address]
        return bool(said) and 2 * sum(said) >= len(said)

    # ------------------------------------------------------------------------------------ whose word counts

    def _latest(self, links: Iterable[SentinelLink]) -> Word | None:
        """Return the word that counts. Of the same epoch: what more say, then what holds now."""
        words = [link.word for link in links if link.word is not None]
        count = Counter((word.rank, word.address) for word in words)

        def weight(word: Word) -> tuple[tuple[int, int], int, bool, str]:
            said = word.rank, word.address
            return word.rank, count[said], self.is_current(word.address), str(word.address)

        return max(words, key=weight, default=None)

    def _forget_outdated(self, answered: Collection[SentinelLink]) -> None:
        """Forget what Sentinels that do not answer said, if most say something else though they have had time to learn.

        They would else hold on to a dead server for ever, when all Sentinels are replaced by others that count anew.
        """
        said = self._latest(answered)
        assert said is not None
        agreeing = {link.identity or link.target.address for link in answered if _names(link, said.address)}
        if 2 * len(agreeing) > max(link.word.voters for link in answered if link.word is not None):
            long_ago = trio.current_time() - SPREAD
            for link in self._links.values():
                if link not in answered and link.word is not None and link.word.at < long_ago:
                    link.word = None

    def _settle(self, latest: Word, how: str) -> None:
        old, self._current = self._current, latest.address
        if old not in (None, latest.address):
            self.moved(SwitchedError(f"{how}: the master {self.master!r} is at {latest.address} now"))

    # --------------------------------------------------------------------------------- what the links tell

    def tell(self) -> None:
        """Have those who wait look again: a Sentinel can be reached now, or cannot. Sync."""
        self._news.set()
        self._news = trio.Event()

    def heard(self, how: str) -> None:
        """Look at the words again, since one is new: if it is another master, drop everything to the old. Sync."""
        latest = self._latest(self._links.values())
        if self._current is not None and latest is not None:
            self._settle(latest, how)

    def switched(self, link: SentinelLink, old: Address, new: Address) -> None:
        """Hear of the end of a failover: it counts at once, as later than all, until that Sentinel is asked. Sync."""
        latest = self._latest(self._links.values())
        if latest is not None and latest.address == old:
            pushed = latest.pushed + 1
            link.word = replace(latest, address=new, down=False, pushed=pushed, at=trio.current_time())
            self.heard(f"+switch-master from {link}")

    def failed(self, link: SentinelLink) -> None:
        """Hear that a Sentinel cannot be reached: if no other one knows it any more, it is forgotten. Sync."""
        ready = [other for other in self._links.values() if other.is_ready]
        if link.learned and ready and not any(link.target.address in other.others.values() for other in ready):
            self._remove(link)
            for other in ready:
                self.learn(other)  # it may have moved
        self.tell()

    def identified(self, link: SentinelLink) -> None:
        """Hear who it is: of two links to the same one, at different addresses, that of the user's stays. Sync."""
        twins = [other for other in self._links.values() if other is not link and other.identity == link.identity]
        for other in twins:
            if other.learned:
                link.word = link.word or other.word
                self._remove(other)
            elif link.learned:
                self._remove(link)

    def learn(self, link: SentinelLink) -> None:
        """Hear of the other Sentinels that one knows. Sync."""
        known = {other.identity for other in self._links.values()}
        for identity, address in link.others.items():
            if identity not in known and address not in self._links and self._nursery is not None:
                self._add(replace(link.target, address=address), identity)


def _names(link: SentinelLink, address: Address) -> bool:
    return link.word is not None and link.word.address == address


def _causes(failures: Mapping[Address, Exception]) -> str:
    return "; ".join(f"{where}: {reason(failure)}" for where, failure in failures.items())


def _nothing(_cause: BaseException) -> None:
    """Be told, and do nothing."""
