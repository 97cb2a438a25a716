"""RESP3 by hiredis: commands to bytes, bytes to replies, and the texts of errors to redis-py's exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
import redis.exceptions
from redis._parsers import BaseParser  # where redis-py keeps its table of errors, in every version since 5.0

NOTHING: Final[Any] = object()
"""What the reader returns while the next reply is not complete."""

LARGEST: Final = 512 * 1024 * 1024
"""No value may be longer, in bytes: what the server takes by default (`proto-max-bulk-len`)."""

_pack: Final[Callable[[tuple[Any, ...]], bytes]] = cast("Any", hiredis).pack_command  # its hints know one argument only

_parse_error: Final[Callable[[str], Exception]] = cast("Any", BaseParser).parse_error


def reply_error(text: str) -> Exception:
    """Return the exception of redis-py for the text of an error reply."""
    try:
        return _parse_error(text)
    except (ValueError, TypeError, LookupError):  # begins like one of the server's, but a script wrote it
        return redis.exceptions.ResponseError(text)


def reader(encoding: str | None = None, errors: str = "strict") -> hiredis.Reader:
    """Return a reader of replies; it decodes strings if it is given an encoding."""
    return hiredis.Reader(
        protocolError=redis.exceptions.InvalidResponse,
        replyError=reply_error,
        encoding=encoding,
        errors=errors,
        notEnoughData=NOTHING,
    )


def pack(args: Sequence[Any]) -> bytes:
    """Return the bytes of one command. Its name may be of several words ("CONFIG GET"), which the server gets apart.

    Raises:
        DataError: An argument is no str, bytes, int or float, cannot be encoded, or is 512 MB or longer.
    """
    name = args[0]
    if " " in name if isinstance(name, str) else b" " in name:
        args = (*name.split(), *args[1:])
    try:
        data = _pack(tuple(args))
    except TypeError:
        data = _pack_rest(args)
    except UnicodeEncodeError as error:
        raise redis.exceptions.DataError(f"arguments must be encodable as UTF-8: {error}") from error
    if len(data) > LARGEST:
        _check_sizes(args)
    return data


def _pack_rest(args: Sequence[Any]) -> bytes:
    """Pack what hiredis does not take as it is."""
    plain = tuple(bytes(cast("Any", arg)) if isinstance(arg, (bytearray, memoryview)) else arg for arg in args)
    try:
        return _pack(plain)
    except TypeError as error:
        bad = next((arg for arg in plain if type(arg) not in (str, bytes, int, float)), args)
        raise redis.exceptions.DataError(f"arguments must be bytes, str, int or float, got {bad!r:.100}") from error


def _check_sizes(args: Sequence[Any]) -> None:
    for arg in args:
        size = _size(arg)
        if size >= LARGEST:
            raise redis.exceptions.DataError(f"arguments must be shorter than 512 MB, got one of {size} bytes")


def _size(arg: Any) -> int:
    """Return the length of an argument in bytes; 0 for a number."""
    if isinstance(arg, str):
        return len(arg.encode())
    return memoryview(cast("bytes", arg)).nbytes if isinstance(arg, (bytes, bytearray, memoryview)) else 0
