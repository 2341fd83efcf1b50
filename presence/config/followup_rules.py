"""Follow-up rules: what to do some seconds after a user went offline, unless they have returned.

One table each in the settings file::

    [[followups]]
    name = "we-miss-you"
    after = 3600                                # seconds after the offline event
    reasons = ["idle_timeout", "node_down"]     # only for these reasons; default: all
    payload = "mail template 7"                 # passed to the handler; at most 4 KiB

Tests: `tests/config/test_loader.py`, `tests/followups/test_planned.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from presence.protocol.constants import Code

MAX_NAME_CHARS: Final = 64
MAX_PAYLOAD_BYTES: Final = 4096  # a name, an id, a template: larger data belongs in a database
MAX_AFTER_S: Final = 366 * 86_400.0
MAX_RULES: Final = 64  # each adds a few writes to every offline event
KEYS: Final = ("name", "after", "reasons", "payload")
REASONS: Final = tuple(code.reason for code in Code if code not in {Code.LOGIN, Code.RETURNED})
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}", re.ASCII)

Hint = Callable[[str, Iterable[str]], str]
"""Returns a hint at the known name that an unknown one may have meant."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what to do after an offline event."""

    name: str  # unique among the rules
    after: float  # seconds from the offline event, 0 to `MAX_AFTER_S`
    reasons: tuple[str, ...] = ()  # names of the reasons it applies to; empty: all
    payload: str = ""  # text for the handler, at most `MAX_PAYLOAD_BYTES` bytes of UTF-8

    def __post_init__(self) -> None:
        for problem in _problems(self.as_table(), lambda _name, _known: ""):
            raise ValueError(problem)

    def as_table(self) -> dict[str, Any]:
        """Return the rule as a table of the file, without keys that are not set."""
        table: dict[str, Any] = {"name": self.name, "after": self.after}
        if self.reasons:
            table["reasons"] = list(self.reasons)
        if self.payload:
            table["payload"] = self.payload
        return table


def is_name(text: object) -> bool:
    """Whether a text is a valid name: letters, digits or ``._-``, starting with a letter or digit."""
    return isinstance(text, str) and bool(_NAME.fullmatch(text))


def read_rules(raw: object, hint: Hint) -> tuple[tuple[Rule, ...], list[str]]:
    """Return the rules of the file from its list of tables, and its problems, one line each."""
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        return (), ["must be tables: [[followups]]"]
    if len(raw) > MAX_RULES:
        return (), [f"must be at most {MAX_RULES} tables, not {len(raw)}"]
    rules: list[Rule] = []
    wrong: list[str] = []
    for number, table in enumerate(raw, 1):
        named = f"{table['name']!r}" if is_name(table.get("name")) else f"number {number}"
        found = [f"{named}: {problem}" for problem in _problems(table, hint)]
        if not found and table["name"] in {rule.name for rule in rules}:
            found = [f"{named}: the name is already used by another rule"]
        if not found:
            rules.append(
                Rule(
                    table["name"],
                    float(table["after"]),
                    tuple(table.get("reasons", ())),
                    table.get("payload", ""),
                )
            )
        wrong += found
    return tuple(rules), wrong


def _problems(table: Mapping[str, Any], hint: Hint) -> Iterator[str]:
    for key in table:
        if key not in KEYS:
            yield f"unknown key {key!r}{hint(key, KEYS)}"
    if not is_name(table.get("name")):
        yield f"name must be 1 to {MAX_NAME_CHARS} letters, digits or ._-, starting with a letter or digit"
    after = table.get("after")
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    if after is None or not (is_number and 0 <= after <= MAX_AFTER_S):  # also excludes NaN
        yield f"after must be a number from 0 to {MAX_AFTER_S:,.0f} s"
    if "reasons" in table:
        yield from _problems_of_reasons(table["reasons"], hint)
    payload = table.get("payload", "")
    if not isinstance(payload, str) or len(payload.encode("utf-8", "replace")) > MAX_PAYLOAD_BYTES:
        yield f"payload must be text of at most {MAX_PAYLOAD_BYTES:,} bytes"


def _problems_of_reasons(reasons: object, hint: Hint) -> Iterator[str]:
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        yield "reasons must be a list of names, such as idle_timeout"
        return
    if not reasons:
        yield "reasons must not be empty: omit it to match all reasons"
    for reason in reasons:
        if reason not in REASONS:
            yield f"unknown reason {reason!r}{hint(reason, REASONS)}"
