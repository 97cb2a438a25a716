"""More commands for a scripted server, and a Unix socket or a TCP port on which it listens. For virtual time.

A socket whose both ends live in one run of Trio is as exact as a pair of streams in memory: what is sent can be read in
the next step, so the clock never jumps past it.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.redis.scripted import Push, Refusal, ScriptedServer, Session

Watched = dict[bytes, bytes | None]


def teach(server: ScriptedServer) -> Commands:
    """Have a server execute WATCH, BLPOP, LPUSH, SCAN, MONITOR, EVALSHA and what belongs to these."""
    commands = Commands(server)
    for name in dir(commands):
        if name.startswith("_do_"):
            setattr(server, name, getattr(commands, name))
    return commands


class Commands:
    """What a scripted server has learnt."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._watched: dict[Session, Watched] = {}
        self._waiting: list[tuple[Session, bytes]] = []
        self.lists: dict[bytes, list[bytes]] = {}
        self.scripts: set[bytes] = set()
        self.monitors: list[Session] = []

    # ------------------------------------------------------------------------------------------ transactions

    def _do_watch(self, session: Session, *keys: bytes) -> Any:
        watched = self._watched.setdefault(session, {})
        for key in keys:
            watched.setdefault(key, self._server.data.get(key))
        return "OK"

    def _do_unwatch(self, session: Session) -> Any:
        self._watched.pop(session, None)
        return "OK"

    def _do_exec(self, session: Session) -> Any:
        watched = self._watched.pop(session, {})
        if any(self._server.data.get(key) != value for key, value in watched.items()):
            session.queue = None
            return None
        return ScriptedServer._do_exec(self._server, session)

    def watching(self) -> int:
        """Return how many living connections watch something."""
        return sum(session.alive for session in self._watched)

    # ------------------------------------------------------------------------------------------ lists that block

    def _do_lpush(self, _session: Session, key: bytes, *items: bytes) -> Any:
        here = self.lists.setdefault(key, [])
        here[:0] = reversed(items)
        count = len(here)
        for waiter in [one for one in self._waiting if one[1] == key and here]:
            self._waiting.remove(waiter)
            if waiter[0].alive:
                waiter[0].say([key, here.pop(0)])
        return count

    def _do_blpop(self, session: Session, key: bytes, timeout: bytes) -> Any:
        if self.lists.get(key):
            return [key, self.lists[key].pop(0)]
        self._waiting.append((session, key))
        self._server._nursery.start_soon(self._give_up, (session, key), float(timeout))
        return ...

    async def _give_up(self, waiter: tuple[Session, bytes], timeout: float) -> None:
        await trio.sleep(timeout or math.inf)
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            waiter[0].say(None)

    # ------------------------------------------------------------------------------------------ scripts

    def _do_script(self, _session: Session, what: bytes, text: bytes = b"") -> Any:
        self.scripts.add(text)
        return "OK"

    def _do_evalsha(self, session: Session, _sha: bytes, _count: bytes, key: bytes) -> Any:
        if not self.scripts:
            return Refusal("NOSCRIPT No matching script. Please use EVAL.")
        return self._server._do_incr(session, key)

    def _do_eval(self, session: Session, text: bytes, _count: bytes, key: bytes) -> Any:
        self.scripts.add(text)
        return self._server._do_incr(session, key)

    # ------------------------------------------------------------------------------------------ the rest

    def _do_incrby(self, session: Session, key: bytes, _one: bytes) -> Any:
        return self._server._do_incr(session, key)

    def _do_scan(self, _session: Session, cursor: bytes, *_options: bytes) -> Any:
        """Give pages of two: a to f."""
        at = int(cursor)
        return [b"%d" % (at + 2 if at < 4 else 0), [b"%c" % (97 + at), b"%c" % (98 + at)]]

    def _do_monitor(self, session: Session) -> Any:
        self.monitors.append(session)
        return "OK"

    def tell_monitors(self, count: int) -> None:
        """Tell those that monitor of some commands."""
        for session in self.monitors:
            for n in range(count):
                session.say(f'1339518083.107412 [0 127.0.0.1:60866] "incr" "{n}"')

    def _do_spublish(self, _session: Session, channel: bytes, data: bytes) -> Any:
        listening = [one for one in self._server.sessions if one.alive and (b"smessage", channel) in one.topics]
        for one in listening:
            one.say(Push([b"smessage", channel, data]))
        return len(listening)


# ---------------------------------------------------------------------------------------------------- sockets


@asynccontextmanager
async def listening(server: ScriptedServer, path: str = "") -> AsyncGenerator[tuple[str, int]]:
    """Have a server listen on a Unix socket, or on a port of 127.0.0.1, for the length of a block."""
    plain = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    plain.bind(path or ("127.0.0.1", 0))  # Trio would do it in a thread, for which virtual time does not wait
    plain.listen()
    sock = trio.socket.from_stdlib_socket(plain)
    address = ("", 0) if path else plain.getsockname()

    async def serve(stream: trio.SocketStream) -> None:
        session = Session(server, len(server.sessions), stream)
        server.sessions.append(session)
        await session.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(sock)])
        yield address
        nursery.cancel_scope.cancel()
