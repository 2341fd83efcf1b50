"""Alerts, the dashboard and the operators' page match the metrics of the code."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from presence.admin.metric_table import TABLE, MetricKind
from presence.admin.prometheus import render
from presence.config.followup_rules import Rule
from presence.store.embedded import EmbeddedRedis
from presence.webhooks.metrics import RunnerMetrics
from tests.admin.processes import ADMIN, answers, get, url_of
from tests.admin.scrapes import parsed, scrape
from tests.docs.pages import FOR_OPERATORS
from tests.server.test_server import served
from tests.support.credentials import SECRET, write_keys
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.transports import certificates

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "presence.json").read_text())
ALERTS = (PROMETHEUS / "alerts.yml").read_text()
PAGE = (ROOT / "docs" / "metrics.md").read_text()
OPERATIONS = "".join((ROOT / page).read_text() for page in FOR_OPERATORS)
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
WEBHOOKS = {
    name: (label, meaning)
    for name, label, meaning in re.findall(
        r"^\| `(presence_webhook_\w+)(?:\{(\w+)\})?` \| (.+) \|$",
        (ROOT / "docs" / "webhooks.md").read_text(),
        re.MULTILINE,
    )
}
"""The label and the meaning of each metric of `presence webhooks run`, as its page says."""
METRICS = {metric.name: metric for metric in TABLE}
OF_PROMETHEUS = {"job", "instance", "le"}
_SELECTOR = re.compile(r"\b(presence_[a-z_]+)(?:\{([^}]*)\})?")
TESTS = (PROMETHEUS / "alerts_test.yml").read_text()
SECURITY = "".join(
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("security", "authentication", "tls")
)
ROW = re.compile(r"^\| `(presence_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Alert(NamedTuple):
    name: str
    expression: str
    summary: str
    runbook: str


def alerts() -> list[Alert]:
    found = []
    for text in ALERTS.split("- alert: ")[1:]:
        name = text.split()[0]
        expression = text.split("expr:", 1)[1].split("\n        for:")[0].split("\n        labels:")[0]
        summary = re.search(r"^ +summary: (.+)$", text, re.MULTILINE)
        runbook = re.search(r"^ +runbook: (.+)$", text, re.MULTILINE)
        found.append(Alert(name, expression, summary[1] if summary else "", runbook[1] if runbook else ""))
    return found


def queries() -> list[str]:
    """Return the dashboard's queries."""
    return list(_queries(DASHBOARD))


def _queries(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from _queries(each)


def unknown_names(expression: str) -> list[str]:
    """Return unknown names in an expression: metrics, and labels in braces."""
    found = []
    for name, selectors in _SELECTOR.findall(expression):
        if name.startswith("presence_webhook_"):
            found += unknown_names_of_webhooks(name, selectors)
            continue
        metric = METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))
        if metric is None or (metric.name != name and metric.kind is not MetricKind.HISTOGRAM):
            found.append(name)
            continue
        labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selectors))
        found += [f"{name}{{{label}}}" for label in labels - {*metric.labels, *OF_PROMETHEUS}]
    return found


