"""The page for those who act on events: events, fields, codes and figures are those of the code."""

import dataclasses
import inspect
import re
from pathlib import Path

import presence
from presence import subscriber
from presence.config import SPECS
from presence.subscriber.link import LOOK_FIRST_S, LOOK_MAX_S, RETRY_MAX_S
from presence.subscriber.pending import DEAD_LETTERS_MAX
from protocol import Code

PAGE = (Path(presence.__file__).parent / "docs" / "subscribers.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())
EVENTS = ("Online", "Offline", "Away", "Updated", "Gap")


def test_its_figures_are_those_of_the_code() -> None:
    defaults = {
        name: each.default for name, each in inspect.signature(subscriber.subscribe).parameters.items()
    }
    for figure in (
        f"`claim_idle_s` ({defaults['claim_idle_s']:g} s)",
        f"`max_deliveries` times ({defaults['max_deliveries']})",
        f"{DEAD_LETTERS_MAX:,} are kept",
        f"`stream_maxlen` ({SPECS['stream_maxlen'].default:,})",
        f"`seen_retention_days` ({SPECS['seen_retention_days'].default})",
        f"{1000 * LOOK_FIRST_S:g} ms after something came",
        f"up to {1000 * LOOK_MAX_S:g} ms",
        f"within {RETRY_MAX_S:g} s each time",
    ):
        assert figure in WORDS, figure


def test_each_event_has_a_row_with_fields_that_it_has() -> None:
    for name in EVENTS:
        (row,) = re.findall(rf"^\| `{name}`.*$", PAGE, re.MULTILINE)
        known = {field.name for field in dataclasses.fields(getattr(subscriber, name))}
        named = set(re.findall(r"`([a-z_]+)`", row)) - {code.reason for code in Code}
        assert named, row
        assert named <= known, row


def test_its_codes_have_their_names() -> None:
    named = re.findall(r"`(\w+)` \((\d{3})\)", PAGE)
    assert len(named) > 6
    assert [(name, code) for name, code in named if Code(int(code)).reason != name] == []


def test_each_reason_of_a_gap_is_explained() -> None:
    reasons = re.findall(r"^\| `(dropped|trimmed|lost_writes)` \|", PAGE, re.MULTILINE)
    assert sorted(reasons) == ["dropped", "lost_writes", "trimmed"]
