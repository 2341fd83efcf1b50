"""What servers share in Redis."""

from dataclasses import replace
from typing import Any

import pytest

from presence.doctor import shared_data
from presence.doctor.findings import Status, Unknown
from presence.doctor.redis_facts import RedisFacts
from presence.settings import Settings
from presence.store.nodes import NodeState
from tests.doctor.patients import NODE, REFUSED, SERVER, cluster, one

SOUND = RedisFacts(url="redis://a", is_cluster=False, failure="", data=("1", "1"), nodes=[NODE])
SETTINGS = Settings(lease=10.0, idle_timeout=30.0)
LACKS = "the user u lacks rights: mend it with ACL SETUSER u +xadd"


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
    finding = one(shared_data.rights(replace(SOUND, **changed)))
    assert finding.status is status
    assert mend in finding.mend


def test_one_server_is_no_cluster() -> None:
    assert shared_data.cluster(SOUND) == []


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
    first, second, _ = shared_data.cluster(cluster(*slots))
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
    finding = shared_data.full_coverage(cluster((0, 16383, 1), servers=servers))
    assert finding.status is status
    assert ("b:1" in finding.have) is (status is Status.WARN)


def test_a_map_that_may_not_be_asked_for_is_no_failure() -> None:
    findings = shared_data.cluster(replace(cluster(), slots=REFUSED))
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
    finding = shared_data.data(Settings(shards=shards), replace(SOUND, data=data))
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
    finding = shared_data.nodes(replace(SOUND, nodes=nodes))
    assert (finding.status, finding.have) == (status, have)


def test_of_many_who_are_unwell_some_are_named() -> None:
    many = [replace(NODE, node=f"n{number}", status="silent") for number in range(8)]
    assert shared_data.nodes(replace(SOUND, nodes=many)).have.endswith("n4 silent and 3 more")


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
    finding = shared_data.nodes_settings(SETTINGS, replace(SOUND, nodes=nodes))
    assert finding.status is status


def test_what_differs_is_named_by_node_and_value() -> None:
    other = replace(NODE, node="node-b", settings="lease=5.0 idle_timeout=30.0 max_sessions=1")
    finding = shared_data.nodes_settings(SETTINGS, replace(SOUND, nodes=[NODE, other]))
    assert finding.have == "node-b has lease=5.0 max_sessions=1; here lease=10.0 max_sessions=8"
