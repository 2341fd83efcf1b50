"""What a Redis tells of itself beside what servers need."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from presence.doctor import redis_servers as checks
from presence.doctor.findings import Finding, Status, Unknown
from presence.doctor.needs import Wanted
from presence.doctor.redis_facts import RedisFacts, RedisServer
from presence.settings import Settings
from tests.doctor.patients import CONFIG, GB, INFO, REFUSED, SERVER, with_info

WANTED = Wanted(19_000, 19_000, is_asked=False)


def examined(*servers: RedisServer, settings: Settings = Settings()) -> list[Finding]:  # noqa: B008 - frozen
    facts = RedisFacts(url="redis://a", is_cluster=len(servers) > 1, failure="", servers=servers)
    return checks.servers(settings, facts, WANTED)


def memory(info: dict[str, Any]) -> Finding:
    return checks.memory(Settings(), info, WANTED, 1)


def clients(info: dict[str, Any]) -> Finding:
    return checks.clients(Settings(workers=6, followups=()), info)


def replicas(info: dict[str, Any]) -> Finding:
    return checks.replicas(CONFIG | {"min-replicas-to-write": "1"}, info)


def test_a_sound_redis_is_found_so() -> None:
    assert {each.status for each in examined(SERVER)} == {Status.OK}


@pytest.mark.parametrize(
    ("check", "told", "status", "mend"),
    [
        (checks.version, {"redis_version": "6.2.0"}, Status.OK, ""),
        (checks.version, {"redis_version": "10.0.1"}, Status.OK, ""),
        (checks.version, {"redis_version": "6.0.16"}, Status.FAIL, "install a newer Redis"),
        (checks.version, {"redis_version": ""}, Status.FAIL, "install a newer Redis"),
        (
            checks.role,
            {"role": "slave", "master_host": "h", "master_port": 6379},
            Status.FAIL,
            "give its primary as redis: h:6379",
        ),
        (checks.persistence, {"aof_enabled": 0}, Status.WARN, "CONFIG SET appendonly yes"),
        (checks.persistence, {"aof_last_write_status": "err"}, Status.FAIL, "make room on its disk"),
        (checks.persistence, {"rdb_last_bgsave_status": "err"}, Status.FAIL, "vm.overcommit_memory"),
        (checks.eviction, {"maxmemory_policy": "allkeys-lru"}, Status.FAIL, "maxmemory-policy noeviction"),
        (memory, {"maxmemory": 0}, Status.WARN, "CONFIG SET maxmemory 179mb"),
        (memory, {"maxmemory": 100_000_000}, Status.WARN, "CONFIG SET maxmemory 179mb"),
        (memory, {"maxmemory": 179_000_000}, Status.OK, ""),
        (memory, {"maxmemory": 0, "total_system_memory": 10_000}, Status.FAIL, "stream_maxlen"),
        (clients, {"maxclients": 67, "connected_clients": 5}, Status.OK, ""),
        (clients, {"maxclients": 66, "connected_clients": 5}, Status.FAIL, "CONFIG SET maxclients 129"),
        (clients, {"maxclients": None}, Status.NOT_TRIED, ""),
        (replicas, {}, Status.FAIL, "CONFIG SET min-replicas-to-write 0"),
        (
            replicas,
            {"connected_slaves": 1, "slave0": {"state": "online", "lag": 1}, "min_slaves_good_slaves": 1},
            Status.OK,
            "",
        ),
        (
            replicas,
            {
                "connected_slaves": 1,
                "slave0": {"state": "wait_bgsave", "lag": 0},
                "min_slaves_good_slaves": 1,
            },
            Status.WARN,
            "log and network",
        ),
        (
            replicas,
            {"connected_slaves": 1, "slave0": {"state": "online", "lag": 11}, "min_slaves_good_slaves": 1},
            Status.WARN,
            "log and network",
        ),
    ],
)
def test_what_is_wanting_is_told_with_what_mends_it(
    check: Callable[[dict[str, Any]], Finding], told: dict[str, Any], status: Status, mend: str
) -> None:
    finding = check(with_info(**told))
    assert finding.status is status
    assert mend in finding.mend


def test_valkey_is_named() -> None:
    assert "Valkey 8.1" in checks.version(with_info(valkey_version="8.1")).have


@pytest.mark.parametrize(
    ("pings", "status"),
    [([0.1, 9.9, 700.0], Status.OK), ([9.0, 11.0, 12.0], Status.WARN), ([501.0, 600.0, 0.1], Status.FAIL)],
)
def test_the_median_of_pings_is_what_counts(pings: list[float], status: Status) -> None:
    assert checks.latency(replace(SERVER, pings_ms=pings)).status is status


@pytest.mark.parametrize(
    ("config", "status", "mend"),
    [
        ({"timeout": "0", "tcp-keepalive": "60"}, Status.OK, ""),
        ({"timeout": "60"}, Status.OK, ""),
        ({"timeout": "10"}, Status.WARN, "CONFIG SET timeout 0"),
        ({"tcp-keepalive": "0"}, Status.WARN, "CONFIG SET tcp-keepalive 300"),
    ],
)
def test_clients_that_wait_are_not_closed(config: dict[str, str], status: Status, mend: str) -> None:
    finding = checks.idle_clients(CONFIG | config)
    assert finding.status is status
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("policy", "enabled", "status"),
    [
        ("always", 1, Status.OK),
        ("everysec", 1, Status.OK),
        ("no", 1, Status.WARN),
        ("no", 0, Status.NOT_TRIED),
    ],
)
def test_the_log_is_on_the_disk_soon(policy: str, enabled: int, status: Status) -> None:
    assert checks.fsync(CONFIG | {"appendfsync": policy}, with_info(aof_enabled=enabled)).status is status


def test_what_may_not_be_asked_is_no_failure_and_the_right_is_named() -> None:
    findings = [each for each in examined(replace(SERVER, config=REFUSED)) if each.status is not Status.OK]
    assert {each.check for each in findings} == {"redis fsync", "redis idle clients"}
    assert {each.status for each in findings} == {Status.NOT_TRIED}
    assert all("'+config|get'" in each.mend for each in findings)


def test_one_that_tells_nothing_of_itself_is_examined_as_far_as_may_be() -> None:
    findings = examined(replace(SERVER, info=Unknown("no permissions to run the 'info' command")))
    tried = {each.check for each in findings if each.status is not Status.NOT_TRIED}
    assert tried == {"redis latency", "redis fsync", "redis idle clients"}


def test_of_several_each_is_named_and_has_its_share() -> None:
    other = replace(SERVER, name="redis-b:6379", info=INFO | {"role": "slave"})
    findings = examined(SERVER, other, settings=Settings(shards=16))
    (replica,) = [each for each in findings if each.status is Status.FAIL]
    assert replica.have.startswith("redis-b:6379: a replica")
    memories = [each for each in findings if each.check == "redis memory"]
    assert len(memories) == 2
    assert "each of 8 shards" in memories[0].need


def test_room_is_made_for_what_is_kept() -> None:
    info = INFO | {"maxmemory": GB}
    assert checks.memory(Settings(stream_maxlen=100_000_000), info, WANTED, 1).status is Status.WARN
