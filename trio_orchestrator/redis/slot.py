"""The hash slots of a cluster: which of the 16384 a key is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import redis.exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from trio_orchestrator.redis.error import CrossSlotError

SLOTS: Final[int] = REDIS_CLUSTER_HASH_SLOTS
"""How many hash slots a cluster has."""


def slot_of(key: Any) -> int:
    """Return the slot of a key, 0 to 16383.

    It is the CRC16 of what is between the first `{` and the next `}` if that is anything, otherwise of the whole key.
    The bytes are those that are sent: a str as UTF-8, an int or float as its `repr`.

    Raises:
        DataError: The key is none of bytes, bytearray, memoryview, str, int and float, or cannot be encoded.
    """
    return key_slot(key if type(key) is bytes else _octets(key))


def _octets(key: Any) -> bytes:
    if isinstance(key, str):
        return _encoded(key)
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", key))
    if isinstance(key, (int, float)) and not isinstance(key, bool):
        return repr(key).encode()
    raise redis.exceptions.DataError(f"key must be bytes, str, int or float, got {key!r:.100}; convert it first")


def _encoded(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise redis.exceptions.DataError(f"key must be encodable as UTF-8: {error}") from error


def one_slot(keys: Iterable[Any]) -> int:
    """Return the slot that all the keys are in.

    Raises:
        CrossSlotError: They are in several. It names the keys and their slots.
        DataError: A key cannot be encoded.
        ValueError: There is no key.
    """
    keys = tuple(keys)
    if not keys:
        raise ValueError("keys must hold at least one key, got none")
    slots = [slot_of(key) for key in keys]
    if slots.count(slots[0]) != len(slots):
        raise CrossSlotError(keys, slots)
    return slots[0]
