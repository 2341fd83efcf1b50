"""Diagrams of the pages are those that the tables of the code make."""

import pytest

from tests.admin.processes import STARTED
from tests.docs.diagrams import connection_states, generation_phases, processes
from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    ("page", "diagram"),
    [
        ("protocol/SPEC.md", connection_states()),
        ("docs/architecture.md", generation_phases()),
        ("docs/architecture.md", processes(STARTED)),
    ],
    ids=["connection", "generation", "processes"],
)
def test_the_page_has_the_diagram(page: str, diagram: str) -> None:
    assert diagram in (ROOT / page).read_text("utf-8"), f"{page} should have:\n{diagram}"
