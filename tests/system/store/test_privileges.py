"""A server looks at its rights on each server of a Redis Cluster."""

from collections.abc import Iterator

import pytest

from presence.store.keys import Keys
from presence.store.privileges import OTHERS_KEYS, MissingRight, check_rights
from tests.docs.roles import ask, permissions
from tests.store.test_privileges import as_tried, make, rights
from tests.support.redis_cluster import Cluster


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Iterator[Cluster]:
    yield redis_cluster
    for member in redis_cluster.members:
        ask(member.client, "ACL", "DELUSER", "tried")


def test_each_server_of_a_cluster_is_looked_at(cluster: Cluster) -> None:
    keys = Keys(shards=16)
    rules = [*rights("server"), *permissions("server", "cluster")]
    for member in cluster.members:
        make(member.client, rules)
    assert check_rights(as_tried(cluster.url), keys, followups=False) == ([], "")
    make(cluster.primary_of("{0}").client, [rule for rule in rules if rule != "+xadd"])
    with pytest.raises(MissingRight, match=r"\+xadd$"):
        check_rights(as_tried(cluster.url), keys, followups=False)
    make(cluster.primary_of("{0}").client, [*rules, "allkeys"])
    assert check_rights(as_tried(cluster.url), keys, followups=False).too_much == [OTHERS_KEYS]
