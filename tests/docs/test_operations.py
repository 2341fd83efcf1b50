"""The page for operators names what is there: settings, counters, codes, lines of the log."""

import re
from pathlib import Path

import presence
from presence.admin.metric_table import TABLE
from presence.config import SPECS
from protocol import Code
from tests.docs.pages import prose

TOP = Path(presence.__file__).parent
PAGE = (TOP / "docs" / "operations.md").read_text("utf-8")
METRICS = {metric.name: metric for metric in TABLE}
SOURCES = "\n".join(path.read_text("utf-8") for path in TOP.rglob("*.py"))


def section(heading: str) -> str:
    """Return what stands below a heading of the page."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def rows(text: str) -> list[list[str]]:
    """Return the cells of all tables there, their heads left out."""
    lines = re.findall(r"^\| ?(.+) \|$", text, re.MULTILINE)
    return [re.split(r" ?\| ?", line) for line in lines if not line.startswith(("---", "code |", "`event`"))]


def test_each_counter_that_is_named_is_one_with_that_label() -> None:
    named = [text for text in quoted(PAGE) if re.match(r"presence_\w+", text)]
    assert len(named) > 50
    for text in named:
        found = re.fullmatch(r"(presence_\w+)(?:\{(\w+)=\"(\w+)\"\})?", text)
        assert found, text
        name, label, value = found.groups()
        assert name in METRICS, name
        if label:
            metric = METRICS[name]
            assert label in metric.labels, text
            values = {each for labels in (*metric.places, *(metric.known or ())) for each in labels}
            assert value in values, text


def test_what_is_to_be_turned_when_somebody_is_refused_are_settings() -> None:
    turned = [row[3] for row in rows(section("Whoever is refused"))]
    names = {name for text in turned for name in quoted(text) if re.fullmatch(r"[a-z_]+", name)}
    assert len(names) > 15
    assert names <= set(SPECS)


def test_each_code_has_its_name() -> None:
    codes = re.findall(r"(\d{3}) `(\w+)`", section("Whoever is refused"))
    assert len(codes) > 10
    assert [(code, name) for code, name in codes if Code(int(code)).reason != name] == []


def test_each_line_of_the_log_that_is_explained_is_written() -> None:
    events = [event for row in rows(section("The log")) for event in quoted(row[0])]
    assert len(events) > 15
    assert [event for event in events if f'"{event}"' not in SOURCES] == []
