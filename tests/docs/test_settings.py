"""The page on settings has every setting as the program has it."""

import re
from pathlib import Path

import presence
from presence.config import SPECS
from tests.docs.pages import pages

PAGE = (Path(presence.__file__).parent / "docs" / "settings.md").read_text(encoding="utf-8")


def settings_table() -> str:
    """Return the table that the page must hold."""
    rows = ["| setting | default | unit | what it does |", "| --- | --- | --- | --- |"]
    group = None
    for spec in SPECS.values():
        if spec.group != group:
            group = spec.group
            rows.append(f"| **{group}** | | | |")
        default = (
            "" if spec.default is None else str(spec.default).lower() if spec.kind is bool else spec.default
        )
        expert = " (expert)" if spec.expert else ""
        rows.append(f"| `{spec.name}`{expert} | {default} | {spec.unit} | {spec.help} |")
    return "\n".join(rows)


def test_every_setting_is_listed_as_it_is() -> None:
    assert settings_table() in PAGE, settings_table()


def test_every_setting_is_spoken_of_where_somebody_meets_it() -> None:
    others = "".join(text for name, text in pages().items() if not name.endswith("settings.md"))
    absent = {
        name
        for name, spec in SPECS.items()
        if not re.search(rf"\b{name}\b|{spec.flag}\b|\b{spec.variable}\b", others)
    }
    assert absent == set()
