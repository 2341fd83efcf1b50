"""One list of odd uids, devices, metas and bodies, which every layer must take alike, or refuse alike.

Names are those of the protocol: at most 128 bytes of UTF-8 for a uid and 64 for a device, without control
characters, white space and braces. So everything in `NAMES` may log in.
"""

import random
from typing import Any, Final

from presence.protocol.constants import DEVICE_MAX_BYTES, UID_MAX_BYTES

# What it is, and the name: the protocol takes each as a uid, and as a device if it is short enough.
NAMES: Final[dict[str, str]] = {
    # Characters without a mark, or with one in some fonts only
    "zero-width joiner": "family-\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "zero-width non-joiner": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "zero-width space": "ann\u200b",
    "soft hyphen": "an\u00adn",
    "byte order mark first": "\ufeffann",
    "byte order mark last": "ann\ufeff",
    "Hangul filler": "ann\u3164",
    "Hangul choseong filler": "ann\u115f",
    "half-width Hangul filler": "ann\uffa0",
    "Braille blank": "ann\u2800",
    "combining grapheme joiner": "ann\u034f",
    "Khmer inherent vowel": "ann\u17b5",
    "Mongolian variation selector": "ann\u180b",
    "variation selector": "ann\ufe0f",
    "variation selector 17": "ann\U000e0100",
    "language tag": "ann\U000e0061",
    "word joiner": "ann\u2060",
    "invisible times": "ann\u2062",
    "null notehead": "ann\U0001d159",
    "only invisible": "\u2063\u2063",
    # Directions
    "right-to-left override": "ann\u202egpj.exe",
    "right-to-left isolate": "\u2067ann",
    "Arabic letter mark": "ann\u061c",
    "Arabic": "\u0645\u062d\u0645\u062f",
    "Hebrew and digits": "\u05d3\u05d5\u05d3-1",
    # Letters
    "composed": "Ren\u00e9e",
    "decomposed": "Rene\u0301e",
    "marks in another order": "a\u0323\u0307b\u0307\u0323",
    "Hangul letters": "\u1112\u1161\u11ab",
    "Angstrom sign": "\u212bngstr\u00f6m",
    "stacked marks": "z" + "\u0335\u0316\u034e" * 4,
    "a mark alone": "\u0301ann",
    "homoglyph": "\u0430nn",
    "Turkish dotless": "\u0131stanbul-\u0130",
    "sharp s": "Stra\u00dfe",
    "private use": "ann\ue000",
    "unassigned": "ann\u0378",
    "non-character": "ann\uffff",
    "flag": "\U0001f1e9\U0001f1ea",
    "emoji with skin": "\U0001f44d\U0001f3fd",
    "beyond the basic plane": "\U00020bb7\U0001d4d0",
    # Paths and URLs
    "dot": ".",
    "dots": "..",
    "three dots": "...",
    "slash": "/",
    "path": "a/../b",
    "path to the root": "/etc/passwd",
    "backslash": "a\\..\\b",
    "percent": "%",
    "percent-encoded": "a%2Fb%00%zz",
    "query": "a?b=c&uid=d#e;f",
    # Without a password, which would be removed from the log and from errors, as from every URL there.
    "url": "http://user@host:80/x?y#z",
    "mail address": "ann+x@example.com",
    "route": "query",
    # Words of programs and formats
    "dash": "-",
    "two dashes": "--",
    "short flag": "-x",
    "long flag": "--help",
    "flag with a value": "--redis=redis://127.0.0.1:1",
    "file source": "@/etc/passwd",
    "star last": "ann*",
    "glob": "*",
    "Redis pattern": "[a-z]?h*llo^",
    "Redis id": "1700000000000-0",
    "Redis special id": "$",
    "number": "0",
    "big number": "1e999",
    "not a number": "NaN",
    "null": "null",
    "true": "true",
    "None": "None",
    "proto": "__proto__",
    "constructor": "constructor",
    "toString": "toString",
    "html": "<script>alert(1)</script><b>",
    "html attribute": "\"'><img/src=x/onerror=alert(1)>",
    "html entity": "&lt;b&gt;&amp;",
    "quotes": "\"'`",
    "JSON": '["ann",1]',
    "escape that looks like ours": "ann\\u3164",
    "escape of Python": "ann\\x1b[2J\\n",
    "shell": "$(reboot);`reboot`|x&",
    "SQL": "'OR'1'='1",
    "format": "%s%n$1%(uid)s",
    "comma": "ann,bob",
    "colon": "a:b:c:",
    "equals": "uid=ann",
    "hash": "#user=ann",
    "at": "@shop",
    "empty list of Lua": "nil",
    # Sizes
    "one byte": "!",
    "longest": "l" * UID_MAX_BYTES,
    "longest of two bytes": "\u00e9" * (UID_MAX_BYTES // 2),
    "longest of four bytes": "\U0001f600" * (UID_MAX_BYTES // 4),
    "longest that is shown longest": "\u00ad" * (UID_MAX_BYTES // 2),
}

# What no layer may take as a uid.
NO_NAMES: Final[dict[str, str]] = {
    "empty": "",
    "space": "ann bob",
    "space last": "ann ",
    "no-break space": "ann\u00a0",
    "ideographic space": "ann\u3000",
    "line separator": "ann\u2028",
    "tab": "ann\t",
    "line feed": "ann\nbob",
    "escape": "\x1b[2J",
    "NUL": "a\0b",
    "DEL": "ann\x7f",
    "C1": "ann\x9b",
    "brace": "a{b}c",
    "half of a surrogate pair": "ann\ud800",
    "too long": "l" * (UID_MAX_BYTES + 1),
    "too long in bytes": "\u00e9" * (UID_MAX_BYTES // 2 + 1),
    "very long": "l" * 70_000,
}

# Metas that a login may carry.
METAS: Final[dict[str, dict[str, Any]]] = {
    "empty": {},
    "html": {"<b>": "<script>alert(1)</script>"},
    "proto": {"__proto__": {"a": 1}, "constructor": "x"},
    "controls": {"a": "\x1b[2J\x00\x7f\x9b\r\n\u2028"},
    "invisible": {"\u3164": "\u202eevil"},
    "bytes": {"b": b"\x00\xff", "$bin": "00"},
    "numbers": {"big": 2**64 - 1, "small": -(2**63), "f": 1.5e300, "z": -0.0},
    "deep": {"a": [[{"b": [1]}]]},
    "nothing": {"n": None, "t": True, "": ""},
    "empty containers": {"l": [], "m": {}},
    "JSON text": {"j": '{"a":1}', "q": "\"'\\"},
}

# Bodies of messages.
BODIES: Final[dict[str, Any]] = {
    "nil": None,
    "text": "<b>\u202e\x00\u3164",
    "empty": "",
    "number": 2**64 - 1,
    "proto": {"__proto__": {"a": 1}, "constructor": None},
    "bytes": b"\xff\x00",
    "list": [[], {}, [None, True, -1.5]],
}


def devices() -> dict[str, str]:
    """Return the names that are short enough for a device."""
    return {what: name for what, name in NAMES.items() if len(name.encode()) <= DEVICE_MAX_BYTES}


def some(cells: dict[str, Any], count: int, seed: int = 42) -> dict[str, Any]:
    """Return a selection, the same for the same seed."""
    return dict(random.Random(seed).sample(sorted(cells.items()), min(count, len(cells))))
