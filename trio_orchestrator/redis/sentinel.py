"""Where the master is: asked of every Sentinel that can be reached, and heard from each when it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import trio
from redis.exceptions import RedisError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.error import LinkError, reason
from trio_orchestrator.redis.handshake import Handshake
from trio_orchestrator.redis.link import Link
from trio_orchestrator.redis.pipe import SocketDial
from trio_orchestrator.redis.settings import Target
from trio_orchestrator.redis.wire import pack, reader

OTHERS: Final = 0.05
"""Seconds that further Sentinels may take to answer once one has: one of them may know more."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Report:
    """What a Sentinel says of the master. The later of two is that of the greater epoch."""

    epoch: int
    address: Address
    down: bool
    """Whether a quorum of Sentinels has found it down."""


@final
class SwitchedError(ConnectionError):
    """A Sentinel says that another server is the master now."""


@final
class Sentinels:
    """The Sentinels of one master: their links, what they said last, and what to do when they name another one.

    Args:
        master: The name by which they know it.
        targets: How each is reached; those that these know of are asked as well.
        settings: Of their links.
    """

    def __init__(self, master: str, targets: Sequence[Target], settings: LinkSettings) -> None:
        self._master = master
        self._targets = {target.address: target for target in targets}
        self._settings = replace(settings, reader=reader)
        self.moved: Callable[[BaseException], None] = _nothing
        """Called with the reason when the master is another one than was resolved last."""
        self._watches: dict[Address, _Watch] = {}
        self._nursery: trio.Nursery | None = None
        self._news = trio.Event()
        self._known: Report | None = None

    def __str__(self) -> str:
        return f"{self._master!r} by the Sentinels at {', '.join(map(str, self._targets))}"

    async def run(self) -> None:
        """Keep a link to every Sentinel, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for target in list(self._targets.values()):
                self._add(target)
            await trio.sleep_forever()

    def _add(self, target: Target) -> None:
        assert self._nursery is not None
        watch = self._watches[target.address] = _Watch(self._master, target, self._settings, self)
        self._nursery.start_soon(watch.run, name=f"link to the Sentinel at {target.address}")

    def tell(self) -> None:
        """Have those who wait look again: a Sentinel can be reached now, or cannot. Sync."""
        self._news.set()
        self._news = trio.Event()

    # --------------------------------------------------------------------------------------------- the answer

    async def resolve(self) -> Address:
        """Ask where the master is.

        Raises:
            LinkError: None of them can be reached, or none knows of a master that is up.
        """
        await self._wait_reachable()
        reports = await self._ask()
        if not reports:
            raise LinkError(f"no Sentinel knows where the master {self._master!r} is")
        latest = max(reports)
        if self._known is not None and latest.epoch < self._known.epoch:
            latest = self._known  # the one that knew more does not answer now
        self._known = latest
        if latest.down:
            raise LinkError(f"the Sentinels say that the master {self._master!r} at {latest.address} is down")
        return latest.address

    async def _wait_reachable(self) -> None:
        while not any(watch.is_ready for watch in self._watches.values()):
            failures = {where: watch.failure for where, watch in self._watches.items() if watch.failure is not None}
            if self._watches and len(failures) == len(self._watches):
                causes = "; ".join(f"{where}: {reason(failure)}" for where, failure in failures.items())
                raise LinkError(f"no Sentinel of {self._master!r} can be reached: {causes}")
            await self._news.wait()

    async def _ask(self) -> list[Report]:
        """Ask all that can be reached, and wait a little for the others once one has answered."""
        reports: list[Report] = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for watch in self._watches.values():
                    if watch.is_ready:
                        nursery.start_soon(self._ask_one, watch, reports, scope)
        return reports

    async def _ask_one(self, watch: _Watch, reports: list[Report], scope: trio.CancelScope) -> None:
        try:
            reports.append(await watch.ask())
        except RedisError:
            return  # it does not know this master, or cannot be reached any more: others may
        scope.deadline = min(scope.deadline, trio.current_time() + OTHERS)

    def heard(self, report: Report, how: str) -> None:
        """Take what a Sentinel says of its own accord: if it is another master, drop everything to the old. Sync."""
        known = self._known
        if known is not None and report.epoch >= known.epoch and report.address != known.address:
            self._known = report
            self.moved(SwitchedError(f"{how}: the master {self._master!r} is at {report.address} now"))

    def switched(self, old: Address, new: Address) -> None:
        """Hear that a failover has ended. Sync."""
        known = self._known
        if known is None or known.address == old:
            self.heard(Report(0 if known is None else known.epoch, new, down=False), "+switch-master")

    def learn(self, address: Address, like: Target) -> None:
        """Hear of another Sentinel. Sync."""
        if address not in self._watches and self._nursery is not None:
            self._add(replace(like, address=address))


@final
class _Watch:
    """One Sentinel: a link to it, which is subscribed to its news."""

    def __init__(self, master: str, target: Target, settings: LinkSettings, sentinels: Sentinels) -> None:
        self._target = target
        self._sentinels = sentinels
        self._master = master
        self._subscribed: Connection | None = None
        self.failure: Exception | None = None
        """Why it could not be reached; None while it can, or nobody knows yet."""
        name = f"Sentinel at {target.address}"
        dial = SocketDial(target.tls, settings.keepalive)
        connector = Connector(name, self._where, dial, Handshake(target.credentials, name=target.name), settings)
        self._link = Link(name, connector, settings, self._push, self._ready, self._failed)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._link.run(patience=float("inf"))

    @property
    def is_ready(self) -> bool:
        """Whether it is worth asking: connected and not silent."""
        return self._link.connection is not None and not self._link.connection.doubted

    async def _where(self) -> Address:
        return self._target.address

    def _ready(self, _connection: Connection) -> None:
        self.failure = None
        self._link.post(_Subscribe())
        self._nursery.start_soon(self._catch_up)
        self._sentinels.tell()

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self._sentinels.tell()

    def _push(self, push: list[Any]) -> None:
        if push[0] == b"message" and push[1] == b"+switch-master":
            name, old_host, old_port, new_host, new_port = push[2].decode().split(" ")
            if name == self._master:
                self._sentinels.switched(Address(old_host, int(old_port)), Address(new_host, int(new_port)))

    async def ask(self) -> Report:
        """Ask for the master."""
        return _report(await self._link.call(Call(pack(("SENTINEL", "MASTER", self._master)))))

    async def _catch_up(self) -> None:
        """Hear what was said while the link was down, and of the other Sentinels."""
        try:
            self._sentinels.heard(await self.ask(), f"the Sentinel at {self._target.address}")
            others = await self._link.call(Call(pack(("SENTINEL", "SENTINELS", self._master))))
        except RedisError:
            return  # the next connection asks again
        for other in others:
            facts = _pairs(other)
            self._sentinels.learn(Address(facts[b"ip"].decode(), int(facts[b"port"])), self._target)


@final
class _Subscribe(Call):
    """A subscription, which is answered by a push or by an error, and a PING behind it, which ends the answer."""

    want = 0

    def __init__(self) -> None:
        super().__init__(pack(("SUBSCRIBE", "+switch-master")) + pack(("PING",)))

    def take(self, reply: Any) -> bool:
        self.answer = reply
        return not isinstance(reply, Exception)


def _report(reply: Any) -> Report:
    facts = _pairs(reply)
    flags = facts[b"flags"].split(b",")
    address = Address(facts[b"ip"].decode(), int(facts[b"port"]))
    return Report(int(facts[b"config-epoch"]), address, down=b"o_down" in flags or b"master" not in flags)


def _pairs(reply: Any) -> Mapping[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply


def _nothing(_cause: BaseException) -> None:
    """Be told, and do nothing."""
