"""A server in memory that speaks RESP3, does what it is told to, and remembers what it executed. For virtual time.

```python
async with open_scripted() as server, open_server(server, command_timeout=2) as client:
    assert await client.link.call(command("INCR", "n")) == 1
    server.kill()
assert server.ran("INCR") == [(b"INCR", b"n")]
```
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, ParamSpec, final

import hiredis
import trio
from redis.backoff import AbstractBackoff, ConstantBackoff
from redis.exceptions import ResponseError
from trio.testing import MemoryReceiveStream, memory_stream_pair

from trio_orchestrator.abc import Instrument
from trio_orchestrator.block import Hooks, open_block
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.handshake import Credentials, Handshake
from trio_orchestrator.redis.option import is_read_only
from trio_orchestrator.redis.pipe import Pipe, StreamPipe
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.server import open_server as run_server
from trio_orchestrator.redis.settings import read_target
from trio_orchestrator.redis.wire import pack, reader
from trio_orchestrator.testing import run_virtual

ADDRESS: Final = Address("scripted", 6379)
Command = tuple[bytes, ...]
Cut = Callable[[int], Sequence[int]]
"""From the length of a reply to the sizes of the pieces in which it leaves; the rest follows as one."""


P = ParamSpec("P")


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Have a test run in virtual time: a hang and whatever is left behind fail it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(functools.partial(test, *args, **kwargs))

    return run


# ---------------------------------------------------------------------------------------------------- replies


@final
class Refusal(str):
    """An error reply, to be encoded."""

    __slots__ = ()


@final
class Push(list[Any]):
    """A push message, to be encoded."""

    __slots__ = ()


def encode(value: Any) -> bytes:
    """Return a reply as it stands on the wire of RESP3. A str is a simple string, bytes are a bulk string."""
    match value:
        case None:
            return b"_\r\n"
        case bool():
            return b"#t\r\n" if value else b"#f\r\n"
        case int():
            return b":%d\r\n" % value
        case float():
            return b",%s\r\n" % repr(value).encode()
        case Refusal():
            return b"-%s\r\n" % value.encode()
        case str():
            return b"+%s\r\n" % value.encode()
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case dict():
            return b"%%%d\r\n" % len(value) + b"".join(encode(part) for pair in value.items() for part in pair)
        case Push():
            return b">%d\r\n" % len(value) + b"".join(map(encode, value))
        case list() | tuple():
            return b"*%d\r\n" % len(value) + b"".join(map(encode, value))
        case _:
            raise TypeError(f"cannot encode {value!r}")


def nest(leaf: bytes, depth: int) -> Any:
    """Return a reply of lists and maps in each other, with `leaf` at every level."""
    return leaf if depth == 0 else [leaf, {leaf: nest(leaf, depth - 1)}, [], nest(leaf, depth - 1)]


def command(*words: str | bytes | float, resend: bool = False, want: int = 1, raw: bool = False) -> Call:
    """Return a call of one command."""
    return batch(words, resend=resend, raw=raw)


def batch(
    *commands: Sequence[str | bytes | float], resend: bool = False, raw: bool = False, atomic: bool = True
) -> Call:
    """Return one call of several commands."""
    call = Call(b"".join(map(pack, commands)))
    call.want, call.resend, call.raw, call.atomic = len(commands), resend, raw, atomic
    return call


# ------------------------------------------------------------------------------------------------------ pipes


@final
class ClientEnd(trio.abc.Stream):
    """The client's end of a pair of streams in memory; it knows whether it was closed."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        await self._stream.send_all(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive."""
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        """Close."""
        self.closed = True
        await self._stream.aclose()


@final
class ExactPipe(Pipe):
    """A pipe that takes as many bytes a write as the server's `takes` says, and knows how many those were."""

    exact = True

    def __init__(self, server: ScriptedServer, end: ClientEnd, other: MemoryReceiveStream) -> None:
        self._server = server
        self._end = end
        self._other = other
        self._stopped = False

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True

    def send_now(self, data: memoryview) -> int:
        """Send what is taken now."""
        try:
            return self._put(data, self._server.takes(len(data)))
        except OSError:
            return 0

    async def send(self, data: memoryview) -> int:
        """Send some when there is room."""
        await trio.sleep(self._server.pace)
        await self._server.until(lambda: not self._server.full)
        return self._put(data, max(1, self._server.takes(len(data))))

    def _put(self, data: memoryview, count: int) -> int:
        if self._server.full or self._stopped:
            return 0
        taken = bytes(data[:count])
        try:
            self._other.put_data(taken)
        except trio.ClosedResourceError:
            raise ConnectionResetError("reset by the scripted server") from None
        return len(taken)

    async def receive(self) -> bytes:
        """Receive some."""
        return bytes(await self._end.receive_some(1 << 16))

    async def aclose(self) -> None:
        """Close."""
        await self._end.aclose()


