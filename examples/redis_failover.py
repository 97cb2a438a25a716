"""The master dies, the Sentinels name another one, and the writers go on: watched live.

Run it: python examples/redis_failover.py    (a master, a replica and three Sentinels of its own)
"""

from __future__ import annotations

from collections import Counter

import trio

from trio_orchestrator import Instrument, RedisFailover, RedisLost, RedisReady, RedisReconnecting
from trio_orchestrator.redis import CallTimeoutError, LinkError, Redis, open_sentinel
from trio_orchestrator.testing import open_redis_sentinels

WRITERS = 5


class Timeline(Instrument):
    """Prints what happens to the link to the master."""

    def __init__(self) -> None:
        self.began = trio.current_time()

    def say(self, what: str) -> None:
        print(f"{trio.current_time() - self.began:6.3f} s  {what}")

    def redis_lost(self, event: RedisLost) -> None:
        self.say(f"lost {event.address}: {event.cause}; {event.in_flight} calls may have run")

    def redis_reconnecting(self, event: RedisReconnecting) -> None:
        self.say(f"  no master yet: {event.cause}")

    def redis_failover(self, event: RedisFailover) -> None:
        self.say(f"failover: {event.old} -> {event.new}")

    def redis_ready(self, event: RedisReady) -> None:
        if event.link.startswith("master"):
            self.say(f"ready: {event.address}")


async def write(redis: Redis, number: int, seen: Counter[str]) -> None:
    while True:
        try:
            await redis.incr(f"writer:{number}")
            seen["acknowledged"] += 1
        except (LinkError, CallTimeoutError) as error:
            seen["may have run" if error.sent else "never sent"] += 1
        await trio.sleep(0.002)


async def main() -> None:
    seen: Counter[str] = Counter()
    async with open_redis_sentinels() as servers:
        timeline = Timeline()
        urls = [f"redis://{host}:{port}" for host, port in servers.addresses]
        async with open_sentinel(servers.name, urls, instruments=[timeline]) as redis:
            async with trio.open_nursery() as writers:
                for number in range(WRITERS):
                    writers.start_soon(write, redis, number, seen)
                await trio.sleep(1)
                old, before = servers.master, seen["acknowledged"]
                timeline.say("the master is killed")
                old.kill()
                new = await servers.wait_failover(old)
                with trio.fail_after(8):
                    while seen["acknowledged"] < before + 500:  # noqa: ASYNC110 - a count, not a condition to wait for
                        await trio.sleep(0.01)
                writers.cancel_scope.cancel()
            timeline.say(f"done: {dict(seen)}")
        kept = sum(int(new.command("GET", f"writer:{number}")) for number in range(WRITERS))
        print(f"the new master has {kept} writes of {seen['acknowledged']} that were acknowledged")
        # Replication lags: the very last acknowledged writes of the old master may be missing, and those of
        # which nobody knew may be there.
        assert abs(kept - seen["acknowledged"]) <= 50


if __name__ == "__main__":
    trio.run(main)
