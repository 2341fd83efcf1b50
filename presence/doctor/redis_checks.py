"""Checks of Redis: each server that holds keys, and the shared data. Pure.

Fixes of a server are given as in redis.conf.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from presence import __version__
from presence.config.settings import Settings
from presence.doctor.machine_checks import ConnectionCounts
from presence.doctor.redis_facts import RedisFacts, RedisServer, Slots
from presence.doctor.results import (
    CHECKS,
    CheckResult,
    Unknown,
    count,
    fail,
    megabytes,
    not_tried,
    ok,
    warn,
)
from presence.store.node_states import NodeState
from presence.store.script_arguments import DATA_VERSION

OLDEST: Final = (6, 2)
# Bytes of Redis, and its clients: docs/redis.md has the table.
USER_BYTES: Final = 329
EVENT_BYTES: Final = 113
MEMORY_HEADROOM: Final = 1.5  # scripts, clients, the copies while a snapshot or a log is written
CLIENTS_PER_WORKER: Final = 4
OTHER_CLIENTS: Final = 32  # operators, readers, monitoring
SLOW_MS: Final = 10.0  # far above a LAN: every event is that much late
HANGING_MS: Final = 500.0  # servers treat it as an outage
MAX_REPLICA_LAG_S: Final = 10
SLOTS: Final = 16_384  # of every Redis Cluster
_NAMED: Final = 5  # nodes, in one line
_SET: Final = "redis-cli CONFIG SET {0} {1}, and {0} {1} in redis.conf"

_CLUSTER_CHECKS: Final = ("slots", "slots' replicas")
_SHARED_CHECKS: Final = ("replicas", "data", "nodes", "nodes' settings")
_REDIS_CHECKS: Final = tuple(name for name in CHECKS if name.startswith("redis "))


def redis(settings: Settings, found: RedisFacts, connections: ConnectionCounts) -> Iterator[CheckResult]:
    """Give all results about Redis and what it holds."""
    need = "an answer within 2 s"
    if found.failure:
        yield fail("redis", need, f"{found.url}: {found.failure}", _fix(found.failure))
        names = (*_REDIS_CHECKS, *_SHARED_CHECKS, *(_CLUSTER_CHECKS if found.is_cluster else ()))
        yield from left_out(names, "Redis does not answer")
        yield from sentinels(found)
        return
    yield ok("redis", need, found.url)
    yield from servers(settings, found, connections)
    yield rights(found)
    yield from cluster(found)
    yield from sentinels(found)
    yield data(settings, found)
    yield nodes(found)
    yield nodes_settings(settings, found)


def without_redis() -> Iterator[CheckResult]:
    """Give the results if no Redis is given."""
    yield from left_out(("redis", *_REDIS_CHECKS, *_SHARED_CHECKS), "no redis URL: serve starts its own")


def left_out(names: Collection[str], why: str) -> Iterator[CheckResult]:
    """Give a result for each check that is not possible."""
    for name in names:
        yield not_tried(name, CHECKS[name], why)


def _fix(failure: str) -> str:
    """Return the fix for a Redis that does not answer, by its error."""
    if any(word in failure.lower() for word in ("auth", "password", "wrongpass")):
        return "put user and password into the URL: redis://USER:PASSWORD@HOST; its user is in ACL LIST"
    if "noperm" in failure.lower() or "permissions" in failure.lower():
        return "give the user +ping, and what docs/redis.md lists"
    if "TLS" in failure or "certificate" in failure:
        return "use rediss:// for TLS, with ?ssl_ca_certs=FILE for your own authority"
    return "start it, or name another with --redis URL; redis-cli -u URL PING does the same check"


def servers(settings: Settings, found: RedisFacts, connections: ConnectionCounts) -> list[CheckResult]:
    """Return the results about all servers, with names if there are several."""
    results = []
    for server in found.servers:
        some = _server(settings, server, connections, len(found.servers))
        where = f"{server.name}: " if len(found.servers) > 1 else ""
        results += [CheckResult(f.check, f.status, f.need, where + f.have, f.fix) for f in some]
    return results


def _server(
    settings: Settings, server: RedisServer, connections: ConnectionCounts, of: int
) -> list[CheckResult]:
    info = server.info
    if isinstance(info, Unknown):
        names = [
            f"redis {name}" for name in ("version", "role", "persistence", "eviction", "memory", "clients")
        ]
        fix = "to enable it: ACL SETUSER with '+info', or --redis with another user"
        return [not_tried(name, "INFO", info.why, fix) for name in (*names, "replicas")] + [latency(server)]
    return [
        version(info),
        role(info),
        persistence(info),
        eviction(info),
        memory(settings, info, connections, of),
        clients(settings, info),
        replicas(info),
        latency(server),
    ]


def version(info: Mapping[str, Any]) -> CheckResult:
    need, text = "Redis 6.2 or newer, or Valkey", str(info.get("redis_version", ""))
    valkey = f", Valkey {info['valkey_version']}" if "valkey_version" in info else ""
    numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if numbers < OLDEST:
        return fail("redis version", need, text or "unknown", "install a newer Redis, or Valkey")
    return ok("redis version", need, text + valkey)


def role(info: Mapping[str, Any]) -> CheckResult:
    """Check that it accepts writes."""
    need, have = "a primary", str(info.get("role", "unknown"))
    if have == "master":
        return ok("redis role", need, "it is one")
    primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    return fail("redis role", need, f"a replica of {primary}", f"give its primary as redis: {primary}")


def persistence(info: Mapping[str, Any]) -> CheckResult:
    """Check that acknowledged data survives a restart, and that it can be written."""
    check, need = (
        "redis persistence",
        "an append-only file: for streams, last-seen times, positions of groups",
    )
    if info.get("aof_last_write_status", "ok") != "ok":
        return fail(check, need, "the append-only file cannot be written", "make room on its disk")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        fix = "make room on its disk, or memory for its fork (vm.overcommit_memory = 1); see its log"
        return fail(check, need, "the last snapshot failed, so it may refuse writes", fix)
    if not info.get("aof_enabled"):
        have = "appendonly no: a restart loses events and last-seen times"
        return warn(check, need, have, _SET.format("appendonly", "yes"))
    return ok(check, need, "appendonly yes")


def eviction(info: Mapping[str, Any]) -> CheckResult:
    """Check that no keys are evicted."""
    need, have = "maxmemory-policy noeviction", str(info.get("maxmemory_policy", "unknown"))
    if have == "noeviction":
        return ok("redis eviction", need, have)
    fix = _SET.format("maxmemory-policy", "noeviction")
    return fail("redis eviction", need, f"{have}: it may delete records of users online", fix)


def memory(
    settings: Settings, info: Mapping[str, Any], connections: ConnectionCounts, servers: int
) -> CheckResult:
    """Check the memory for users and streams, and half as much again."""
    shards = -(-settings.shard_count // servers)  # per server, spread evenly
    streams = shards * settings.stream_maxlen * EVENT_BYTES
    users = -(-connections.total * USER_BYTES // servers)
    wanted = int((streams + users) * MEMORY_HEADROOM)
    need = (
        f"{megabytes(wanted)}: {count(connections.total)} users of these workers, "
        f"{count(settings.stream_maxlen)} events in each of {shards} shards, half as much again"
    )
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    line = _SET.format("maxmemory", f"{-(-wanted // 1_000_000)}mb")
    if not limit:
        machine = int(info.get("total_system_memory", 0))
        have = f"no limit, {megabytes(used)} in use: the kernel kills Redis when memory runs out"
        if machine and wanted > machine:
            return fail("redis memory", need, f"a machine of {megabytes(machine)}", "a smaller stream_maxlen")
        return warn("redis memory", need, have, f"{line}, or more")
    have = f"maxmemory {megabytes(limit)}, {megabytes(used)} in use"
    if limit < wanted:
        return warn("redis memory", need, have, f"{line}, or a smaller stream_maxlen")
    return ok("redis memory", need, have)


def clients(settings: Settings, info: Mapping[str, Any]) -> CheckResult:
    """Check that all workers can connect."""
    each = CLIENTS_PER_WORKER + (settings.followups is not None)
    wanted = settings.workers * each + OTHER_CLIENTS
    need = f"{count(wanted)} connections: {each} per worker, and {OTHER_CLIENTS} more"
    most, now = info.get("maxclients"), int(info.get("connected_clients", 0))
    if most is None:
        return not_tried("redis clients", need, "maxclients is unknown")
    have = f"maxclients {count(int(most))}, {count(now)} in use"
    if int(most) - now >= wanted:
        return ok("redis clients", need, have)
    return fail("redis clients", need, have, _SET.format("maxclients", now + 2 * wanted))


def replicas(info: Mapping[str, Any]) -> CheckResult:
    """Check the lag of replicas."""
    check, need = "replicas", "each has little lag"
    known = [each for n in range(int(info.get("connected_slaves", 0))) if (each := info.get(f"slave{n}"))]
    late = [
        f"{each.get('ip')}:{each.get('port')} ({each.get('state')}, {each.get('lag')} s behind)"
        for each in known
        if each.get("state") != "online" or int(each.get("lag", 0)) > MAX_REPLICA_LAG_S
    ]
    if late:
        return warn(check, need, f"late: {', '.join(late)}", "check that replica's log and network")
    return ok(check, need, f"{len(known)} replicas" if known else "no replica")


def latency(server: RedisServer) -> CheckResult:
    took = median(server.pings_ms)
    need, have = f"a median of at most {SLOW_MS:g} ms", f"{took:.2f} ms"
    if took <= SLOW_MS:
        return ok("redis latency", need, have)
    fix = "put Redis into the same network as the servers; redis-cli --latency, SLOWLOG GET"
    return (fail if took > HANGING_MS else warn)("redis latency", need, have, fix)


def rights(found: RedisFacts) -> CheckResult:
    """Check that the user has the permissions that servers need, and no more."""
    check, need = "redis rights", "what servers need, and nothing else: see docs/redis.md"
    if isinstance(found.missing, Unknown):
        return not_tried(check, need, found.missing.why)
    if found.missing:
        have, _, fix = found.missing.partition(": fix it with ")
        return fail(check, need, have, fix or "create the user again, as in docs/redis.md")
    if found.no_events:
        return warn(check, need, "the live page and /v1/events cannot read events", found.no_events)
    if found.too_much:
        have = f"also has {', '.join(found.too_much)}"
        fix = "a user of its own for servers: deploy/redis/users.acl, or docs/redis.md"
        return warn(check, need, have, fix)
    return ok(check, need, "exactly that")


def cluster(found: RedisFacts) -> list[CheckResult]:
    """Return the results about a cluster; none for a single server."""
    if not found.is_cluster:
        return []
    if isinstance(found.slots, Unknown):
        return [
            not_tried(name, "CLUSTER SLOTS", found.slots.why, "ACL SETUSER with '+cluster|slots'")
            for name in _CLUSTER_CHECKS
        ]
    return [slots(found.slots), slots_replicas(found.slots)]


def slots(found: Sequence[Slots]) -> CheckResult:
    """Check that each slot is served."""
    served = sum(each.last - each.first + 1 for each in found)
    need, have = f"all {SLOTS:,} served", f"{served:,}"
    if served == SLOTS:
        return ok("slots", need, have)
    return fail("slots", need, have, "redis-cli --cluster check HOST:PORT, then --cluster fix")


def slots_replicas(found: Sequence[Slots]) -> CheckResult:
    """Check that each primary has a replica."""
    need = "a replica of each primary"
    bare = sum(each.last - each.first + 1 for each in found if not each.replicas)
    if not bare:
        return ok(
            "slots' replicas", need, f"{min((each.replicas for each in found), default=0)} at the least"
        )
    have = f"{bare:,} slots of primaries without one: if such a primary is lost, its shards are unavailable"
    fix = "redis-cli --cluster add-node NEW EXISTING --cluster-slave"
    return warn("slots' replicas", need, have, fix)


def sentinels(found: RedisFacts) -> list[CheckResult]:
    """Return the result about Sentinels; none without them."""
    if not found.sentinels:
        return []
    check, need = "sentinels", "each answers, they name one primary, and could replace it"
    named, troubles = set(), []
    for each in found.sentinels:
        if isinstance(each.primary, Unknown):
            troubles.append(f"{each.name}: {each.primary.why}")
        else:
            named.add(each.primary)
            troubles += [f"{each.name}: {each.quorum}"] if each.quorum else []
    if not named:
        fix = "start them, or correct addresses, password and the name of the primary in the URL"
        return [fail(check, need, _some(troubles), fix)]
    if len(named) > 1:
        return [warn(check, need, f"they name {_some(sorted(named))}", "try again: a failover takes seconds")]
    if troubles:
        fix = "start those that do not answer; redis-cli -p 26379 SENTINEL CKQUORUM NAME"
        return [warn(check, need, _some(troubles), fix)]
    return [ok(check, need, f"{len(found.sentinels)} name {named.pop()}")]


def data(settings: Settings, found: RedisFacts) -> CheckResult:
    """Check that data under the prefix has this version and number of shards."""
    check = "data"
    need = f"version {DATA_VERSION} and {settings.shard_count} shards under {settings.prefix}:"
    if isinstance(found.data, Unknown):
        return not_tried(check, need, found.data.why)
    version, shards = found.data
    if version is None and shards is None:
        return ok(check, need, "none yet: the first server writes it")
    have = f"version {version}, {shards} shards"
    if version != DATA_VERSION:
        return fail(check, need, have, "use another --prefix, or the release that wrote the data")
    if shards != str(settings.shard_count):
        fix = f"--shards {shards}, as in the data; or another --prefix"
        return fail(check, need, have, fix)
    return ok(check, need, have)


def nodes(found: RedisFacts) -> CheckResult:
    """Check that all nodes with a lease are alive, and run one version."""
    check, need = "nodes", "all alive and ready, of one version"
    if isinstance(found.nodes, Unknown):
        return not_tried(check, need, found.nodes.why)
    unwell = [
        f"{node.node} {node.status if node.status != 'alive' else node.readiness}"
        for node in found.nodes
        if node.status not in {"alive", "left"}
        or (node.status == "alive" and node.readiness not in {"ready", None})
    ]
    alive = [node for node in found.nodes if node.status == "alive"]
    versions = sorted({node.version or "unknown" for node in alive})
    if unwell:
        fix = "see presence nodes; users of a silent node go offline soon unless it returns"
        return warn(check, need, _some(unwell), fix)
    if len(versions) > 1:
        return warn(check, need, f"versions {', '.join(versions)}", f"upgrade the others to {__version__}")
    return ok(check, need, f"{len(alive)}" if alive else "none yet")


def nodes_settings(settings: Settings, found: RedisFacts) -> CheckResult:
    """Check that all nodes have these shared settings."""
    check, need = "nodes' settings", "the same on all nodes that share a Redis"
    if isinstance(found.nodes, Unknown):
        return not_tried(check, need, found.nodes.why)
    with_settings = [node for node in found.nodes if node.status == "alive" and node.settings]
    ours = _pairs(settings.shared)
    others = [
        f"{node.node} has {' '.join(f'{name}={value}' for name, value in _differing(node, ours))}"
        for node in with_settings
        if _differing(node, ours)
    ]
    if not others:
        return ok(check, need, settings.shared if with_settings else "no other nodes")
    names = sorted({name for node in with_settings for name, _ in _differing(node, ours)})
    here = " ".join(f"{name}={ours.get(name, 'unknown')}" for name in names)
    fix = "give all nodes the same settings, and restart the others one after the other"
    return warn(check, need, f"{_some(others)}; here {here}", fix)


def _differing(node: NodeState, ours: dict[str, str]) -> list[tuple[str, str]]:
    theirs = _pairs(node.settings or "")
    return [(name, theirs[name]) for name in sorted(theirs) if ours.get(name) != theirs[name]]


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def _some(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
