"""The table of metrics: names by Prometheus' rules, labels with few values, places that samples have."""

import re
from pathlib import Path as FilePath
from typing import Any

import pytest

from presence.admin.metric_kinds import Kind, Metric, Path
from presence.admin.metric_table import REFUSALS, TABLE
from presence.admin.own_figures import FIGURES, HISTOGRAMS
from presence.admin.service_metrics import TOKEN_REASONS
from presence.auth.tokens import Reason
from presence.embedded import EmbeddedRedis
from presence.rules import Rule
from tests.credentials import SECRET, write_keys
from tests.test_server import served
from tests.transports import certificates

# Each has a fixed set of values, or one a worker: nothing that users choose.
LABELS = {
    *("worker", "reason", "type", "kind", "limit", "table", "result", "use", "task", "outcome", "mode"),
    *("work", "status", "readiness", "route", "verb", "view", "node", "address", "version", "python"),
}
OF_INFOS = {"node", "address", "version", "python"}  # one at a time for each worker


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_names_follow_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"presence_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert not re.search(r"_(ms|milliseconds|kb|mb|count|sum|bucket)(_|$)", metric.name)


def test_names_are_unique() -> None:
    assert len({metric.name for metric in TABLE}) == len(TABLE)


def test_no_label_is_chosen_by_users() -> None:
    assert {label for metric in TABLE for label in metric.labels} == LABELS
    assert not OF_INFOS & {label for each in TABLE if each.kind is not Kind.INFO for label in each.labels}


def test_what_is_of_no_worker_has_its_figures() -> None:
    own = {metric.name for metric in TABLE if not metric.is_of_workers}
    assert own == {*FIGURES, *HISTOGRAMS}


def test_tables_are_those_of_their_rooms() -> None:
    assert tuple(reason.value for reason in Reason) == TOKEN_REASONS
    assert len(set(REFUSALS)) == len(REFUSALS)


async def test_all_places_are_in_the_sample_of_a_worker_that_does_everything(
    redis_server: EmbeddedRedis, tmp_path: FilePath
) -> None:
    cert, key = certificates.write(tmp_path)
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    given = {"token_keys": keys, "tls_port": 0, "tls_cert": cert, "tls_key": key}
    async with served(redis_server, followups=(Rule("gone", 60.0),), **given) as (server, _):
        sample = server.sample()
    places = {path for metric in TABLE for path in (*metric.parts.values(), metric.counts) if path}
    later = {("watching", "shards", "losses")}  # once somebody watches
    assert {path for path in places if not has(sample, path)} == later


def has(sample: dict[str, Any], path: Path) -> bool:
    found: Any = sample
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return False
        found = found[name]
    return True
