"""The master dies, the Sentinels name another one, and the writers go on: watched live.

Run it: python examples/redis_failover.py    (a master, a replica and three Sentinels of its own)
"""

from __future__ import annotations

from collections import Counter

import trio

from trio_orchestrator import Instrument, RedisFailover, RedisLost, RedisReady, RedisReconnecting
from trio_orchestrator.redis import CallTimeoutError, LinkError, Redis, open_redis, open_sentinel
from trio_orchestrator.testing import RedisServer, open_redis_sentinels

KEYS = [f"writer:{number}" for number in range(5)]
MORE = 500  # so many writes are acknowledged by the old master, and so many by the new one


class Writers(Instrument):
    """Writers, what became of their writes, and a timeline of their link to the master."""

    def __init__(self) -> None:
        self.began = trio.current_time()
        self.seen: Counter[str] = Counter()
        self.before = 0
        self.switched = trio.Event()

    @property
    def acknowledged(self) -> int:
        return self.seen["acknowledged"]

    def say(self, what: str) -> None:
        print(f"{trio.current_time() - self.began:6.3f} s  {what}")

    def redis_lost(self, event: RedisLost, /) -> None:
        self.say(f"lost {event.address}: {event.cause}; {event.in_flight} calls may have run")

    def redis_reconnecting(self, event: RedisReconnecting, /) -> None:
        self.say(f"  no master yet: {event.cause}")

    def redis_failover(self, event: RedisFailover, /) -> None:
        self.before = self.acknowledged  # by the old one; nothing has been sent to the new one yet
        self.switched.set()
        self.say(f"failover: {event.old} -> {event.new}")

    def redis_ready(self, event: RedisReady, /) -> None:
        if event.link.startswith("master"):  # not those to the Sentinels
            self.say(f"ready: {event.address}")

    async def write(self, redis: Redis, key: str) -> None:
        while True:
            try:
                await redis.incr(key)
                self.seen["acknowledged"] += 1
            except (LinkError, CallTimeoutError) as error:
                self.seen["failed, may have run" if error.sent else "failed, never sent"] += 1
            await trio.sleep(0.002)

    async def wait_acknowledged(self, number: int) -> None:
        with trio.fail_after(8):
            while self.acknowledged < number:  # noqa: ASYNC110 - a count, not a condition to wait for
                await trio.sleep(0.005)

    async def listen(self, sentinel: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Say what a Sentinel says. The client listens to all of them by itself."""
        async with open_redis(sentinel, decode_responses=True) as redis, redis.pubsub() as sub:
            await sub.subscribe("+switch-master")
            task_status.started()
            async for message in sub:
                self.say(f"a Sentinel says: {message.channel} {message.data}")


def count(server: RedisServer) -> int:
    return sum(int(value or 0) for value in server.command("MGET", *KEYS))


async def main() -> None:
    async with open_redis_sentinels() as servers:
        writers = Writers()
        urls = [f"redis://{host}:{port}" for host, port in servers.addresses]
        async with open_sentinel(servers.name, urls, instruments=[writers]) as redis, trio.open_nursery() as nursery:
            await nursery.start(writers.listen, urls[0])
            for key in KEYS:
                nursery.start_soon(writers.write, redis, key)
            await writers.wait_acknowledged(MORE)
            old, [replica] = servers.master, servers.replicas
            replicated = count(replica)
            old.kill()
            writers.say("the master is killed")
            new = await servers.wait_failover(old)
            await writers.switched.wait()
            await writers.wait_acknowledged(writers.before + MORE)
            nursery.cancel_scope.cancel()
        writers.say(f"done: {dict(writers.seen)}")
        check(writers, replicated, count(new))
        assert new is replica


def check(writers: Writers, replicated: int, kept: int) -> None:
    """Compare what the new master holds with what the writers know.

    What the replica had before the kill is never lost. What the old master acknowledged after that may be, for it
    does not wait for the replica. Of what failed some may be there; of what was cancelled in the end, too.
    """
    after, unknown = writers.acknowledged - writers.before, writers.seen["failed, may have run"] + len(KEYS)
    print(f"the new master holds {kept:,} writes of {writers.acknowledged:,} that were acknowledged, {after} by itself")
    assert writers.before >= MORE <= after
    assert replicated + after <= kept <= writers.acknowledged + unknown


if __name__ == "__main__":
    trio.run(main)
