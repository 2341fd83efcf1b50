"""The dashboard: what Grafana takes, and queries that Prometheus understands."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.figures import DASHBOARD, queries, strangers

PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_every_query_is_of_metrics_that_there_are() -> None:
    assert len(queries()) > 60
    assert [found for query in queries() for found in strangers(query)] == []


def test_every_panel_asks_the_data_source_that_is_chosen() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == DATASOURCE
            assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


def test_every_variable_of_a_query_is_there() -> None:
    given = {each["name"] for each in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert {name for query in queries() for name in re.findall(r"\$(\w+)", query)} <= given


def test_panels_have_ids_of_their_own_and_a_title_and_queries() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
        assert len({target["refId"] for target in panel.get("targets", ())}) == len(panel.get("targets", ()))


@pytest.mark.needs("promtool")
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    chosen = {"$__rate_interval": "1m", "$job": "presence", "$instance": ".*"}
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for n, query in enumerate(queries()):
        for name, value in chosen.items():
            query = query.replace(name, value)  # noqa: PLW2901 - one variable after the other
        lines += [f"      - record: query:{n}", f"        expr: '{query}'"]
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines))
    run = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
