"""redis-py's commands of server modules (JSON, search, time series, Bloom filters, vector sets) on a client of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import redis.asyncio
import trio
from redis.commands.json import AsyncJSON
from redis.commands.search import AsyncSearch

if TYPE_CHECKING:
    from trio_orchestrator.redis.method import Commands


@final
class _Told(redis.asyncio.Redis):
    """What a namespace is made with: redis-py looks at a client's class to learn how its answers are to look."""

    def __init__(self, client: Commands) -> None:  # it is never used as a client
        self.connection = None
        self.connection_pool: Any = SimpleNamespace(connection_kwargs=client.get_connection_kwargs())
        self.execute_command: Any = client.execute_command
        self.set_response_callback: Any = client.set_response_callback
        self.pipeline: Any = getattr(client, "pipeline", _no_pipeline)


def namespace_of(client: Commands, make: Callable[[Any], Any]) -> Any:
    """Return the commands of one module, on a client.

    Args:
        client: Who executes them: a client, or a pipeline.
        make: Makes redis-py's object, given what it takes for a client of redis-py.
    """
    told = _Told(client)
    namespace = make(told)
    namespace.client = client
    if hasattr(namespace, "pipeline"):
        namespace.pipeline = told.pipeline if isinstance(namespace, AsyncSearch) else _no_pipeline
    return namespace


def _no_pipeline(*_args: Any, **_options: Any) -> Any:
    raise NotImplementedError(
        "a module has no pipeline of its own: call `json()` or `ts()` on a pipeline of the client"
    )


@final
class Json(AsyncJSON):
    """redis-py's JSON commands; files are read in a thread of Trio's."""

    async def set_file(
        self,
        name: str,
        path: str,
        file_name: str,
        nx: bool | None = False,
        xx: bool | None = False,
        decode_keys: bool | None = False,
        fpha: Any = None,
    ) -> bool | None:
        """Set a key's value under `path` to what a JSON file holds. Cancelling while it is read sets nothing."""
        value: Any = json.loads(await trio.Path(file_name).read_text())
        setter: Any = self.set
        result: bool | None = await setter(name, path, value, nx=nx, xx=xx, decode_keys=decode_keys, fpha=fpha)
        return result

    async def set_path(
        self,
        json_path: str,
        root_folder: str,
        nx: bool | None = False,
        xx: bool | None = False,
        decode_keys: bool | None = False,
        fpha: Any = None,
    ) -> dict[str, bool]:
        """Set each JSON file below a folder, under `json_path`, with the file's path without its suffix as the key.

        Returns:
            For each file, whether it was JSON.
        """
        files = await trio.to_thread.run_sync(_files_below, root_folder)
        done: dict[str, bool] = {}
        for file in files:
            try:
                await self.set_file(file.rsplit(".")[0], json_path, file, nx, xx, decode_keys, fpha)
            except json.JSONDecodeError:
                done[file] = False
            else:
                done[file] = True
        return done


def _files_below(folder: str) -> list[str]:
    return [str(path) for path in Path(folder).rglob("*") if path.is_file()]
