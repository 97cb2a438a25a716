"""A TCP proxy with faults, for tests of what talks to a server: real sockets, and trouble at the moment you choose.

    async with open_fault_proxy(server.address) as proxy:
        async with open_redis(f"redis://{proxy.host}:{proxy.port}") as redis:
            proxy.replies.delay = 0.05
            ...
            proxy.drop_next_reply()
            await redis.incr("n")  # raises, and the server has counted

The faults, all of which can be changed while connections are open:

* **Late**: `requests.delay`, `replies.delay`. Latency, not bandwidth: what was sent together arrives together.
* **In pieces**: `requests.piece`, `replies.piece`; 1 is byte by byte, `(1, 7)` draws each size.
* **Held**: `requests.held`, `replies.held`. Nothing passes, nothing is lost; the sender feels back-pressure in the end.
* **Half-open**: `requests.dead`, or `replies.dead`. What is sent is swallowed, the end of the stream as well, and the
  connection stays open. With both it is a **black hole**: `black_hole()`.
* **Short**: `requests.cut_after(n)`, `replies.cut_after(n)`. The connection ends when n more bytes have passed.
* **Executed, but not answered**: `drop_next_reply()`.
* **Reset** (RST) or **closed** (FIN): `reset()`, `close_connections()`.
* **Refused**: `refusing`. New connections are refused by the kernel, as if no server listened there.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, final

import trio

from trio_orchestrator.algorithms.argument import random_source
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.block import open_block
from trio_orchestrator.testing.direction import Direction
from trio_orchestrator.testing.resp import Address

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 65536
_ON_THE_WAY: Final = 1024  # chunks: more than a delay can ever fill, and still an end to what a dead target costs
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)  # the other side did it, or `end`
_RESET: Final = struct.pack("ii", 1, 0)


@final
@dataclass(frozen=True)
class FaultProxyStatistics:
    """What a `FaultProxy` has seen so far."""

    accepted: int
    """Connections accepted."""
    open: int
    """Connections that are open now."""
    unreachable: int
    """Connections that were accepted, and then reset because the target could not be reached."""
    request_bytes: int
    """Bytes that passed from clients to the target."""
    reply_bytes: int
    """Bytes that passed from the target to clients."""
    swallowed_bytes: int
    """Bytes that were swallowed, both ways."""


@final
class FaultProxy:
    """A proxy on a free port of 127.0.0.1, with faults: see the module. Made by `open_fault_proxy`."""

    def __init__(self, target: Address, rng: random.Random) -> None:
        """Made by `open_fault_proxy`."""
        self.target: Address = target
        """Where it connects to for each connection it accepts; a new value holds for the next ones."""
        self.requests: Direction = Direction(rng)
        """From clients to the target."""
        self.replies: Direction = Direction(rng)
        """From the target to clients."""
        self.host: str = _HOST
        self.port: int
        """Where it listens; it keeps this port for its life, also while it refuses."""
        self._reserved = _bound(0)  # bound, but not listening: nobody else gets the port while we refuse
        self.port = self._reserved.getsockname()[1]
        self._listener: trio.SocketListener | None = None
        self._closed = False
        self._lot = trio.lowlevel.ParkingLot()
        self._connections: set[_Connection] = set()
        self._accepted = 0
        self._unreachable = 0

    def __repr__(self) -> str:
        return f"<FaultProxy {self.host}:{self.port} -> {self.target} with {len(self._connections)} connections>"

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        return self.host, self.port

    @property
    def refusing(self) -> bool:
        """Whether new connections are refused, as if nothing listened there. Those that are open stay open.

        True or False counts from the moment it is set.
        """
        return self._listener is None

    @refusing.setter
    def refusing(self, value: bool) -> None:
        if value:
            self._stop_listening()
        elif self._listener is None:
            self._listen()

    def reset(self) -> int:
        """End all open connections with RST on both sides, now; return how many there were."""
        return self._end_all(reset=True)

    def close_connections(self) -> int:
        """End all open connections in good order (FIN) on both sides, now; return how many there were.

        What has not passed yet is lost. (The kernel itself sends RST if a side had sent what nobody has read.)
        """
        return self._end_all(reset=False)

    def drop_next_reply(self) -> None:
        """Let requests pass, swallow the next reply, and reset its connection: the client cannot know what was done.

        It is `replies.cut_after(0)`.
        """
        self.replies.cut_after(0)

    def black_hole(self) -> None:
        """Swallow everything in both directions and keep all connections open; new ones are accepted into it."""
        self.requests.dead = self.replies.dead = True

    def mend(self) -> None:
        """Take all faults back, and listen again. What was swallowed is lost."""
        self.requests.mend()
        self.replies.mend()
        self.refusing = False

    def statistics(self) -> FaultProxyStatistics:
        """Return the counters as they are now."""
        return FaultProxyStatistics(
            accepted=self._accepted,
            open=len(self._connections),
            unreachable=self._unreachable,
            request_bytes=self.requests.passed,
            reply_bytes=self.replies.passed,
            swallowed_bytes=self.requests.swallowed + self.replies.swallowed,
        )

    # -------------------------------------------------------------------------------------------- listening

    def _listen(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the block of the proxy was left")
        listening = _bound(self.port)
        listening.listen(1024)
        listening.setblocking(False)
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        self._lot.unpark_all()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None

    def _close(self) -> None:
        self._closed = True
        self._stop_listening()
        self._reserved.close()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                if self._listener is None:
                    await self._lot.park()
                    continue
                with suppress(trio.ClosedResourceError):  # it refuses from now on
                    connection = _Connection(self, await self._listener.accept())
                    self._accepted += 1
                    self._connections.add(connection)
                    nursery.start_soon(self._connect, connection)

    async def _connect(self, connection: _Connection) -> None:
        try:
            await connection.run()
        finally:
            connection.end(reset=False)

    def _end_all(self, *, reset: bool) -> int:
        connections = list(self._connections)
        for connection in connections:
            connection.end(reset=reset)
        return len(connections)


@final
class _Connection:
    """A client's connection, and ours to the target."""

    def __init__(self, proxy: FaultProxy, client: trio.SocketStream) -> None:
        self._proxy = proxy
        self._client = client
        self._target: trio.SocketStream | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            try:
                self._target = target = await _dial(self._proxy.target)
            except OSError:
                self._proxy._unreachable += 1
                await self._fail(self._proxy.requests)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, self._client, target, self._proxy.requests)
                nursery.start_soon(self._pass, target, self._client, self._proxy.replies)

    def end(self, *, reset: bool) -> None:
        """Close both sockets and stop. Sync: when it returns, nothing more passes."""
        self._scope.cancel(reason="the proxy ended the connection")
        self._proxy._connections.discard(self)
        for stream in (self._client, self._target):
            if stream is not None and stream.socket.fileno() >= 0:
                if reset:
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                stream.socket.close()

    async def _fail(self, direction: Direction) -> None:
        """End with a reset, since one side did; but a dead direction does not tell."""
        await trio.lowlevel.checkpoint()
        if direction.dead:
            await trio.sleep_forever()
        self.end(reset=True)

    async def _pass(self, source: trio.SocketStream, sink: trio.SocketStream, direction: Direction) -> None:
        send, receive = trio.open_memory_channel[tuple[float, bytes]](_ON_THE_WAY)
        async with trio.open_nursery() as nursery, receive:
            nursery.start_soon(self._take, source, send, direction)
            async for due, data in receive:
                await trio.sleep_until(due)
                await self._give(sink, data, direction)

    async def _take(
        self, source: trio.SocketStream, send: trio.MemorySendChannel[tuple[float, bytes]], direction: Direction
    ) -> None:
        """Receive, and say when each chunk is due. An empty one is the end of the stream."""
        with send:
            while True:
                await direction._wait_free()
                try:
                    data = await source.receive_some(_CHUNK)
                except _GONE:
                    await self._fail(direction)
                    return
                direction.arrived += len(data)
                direction.chunks += bool(data)
                await send.send((trio.current_time() + direction.delay, data))
                if not data:
                    return

    async def _give(self, sink: trio.SocketStream, data: bytes, direction: Direction) -> None:
        try:
            await direction._wait_free()
            if not data:
                await self._give_end(sink, direction)
            while data:
                size = direction._next_size(len(data))
                await self._give_piece(sink, data[:size], direction)
                data = data[size:]
                await direction._wait_free()
        except _GONE:
            await self._fail(direction)

    async def _give_piece(self, sink: trio.SocketStream, piece: bytes, direction: Direction) -> None:
        is_swallowed = direction.dead or not direction._left
        is_last = not direction.dead and direction._is_last(len(piece))
        if is_swallowed:
            direction.swallowed += len(piece)
        else:
            await sink.send_all(piece)
            direction.passed += len(piece)
        if is_last:
            self.end(reset=direction._cut_resets)
        await trio.lowlevel.checkpoint()

    async def _give_end(self, sink: trio.SocketStream, direction: Direction) -> None:
        if direction.dead:
            await trio.sleep_forever()
        await sink.send_eof()


