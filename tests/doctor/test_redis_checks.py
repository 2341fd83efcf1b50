"""Facts about a Redis compared with what servers need, and what servers share in it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from presence.config.settings import Settings
from presence.doctor import redis_checks as checks
from presence.doctor.machine_checks import ConnectionCounts
from presence.doctor.redis_facts import RedisFacts, RedisServer
from presence.doctor.results import CheckResult, CheckStatus, Unknown
from tests.doctor.contexts import INFO, NODE, REFUSED, SENTINEL, SERVER, cluster

WANTED = ConnectionCounts(19_000, 19_000, is_asked=False)
SOUND = RedisFacts(url="redis://a", is_cluster=False, failure="", data=("2", "1"), nodes=[NODE])
SETTINGS = Settings(lease=10.0, idle_timeout=30.0)
SILENT_SENTINEL = replace(SENTINEL, primary=Unknown("refused"))
LACKS = "the user u lacks rights: fix it with ACL SETUSER u +xadd"
OK, WARN, FAIL, NOT_TRIED = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.NOT_TRIED


def checked(*servers: RedisServer, settings: Settings = Settings()) -> list[CheckResult]:  # noqa: B008 - frozen
    facts = RedisFacts(url="redis://a", is_cluster=len(servers) > 1, failure="", servers=servers)
    return checks.servers(settings, facts, WANTED)


def memory(info: dict[str, Any]) -> CheckResult:
    return checks.memory(Settings(), info, WANTED, 1)


def clients(info: dict[str, Any]) -> CheckResult:
    return checks.clients(Settings(workers=6, followups=()), info)


def one_replica(state: str, lag: int) -> dict[str, Any]:
    return {"connected_slaves": 1, "slave0": {"state": state, "lag": lag}}


REPLICA = {"role": "slave", "master_host": "h", "master_port": 6379}


@pytest.mark.parametrize(
    ("check", "facts", "status", "fix"),
    [
        (checks.version, {"redis_version": "6.2.0"}, OK, ""),
        (checks.version, {"redis_version": "10.0.1"}, OK, ""),
        (checks.version, {"redis_version": "6.0.16"}, FAIL, "install a newer Redis"),
        (checks.version, {"redis_version": ""}, FAIL, "install a newer Redis"),
        (checks.role, REPLICA, FAIL, "give its primary as redis: h:6379"),
        (checks.persistence, {"aof_enabled": 0}, WARN, "CONFIG SET appendonly yes"),
        (checks.persistence, {"aof_last_write_status": "err"}, FAIL, "make room on its disk"),
        (checks.persistence, {"rdb_last_bgsave_status": "err"}, FAIL, "vm.overcommit_memory"),
        (checks.eviction, {"maxmemory_policy": "allkeys-lru"}, FAIL, "maxmemory-policy noeviction"),
        (memory, {"maxmemory": 0}, WARN, "CONFIG SET maxmemory 179mb"),
        (memory, {"maxmemory": 100_000_000}, WARN, "CONFIG SET maxmemory 179mb"),
        (memory, {"maxmemory": 179_000_000}, OK, ""),
        (memory, {"maxmemory": 0, "total_system_memory": 10_000}, FAIL, "stream_maxlen"),
        (clients, {"maxclients": 67, "connected_clients": 5}, OK, ""),
        (clients, {"maxclients": 66, "connected_clients": 5}, FAIL, "CONFIG SET maxclients 129"),
        (clients, {"maxclients": None}, NOT_TRIED, ""),
        (checks.replicas, {}, OK, ""),
        (checks.replicas, one_replica("online", 1), OK, ""),
        (checks.replicas, one_replica("wait_bgsave", 0), WARN, "log and network"),
        (checks.replicas, one_replica("online", 11), WARN, "log and network"),
    ],
)
def test_a_problem_is_reported_with_its_fix(
    check: Callable[[dict[str, Any]], CheckResult], facts: dict[str, Any], status: CheckStatus, fix: str
) -> None:
    result = check({**INFO, **facts})
    assert result.status is status
    assert fix in result.fix


@pytest.mark.parametrize(
    ("pings", "status"),
    [([0.1, 9.9, 700.0], OK), ([9.0, 11.0, 12.0], WARN), ([501.0, 600.0, 0.1], FAIL)],
)
def test_the_median_of_pings_counts(pings: list[float], status: CheckStatus) -> None:
    assert checks.latency(replace(SERVER, pings_ms=pings)).status is status


def test_a_server_that_refuses_facts_is_no_failure_and_the_permission_is_named() -> None:
    results = checked(replace(SERVER, info=Unknown("no permissions to run the 'info' command")))
    assert [each.check for each in results if each.status is not NOT_TRIED] == ["redis latency"]
    assert all("'+info'" in each.fix for each in results if each.status is NOT_TRIED)


def test_each_of_several_servers_is_named_and_has_its_share() -> None:
    other = replace(SERVER, name="redis-b:6379", info=INFO | {"role": "slave"})
    results = checked(SERVER, other, settings=Settings(shards=16))
    (replica,) = [each for each in results if each.status is FAIL]
    assert replica.have.startswith("redis-b:6379: a replica")
    memories = [each for each in results if each.check == "redis memory"]
    assert len(memories) == 2
    assert "each of 8 shards" in memories[0].need


def data(found: RedisFacts) -> CheckResult:
    return checks.data(Settings(shards=16), found)


def sentinels(found: RedisFacts) -> CheckResult:
    (result,) = checks.sentinels(found)
    return result


def nodes_settings(found: RedisFacts) -> CheckResult:
    return checks.nodes_settings(SETTINGS, found)


def other(**changed: Any) -> dict[str, Any]:
    """Return the nodes of a valid Redis, and another one with these changes."""
    return {"nodes": [NODE, replace(NODE, node="b", **changed)]}


@pytest.mark.parametrize(
    ("check", "changed", "status", "words"),
    [
        (checks.rights, {}, OK, ""),
        (checks.rights, {"missing": LACKS}, FAIL, "ACL SETUSER u +xadd"),
        (checks.rights, {"missing": "the user lacks rights: multi, and others"}, FAIL, "redis.md"),
        (checks.rights, {"no_events": "ACL SETUSER u +xread"}, WARN, "ACL SETUSER u +xread"),
        (checks.rights, {"too_much": ["FLUSHALL"]}, WARN, "deploy/redis/users.acl"),
        (checks.rights, {"missing": Unknown("ConnectionError")}, NOT_TRIED, ""),
        (data, {"data": (None, None)}, OK, ""),
        (data, {"data": ("2", "16")}, OK, ""),
        (data, {"data": ("2", "1")}, FAIL, "--shards 1, as in the data"),
        (data, {"data": ("1", "16")}, FAIL, "the release that wrote the data"),
        (data, {"data": ("3", "16")}, FAIL, "another --prefix"),
        (data, {"data": Unknown("WRONGTYPE")}, NOT_TRIED, ""),
        (sentinels, {"sentinels": [SENTINEL]}, OK, "1 name redis-a:6379"),
        (sentinels, {"sentinels": [SENTINEL, replace(SENTINEL, primary="b:1")]}, WARN, "b:1, redis-a:6379"),
        (sentinels, {"sentinels": [replace(SENTINEL, quorum="NOQUORUM 1 usable")]}, WARN, "NOQUORUM"),
        (sentinels, {"sentinels": [SENTINEL, SILENT_SENTINEL]}, WARN, "sentinel-a:26379: refused"),
        (sentinels, {"sentinels": [SILENT_SENTINEL]}, FAIL, "sentinel-a:26379: refused"),
        (checks.nodes, {"nodes": []}, OK, "none yet"),
        (checks.nodes, {}, OK, "1"),
        (checks.nodes, other(status="silent"), WARN, "b silent"),
        (checks.nodes, other(status="dead"), WARN, "b dead"),
        (checks.nodes, other(readiness="redis_away"), WARN, "b redis_away"),
        (checks.nodes, other(version="2.0"), WARN, "versions 1.0, 2.0"),
        (checks.nodes, {"nodes": Unknown("no permissions")}, NOT_TRIED, "no permissions"),
        (nodes_settings, {"nodes": []}, OK, ""),
        (nodes_settings, {}, OK, ""),
        (nodes_settings, other(settings=None), OK, ""),
        (
            nodes_settings,
            other(settings="lease=5.0 idle_timeout=30.0 max_sessions=1"),
            WARN,
            "b has lease=5.0 max_sessions=1; here lease=10.0 max_sessions=8",
        ),
        (nodes_settings, other(status="silent", settings="lease=5.0"), OK, ""),
        (nodes_settings, {"nodes": Unknown("no permissions")}, NOT_TRIED, ""),
    ],
)
def test_data_that_servers_share_are_checked(
    check: Callable[[RedisFacts], CheckResult], changed: dict[str, Any], status: CheckStatus, words: str
) -> None:
    result = check(replace(SOUND, **changed))
    assert result.status is status
    assert words in f"{result.have} {result.fix}"


@pytest.mark.parametrize(
    ("slots", "served", "replicated"),
    [
        ([(0, 8191, 1), (8192, 16383, 1)], OK, OK),
        ([(0, 8191, 1), (8192, 16383, 0)], OK, WARN),
        ([(0, 8191, 1), (8193, 16383, 1)], FAIL, OK),
        ([], FAIL, OK),
    ],
)
def test_each_slot_has_a_server_and_each_server_a_replica(
    slots: list[tuple[int, int, int]], served: CheckStatus, replicated: CheckStatus
) -> None:
    first, second = checks.cluster(cluster(*slots))
    assert (first.status, second.status) == (served, replicated)
    results = checks.cluster(replace(cluster(*slots), slots=REFUSED))
    assert [each.status for each in results] == [NOT_TRIED, NOT_TRIED]
