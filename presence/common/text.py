"""Lines of text for people and programs, in which no value can forge a line or control a terminal."""

import json
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from presence.common import meta_json

_EVENT_WIDTH = 28
_NEEDS_QUOTES = frozenset(" =\"'")


# Characters that leave no mark although Python counts them as printable: Default_Ignorable_Code_Point without
# the format characters, fillers, and blanks that are no white space. `admin/page/text.js` has them, too.
UNMARKED: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
# Vowels and finals of Hangul, which join the letter before them as combining marks do.
_JOINING_JAMO: Final = re.compile("[\u1161-\u1175\u11a8-\u11c2]")
_CODE: Final = re.compile(r"\\u\{([0-9a-f]{1,6})\}")


def printable(text: str) -> str:
    r"""Return text in which two different names never look the same, apart from letters that look alike.

    Every control, format and otherwise invisible character is replaced by its code, as ``\u{3164}``; so are
    combining marks, and characters with another canonical form, if the text is not in normal form C. Names of
    users and devices have no braces, so none contains a code. `named` is the inverse.
    """
    if text.isascii() and text.isprintable():
        return text
    is_composed = unicodedata.is_normalized("NFC", text)
    return "".join(f"\\u{{{ord(c):x}}}" if _is_hidden(c, is_composed=is_composed) else c for c in text)


def _is_hidden(c: str, *, is_composed: bool) -> bool:
    if not c.isprintable() or UNMARKED.match(c):
        return True
    if is_composed or c.isascii():
        return False
    joins = unicodedata.category(c)[0] == "M" or _JOINING_JAMO.match(c)
    return bool(joins) or unicodedata.normalize("NFC", c) != c


def named(text: str) -> str:
    r"""Return the name that `printable` shows as `text`: codes such as ``\u{3164}`` become characters."""
    return _CODE.sub(lambda code: chr(int(code[1], 16)) if int(code[1], 16) <= 0x10FFFF else code[0], text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 room``, ``2 rooms``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def json_line(values: Mapping[str, Any]) -> str:
    """Return `values`, which must be plain data, as one line of JSON in ASCII."""
    # JSON does not require DEL to be escaped; terminals do.
    return json.dumps(values, separators=(",", ":")).replace("\x7f", "\\u007f")


def plain_state(value: Any) -> Any:
    """Return states with metadata as plain data instead of typed values."""
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
