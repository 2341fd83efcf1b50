"""Facts of a machine and a Redis without problems, which tests modify."""

from collections.abc import Sequence
from typing import Any

from presence.doctor.machine_checks import MachineFacts
from presence.doctor.redis_facts import RedisFacts, RedisServer, SentinelFacts, Slots
from presence.doctor.results import Unknown
from presence.store.node_states import NodeState

GB = 1_000_000_000
MACHINE = MachineFacts(
    system="linux",
    has_epoll=True,
    redis_binary="/usr/bin/valkey-server",
    data_dir="",
    is_time_set=True,
    soft_files=1024,
    hard_files=20_000,
    memory_bytes=8 * GB,
    unbound={},
)
INFO: dict[str, Any] = {
    "redis_version": "7.2.4",
    "role": "master",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "maxmemory": 4 * GB,
    "maxmemory_policy": "noeviction",
    "used_memory": 1_000_000,
    "total_system_memory": 16 * GB,
    "maxclients": 10_000,
    "connected_clients": 5,
    "connected_slaves": 0,
}
SERVER = RedisServer(name="redis-a:6379", info=INFO, pings_ms=[0.2, 0.3, 90.0])
SENTINEL = SentinelFacts("sentinel-a:26379", "redis-a:6379", "")
REFUSED = Unknown("this user has no permissions to run the 'config|get' command")
NODE = NodeState(
    node="node-a",
    status="alive",
    lease_left_s=8.0,
    sweeper=None,
    readiness="ready",
    version="1.0",
    settings="lease=10.0 idle_timeout=30.0",
)


def cluster(*slots: tuple[int, int, int], servers: Sequence[RedisServer] = (SERVER,)) -> RedisFacts:
    """Return a cluster: the first and last slot of each range, and its number of replicas."""
    rows = [Slots(*each) for each in slots]
    return RedisFacts(url="redis+cluster://a", is_cluster=True, failure="", servers=servers, slots=rows)
