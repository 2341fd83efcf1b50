"""What a Redis tells of itself beside what servers need, and what servers share in it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from presence.doctor import redis_checks as checks
from presence.doctor.findings import Finding, Status, Unknown
from presence.doctor.machine import Wanted
from presence.doctor.redis_facts import RedisFacts, RedisServer
from presence.settings import Settings
from presence.store.nodes import NodeState
from tests.doctor.patients import CONFIG, INFO, NODE, REFUSED, SERVER, cluster, with_info

WANTED = Wanted(19_000, 19_000, is_asked=False)
SOUND = RedisFacts(url="redis://a", is_cluster=False, failure="", data=("1", "1"), nodes=[NODE])
SETTINGS = Settings(lease=10.0, idle_timeout=30.0)
LACKS = "the user u lacks rights: mend it with ACL SETUSER u +xadd"


def examined(*servers: RedisServer, settings: Settings = Settings()) -> list[Finding]:  # noqa: B008 - frozen
    facts = RedisFacts(url="redis://a", is_cluster=len(servers) > 1, failure="", servers=servers)
    return checks.servers(settings, facts, WANTED)


def memory(info: dict[str, Any]) -> Finding:
    return checks.memory(Settings(), info, WANTED, 1)


def clients(info: dict[str, Any]) -> Finding:
    return checks.clients(Settings(workers=6, followups=()), info)


def replicas(info: dict[str, Any]) -> Finding:
    return checks.replicas(CONFIG | {"min-replicas-to-write": "1"}, info)


def one_replica(state: str, lag: int) -> dict[str, Any]:
    return {"connected_slaves": 1, "slave0": {"state": state, "lag": lag}, "min_slaves_good_slaves": 1}


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
        (replicas, one_replica("online", 1), Status.OK, ""),
        (replicas, one_replica("wait_bgsave", 0), Status.WARN, "log and network"),
        (replicas, one_replica("online", 11), Status.WARN, "log and network"),
    ],
)
def test_what_is_wanting_is_told_with_what_mends_it(
    check: Callable[[dict[str, Any]], Finding], told: dict[str, Any], status: Status, mend: str
) -> None:
    finding = check(with_info(**told))
    assert finding.status is status
    assert mend in finding.mend


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


@pytest.mark.parametrize(
    ("changed", "status", "mend"),
    [
        ({}, Status.OK, ""),
        ({"missing": LACKS}, Status.FAIL, "ACL SETUSER u +xadd"),
        ({"missing": "the user lacks rights: multi, and others"}, Status.FAIL, "redis.md"),
        ({"no_events": "ACL SETUSER u +xread"}, Status.WARN, "ACL SETUSER u +xread"),
        ({"too_much": ["FLUSHALL"]}, Status.WARN, "deploy/redis/users.acl"),
        ({"missing": Unknown("ConnectionError")}, Status.NOT_TRIED, ""),
    ],
)
def test_rights_are_those_of_a_server(changed: dict[str, Any], status: Status, mend: str) -> None:
    finding = checks.rights(replace(SOUND, **changed))
    assert finding.status is status
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("slots", "served", "replicated"),
    [
        ([(0, 8191, 1), (8192, 16383, 1)], Status.OK, Status.OK),
        ([(0, 8191, 1), (8192, 16383, 0)], Status.OK, Status.WARN),
        ([(0, 8191, 1), (8193, 16383, 1)], Status.FAIL, Status.OK),
        ([], Status.FAIL, Status.OK),
    ],
)
def test_each_slot_has_a_server_and_each_server_a_replica(
    slots: list[tuple[int, int, int]], served: Status, replicated: Status
) -> None:
    first, second, _ = checks.cluster(cluster(*slots))
    assert (first.status, second.status) == (served, replicated)


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"cluster-require-full-coverage": "no"}, Status.OK),
        ({"cluster-require-full-coverage": "yes"}, Status.WARN),
        (REFUSED, Status.NOT_TRIED),
    ],
)
def test_one_primary_that_is_lost_stops_its_own_shards_only(config: Any, status: Status) -> None:
    servers = [SERVER, replace(SERVER, name="b:1", config=config)]
    finding = checks.full_coverage(cluster((0, 16383, 1), servers=servers))
    assert finding.status is status
    assert ("b:1" in finding.have) is (status is Status.WARN)


def test_a_map_that_may_not_be_asked_for_is_no_failure() -> None:
    findings = checks.cluster(replace(cluster(), slots=REFUSED))
    assert [each.status for each in findings] == [Status.NOT_TRIED, Status.NOT_TRIED]


@pytest.mark.parametrize(
    ("data", "shards", "status", "mend"),
    [
        ((None, None), 16, Status.OK, ""),
        (("1", "16"), 16, Status.OK, ""),
        (("1", "1"), 16, Status.FAIL, "--shards 1, as it was begun"),
        (("2", "16"), 16, Status.FAIL, "another --prefix"),
        (Unknown("WRONGTYPE"), 16, Status.NOT_TRIED, ""),
    ],
)
def test_data_is_of_the_version_and_the_shards_that_servers_are_set_to(
    data: Any, shards: int, status: Status, mend: str
) -> None:
    finding = checks.data(Settings(shards=shards), replace(SOUND, data=data))
    assert finding.status is status
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("nodes", "status", "have"),
    [
        ([], Status.OK, "nobody yet"),
        ([NODE], Status.OK, "1"),
        ([NODE, replace(NODE, node="b", status="silent")], Status.WARN, "b silent"),
        ([NODE, replace(NODE, node="b", status="dead")], Status.WARN, "b dead"),
        ([NODE, replace(NODE, node="b", readiness="redis_away")], Status.WARN, "b redis_away"),
        ([NODE, replace(NODE, node="b", version="2.0")], Status.WARN, "versions 1.0, 2.0"),
        (Unknown("no permissions"), Status.NOT_TRIED, "no permissions"),
    ],
)
def test_everybody_in_the_table_is_alive_and_alike(nodes: Any, status: Status, have: str) -> None:
    finding = checks.nodes(replace(SOUND, nodes=nodes))
    assert (finding.status, finding.have) == (status, have)


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ([], Status.OK),
        ([NODE], Status.OK),
        ([replace(NODE, settings=None)], Status.OK),
        ([replace(NODE, settings="lease=5.0 idle_timeout=30.0")], Status.WARN),
        ([replace(NODE, status="silent", settings="lease=5.0")], Status.OK),
        (Unknown("no permissions"), Status.NOT_TRIED),
    ],
)
def test_those_who_share_a_redis_agree(nodes: list[NodeState], status: Status) -> None:
    finding = checks.nodes_settings(SETTINGS, replace(SOUND, nodes=nodes))
    assert finding.status is status


def test_what_differs_is_named_by_node_and_value() -> None:
    other = replace(NODE, node="node-b", settings="lease=5.0 idle_timeout=30.0 max_sessions=1")
    finding = checks.nodes_settings(SETTINGS, replace(SOUND, nodes=[NODE, other]))
    assert finding.have == "node-b has lease=5.0 max_sessions=1; here lease=10.0 max_sessions=8"
