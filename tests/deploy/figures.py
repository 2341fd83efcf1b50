"""What is said about metrics beside the code: alerts, the dashboard, the page for operators."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from presence.admin.metric_table import TABLE, Kind

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "presence.json").read_text())
ALERTS = (PROMETHEUS / "alerts.yml").read_text()
PAGE = (ROOT / "presence" / "docs" / "operations.md").read_text()
METRICS = {metric.name: metric for metric in TABLE}
OF_PROMETHEUS = {"job", "instance", "le"}
_SELECTOR = re.compile(r"\b(presence_[a-z_]+)(?:\{([^}]*)\})?")


class Alert(NamedTuple):
    name: str
    expression: str
    summary: str
    runbook: str


def alerts() -> list[Alert]:
    """Return the alerts of the file."""
    found = []
    for text in ALERTS.split("- alert: ")[1:]:
        name = text.split()[0]
        expression = text.split("expr:", 1)[1].split("\n        for:")[0].split("\n        labels:")[0]
        summary = re.search(r"^ +summary: (.+)$", text, re.MULTILINE)
        runbook = re.search(r"^ +runbook: (.+)$", text, re.MULTILINE)
        found.append(Alert(name, expression, summary[1] if summary else "", runbook[1] if runbook else ""))
    return found


def queries() -> list[str]:
    """Return what the dashboard asks Prometheus for."""
    return list(_queries(DASHBOARD))


def _queries(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from _queries(each)


def strangers(expression: str) -> list[str]:
    """Return what an expression names that no metric has: names, and labels in braces."""
    found = []
    for name, selectors in _SELECTOR.findall(expression):
        metric = METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))
        if metric is None or (metric.name != name and metric.kind is not Kind.HISTOGRAM):
            found.append(name)
            continue
        labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selectors))
        found += [f"{name}{{{label}}}" for label in labels - {*metric.labels, *OF_PROMETHEUS}]
    return found