# ----------------------------------------------------------------------------------------------------- server


@final
@dataclass(frozen=True)
class Executed:
    """One command, when and where it ran."""

    at: float
    session: int
    words: Command


@final
class Session:
    """One connection, seen from the server."""

    def __init__(self, server: ScriptedServer, number: int, stream: trio.abc.Stream) -> None:
        self.server = server
        self.number = number
        self.stream = stream
        self.alive = True
        self.stalled = False
        """Whether nothing is read and executed for now, as of a machine that is gone."""
        self.muted = False
        """Whether replies are held back, though commands are executed."""
        self.kill_in: float = server.kill_in
        """So many bytes are taken in, then the connection breaks."""
        self.kill_out: float = server.kill_out
        """So many bytes are given out, then the connection breaks."""
        self.greeted = not server.password
        self.name = ""
        self.database = 0
        self.topics: dict[tuple[bytes, bytes], None] = {}
        """What it has subscribed to: the kind of the messages, and the name."""
        self.queue: list[Command] | None = None
        self.received = 0
        self._scope = trio.CancelScope()
        self._outgoing, self._replies = trio.open_memory_channel[tuple[float, bytes]](math.inf)

    def say(self, value: Any) -> None:
        """Send a reply, or a push message, behind those before it."""
        delay = self.server.latency
        self._outgoing.send_nowait((trio.current_time() + delay, encode(value)))

    def say_raw(self, data: bytes) -> None:
        """Send bytes, whatever they mean."""
        self._outgoing.send_nowait((trio.current_time(), data))

    def stall(self, *, on: bool = True) -> None:
        """Read nothing more; or go on."""
        self.stalled = on
        self.server.stir()

    def mute(self, *, on: bool = True) -> None:
        """Execute, but hold the replies back; or let them go."""
        self.muted = on
        self.server.stir()

    def kill(self) -> None:
        """Break the connection."""
        self.alive = False
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the client leaves or the connection is killed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._talk)
                await self._listen()
                if not self.stalled and not self.muted:
                    self.kill()
                await self.server.until(lambda: not (self.stalled or self.muted))
                self.kill()
        self.alive = False
        await trio.aclose_forcefully(self.stream)

    async def _listen(self) -> None:
        words = hiredis.Reader()
        while True:
            try:
                data = bytes(await self.stream.receive_some())
            except trio.BrokenResourceError:
                return
            if not data:
                return
            await self._work_on(words, data)

    async def _work_on(self, words: hiredis.Reader, data: bytes) -> None:
        room = self.kill_in - self.received
        self.received += len(data)
        words.feed(data if room >= len(data) else data[: int(room)])
        while (given := words.gets()) is not False:
            await self.server.until(lambda: not self.stalled)
            await self.server.serve(self, tuple(given))
        if room <= len(data):
            await self._killed()

    async def _killed(self) -> None:
        self.kill()
        await trio.sleep_forever()

    async def _talk(self) -> None:
        async for due, data in self._replies:
            await trio.sleep_until(due)
            await self.server.until(lambda: not self.muted and not self.stalled)
            for piece in self._pieces(data):
                await self._give(piece)

    def _pieces(self, data: bytes) -> Iterable[bytes]:
        start = 0
        for size in self.server.cut(len(data)):
            if start + size >= len(data):
                break
            yield data[start : start + size]
            start += size
        yield data[start:]

    async def _give(self, piece: bytes) -> None:
        allowed, self.kill_out = self.kill_out, self.kill_out - len(piece)
        try:
            await self.stream.send_all(piece if allowed >= len(piece) else piece[: int(allowed)])
        except trio.BrokenResourceError:
            self.kill()
        if self.kill_out <= 0:
            await self._killed()


