"""Facts of a machine and a Redis to which nothing is wanting, to be spoilt by tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from presence.doctor.facts import LIBRARIES, OPERATORS_LIBRARIES, FileLimit, Machine
from presence.doctor.findings import Finding, Unknown
from presence.doctor.redis_facts import RedisFacts, RedisServer, Slots
from presence.store.nodes import NodeState

GB = 1_000_000_000
SYSCTLS = {
    "fs.file-max": "1000000",
    "fs.nr_open": "1048576",
    "net.core.somaxconn": "4096",
    "net.ipv4.ip_local_port_range": "32768\t60999",
    "net.ipv4.ip_local_reserved_ports": "",
    "net.ipv4.ip_unprivileged_port_start": "1024",
    "net.ipv4.tcp_max_syn_backlog": "8192",
    "net.ipv4.tcp_mem": "100000\t200000\t300000",
    "net.ipv4.tcp_syncookies": "1",
}
MACHINE = Machine(
    system="linux",
    has_epoll=True,
    python=(3, 12, 1),
    libraries=dict.fromkeys((*LIBRARIES, *OPERATORS_LIBRARIES), "1.0"),
    redis_binary="/usr/bin/valkey-server",
    files=FileLimit(1024, 20_000, "this shell"),
    sysctls=SYSCTLS,
    available_bytes=8 * GB,
    room_bytes=None,
    clock_source="tsc",
    is_time_set=True,
    holders={},
    may_bind_low=False,
    unbound={},
    data_dir="",
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
CONFIG = {
    "appendfsync": "everysec",
    "cluster-require-full-coverage": "no",
    "min-replicas-to-write": "0",
    "tcp-keepalive": "300",
    "timeout": "0",
}
SERVER = RedisServer(name="redis-a:6379", info=INFO, config=CONFIG, pings_ms=[0.2, 0.3, 90.0])
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


def with_sysctls(**values: str | None) -> Machine:
    """Return the machine with other settings of the kernel; `__` stands for a dot, None for a missing one."""
    changed = {name.replace("__", "."): value for name, value in values.items()}
    return replace(MACHINE, sysctls={k: v for k, v in {**SYSCTLS, **changed}.items() if v is not None})


def with_info(**values: Any) -> dict[str, Any]:
    """Return what a Redis tells of itself, with some of it told otherwise."""
    return {**INFO, **values}


def cluster(*slots: tuple[int, int, int], servers: Sequence[RedisServer] = (SERVER,)) -> RedisFacts:
    """Return a cluster: of each range of slots the first, the last, and how many replicas there are."""
    rows = [Slots(*each) for each in slots]
    return RedisFacts(url="redis+cluster://a", is_cluster=True, failure="", servers=servers, slots=rows)


def one(findings: Sequence[Finding]) -> Finding:
    """Return the only finding."""
    (found,) = findings
    return found
