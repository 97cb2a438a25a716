"""One publisher, eight listeners, and a server that is killed and comes back: who hears what, who is told of the gap.

Run it: python examples/redis_fanout.py    (a Valkey server of its own)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from trio_orchestrator.redis import Gap, LinkError, Redis, open_redis
from trio_orchestrator.testing import RedisServer, open_redis_server

LISTENERS = 8
EVERY = 0.01


@dataclass
class Heard:
    """What one listener has heard."""

    numbers: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


async def listen(redis: Redis, heard: Heard, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    async with redis.pubsub(gaps=True) as sub:
        await sub.subscribe("news")
        task_status.started()
        async for item in sub:
            if isinstance(item, Gap):
                heard.gaps.append(item)
            else:
                heard.numbers.append(int(item.data))


async def publish(redis: Redis, reached: dict[int, int], stop: trio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        with suppress(LinkError):  # the server is down; it keeps no messages
            reached[number] = await redis.publish("news", number)  # how many listeners the server gave it to
        await trio.sleep(EVERY)


async def kill_and_restart(server: RedisServer, began: float) -> None:
    await trio.sleep(1)
    server.kill()
    print(f"{trio.current_time() - began:5.2f} s  the server is killed")
    await trio.sleep(0.5)
    await server.restart()
    print(f"{trio.current_time() - began:5.2f} s  the server is back")


async def main() -> None:
    heard = [Heard() for _ in range(LISTENERS)]
    reached: dict[int, int] = {}
    stop, began = trio.Event(), trio.current_time()
    async with (
        open_redis_server() as server,
        open_redis(server.url) as redis,
        trio.open_nursery() as listeners,
    ):
        for each in heard:
            await listeners.start(listen, redis, each)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, redis, reached, stop)
            await kill_and_restart(server, began)
            await trio.sleep(2)
            stop.set()
        await trio.sleep(0.1)
        listeners.cancel_scope.cancel()
    show(heard, reached, began)


def show(heard: list[Heard], reached: dict[int, int], began: float) -> None:
    for number, each in enumerate(heard):
        gap = each.gaps[0]
        print(f"        listener {number}: {len(each.numbers)} messages, a gap of {gap.until - gap.since:.2f} s")
        assert len(each.gaps) == 1
        assert each.numbers == sorted(set(each.numbers))
    to_all = [number for number, listeners in reached.items() if listeners == LISTENERS]
    missed = [number for number in to_all if any(number not in set(each.numbers) for each in heard)]
    print(
        f"of {len(reached)} published messages {len(to_all)} went to all {LISTENERS} listeners;"
        f" {len(missed)} of those were lost"
    )
    assert len(to_all) > 100
    assert not missed


if __name__ == "__main__":
    trio.run(main)
