"""Trio speaks Redis: redis-py's commands on a native transport."""

from trio_orchestrator.redis.client import Redis as Redis
from trio_orchestrator.redis.opening import open_redis as open_redis
from trio_orchestrator.redis.opening import open_sentinel as open_sentinel
