"""What Prometheus is told, from the figures of workers, of Redis and of the operators' process."""

import re
from pathlib import Path as FilePath
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from presence.admin.http_figures import ROUTES, HttpFigures
from presence.admin.metric_table import REFUSALS, TABLE, TOKEN_REASONS, Kind, Path
from presence.admin.metrics import Scrape, local_sample, render, worker_sample
from presence.admin.page_files import description
from presence.admin.workers import Answer
from presence.auth.tokens import Reason
from presence.embedded import EmbeddedRedis
from presence.rules import Rule
from tests.admin.scrapes import REDIS, Found, parsed, sample, scrape, value
from tests.credentials import SECRET, write_keys
from tests.test_server import served
from tests.transports import certificates

# Each has a fixed set of values, or one a worker: nothing that users choose.
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


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in TABLE:
        assert re.fullmatch(r"presence_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.name.endswith("_info") == (metric.kind is Kind.INFO), metric.name
        assert not re.search(r"_(ms|milliseconds|kb|mb|count|sum|bucket)(_|$)", metric.name)
    assert len({metric.name for metric in TABLE}) == len(TABLE) <= 85


def test_no_label_is_chosen_by_users() -> None:
    infos = {label for each in TABLE if each.kind is Kind.INFO for label in each.labels}
    assert infos - {"worker"} == OF_INFOS
    assert {label for each in TABLE if each.kind is not Kind.INFO for label in each.labels} == LABELS


def test_reasons_are_those_of_the_modules_that_give_them() -> None:
    assert tuple(reason.value for reason in Reason) == TOKEN_REASONS
    assert len(set(REFUSALS)) == len(REFUSALS)


async def test_all_places_are_in_the_samples_of_a_worker_that_does_everything_and_of_this_process(
    redis_server: EmbeddedRedis, tmp_path: FilePath
) -> None:
    cert, key = certificates.write(tmp_path)
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    given = {"token_keys": keys, "tls_port": 0, "tls_cert": cert, "tls_key": key}
    async with served(redis_server, followups=(Rule("gone", 60.0),), **given) as (server, _):
        of_worker = worker_sample(Answer(1, server.sample(), 0.0), 0.0)
    of_us = local_sample(scrape())
    for metric in TABLE:
        for path in metric.places.values():
            assert has(of_worker if metric.is_of_workers else of_us, path), path


def has(sample: Any, path: Path) -> bool:
    found = sample
    for name in path:
        if name not in found:
            return False
        found = found[name]
    return True


def test_each_worker_has_series_of_its_own() -> None:
    found = series(scrape(sample(), sample(sessions=6)))
    assert value(found, "sessions", worker="1") == 5
    assert value(found, "sessions", worker="2") == 6


def test_a_worker_that_does_not_answer_has_no_figures_and_is_told() -> None:
    found = series(scrape(sample(), None))
    assert value(found, "worker_up", worker="1") == 1
    assert value(found, "worker_up", worker="2") == 0
    assert {name for name, labels in found if ("worker", "2") in labels} == {"presence_worker_up"}


def test_parts_of_one_metric_are_told_apart_by_a_label() -> None:
    found = series(scrape(sample()))
    assert value(found, "packets_total", worker="1", kind="keepalive") == 100
    assert value(found, "packets_total", worker="1", kind="other") == 20


def test_reasons_are_there_with_zero_before_anything_happened() -> None:
    found = series(scrape(sample()))
    assert value(found, "refusals_total", worker="1", reason="busy") == 2
    assert value(found, "refusals_total", worker="1", reason="protocol_error") == 0
    assert value(found, "transitions_total", worker="1", type="online", reason="login") == 7
    assert value(found, "transitions_total", worker="1", type="offline", reason="node_down") == 0
    assert value(found, "http_requests_total", route="/v1/kick", status="4xx") == 0


def test_what_the_table_does_not_know_counts_as_other() -> None:
    refused = {f"reason_{n}": 1 for n in range(50)}
    offline = {"offline": {"evaporated": 3}, "sideways": {"login": 4}}
    found = series(scrape(sample(core={"refused": refused}, transitions=offline)))
    assert value(found, "refusals_total", worker="1", reason="other") == 50
    assert value(found, "transitions_total", worker="1", type="other", reason="other") == 7
    assert not any("reason_" in text for _, labels in found for _, text in labels)


def test_other_is_not_there_while_all_is_known() -> None:
    assert value(series(scrape(sample())), "refusals_total", worker="1", reason="other") is None


def test_services_that_are_off_have_no_series() -> None:
    services = {"followups_total", "tls_certificate_end_timestamp_seconds", "tokens_refused_total"}
    assert not services & names(series(scrape(sample())))
    on = {
        "followups": {"told": 3},
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


def test_what_is_none_is_absent() -> None:
    found = series(scrape(sample(cluster={"lease_left_s": None, "swept": 0})))
    assert value(found, "lease_left_seconds", worker="1") is None
    assert value(found, "node_failures_total", worker="1", step="swept") == 0


def test_buckets_are_cumulative() -> None:
    found = series(scrape(sample()))
    buckets = [
        value(found, "detection_delay_seconds_bucket", worker="1", le=le) for le in ("0.5", "1.0", "+Inf")
    ]
    assert buckets == [3, 5, 6]
    assert value(found, "detection_delay_seconds_count", worker="1") == 6
    assert value(found, "detection_delay_seconds_sum", worker="1") == 4.5


def test_the_wheel_is_told_by_its_next_its_fullest_and_its_later_slots() -> None:
    found = series(scrape(sample()))
    wheel = [
        value(found, f"wheel_{name}_sessions", worker="1") for name in ("next_slot", "largest_slot", "later")
    ]
    assert wheel == [1, 3, 2]
    assert value(found, "tick_seconds", worker="1") == 1.0


def test_units_are_seconds() -> None:
    found = series(scrape(sample()))
    assert value(found, "process_start_time_seconds", worker="1") == 1.5
    assert value(found, "redis_ping_seconds") == pytest.approx(0.0005)
    assert value(found, "sample_age_seconds", worker="1") == 0.5


def test_the_readiness_is_one_of_all_that_there_are() -> None:
    found = series(scrape(sample(readiness="draining")))
    states = {
        dict(labels)["readiness"]: told for (name, labels), told in found.items() if "readiness" in name
    }
    assert states == {"starting": 0, "ready": 0, "redis_away": 0, "fenced": 0, "draining": 1}


def test_what_redis_says_is_told() -> None:
    found = series(scrape(sample()))
    assert value(found, "redis_up") == 1
    assert value(found, "users_online") == 12
    assert [value(found, "nodes", status=status) for status in ("alive", "left", "silent", "dead")] == [
        1,
        0,
        1,
        0,
    ]
    assert value(found, "redis_memory_bytes") == 1_000_000


@pytest.mark.parametrize("redis", [None, REDIS | {"status": "away", "error": "refused"}])
def test_while_redis_is_away_its_series_are_absent(redis: dict[str, Any] | None) -> None:
    found = series(scrape(sample(), online=None, nodes=None, redis=redis))
    assert value(found, "redis_up") == 0
    assert not {"users_online", "nodes", "redis_ping_seconds", "redis_memory_bytes"} & names(found)
    assert value(found, "sessions", worker="1") == 5


def test_the_process_counts_itself() -> None:
    http = HttpFigures()
    http.answered("/v1/nodes", 200, 0.02)
    http.refused("token")
    http.acted("kick", "done")
    http.connections, http.viewers["live"], http.missed = 3, 2, 5
    found = series(scrape(http=http))
    assert value(found, "http_requests_total", route="/v1/nodes", status="2xx") == 1
    assert value(found, "http_request_duration_seconds_bucket", le="0.025") == 1
    assert value(found, "http_refusals_total", reason="token") == 1
    assert value(found, "http_acts_total", verb="kick", outcome="done") == 1
    assert value(found, "http_connections") == 3
    assert value(found, "http_viewers", view="live") == 2
    assert value(found, "http_events_missed_total") == 5
    assert (value(found, "http_process_resident_memory_bytes") or 0) > 1e6


@pytest.mark.parametrize(("status", "known"), [(101, "other"), (200, "2xx"), (503, "5xx"), (999, "other")])
def test_a_status_is_known_by_its_class(status: int, known: str) -> None:
    http = HttpFigures()
    http.answered("/", status, 0.0)
    assert value(series(scrape(http=http)), "http_requests_total", route="/", status=known) == 1


def test_strange_paths_reasons_and_verbs_make_no_new_series() -> None:
    http = HttpFigures()
    before = len(series(scrape(http=http)))
    for n in range(100):
        http.answered(f"/wp-admin/{n}", 404, 0.0)
        http.refused(f"reason-{n}")
        http.acted(f"verb-{n}", f"outcome-{n}")
    found = series(scrape(http=http))
    assert len(found) == before
    assert value(found, "http_requests_total", route="other", status="4xx") == 100
    assert value(found, "http_refusals_total", reason="other") == 100
    assert value(found, "http_acts_total", verb="other", outcome="other") == 100


def test_every_path_that_may_be_asked_is_a_route() -> None:
    paths = {path for path in description()["paths"] if not path.startswith("/static/")}
    assert paths == {*ROUTES} - {"/static", "other"}


def test_without_an_answer_there_is_something_to_read() -> None:
    found = series(scrape(None, online=None, nodes=None, redis=None))
    assert value(found, "worker_up", worker="1") == 0


def test_plain_text_is_told_unless_openmetrics_is_asked_for() -> None:
    _, content_type = render(scrape(sample()))
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_prometheus_gets_openmetrics() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    body, content_type = render(scrape(sample()), accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    parse = openmetrics.text_string_to_metric_families
    families = {each.name for each in parse(body.decode())}  # type: ignore[no-untyped-call]
    assert {"presence_logins", "presence_build", "presence_detection_delay_seconds"} <= families
