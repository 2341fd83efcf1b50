"""Lines of text for people and programs, in which no value can forge a line or control a terminal."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from presence.common import meta_json

_EVENT_WIDTH = 28
_NEEDS_QUOTES = frozenset(" =\"'")


def printable(text: str) -> str:
    r"""Return `text` with every control, format and otherwise invisible character escaped (``\x1b``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_line(values: Mapping[str, Any]) -> str:
    """Return `values`, which must be plain data, as one line of JSON in ASCII."""
    # JSON does not require DEL to be escaped; terminals do.
    return json.dumps(values, separators=(",", ":")).replace("\x7f", "\\u007f")


def plain_state(value: Any) -> Any:
    """Return states with metadata as plain data instead of typed values; see `presence.common.meta_json`."""
    match value:
        case dict():
            return {
                key: json.loads(meta_json.to_text(each)) if key in {"meta", "private"} else plain_state(each)
                for key, each in value.items()
            }
        case list():
            return [plain_state(each) for each in value]
    return value


def json_event(event: Mapping[str, Any]) -> str:
    """Return a log event as one line of JSON, beginning with the fields that every event has."""
    front = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return json_line({**front, **event})


def console_line(values: Mapping[str, Any]) -> str:
    """Return a log event for people: time, level, event, then ``key=value``.

    An exception follows on indented lines of its own, so that its text cannot be mistaken for another event.
    """
    rest = dict(values)
    stamp = str(rest.pop("timestamp", ""))
    level = str(rest.pop("level", ""))
    event = str(rest.pop("event", ""))
    exception = rest.pop("exception", None)
    pairs = " ".join(f"{printable(key)}={_value(value)}" for key, value in rest.items())
    line = f"{printable(stamp)} {printable(level):<7} {printable(event):<{_EVENT_WIDTH}} {pairs}".rstrip()
    if exception:
        line += "".join(f"\n    {printable(part)}" for part in str(exception).splitlines())
    return line


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and (not text or not _NEEDS_QUOTES.isdisjoint(text)):
        text = json.dumps(text, ensure_ascii=False)
    return printable(text)


def utc_time(unix_ms: int) -> str:
    """Return a time as text, in UTC."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # out of range
        return f"{unix_ms} ms"