@final
class ScriptedServer:
    """A server with a few commands and many faults. Attributes may be set at any time, and hold from then on."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._stirred = trio.Event()
        self._cpu = trio.StrictFIFOLock()
        self.data: dict[bytes, bytes] = {}
        self.log: list[Executed] = []
        self.seen: list[Command] = []
        """Every command that came in, executed or refused."""
        self.sessions: list[Session] = []
        self.ends: list[ClientEnd] = []
        self.dials: list[float] = []
        """When it was connected to, or when that was tried, in seconds of Trio's clock."""
        # what it is
        self.product, self.version, self.role = "valkey", "9.0.0", "master"
        self.password, self.user = "", "default"
        self.loading_until = -math.inf
        # its faults
        self.exact = False
        """Whether new connections are exact pipes, with `takes`."""
        self.takes: Callable[[int], int] = lambda n: n
        """How many of so many bytes an exact pipe takes now."""
        self.full = False
        """Whether no exact pipe takes anything; `stir()` after it was set to False."""
        self.pace = 0.0
        """Seconds that an exact pipe needs before it takes more, once it was full."""
        self.down: OSError | None = None
        """What a connect is refused with."""
        self.connect_delay = 0.0
        self.latency = 0.0
        """Seconds from execution to reply."""
        self.takes_long: Callable[[Command], float] = lambda words: 0.0
        """Seconds that a command keeps the whole server busy, before it is executed."""
        self.cut: Cut = lambda n: ()
        self.pushes: Callable[[], list[Any] | None] = lambda: None
        """Asked before and behind each reply for a push message to be sent there."""
        self.refuse: Callable[[Command], str | None] = lambda words: None
        """The error with which a command is refused instead of being executed."""
        self.kill_before: Callable[[Command], bool] = lambda words: False
        """Whether the connection breaks instead of executing a command."""
        self.kill_after: Callable[[Command], bool] = lambda words: False
        """Whether the connection breaks when a command was executed, before its reply."""
        self.kill_in = math.inf
        """For new sessions."""
        self.kill_out = math.inf
        """For new sessions."""
        self.stalled = False
        """For new sessions."""

    # ------------------------------------------------------------------------------------------ what happened

    @property
    def executed(self) -> list[Command]:
        """Every command that was executed, in order."""
        return [one.words for one in self.log]

    def ran(self, *prefix: str) -> list[Command]:
        """Return the executed commands that begin with these words."""
        words = tuple(word.encode() for word in prefix)
        return [one.words for one in self.log if one.words[: len(words)] == words]

    def times(self, *prefix: str) -> list[float]:
        """Return when the commands that begin with these words were executed."""
        words = tuple(word.encode() for word in prefix)
        return [one.at for one in self.log if one.words[: len(words)] == words]

    @property
    def session(self) -> Session:
        """The newest connection."""
        return self.sessions[-1]

    def check_closed(self) -> None:
        """Fail unless the client has closed all its ends."""
        assert all(end.closed for end in self.ends), [end.closed for end in self.ends]

    # ------------------------------------------------------------------------------------------ what is done to it

    def stir(self) -> None:
        """Have all that waits look again."""
        stirred, self._stirred = self._stirred, trio.Event()
        stirred.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so; looked at after each `stir`."""
        while not true():
            await self._stirred.wait()

    def kill(self) -> None:
        """Break all connections."""
        for session in self.sessions:
            session.kill()

    async def dial(self, address: Address) -> Pipe:
        """Connect: what a `Connector` is given."""
        self.dials.append(trio.current_time())
        await trio.sleep(self.connect_delay)
        if self.down is not None:
            raise self.down
        ours, theirs = memory_stream_pair()
        end = ClientEnd(ours)
        session = Session(self, len(self.sessions), theirs)
        session.stalled = self.stalled
        self.ends.append(end)
        self.sessions.append(session)
        self._nursery.start_soon(session.run)
        return ExactPipe(self, end, theirs.receive_stream) if self.exact else StreamPipe(end)

    # ------------------------------------------------------------------------------------------ its own work

    async def serve(self, session: Session, words: Command) -> None:
        """Execute one command, when it is its turn."""
        async with self._cpu:
            await trio.sleep(self.takes_long(words))
            if words[:2] == (b"DEBUG", b"SLEEP"):
                await trio.sleep(float(words[2]))
        self.seen.append(words)
        if self.kill_before(words):
            session.kill()
            await trio.lowlevel.checkpoint()
        self._push_something(session)
        for reply in self._replies(session, words):
            session.say(reply)
        self._push_something(session)

    def _push_something(self, session: Session) -> None:
        message = self.pushes()
        if message is not None:
            session.say(Push(message))

    def _replies(self, session: Session, words: Command) -> list[Any]:
        refusal = self._refusal(session, words)
        if refusal is not None:
            return [Refusal(refusal)]
        if session.queue is not None and words[0] not in (b"EXEC", b"DISCARD"):
            session.queue.append(words)
            return ["QUEUED"]
        reply = self._execute(session, words)
        if self.kill_after(words):
            session.kill()
            return []
        return [] if reply is ... else [reply]

    def _refusal(self, session: Session, words: Command) -> str | None:
        name = words[0]
        if not session.greeted and name not in (b"HELLO", b"AUTH"):
            return "NOAUTH Authentication required."
        if trio.current_time() < self.loading_until and name not in (b"HELLO", b"CLIENT", b"SELECT", b"AUTH"):
            return "LOADING Valkey is loading the dataset in memory"
        return self.refuse(words)

    def _execute(self, session: Session, words: Command) -> Any:
        self.log.append(Executed(trio.current_time(), session.number, words))
        name, args = words[0].decode(), words[1:]
        method = getattr(self, f"_do_{name.lower()}", None)
        return Refusal(f"ERR unknown command '{name}'") if method is None else method(session, *args)

    def _do_hello(self, session: Session, _version: bytes, *options: bytes) -> Any:
        if b"AUTH" in options:
            at = options.index(b"AUTH")
            if options[at + 1 : at + 3] != (self.user.encode(), self.password.encode()):
                return Refusal("WRONGPASS invalid username-password pair or user is disabled.")
            session.greeted = True
        if not session.greeted:
            return Refusal("NOAUTH HELLO must be called with the client already authenticated")
        if b"SETNAME" in options:
            session.name = options[options.index(b"SETNAME") + 1].decode()
        return {b"server": self.product.encode(), b"version": self.version.encode(), b"proto": 3, b"id": session.number}

    def _do_client(self, session: Session, *_args: bytes) -> Any:
        return session.number if _args[:1] == (b"ID",) else "OK"

    def _do_select(self, session: Session, database: bytes) -> Any:
        session.database = int(database)
        return "OK" if session.database < 16 else Refusal("ERR DB index is out of range")

    def _do_readonly(self, _session: Session) -> Any:
        return "OK"

    def _do_ping(self, _session: Session, *args: bytes) -> Any:
        return args[0] if args else "PONG"

    def _do_role(self, _session: Session) -> Any:
        return [self.role.encode(), 0, []]

    def _do_debug(self, _session: Session, *_args: bytes) -> Any:
        return "OK"

    def _do_echo(self, _session: Session, text: bytes) -> Any:
        return text

    def _do_nest(self, _session: Session, text: bytes, depth: bytes) -> Any:
        return nest(text, int(depth))

    def _do_fail(self, _session: Session, text: bytes) -> Any:
        return Refusal(text.decode())

    def _do_get(self, _session: Session, key: bytes) -> Any:
        return self.data.get(key)

    def _do_mget(self, _session: Session, *keys: bytes) -> Any:
        return [self.data.get(key) for key in keys]

    def _do_set(self, _session: Session, key: bytes, value: bytes, *options: bytes) -> Any:
        if b"NX" in options and key in self.data:
            return None
        self.data[key] = value
        return "OK"

    def _do_del(self, _session: Session, *keys: bytes) -> Any:
        return sum(self.data.pop(key, None) is not None for key in keys)

    def _do_incr(self, _session: Session, key: bytes) -> Any:
        value = int(self.data.get(key, b"0")) + 1
        self.data[key] = b"%d" % value
        return value

    def _do_append(self, _session: Session, key: bytes, more: bytes) -> Any:
        self.data[key] = self.data.get(key, b"") + more
        return len(self.data[key])

    def _do_subscribe(self, session: Session, *channels: bytes) -> Any:
        return self._subscribe(session, b"", channels)

    def _do_psubscribe(self, session: Session, *patterns: bytes) -> Any:
        return self._subscribe(session, b"p", patterns)

    def _do_ssubscribe(self, session: Session, *channels: bytes) -> Any:
        return self._subscribe(session, b"s", channels)

    def _do_unsubscribe(self, session: Session, *channels: bytes) -> Any:
        return self._unsubscribe(session, b"", channels)

    def _do_punsubscribe(self, session: Session, *patterns: bytes) -> Any:
        return self._unsubscribe(session, b"p", patterns)

    def _do_sunsubscribe(self, session: Session, *channels: bytes) -> Any:
        return self._unsubscribe(session, b"s", channels)

    def _subscribe(self, session: Session, prefix: bytes, names: Iterable[bytes]) -> Any:
        for name in names:
            session.topics[prefix + b"message", name] = None
            session.say(Push([prefix + b"subscribe", name, len(session.topics)]))
        return ...

    def _unsubscribe(self, session: Session, prefix: bytes, names: Iterable[bytes]) -> Any:
        for name in names:
            session.topics.pop((prefix + b"message", name), None)
            session.say(Push([prefix + b"unsubscribe", name, len(session.topics)]))
        return ...

    def _do_publish(self, _session: Session, channel: bytes, data: bytes) -> Any:
        return self.publish(channel, data)

    def publish(self, channel: bytes, data: bytes) -> int:
        """Tell all that listen to a channel, or to a pattern that it matches; return how many pushes that was."""
        pushes = 0
        for session in self.sessions:
            for kind, name in session.topics if session.alive else ():
                if kind == b"message" and name == channel:
                    session.say(Push([kind, channel, data]))
                elif kind == b"pmessage" and fnmatchcase(channel, name):
                    session.say(Push([kind, name, channel, data]))
                else:
                    continue
                pushes += 1
        return pushes

    def _do_multi(self, session: Session) -> Any:
        session.queue = []
        return "OK"

    def _do_exec(self, session: Session) -> Any:
        commands, session.queue = session.queue or [], None
        return [self._execute(session, words) for words in commands]


@asynccontextmanager
async def open_scripted() -> AsyncGenerator[ScriptedServer, None]:
    """Open a server for the length of a block. Leaving it fails if a client left a connection open."""

    async def close(error: BaseException | None) -> None:
        block.nursery.cancel_scope.cancel()
        if error is None:
            server.check_closed()

    async with open_block(close) as block:
        server = ScriptedServer(block.nursery)
        yield server


# ------------------------------------------------------------------------------------------------ our own side


def link_settings(
    *,
    connect_timeout: float = 5,
    command_timeout: float = 2,
    keepalive: float = 10,
    silent_after: float = 2,
    reconnect: AbstractBackoff | None = None,
    reconnect_on: Callable[[ResponseError], bool] = is_read_only,
    max_in_flight: int = 10_000,
    max_unsent: int = 1 << 20,
    reader: Callable[[], hiredis.Reader] = reader,
    instruments: Sequence[Instrument] = (),
) -> LinkSettings:
    """Return the settings of `open_redis`, but for a fixed pause of 1 s between attempts to connect."""
    return LinkSettings(
        connect_timeout=connect_timeout,
        command_timeout=command_timeout,
        keepalive=keepalive,
        silent_after=silent_after,
        reconnect=ConstantBackoff(1) if reconnect is None else reconnect,
        reconnect_on=reconnect_on,
        max_in_flight=max_in_flight,
        max_unsent=max_unsent,
        reader=reader,
        hooks=Hooks(instruments),
    )


def make_connector(
    scripted: ScriptedServer,
    settings: LinkSettings,
    *,
    password: str = "",
    role: str = "",
    database: int = 0,
    name: str = "",
    credentials: Credentials | None = None,
) -> Connector:
    """Return what makes connections to a scripted server."""

    async def resolve() -> Address:
        return ADDRESS

    async def fixed() -> tuple[str, ...]:
        return (password,) if password else ()

    handshake = Handshake(credentials or fixed, database, name, role)
    return Connector(f"redis at {ADDRESS}", resolve, scripted.dial, handshake, settings)


@asynccontextmanager
async def open_server(
    scripted: ScriptedServer,
    *,
    wait: float = 0,
    close_within: float = 1,
    dedicated: float = 64,
    password: str = "",
    role: str = "",
    database: int = 0,
    name: str = "",
    connector: Connector | None = None,
    **settings: Any,
) -> AsyncGenerator[Server, None]:
    """Do what `open_redis` does, with a scripted server in the place of a real one; give the `Server`."""
    chosen = link_settings(**settings)
    connector = connector or make_connector(
        scripted, chosen, password=password, role=role, database=database, name=name
    )
    server = Server(f"redis at {ADDRESS}", connector, chosen, dedicated=dedicated)

    async with run_server(server, wait, close_within):
        yield server


@asynccontextmanager
async def open_client(
    scripted: ScriptedServer, *, decode_responses: bool = False, **options: Any
) -> AsyncGenerator[Redis, None]:
    """Do the same, and give a client with redis-py's methods."""
    target = read_target("redis://scripted:6379", decode_responses=decode_responses)
    settings = {"reader": lambda: reader(target.reader_encoding, target.encoding_errors), **options}
    async with open_server(scripted, **settings) as server:
        yield Redis(server, Answers(target))
