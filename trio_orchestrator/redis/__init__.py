"""Trio speaks Redis: redis-py's commands, answers and errors on a native transport.

    async with open_redis("redis://localhost:6379/0") as redis:
        await redis.set("greeting", "hello", px=5000)

It stands alone: nothing else of `trio_orchestrator` is needed to use it. The errors are redis-py's (`redis.exceptions`)
and those below, each of which is one of redis-py's as well.
"""

from trio_orchestrator.redis.address import Address as Address
from trio_orchestrator.redis.client import Redis as Redis
from trio_orchestrator.redis.client import RedisStatistics as RedisStatistics
from trio_orchestrator.redis.cluster import ClusterStatistics as ClusterStatistics
from trio_orchestrator.redis.cluster import NodeStatistics as NodeStatistics
from trio_orchestrator.redis.cluster import RedisCluster as RedisCluster
from trio_orchestrator.redis.cluster_opening import open_redis_cluster as open_redis_cluster
from trio_orchestrator.redis.dedicated import DedicatedRedis as DedicatedRedis
from trio_orchestrator.redis.dedicated import Monitor as Monitor
from trio_orchestrator.redis.error import CallTimeoutError as CallTimeoutError
from trio_orchestrator.redis.error import CrossSlotError as CrossSlotError
from trio_orchestrator.redis.error import LinkError as LinkError
from trio_orchestrator.redis.error import RefusedCommandError as RefusedCommandError
from trio_orchestrator.redis.inbox import SlowConsumerError as SlowConsumerError
from trio_orchestrator.redis.link import LinkStatistics as LinkStatistics
from trio_orchestrator.redis.opening import open_redis as open_redis
from trio_orchestrator.redis.opening import open_sentinel as open_sentinel
from trio_orchestrator.redis.option import ClientOptions as ClientOptions
from trio_orchestrator.redis.option import is_read_only as is_read_only
from trio_orchestrator.redis.pipeline import Pipeline as Pipeline
from trio_orchestrator.redis.pubsub import Message as Message
from trio_orchestrator.redis.pubsub import PubSub as PubSub
from trio_orchestrator.redis.pubsub import PubSubStatistics as PubSubStatistics
from trio_orchestrator.redis.pubsub import keyevent_channel as keyevent_channel
from trio_orchestrator.redis.pubsub import keyspace_channel as keyspace_channel
from trio_orchestrator.redis.script import Script as Script
from trio_orchestrator.redis.subscription import Gap as Gap
from trio_orchestrator.redis.transaction import Transaction as Transaction

__all__ = [
    "Address",
    "CallTimeoutError",
    "ClientOptions",
    "ClusterStatistics",
    "CrossSlotError",
    "DedicatedRedis",
    "Gap",
    "LinkError",
    "LinkStatistics",
    "Message",
    "Monitor",
    "NodeStatistics",
    "Pipeline",
    "PubSub",
    "PubSubStatistics",
    "Redis",
    "RedisCluster",
    "RedisStatistics",
    "RefusedCommandError",
    "Script",
    "SlowConsumerError",
    "Transaction",
    "is_read_only",
    "keyevent_channel",
    "keyspace_channel",
    "open_redis",
    "open_redis_cluster",
    "open_sentinel",
]
