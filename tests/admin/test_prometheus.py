"""The metrics for Prometheus, from samples of workers, from Redis and from the admin process."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from presence.admin.http_metrics import ROUTES, HttpMetrics
from presence.admin.metric_table import TABLE, TOKEN_REASONS, MetricKind
from presence.admin.page_files import description
from presence.admin.prometheus import Scrape, local_sample, render, worker_sample
from presence.admin.workers import WorkerAnswer
from presence.auth.tokens import Reason
from presence.config.followup_rules import Rule
from presence.store.embedded import EmbeddedRedis
from tests.admin.scrapes import REDIS, Found, parsed, sample, scrape, value
from tests.server.test_server import served
from tests.support.credentials import SECRET, write_keys
from tests.transports import certificates

# Each has a fixed set of values, or one per worker; none that users choose.
LABELS = {
    *("worker", "reason", "type", "kind", "limit", "table", "result", "use", "task", "outcome", "mode"),
    *("work", "status", "readiness", "route", "verb", "view", "step"),
}
OF_INFOS = {"node", "address", "version", "python"}  # one at a time for each worker


def series(given: Scrape) -> Found:
    """Return all series, by name and labels."""
    body, _ = render(given)
    return parsed(body.decode())


def names(found: Found) -> set[str]:
    return {name.removeprefix("presence_") for name, _ in found}


def test_names_follow_prometheus_conventions_and_no_label_is_chosen_by_users() -> None:
    for metric in TABLE:
        assert re.fullmatch(r"presence_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert not re.search(r"_(ms|milliseconds|kb|mb|count|sum|bucket)(_|$)", metric.name)
        assert {*metric.labels} <= LABELS | (OF_INFOS if metric.kind is MetricKind.INFO else set()), (
            metric.name
        )
    assert len({metric.name for metric in TABLE}) == len(TABLE) <= 111


def test_label_values_are_those_of_the_modules_that_count() -> None:
    assert tuple(reason.value for reason in Reason) == TOKEN_REASONS
    paths = {path for path in description()["paths"] if not path.startswith("/static/")}
    assert paths == {*ROUTES} - {"/static", "other"}


async def test_every_metric_has_a_place_in_the_sample_of_a_worker_with_all_services(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    cert, key = certificates.write(tmp_path)
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    given = {"token_keys": str(keys), "tls_port": 0, "tls_cert": cert, "tls_key": key}
    async with served(redis_server, followups=(Rule("gone", 60.0),), rooms="open", **given) as (server, _):
        of_worker = worker_sample(WorkerAnswer(1, server.sample(), 0.0), 0.0)
    of_us = local_sample(scrape())
    for metric in TABLE:
        for path in metric.places.values():
            found: Any = of_worker if metric.is_of_workers else of_us
            for name in path:
                assert name in found, path
                found = found[name]


async def test_detection_delays_have_a_bucket_that_ends_at_the_tick(redis_server: EmbeddedRedis) -> None:
    async with served(redis_server, tick=0.2) as (server, _):
        found = series(scrape(server.sample()))
    assert value(found, "detection_delay_seconds_bucket", worker="1", le="0.2") == 0


def test_each_metric_has_its_labels_and_base_units() -> None:
    http = HttpMetrics()
    http.count_request("/v1/nodes", 200, 0.02)
    http.count_refusal("token")
    http.count_action("kick", "done")
    http.connections, http.viewers["live"], http.missed = 3, 2, 5
    cluster = {"lease_left_s": None, "swept": 0}
    second = sample(sessions=6, readiness="draining", cluster=cluster)
    found = series(scrape(sample(), second, http=http))
    for name, labels, expected in (
        ("sessions", {"worker": "1"}, 5),
        ("sessions", {"worker": "2"}, 6),
        ("packets_total", {"worker": "1", "kind": "keepalive"}, 100),
        ("packets_total", {"worker": "1", "kind": "other"}, 20),
        ("refusals_total", {"worker": "1", "reason": "busy"}, 2),
        ("refusals_total", {"worker": "1", "reason": "protocol_error"}, 0),  # before the first one
        ("refusals_total", {"worker": "1", "reason": "other"}, None),  # as long as all are known
        ("transitions_total", {"worker": "1", "type": "online", "reason": "login"}, 7),
        ("transitions_total", {"worker": "1", "type": "offline", "reason": "node_down"}, 0),
        ("lease_left_seconds", {"worker": "2"}, None),
        ("node_failures_total", {"worker": "2", "step": "swept"}, 0),
        ("detection_delay_seconds_bucket", {"worker": "1", "le": "0.5"}, 3),
        ("detection_delay_seconds_bucket", {"worker": "1", "le": "1.0"}, 5),
        ("detection_delay_seconds_bucket", {"worker": "1", "le": "+Inf"}, 6),
        ("detection_delay_seconds_count", {"worker": "1"}, 6),
        ("detection_delay_seconds_sum", {"worker": "1"}, 4.5),
        ("wheel_next_slot_sessions", {"worker": "1"}, 1),
        ("wheel_largest_slot_sessions", {"worker": "1"}, 3),
        ("wheel_later_sessions", {"worker": "1"}, 2),
        ("tick_seconds", {"worker": "1"}, 1.0),
        ("process_start_time_seconds", {"worker": "1"}, 1.5),
        ("sample_age_seconds", {"worker": "1"}, 0.5),
        ("worker_readiness", {"worker": "2", "readiness": "draining"}, 1),
        ("worker_readiness", {"worker": "2", "readiness": "ready"}, 0),
        ("redis_up", {}, 1),
        ("redis_ping_seconds", {}, 0.0005),
        ("redis_memory_bytes", {}, 1_000_000),
        ("users_online", {}, 12),
        ("nodes", {"status": "alive"}, 1),
        ("nodes", {"status": "left"}, 0),
        ("nodes", {"status": "silent"}, 1),
        ("http_requests_total", {"route": "/v1/nodes", "status": "2xx"}, 1),
        ("http_requests_total", {"route": "/v1/kick", "status": "4xx"}, 0),
        ("http_request_duration_seconds_bucket", {"le": "0.025"}, 1),
        ("http_refusals_total", {"reason": "token"}, 1),
        ("http_actions_total", {"verb": "kick", "outcome": "done"}, 1),
        ("http_connections", {}, 3),
        ("http_viewers", {"view": "live"}, 2),
        ("http_events_missed_total", {}, 5),
    ):
        assert value(found, name, **labels) == pytest.approx(expected), name
    assert (value(found, "http_process_resident_memory_bytes") or 0) > 1e6


def test_a_worker_that_does_not_answer_has_no_series_but_worker_up() -> None:
    found = series(scrape(sample(), None))
    assert [value(found, "worker_up", worker=worker) for worker in "12"] == [1, 0]
    assert {name for name, labels in found if ("worker", "2") in labels} == {"presence_worker_up"}


def test_unknown_label_values_count_as_other() -> None:
    refused = {f"reason_{n}": 1 for n in range(50)}
    offline = {"offline": {"evaporated": 3}, "sideways": {"login": 4}}
    found = series(scrape(sample(core={"refused": refused}, transitions=offline)))
    assert value(found, "refusals_total", worker="1", reason="other") == 50
    assert value(found, "transitions_total", worker="1", type="other", reason="other") == 7
    assert not any("reason_" in text for _, labels in found for _, text in labels)


def test_services_that_are_off_have_no_series() -> None:
    services = {"followups_total", "tls_certificate_end_timestamp_seconds", "tokens_refused_total"}
    assert not services & names(series(scrape(sample())))
    on = {
        "followups": {"delivered": 3},
        "certificate": {"ends_at": 1e9},
        "tokens": {"refused": {"expired": 4}, "renewals_refused": {"expired": 5}},
    }
    given = series(scrape(sample(**on)))
    assert {"followups_total", "tls_certificate_end_timestamp_seconds", "tokens_refused_total"} <= names(
        given
    )
    refused = {"worker": "1", "reason": "expired"}
    assert value(given, "tokens_refused_total", use="login", **refused) == 4
    assert value(given, "tokens_refused_total", use="renewal", **refused) == 5


@pytest.mark.parametrize("redis", [None, REDIS | {"status": "away", "error": "refused"}])
def test_series_of_redis_are_absent_while_it_is_unreachable(redis: dict[str, Any] | None) -> None:
    found = series(scrape(sample(), online=None, nodes=None, redis=redis))
    assert value(found, "redis_up") == 0
    assert not {"users_online", "nodes", "redis_ping_seconds", "redis_memory_bytes"} & names(found)
    assert value(found, "sessions", worker="1") == 5


def test_unknown_paths_reasons_and_verbs_make_no_new_series() -> None:
    http = HttpMetrics()
    before = len(series(scrape(http=http)))
    http.count_request("/", 999, 0.0)
    for n in range(100):
        http.count_request(f"/wp-admin/{n}", 404, 0.0)
        http.count_refusal(f"reason-{n}")
        http.count_action(f"verb-{n}", f"outcome-{n}")
    found = series(scrape(http=http))
    assert len(found) == before
    assert value(found, "http_requests_total", route="/", status="other") == 1
    assert value(found, "http_requests_total", route="other", status="4xx") == 100
    assert value(found, "http_refusals_total", reason="other") == 100
    assert value(found, "http_actions_total", verb="other", outcome="other") == 100


def test_plain_text_is_sent_unless_openmetrics_is_requested() -> None:
    _, content_type = render(scrape(None, online=None, nodes=None, redis=None))
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"

    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    body, content_type = render(scrape(sample()), accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    parse = openmetrics.text_string_to_metric_families
    families = {each.name for each in parse(body.decode())}  # type: ignore[no-untyped-call]
    assert {"presence_logins", "presence_build", "presence_detection_delay_seconds"} <= families
