"""What Prometheus is told, from the figures of workers, of Redis and of the operators' process."""

from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from presence.admin.http_figures import HttpFigures
from presence.admin.metrics import render
from presence.admin.own_figures import Scrape
from tests.admin.scrapes import REDIS, sample, scrape
from tests.admin.scraping import Found, parsed, value


def series(given: Scrape) -> Found:
    """Return all series, by name and labels."""
    body, _ = render(given)
    return parsed(body.decode())


def names(found: Found) -> set[str]:
    return {name.removeprefix("presence_") for name, _ in found}


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
    found = names(series(scrape(sample())))
    assert not {"followups_total", "tls_certificate_end_timestamp_seconds", "tokens_refused_total"} & found
    on = {"followups": {"told": 3}, "certificate": {"ends_at": 1e9}, "tokens": {"refused": {"expired": 4}}}
    found = names(series(scrape(sample(**on))))
    assert {"followups_total", "tls_certificate_end_timestamp_seconds", "tokens_refused_total"} <= found


def test_what_is_none_is_absent() -> None:
    found = series(scrape(sample(cluster={"lease_left_s": None, "renewals": 0})))
    assert value(found, "lease_left_seconds", worker="1") is None
    assert value(found, "lease_renewals_total", worker="1") == 0


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
