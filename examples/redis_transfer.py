"""Twenty clerks move money between five accounts: by WATCH, and by a script. The sum never changes.

Run it: python examples/redis_transfer.py    (a Valkey server of its own)
"""

from __future__ import annotations

# mypy: disable-error-code="unused-awaitable"
# What is queued is not awaited.
import random
from collections.abc import Awaitable, Callable

import trio

from trio_orchestrator.redis import Redis, Transaction, open_redis
from trio_orchestrator.testing import RedisServer, open_redis_server

ACCOUNTS = [f"account:{name}" for name in "abcde"]
CLERKS, TRANSFERS, BALANCE = 20, 20, 100
Move = Callable[[str, str, int], Awaitable[object]]

# Each transfer that is made stands in the ledger, in the order in which the server made them.
MOVE = """
if tonumber(redis.call('get', KEYS[1])) < tonumber(ARGV[1]) then return 0 end
redis.call('decrby', KEYS[1], ARGV[1])
redis.call('incrby', KEYS[2], ARGV[1])
redis.call('rpush', KEYS[3], KEYS[1] .. ' ' .. KEYS[2] .. ' ' .. ARGV[1])
return 1
"""


def by_watching(redis: Redis) -> Move:
    async def move(source: str, target: str, amount: int) -> None:
        async def body(tx: Transaction) -> None:
            left = int(await tx.get(source) or 0)  # read at once; watched, so that nobody changes it unnoticed
            tx.multi()
            if left >= amount:
                tx.decrby(source, amount)
                tx.incrby(target, amount)
                tx.rpush("ledger", f"{source} {target} {amount}")

        await redis.transaction(body, source, target, within=10)

    return move


def by_script(redis: Redis) -> Move:
    script = redis.register_script(MOVE)

    async def move(source: str, target: str, amount: int) -> None:
        await script(keys=[source, target, "ledger"], args=[amount])

    return move


async def everybody(move: Move) -> None:
    async def clerk(number: int) -> None:
        chance = random.Random(number)
        for _ in range(TRANSFERS):
            source, target = chance.sample(ACCOUNTS, 2)
            await move(source, target, chance.randint(1, 80))

    async with trio.open_nursery() as nursery:
        for number in range(CLERKS):
            nursery.start_soon(clerk, number)


def calls_of(server: RedisServer, command: str) -> int:
    """Return how many times the server has executed a command, as it says itself."""
    return int(server.info("commandstats")[f"cmdstat_{command}"].split(",")[0].removeprefix("calls="))


def check(server: RedisServer) -> None:
    """Go through the ledger: no account was ever negative, and what it adds up to is what the accounts hold."""
    balances = dict.fromkeys(ACCOUNTS, BALANCE)
    ledger = server.command("LRANGE", "ledger", 0, -1)
    for line in ledger:
        source, target, amount = line.split()
        balances[source] -= int(amount)
        balances[target] += int(amount)
        assert balances[source] >= 0, line
    held = [int(each) for each in server.command("MGET", *ACCOUNTS)]
    print(f"        {len(ledger)} were made; the others were for more than there was")
    print(f"        balances {held}, together {sum(held)}")
    assert held == list(balances.values())
    assert sum(held) == BALANCE * len(ACCOUNTS)
    assert 0 < len(ledger) < CLERKS * TRANSFERS


async def main() -> None:
    orders = CLERKS * TRANSFERS
    async with open_redis_server() as server, open_redis(server.url, max_dedicated=CLERKS) as redis:
        for name, way, command in (("WATCH", by_watching, "exec"), ("script", by_script, "evalsha")):
            await redis.delete("ledger")
            await redis.mset(dict.fromkeys(ACCOUNTS, BALANCE))
            began = trio.current_time()
            await everybody(way(redis))
            took, attempts = trio.current_time() - began, calls_of(server, command)
            print(f"{name:8}{orders} orders in {took:.2f} s: {attempts} attempts, {attempts - orders} conflicts")
            check(server)
            assert attempts >= orders
            assert attempts == orders or way is by_watching


if __name__ == "__main__":
    trio.run(main)
