"""The key file: a JSON Web Key Set (RFC 7517), read and checked as a whole.

Each key has a name (`kid`) and one algorithm (`alg`: HS256, RS256, ES256 or EdDSA). One invalid key makes
the file invalid; the message names the key, by its `kid` or its position, and shows none of its material.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from presence.auth.signing_keys import (
    ALGORITHMS,
    CURVES,
    HS256,
    KTY,
    PUBLIC,
    RS256,
    SECRET_BYTES,
    InvalidKey,
    Key,
    Keyring,
    KeySetError,
)
from presence.common import files

MAX_FILE_BYTES: Final = 256 * 1024  # a hundred keys of every kind
MAX_KEYS: Final = 100  # a rotation needs two
MAX_KID_BYTES: Final = 64  # a token has 768 bytes for everything
MAX_SECRET_BYTES: Final = 1024
MIN_RSA_BITS: Final = 2048  # RFC 7518, section 3.3
MAX_RSA_BITS: Final = 3072  # beyond, a token is longer than the protocol takes
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
SECRET_MEMBERS: Final = ("k", "d", "p", "q", "dp", "dq", "qi", "oth")


def load(path: Path) -> Keyring:
    """Return the keys of a file, see `read` and `parse`.

    Raises:
        KeySetError: it cannot be read, or is invalid.
    """
    return parse(read(path), path)


def read(path: Path) -> bytes:
    """Return the content of the file.

    Raises:
        KeySetError: it cannot be read without blocking, is too large, or its permissions are too open.
    """
    try:
        with files.open_regular_file(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeySetError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise KeySetError(f"{path}: is larger than {MAX_FILE_BYTES:,} bytes")
    if mode & stat.S_IWOTH:
        raise KeySetError(f"{path}: world-writable, so that any user could add a key: chmod o-rwx")
    if mode & stat.S_IROTH and _holds_secrets(raw):
        raise KeySetError(f"{path}: holds secrets, and is world-readable: chmod o-rwx")
    return raw


def parse(raw: bytes, path: Path) -> Keyring:
    """Return the keys that a file holds.

    Raises:
        KeySetError: they are invalid.
    """
    try:
        entries = entries_of(raw)
    except InvalidKey as error:
        raise KeySetError(f"{path}: {error}") from None
    keys: dict[str, Key] = {}
    for place, entry in enumerate(entries, 1):
        name = _name(entry, place)
        try:
            key = key_of(entry)
        except InvalidKey as error:
            raise KeySetError(f"{path}: {name}: {error}") from None
        if key.kid in keys:
            raise KeySetError(f"{path}: {name}: another key has this kid")
        keys[key.kid] = key
    return Keyring(keys.values(), digest(raw))


def digest(raw: bytes) -> bytes:
    """Return a digest that shows whether a file has changed, without keeping its secrets."""
    return hashlib.sha256(raw).digest()


def entries_of(raw: bytes) -> list[Any]:
    """Return the entries of a key set.

    Raises:
        InvalidKey: it is no key set.
    """
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):  # whose messages may show the content
        raise InvalidKey("is not valid JSON") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InvalidKey('must be a JSON Web Key Set: {"keys": [...]}')
    if not entries:
        raise InvalidKey("holds no key")
    if len(entries) > MAX_KEYS:
        raise InvalidKey(f"holds more than {MAX_KEYS} keys")
    return entries


def key_of(entry: object) -> Key:
    """Return the key of an entry.

    Raises:
        InvalidKey: the entry is no valid key; the message says why.
    """
    if not isinstance(entry, dict):
        raise InvalidKey("must be an object")
    kid, alg = entry.get("kid"), entry.get("alg")
    if not is_kid(kid):
        raise InvalidKey(f"kid must be text of 1 to {MAX_KID_BYTES} bytes that can be printed")
    if not isinstance(alg, str) or alg not in ALGORITHMS:
        raise InvalidKey(f"alg must be one of {', '.join(ALGORITHMS)}")
    if entry.get("kty") != KTY[alg]:
        raise InvalidKey(f"kty must be {KTY[alg]} with alg {alg}")
    if entry.get("use", "sig") != "sig":
        raise InvalidKey("use must be sig, where it is given")
    if alg in CURVES and entry.get("crv") != CURVES[alg]:
        raise InvalidKey(f"crv must be {CURVES[alg]}")
    for member in PUBLIC[alg]:
        if not _BASE64URL.fullmatch(str(entry.get(member, ""))):
            raise InvalidKey(f"{member} must be text in base64url")
    key = Key(str(kid), alg, entry)
    if alg == HS256 and not SECRET_BYTES <= key.bits // 8 <= MAX_SECRET_BYTES:
        raise InvalidKey(f"k must be {SECRET_BYTES} to {MAX_SECRET_BYTES:,} bytes long, in base64url")
    if alg == RS256 and not MIN_RSA_BITS <= key.bits <= MAX_RSA_BITS:
        raise InvalidKey(f"n must have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    return key


def is_kid(text: object) -> bool:
    """Whether a value can be the name of a key."""
    if not isinstance(text, str) or not text.isprintable():
        return False
    return 0 < len(text.encode()) <= MAX_KID_BYTES


def _name(entry: object, place: int) -> str:
    kid = entry.get("kid") if isinstance(entry, dict) else None
    return f"key {kid!r}" if is_kid(kid) else f"key {place} of the list"


def _holds_secrets(raw: bytes) -> bool:
    """Whether something in a file looks like a secret, even if the file is invalid."""
    return any(f'"{member}"'.encode() in raw for member in SECRET_MEMBERS)


def named(entries: list[Any], kid: str | None) -> Mapping[str, Any]:
    """Return the entry with this kid, or the last one.

    Raises:
        InvalidKey: there is none.
    """
    for entry in reversed(entries):
        if isinstance(entry, dict) and kid in (None, entry.get("kid")):
            return entry
    raise InvalidKey(f"no key has the kid {kid!r}")
