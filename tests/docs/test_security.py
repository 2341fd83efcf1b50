"""The page on security names what is there: settings, all that bound strangers, tests, commands, cases."""

import importlib.util
import re
from pathlib import Path

import presence
from loadtest.security.__main__ import CASES
from presence.config import SPECS

ROOT = Path(presence.__file__).parent.parent
PAGE = (ROOT / "presence" / "docs" / "security.md").read_text("utf-8")
SECTION = PAGE.partition("## Attacks, and what bounds them")[2].partition("\n## ")[0]
ROWS = [line.split("|")[1:-1] for line in SECTION.splitlines() if line.startswith("| ") and "---" not in line]
SERVED = {"tls_cert", "tls_key", "tls_port", "tls_only"}  # where TLS is served, and no bound of anything


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def tried_by() -> set[str]:
    return set().union(*(quoted(row[3]) for row in ROWS))


def test_each_attack_says_what_happens_what_tries_it_and_what_it_is_held_to() -> None:
    assert len(ROWS) > 20
    for row in ROWS:
        assert len(row) == 5
        assert all(row[column].strip() for column in (0, 1, 3, 4)), row


def test_what_stands_in_the_column_of_settings_are_settings() -> None:
    assert set().union(*(quoted(row[2]) for row in ROWS)) <= set(SPECS)


def test_every_setting_that_bounds_strangers_is_among_them() -> None:
    bounding = {name for name, spec in SPECS.items() if spec.group in {"limits", "authentication", "tls"}}
    assert bounding - SERVED <= quoted(SECTION)


def test_tests_and_commands_that_try_an_attack_are_there() -> None:
    for each in tried_by() - set(CASES):
        if each.startswith("python -m "):
            assert importlib.util.find_spec(each.split()[2]) is not None, each
        else:
            assert (ROOT / each).is_file(), each


def test_every_case_of_strangers_is_on_the_page() -> None:
    named = quoted(re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
    assert [case for case in CASES if not {case, f"python -m loadtest.security {case}"} & named] == []