def unknown_names_of_webhooks(name: str, selectors: str) -> list[str]:
    """Return what is unknown of a metric of webhooks, its labels and their values included."""
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    label, meaning = WEBHOOKS.get(plain, ("", ""))
    if not meaning or (plain != name and "histogram" not in meaning):
        return [name]
    values = {*re.findall(r"`(\w+)`", meaning)}
    asked = re.findall(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', selectors)
    return [
        f"{name}{{{which}}}"
        for which, value in asked
        if which not in OF_PROMETHEUS and (which != label or not {*value.split("|")} <= values)
    ]


def runbook_expressions() -> list[str]:
    """Return the expressions for Prometheus in the runbook and on the operators' page."""
    prose = re.sub(r"^ *```.*?^ *```$", "", RUNBOOK + OPERATIONS, flags=re.MULTILINE | re.DOTALL)
    code = re.findall(r"`([^`]+)`", prose)
    return [" ".join(each.split()) for each in code if re.search(r"\bpresence_[a-z_]+", each)]


def asked_values(expression: str) -> Iterator[tuple[str, str, str]]:
    """Yield each metric with a label and a value of it that an expression asks for."""
    for name, selectors in _SELECTOR.findall(expression):
        if name.startswith("presence_webhook_"):
            continue  # see `unknown_names_of_webhooks`
        for label, operator, text in re.findall(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selectors):
            if label not in OF_PROMETHEUS:
                yield from ((name, label, each) for each in (text.split("|") if "~" in operator else [text]))


def legend_labels(expression: str) -> set[str]:
    """Return the labels of an expression's result."""
    if by := re.search(r" by \(([^)]*)\)", expression):
        return {each.strip() for each in by[1].split(",")} - {"le"}
    if re.match(r"(sum|min|max|histogram_quantile)\b", expression):
        return set()
    name = _SELECTOR.search(expression)
    return {*METRICS[name[1]].labels, "instance"} if name else set()


def promtool(*words: str, text: str = "") -> None:
    run = subprocess.run(
        ["promtool", *words], cwd=PROMETHEUS, input=text, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not text or not run.stderr, run.stderr


@pytest.mark.needs("promtool")
def test_the_prometheus_configuration_is_valid() -> None:
    promtool("check", "config", "scrape.yml")


@pytest.mark.needs("promtool")
def test_a_servers_metrics_pass_promtool(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server:
        wait_for(lambda: answers(url_of(server)))
        # The admin process answers before it has heard from the server.
        wait_for(lambda: "presence_connections " in get(url_of(server), "metrics"))
        text = get(url_of(server), "metrics")
    assert text.count("\n") > 300
    promtool("check", "metrics", text=text)


def test_alerts_are_found() -> None:
    assert len(alerts()) == ALERTS.count("- alert:") > 20


def test_every_alert_is_tested_firing_and_silent_and_links_to_the_documentation() -> None:
    for alert in alerts():
        (test,) = re.findall(
            rf"^  - name: {alert.name}\n(.*?)(?=^  - name: |\Z)", TESTS, re.MULTILINE | re.DOTALL
        )
        assert "exp_alerts: []" in test, alert.name
        assert "- exp_labels:" in test, alert.name
        assert unknown_names(alert.expression) == []
        assert alert.summary
        path, _, anchor = alert.runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {heading.lower() for heading in headings}
        assert anchor == alert.name.lower()


def test_unknown_names_are_noticed() -> None:
    assert unknown_names("rate(presence_logins_total[1m])") == []
    assert unknown_names("rate(presence_logins[1m])") == ["presence_logins"]
    assert unknown_names("presence_logins_bucket") == ["presence_logins_bucket"]
    assert unknown_names('presence_logins_total{job="a", uid="ann"}') == ["presence_logins_total{uid}"]
    assert unknown_names('presence_tick_lag_seconds_bucket{le="1"}') == []


def test_unknown_names_of_webhooks_are_noticed() -> None:
    assert len(WEBHOOKS) == 5
    assert unknown_names('presence_webhook_requests_total{job="a", result=~"refused|accepted"}') == []
    assert unknown_names('presence_webhook_requests_total{result="lost"}') != []
    assert unknown_names('presence_webhook_requests_total{uid="ann"}') != []
    assert unknown_names("presence_webhook_shards_bucket") == ["presence_webhook_shards_bucket"]
    assert unknown_names("presence_webhook_backlog") == ["presence_webhook_backlog"]


def test_the_page_lists_the_metrics_of_webhooks_as_they_are() -> None:
    families = [family.name for family in RunnerMetrics().registry.collect()]
    assert [name.removesuffix("_total") for name in WEBHOOKS] == families


def test_the_page_describes_each_metric() -> None:
    for name, kind, labels, _ in (found := ROW.findall(PAGE)):
        assert kind == METRICS[name].kind, name
        assert labels == ", ".join(f"`{label}`" for label in METRICS[name].labels), name
    assert [name for name, *_ in found] == [metric.name for metric in TABLE]


def test_each_metric_is_used() -> None:
    """An alert or a panel uses it, or a page mentions it outside the table of metrics."""
    prose = (ROW.sub("", PAGE), OPERATIONS, RUNBOOK, SECURITY)
    uses = "\n".join([*(alert.expression for alert in alerts()), str(DASHBOARD), *prose])
    for name in METRICS:
        assert re.search(rf"\b{name}(_bucket)?\b", uses), name


def test_every_query_uses_existing_metrics() -> None:
    assert len(queries()) > 60
    assert [found for query in queries() for found in unknown_names(query)] == []


def test_the_runbooks_expressions_use_existing_metrics() -> None:
    assert len(runbook_expressions()) > 40
    assert [found for each in runbook_expressions() for found in unknown_names(each)] == []


def test_the_log_lines_that_the_runbook_greps_for_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "presence").rglob("*.py"))
    greps = re.findall(r"journalctl -u presence \| grep ([^`]+)`", RUNBOOK)
    phrases = [each for words in greps for each in re.findall(r"'([^']+)'|\b([a-z]{5,})$", words)]
    assert len(phrases) > 6
    assert [phrase for phrase in map("".join, phrases) if phrase not in source] == []


async def test_every_label_value_that_is_asked_for_exists(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    cert, key = certificates.write(tmp_path)
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    given = {"token_keys": str(keys), "tls_port": 0, "tls_cert": cert, "tls_key": key}
    async with served(redis_server, followups=(Rule("gone", 60.0),), **given) as (server, _):
        found = parsed(render(scrape(server.sample()))[0].decode())
    there = {(name, *pair) for name, labels in found for pair in labels}
    asked = [*(alert.expression for alert in alerts()), *runbook_expressions(), *queries()]
    wanted = {each for expression in asked for each in asked_values(expression) if "$" not in each[2]}
    assert len(wanted) > 20
    assert wanted - there == set()


def test_legends_name_labels_that_the_query_has() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            if target.get("format") != "heatmap":
                assert named <= legend_labels(target["expr"]), target["expr"]


def test_every_panel_uses_the_selected_data_source() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == DATASOURCE
            assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


def test_every_variable_of_a_query_exists() -> None:
    given = {each["name"] for each in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert {name for query in queries() for name in re.findall(r"\$(\w+)", query)} <= given


def test_panels_have_unique_ids_a_title_and_queries() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
        assert len({target["refId"] for target in panel.get("targets", ())}) == len(panel.get("targets", ()))


@pytest.mark.needs("promtool")
def test_prometheus_accepts_every_query(tmp_path: Path) -> None:
    chosen = {"$__rate_interval": "1m", "$job": "presence", "$instance": ".*"}
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for n, query in enumerate([*queries(), *runbook_expressions()]):
        for name, value in chosen.items():
            query = query.replace(name, value)  # noqa: PLW2901 - one variable after the other
        lines += [f"      - record: query:{n}", f"        expr: '{query}'"]
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines))
    promtool("check", "rules", str(rules))
