"""Bytes to and from one server: over a plain socket, or over any of Trio's streams (TLS; a pair in memory)."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from ssl import SSLContext
from typing import ClassVar, Protocol, final

import trio
from trio.lowlevel import checkpoint_if_cancelled, notify_closing, wait_readable, wait_writable

from trio_orchestrator.redis.address import Address

CHUNK = 1 << 16
"""So many bytes are read at once, at most."""


class Pipe(ABC):
    """One connection's bytes."""

    exact: ClassVar[bool]
    """Whether it knows, when it breaks, how many bytes were handed to the system; else all of a write may have been."""

    def send_now(self, data: memoryview) -> int:
        """Send what can be sent without waiting; return how many bytes. 0 also if it is broken: sending will tell."""
        return 0

    def receive_now(self) -> bytes:
        """Return what is here already; none also if it is broken, or cannot tell: receiving will."""
        return b""

    def stop(self) -> None:  # noqa: B027 - most need not know
        """Hand nothing more to the system, if it is known how much was: somebody has just looked. Sync."""

    @abstractmethod
    async def send(self, data: memoryview) -> int:
        """Wait until some can be sent, send it and return how many bytes. Raises what the system raises."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for some bytes; none at the end of the stream."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close at once, without goodbyes. It closes whatever happens, so it can be called in a cancelled scope."""


@final
class SocketPipe(Pipe):
    """A plain socket of TCP or Unix, without Trio's stream: a call of an idle link is sent by its own task."""

    exact = True

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._stopped = False

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def send_now(self, data: memoryview) -> int:
        """Send what the system takes now."""
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    def receive_now(self) -> bytes:
        """Return what the system has."""
        try:
            return self._socket.recv(CHUNK)
        except OSError:
            return b""

    async def send(self, data: memoryview) -> int:
        """Send when the system takes some."""
        await wait_writable(self._socket)
        try:
            return 0 if self._stopped else self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    async def receive(self) -> bytes:
        """Receive when there is something."""
        while True:
            await wait_readable(self._socket)
            try:
                return self._socket.recv(CHUNK)
            except (BlockingIOError, InterruptedError):
                continue

    async def aclose(self) -> None:
        """Close the socket."""
        notify_closing(self._socket)
        self._socket.close()
        await checkpoint_if_cancelled()


@final
class StreamPipe(Pipe):
    """A stream of Trio's."""

    exact = False

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, data: memoryview) -> int:
        """Send all of it."""
        await self._stream.send_all(data)
        return len(data)

    async def receive(self) -> bytes:
        """Receive when there is something."""
        return bytes(await self._stream.receive_some(CHUNK))

    async def aclose(self) -> None:
        """Close the stream."""
        await trio.aclose_forcefully(self._stream)


class Dial(Protocol):
    """How a connection is made."""

    async def __call__(self, address: Address, /) -> Pipe:
        """Connect, or raise `OSError`."""
        ...


@final
class SocketDial:
    """Connect by TCP or to a Unix socket, with TLS if there is a context for it.

    Args:
        tls: Its context; None: no TLS.
        keepalive: After so many idle seconds the system asks whether the other side is there.
    """

    def __init__(self, tls: SSLContext | None, keepalive: float) -> None:
        self._tls = tls
        self._keepalive = keepalive

    async def __call__(self, address: Address, /) -> Pipe:
        """Connect."""
        if address.path:
            return SocketPipe(_detached(await trio.open_unix_socket(address.path)))
        stream = await trio.open_tcp_stream(address.host, address.port)
        _keep_alive(stream.socket, self._keepalive)
        if self._tls is None:
            return SocketPipe(_detached(stream))
        return StreamPipe(await self._encrypted(stream, self._tls, address.host))

    async def _encrypted(self, stream: trio.SocketStream, tls: SSLContext, host: str) -> trio.abc.Stream:
        encrypted = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except BaseException:
            stream.socket.close()
            raise
        return encrypted


def _detached(stream: trio.SocketStream) -> socket.socket:
    """Take the socket out of Trio's hands."""
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


def _keep_alive(sock: trio.socket.SocketType, after: float) -> None:
    """Have the system notice a machine that is gone: after so many idle seconds, then three times at half of that."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(1, min(32767, round(after) if after < 32767 else 32767))
    options = {"TCP_KEEPIDLE": idle, "TCP_KEEPALIVE": idle, "TCP_KEEPINTVL": max(1, idle // 2), "TCP_KEEPCNT": 3}
    for name, value in options.items():
        if hasattr(socket, name):  # the second is what macOS calls the first
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
