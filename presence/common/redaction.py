"""Removal of secrets from printed values: by the name of their key, or by the form of the text.

Tests: `tests/common/test_logs.py`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "***"
_MAX_DEPTH = 6  # of nested values in a line of log; deeper ones are shown as their type
_SECRET_KEY = re.compile(
    r"(token|passw(or)?d|passphrase|secret|authorization|cookie|credentials?|(api|private|secret|access)_?key)$"
)
# Up to the last @ of the word, because a password may contain one.
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:@/]*:)[^\s\"'<>]*(?=@)", re.IGNORECASE)
_TOKEN = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")  # of JSON: its header begins with {"
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END |\Z)", re.DOTALL)
_KEY_MEMBER = re.compile(r"""(["'](?:k|d|p|q|dp|dq|qi)["']\s*:\s*["'])[\w+/=-]{16,}""")  # of a JSON Web Key
_ASSIGNED = re.compile(r"((?:password|passwd|secret|token)=|\bBearer )[^\s&,;\"'<>]+", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return `text` without passwords of URLs, tokens, private keys, and values such as in ``password=…``."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1{REDACTED}", text)
    if "eyJ" in text:
        text = _TOKEN.sub(REDACTED, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(rf"\1{REDACTED}", text)
    if ":" in text:
        text = _KEY_MEMBER.sub(rf"\1{REDACTED}", text)
    return _ASSIGNED.sub(rf"\1{REDACTED}", text)


def plain(value: object, key: object = None, depth: int = 0) -> object:
    """Return `value` as plain JSON data without secrets; never raises.

    It is hidden if its `key` names a secret; `depth` is how deeply it is nested.
    """
    if _names_secret(key) and value is not None:
        return REDACTED
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _container(value, depth)
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text(value)


def _container(value: Mapping[Any, Any] | Iterable[object], depth: int) -> object:
    if depth >= _MAX_DEPTH:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        return {_text(key): plain(item, key, depth + 1) for key, item in value.items()}
    return [plain(item, None, depth + 1) for item in value]


def _names_secret(key: object) -> bool:
    if isinstance(key, bytes):
        key = key.decode("utf-8", "replace")
    return isinstance(key, str) and _SECRET_KEY.search(key.lower().replace("-", "_")) is not None


def _text(value: object) -> str:
    try:
        return redact_text(str(value))
    except Exception:  # of a library's __str__; a log line must not raise
        return f"<{type(value).__name__}>"
