"""The page on settings has every setting as the program has it."""

from pathlib import Path

import presence
from presence.config import SPECS

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