def open_fault_proxy(target: Address, *, rng: random.Random | None = None) -> AbstractAsyncContextManager[FaultProxy]:
    """Open a proxy in front of `target`, for `async with`.

    It listens when the block begins. Leaving the block, however that happens, closes its sockets and all connections;
    when the block is cancelled they serve what is inside it until it has left. Both halves are checkpoints and wait for
    nothing. What the block raises comes out untouched.

    Args:
        target: The path of a Unix socket, or a host and a port. It may be away: then clients are reset.
        rng: Draws the sizes of pieces; by default the package's own `random.Random`.

    Raises:
        OSError: There is no port to listen on.
        TypeError: `rng` cannot draw.
    """
    random_source("rng", rng)
    return _open_fault_proxy(target, CHANCE if rng is None else rng)


@asynccontextmanager
async def _open_fault_proxy(target: Address, rng: random.Random) -> AsyncGenerator[FaultProxy, None]:
    await trio.lowlevel.checkpoint()
    proxy = FaultProxy(target, rng)
    scope = trio.CancelScope(shield=True)

    async def serve() -> None:
        with scope:
            await proxy._serve()

    async def leave(error: BaseException | None) -> None:
        proxy._end_all(reset=False)
        scope.cancel(reason="the block of the proxy was left")
        await trio.lowlevel.cancel_shielded_checkpoint()

    try:
        proxy._listen()
        async with open_block(leave) as block:
            block.nursery.start_soon(serve)
            yield proxy
    finally:
        proxy._close()


async def _dial(target: Address) -> trio.SocketStream:
    if isinstance(target, str):
        return await trio.open_unix_socket(target)
    return await trio.open_tcp_stream(*target)


def _bound(port: int) -> socket.socket:
    """Return a socket bound to `port`, which may be bound already by another one of ours that does not listen."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((_HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound
