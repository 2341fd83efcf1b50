"""What Prometheus is given: alerts that fire when they should and not before, of metrics that there are."""

import re
import subprocess

import pytest

from presence.admin.metric_table import TABLE
from presence.embedded import EmbeddedRedis
from tests.admin.processes import ADMIN, answers, found, get, url_of
from tests.deploy.figures import ALERTS, DASHBOARD, METRICS, PAGE, PROMETHEUS, ROOT, alerts, strangers
from tests.live.server_process import running_server

TESTS = (PROMETHEUS / "alerts_test.yml").read_text()
SECURITY = (ROOT / "presence" / "docs" / "security.md").read_text()
ROW = re.compile(r"^\| `(presence_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def promtool(*words: str, text: str = "") -> None:
    run = subprocess.run(
        ["promtool", *words], cwd=PROMETHEUS, input=text, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not text or not run.stderr, run.stderr


@pytest.mark.needs("promtool")
def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", "alerts_test.yml")


@pytest.mark.needs("promtool")
def test_the_configuration_is_one() -> None:
    promtool("check", "config", "scrape.yml")


@pytest.mark.needs("promtool")
def test_the_figures_of_a_server_are_as_prometheus_likes_them(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server:
        found(lambda: answers(url_of(server)))
        text = get(url_of(server), "metrics")
    assert text.count("\n") > 300
    promtool("check", "metrics", text=text)


def test_alerts_are_found() -> None:
    assert len(alerts()) == ALERTS.count("- alert:") > 20


def test_every_alert_is_tested_firing_and_at_rest_and_says_where_to_read_on() -> None:
    for alert in alerts():
        (test,) = re.findall(
            rf"^  - name: {alert.name}\n(.*?)(?=^  - name: |\Z)", TESTS, re.MULTILINE | re.DOTALL
        )
        assert "exp_alerts: []" in test, alert.name
        assert "- exp_labels:" in test, alert.name
        assert strangers(alert.expression) == []
        assert alert.summary
        path, _, anchor = alert.runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {heading.lower() for heading in headings}
        assert anchor == alert.name.lower()


def test_names_that_no_metric_has_are_noticed() -> None:
    assert strangers("rate(presence_logins_total[1m])") == []
    assert strangers("rate(presence_logins[1m])") == ["presence_logins"]
    assert strangers("presence_logins_bucket") == ["presence_logins_bucket"]
    assert strangers('presence_logins_total{job="a", uid="ann"}') == ["presence_logins_total{uid}"]
    assert strangers('presence_tick_lag_seconds_bucket{le="1"}') == []


def test_the_page_says_what_each_metric_is() -> None:
    for name, kind, labels, _ in (found := ROW.findall(PAGE)):
        assert kind == METRICS[name].kind, name
        assert labels == ", ".join(f"`{label}`" for label in METRICS[name].labels), name
    assert [name for name, *_ in found] == [metric.name for metric in TABLE]


def test_each_metric_is_of_use() -> None:
    """An alert or a panel has it, or the pages say what for, beside the table of what there is."""
    uses = "\n".join([*(alert.expression for alert in alerts()), str(DASHBOARD), ROW.sub("", PAGE), SECURITY])
    for name in METRICS:
        assert re.search(rf"\b{name}(_bucket)?\b", uses), name
