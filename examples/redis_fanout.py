"""One publisher, eight listeners, and a server that is killed and comes back: who hears what, who is told of the gap.

Run it: python examples/redis_fanout.py    (a Valkey server of its own)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import trio
from redis.backoff import FullJitterBackoff

from trio_orchestrator import Instrument, RedisLost, RedisReady
from trio_orchestrator.redis import CallTimeoutError, Gap, LinkError, Redis, open_redis
from trio_orchestrator.testing import RedisServer, open_redis_server

LISTENERS = 8
EVERY = 0.01
EACH_WAY = 100  # so many messages go to all of them before the server is killed, and so many after it


class Timeline(Instrument):
    """Prints what happens to the connections."""

    def __init__(self) -> None:
        self.began = trio.current_time()

    def say(self, what: str) -> None:
        print(f"{trio.current_time() - self.began:5.2f} s  {what}")

    def redis_lost(self, event: RedisLost, /) -> None:
        self.say(f"  lost: {name_of(event.link)}")

    def redis_ready(self, event: RedisReady, /) -> None:
        if event.attempts > 1:  # not in the beginning
            self.say(f"  ready, after {event.after:.2f} s: {name_of(event.link)}")


def name_of(link: str) -> str:
    return "a listener" if link.startswith("pubsub") else "the publisher"


@dataclass
class Listener:
    """What one listener has heard, and where it was told that it may have missed something."""

    numbers: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    async def listen(self, redis: Redis, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with redis.pubsub(gaps=True) as sub:
            await sub.subscribe("news")
            task_status.started()
            async for item in sub:
                if isinstance(item, Gap):
                    self.gaps.append(item)
                else:
                    self.numbers.append(int(item.data))


class Publisher:
    """Publishes numbers. `reached` says to how many listeners the server gave each, as the server says itself."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.number = 0
        self.reached: dict[int, int] = {}

    async def publish(self, to_all: int) -> None:
        """Publish until so many messages have gone to all listeners. Redis keeps none for those who are away."""
        while to_all:
            self.number += 1
            with suppress(LinkError, CallTimeoutError):  # the server is down
                self.reached[self.number] = await self.redis.publish("news", self.number)
                to_all -= self.reached[self.number] == LISTENERS
            await trio.sleep(EVERY)


async def restart(server: RedisServer, timeline: Timeline) -> None:
    await trio.sleep(0.5)
    await server.restart()
    timeline.say("the server is back")


async def main() -> None:
    everybody, timeline = [Listener() for _ in range(LISTENERS)], Timeline()
    async with (
        open_redis_server() as server,
        open_redis(server.url, reconnect=FullJitterBackoff(cap=0.5, base=0.05), instruments=[timeline]) as redis,
        trio.open_nursery() as listeners,
    ):
        for each in everybody:
            await listeners.start(each.listen, redis)
        publisher = Publisher(redis)
        await publisher.publish(to_all=EACH_WAY)
        server.kill()
        timeline.say("the server is killed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart, server, timeline)
            with trio.fail_after(8):
                await publisher.publish(to_all=EACH_WAY)
        await trio.sleep(0.1)  # what was published last is on its way
        listeners.cancel_scope.cancel()
    check(everybody, publisher)


def check(everybody: list[Listener], publisher: Publisher) -> None:
    for name, each in enumerate(everybody):
        [gap] = each.gaps
        print(f"listener {name}: {len(each.numbers)} messages, and a gap of {gap.until - gap.since:.2f} s")
        assert each.numbers == sorted(set(each.numbers))  # in order, none twice
    heard = {number: sum(number in each.numbers for each in everybody) for number in publisher.reached}
    lost = sum(publisher.reached[number] - heard[number] for number in publisher.reached)
    print(
        f"{publisher.number} messages: the server gave {sum(publisher.reached.values()):,} copies of"
        f" {len(publisher.reached)} to listeners; {lost} of these copies were lost"
    )
    assert heard == publisher.reached


if __name__ == "__main__":
    trio.run(main)
