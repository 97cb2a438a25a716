"""Twenty clerks move money between five accounts: by WATCH, and by a script. The sum never changes.

Run it: python examples/redis_transfer.py    (a Valkey server of its own)
"""

from __future__ import annotations

# mypy: disable-error-code="unused-awaitable"
# What is queued is not awaited.
import random
from collections import Counter

import trio

from trio_orchestrator.redis import Redis, Transaction, open_redis
from trio_orchestrator.testing import open_redis_server

ACCOUNTS = [f"account:{name}" for name in "abcde"]
CLERKS, TRANSFERS, BALANCE = 20, 20, 100

MOVE = """
if tonumber(redis.call('get', KEYS[1])) < tonumber(ARGV[1]) then return 0 end
redis.call('decrby', KEYS[1], ARGV[1])
redis.call('incrby', KEYS[2], ARGV[1])
return 1
"""


async def by_watching(redis: Redis, source: str, target: str, amount: int, seen: Counter[str]) -> None:
    async def move(tx: Transaction) -> None:
        seen["attempts"] += 1
        left = int(await tx.get(source) or 0)  # read at once; watched, so that nobody changes it unnoticed
        tx.multi()
        if left >= amount:
            tx.decrby(source, amount)
            tx.incrby(target, amount)

    await redis.transaction(move, source, target, within=10)
    seen["transfers"] += 1


async def everybody(redis: Redis, seen: Counter[str], *, watching: bool) -> None:
    script = redis.register_script(MOVE)

    async def clerk(number: int) -> None:
        chance = random.Random(number)
        for _ in range(TRANSFERS):
            source, target = chance.sample(ACCOUNTS, 2)
            amount = chance.randint(1, 80)
            if watching:
                await by_watching(redis, source, target, amount, seen)
            else:
                seen["attempts"] += 1
                await script(keys=[source, target], args=[amount])
                seen["transfers"] += 1

    async with trio.open_nursery() as nursery:
        for number in range(CLERKS):
            nursery.start_soon(clerk, number)


async def main() -> None:
    async with open_redis_server() as server, open_redis(server.url, max_dedicated=CLERKS) as redis:
        for watching in (True, False):
            await redis.mset(dict.fromkeys(ACCOUNTS, BALANCE))
            seen: Counter[str] = Counter()
            began = trio.current_time()
            await everybody(redis, seen, watching=watching)
            took = trio.current_time() - began
            balances = [int(each) for each in server.command("MGET", *ACCOUNTS)]
            conflicts = seen["attempts"] - seen["transfers"]
            way = "WATCH" if watching else "script"
            print(f"{way:7} {seen['transfers']} transfers in {took:.2f} s, {conflicts} conflicts")
            print(f"        balances {balances}, together {sum(balances)}")
            assert seen["transfers"] == CLERKS * TRANSFERS
            assert sum(balances) == BALANCE * len(ACCOUNTS)
            assert min(balances) >= 0


if __name__ == "__main__":
    trio.run(main)
