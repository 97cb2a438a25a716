"""Just enough of the Redis protocol to prepare a server for a test: one command, one answer, in this thread."""

from __future__ import annotations

import socket
from typing import Any, TypeAlias

Word: TypeAlias = bytes | str | float
Address: TypeAlias = str | tuple[str, int]
"""Where a server listens: the path of a Unix socket, or a host and a port."""


def ask(address: Address, *words: Word, password: str = "", within: float = 2.0) -> Any:
    """Send one command on a connection of its own, and return the answer, with text decoded.

    Raises:
        RuntimeError: The server answered with an error, whose text this carries.
        OSError: It cannot be reached, or did not answer within `within` seconds.
    """
    with _connect(address, within) as connection:
        if password:
            _exchange(connection, ("AUTH", password))
        return _exchange(connection, words)


def _connect(address: Address, within: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=within)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(within)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(connection: socket.socket, words: tuple[Word, ...]) -> Any:
    import hiredis

    reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
    connection.sendall(_packed(words))
    while (answer := reader.gets()) is False:
        if not (data := connection.recv(65536)):
            raise ConnectionError("the server closed the connection")
        reader.feed(data)
    if isinstance(answer, hiredis.ReplyError):
        raise RuntimeError(str(answer))
    return answer


def _packed(words: tuple[Word, ...]) -> bytes:
    encoded = [word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
