"""What the operators' process counts of itself: bounded, whatever is asked for."""

import math

import pytest

from presence.admin.http_figures import BOUNDS_S, ROUTES, HttpFigures
from presence.admin.openapi import describe


def test_a_request_counts_for_its_route_and_class_of_status() -> None:
    figures = HttpFigures()
    figures.answered("/v1/presence/{uid}", 404, 0.02)
    assert {key: n for key, n in figures.requests.items() if n} == {("/v1/presence/{uid}", "4xx"): 1}


@pytest.mark.parametrize(("status", "known"), [(101, "other"), (200, "2xx"), (503, "5xx"), (999, "other")])
def test_a_status_is_known_by_its_class(status: int, known: str) -> None:
    figures = HttpFigures()
    figures.answered("/", status, 0.0)
    assert figures.requests["/", known] == 1


def test_strange_paths_reasons_and_verbs_make_no_new_entries() -> None:
    figures = HttpFigures()
    before = len(figures.requests), len(figures.refusals), len(figures.acts)
    for n in range(100):
        figures.answered(f"/wp-admin/{n}", 404, 0.0)
        figures.refused(f"reason-{n}")
        figures.acted(f"verb-{n}", f"outcome-{n}")
    assert (len(figures.requests), len(figures.refusals), len(figures.acts)) == before
    assert figures.requests["other", "4xx"] == 100
    assert figures.refusals["other"] == 100
    assert figures.acts["other", "other"] == 100


def test_a_request_counts_by_how_long_it_took() -> None:
    figures = HttpFigures()
    figures.answered("/", 200, 0.02)
    assert figures.durations.report() == {
        "bounds": list(BOUNDS_S),
        "counts": [int(bound == 0.025) for bound in (*BOUNDS_S, math.inf)],
        "sum": 0.02,
    }


def test_every_path_that_may_be_asked_is_a_route() -> None:
    paths = {path for path in describe()["paths"] if not path.startswith("/static/")}
    assert paths == {*ROUTES} - {"/static", "other"}
