"""The page on strangers names settings that exist, all that bound strangers, and cases that can be played."""

import re
from pathlib import Path

import presence
from loadtest.security.__main__ import CASES
from presence.config import SPECS

PAGE = (Path(presence.__file__).parent / "docs" / "strangers.md").read_text("utf-8")
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
FILES = {"tls_cert", "tls_key", "tls_port", "tls_only"}  # where TLS is served, and no bound of anything


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_each_attack_has_its_bound_and_what_it_is_held_to() -> None:
    assert len(ROWS) > 15
    for row in ROWS:
        assert len(row) == 4
        assert all(cell.strip() for cell in row), row


def test_what_stands_in_the_column_of_settings_are_settings() -> None:
    named = set().union(*(quoted(row[2]) for row in ROWS))
    assert named <= set(SPECS)


def test_every_setting_that_bounds_strangers_is_on_the_page() -> None:
    bounding = {name for name, spec in SPECS.items() if spec.group in {"limits", "authentication", "tls"}}
    assert bounding - FILES <= quoted(PAGE)


def test_every_case_is_a_case_of_the_load_tests() -> None:
    cases = {name for row in ROWS for name in quoted(row[3]) if " " not in name}
    assert cases <= {*CASES, "rate_limited"}
    assert len(cases) > 10
