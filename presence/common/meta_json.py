"""A client's metadata as JSON text and back: for Redis, whose scripts pass the text on without parsing it.

Binary values, which JSON does not have, are objects of one key, as in the protocol's test vectors:
`{"$bin": "00ff"}`, in hex. A client's own map of one key that begins with `$` gets a second `$`.
"""

import json
from collections.abc import Mapping
from typing import Any

_BINARY = "$bin"


def to_text(meta: Mapping[str, Any]) -> str:
    """Return a map of MessagePack types as text; "" for an empty one."""
    if not meta:
        return ""
    # Redis would write the character DEL, where the text becomes part of another, in six bytes.
    return json.dumps(to_plain(meta), separators=(",", ":"), ensure_ascii=False).replace("\x7f", "\\u007f")


def from_text(text: str) -> dict[str, Any]:
    """Return the map that `to_text` has encoded.

    Raises:
        ValueError: the text is not an encoded map.
    """
    meta = from_plain(json.loads(text)) if text else {}
    if not isinstance(meta, dict):
        raise ValueError("meta must be a map")  # noqa: TRY004 - one error for every invalid text
    return meta


def to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BINARY: value.hex()}
    if isinstance(value, Mapping):
        (name,) = value if len(value) == 1 else ("",)
        if name.startswith("$"):
            return {f"${name}": to_plain(value[name])}
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return value


def from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        (name,) = value if len(value) == 1 else ("",)
        if name == _BINARY:
            return bytes.fromhex(value[name]) if isinstance(value[name], str) else _not_hex()
        if name.startswith("$"):
            return {name[1:]: from_plain(value[name])}
        return {key: from_plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [from_plain(each) for each in value]
    return value


def _not_hex() -> bytes:
    raise ValueError(f"{_BINARY} must hold hex")
