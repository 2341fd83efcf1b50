"""Rules of follow-ups: what is to be done so many seconds after a user went offline, unless he came back.

In the file of settings, one table each::

    [[followups]]
    name = "we-miss-you"
    after = 3600                                # seconds after the offline event
    reasons = ["idle_timeout", "node_down"]     # of these offline events only; without it, of all
    payload = "mail template 7"                 # handed to whoever does it; at most 4 KiB
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from presence.protocol.constants import Code

NAME_CHARS_MAX: Final = 64
PAYLOAD_BYTES_MAX: Final = 4096  # a name, an id, a template: what is larger belongs into a database
AFTER_MAX_S: Final = 366 * 86_400.0
RULES_MAX: Final = 64  # each costs every offline event a few writes
KEYS: Final = ("name", "after", "reasons", "payload")
REASONS: Final = tuple(code.reason for code in Code if code not in {Code.LOGIN, Code.RETURNED})
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}", re.ASCII)

Hint = Callable[[str, Iterable[str]], str]
"""Says of a name that is not known which one may have been meant."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows an offline event."""

    name: str  # its own among the rules
    after: float  # seconds from the offline event, 0 to `AFTER_MAX_S`
    reasons: tuple[str, ...] = ()  # the names of the reasons that it is for; empty for all
    payload: str = ""  # text for whoever does it, at most `PAYLOAD_BYTES_MAX` bytes of UTF-8

    def __post_init__(self) -> None:
        for problem in _problems(self.as_table(), lambda _name, _known: ""):
            raise ValueError(problem)

    def as_table(self) -> dict[str, Any]:
        """Return it as a table of the file holds it; what is not set is left out."""
        table: dict[str, Any] = {"name": self.name, "after": self.after}
        if self.reasons:
            table["reasons"] = list(self.reasons)
        if self.payload:
            table["payload"] = self.payload
        return table


def is_name(text: object) -> bool:
    """Whether a text can name a follow-up: letters, digits, and ``._-`` after the first of them."""
    return isinstance(text, str) and bool(_NAME.fullmatch(text))


def read_rules(raw: object, hint: Hint) -> tuple[tuple[Rule, ...], list[str]]:
    """Return the rules that the value of a file means, and what is wrong with it, a line each.

    Args:
        raw: what stood there: a list of tables.
        hint: see `Hint`.
    """
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        return (), ["must be tables: [[followups]]"]
    if len(raw) > RULES_MAX:
        return (), [f"must be at most {RULES_MAX} tables, not {len(raw)}"]
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
        yield f"name must be 1 to {NAME_CHARS_MAX} letters, digits or ._-, starting with a letter or digit"
    after = table.get("after")
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    if after is None or not (is_number and 0 <= after <= AFTER_MAX_S):  # NaN is in no range
        yield f"after must be a number from 0 to {AFTER_MAX_S:,.0f} s"
    if "reasons" in table:
        yield from _problems_of_reasons(table["reasons"], hint)
    payload = table.get("payload", "")
    if not isinstance(payload, str) or len(payload.encode("utf-8", "replace")) > PAYLOAD_BYTES_MAX:
        yield f"payload must be text of at most {PAYLOAD_BYTES_MAX:,} bytes"


def _problems_of_reasons(reasons: object, hint: Hint) -> Iterator[str]:
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        yield "reasons must be a list of names, such as idle_timeout"
        return
    if not reasons:
        yield "reasons must not be empty: omit it to match all reasons"
    for reason in reasons:
        if reason not in REASONS:
            yield f"unknown reason {reason!r}{hint(reason, REASONS)}"
