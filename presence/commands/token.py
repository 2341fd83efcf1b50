"""``presence token``: keys and tokens for whoever has no issuer yet, and answers for whoever is refused.

A key's secret goes from file to file: no argument holds it, and no complaint shows it.
"""

import secrets
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from presence.auth import key_file, making, tokens
from presence.auth.key_file import KeyFileError
from presence.auth.keys import HS256, Unsound
from presence.auth.making import CannotSign
from presence.auth.tokens import Terms, TokenRefused
from presence.commands.outcome import FAILED, OK, USAGE, complain
from presence.commands.secret_files import SECRET_MODE, replace_file
from presence.rendering import json_line, printable

PUBLIC_MODE = 0o644
TOKEN_READ_BYTES = 65_536  # of a file or of standard input; a token has less than a thousand


class NewKey(NamedTuple):
    """A key to be made.

    Attributes:
        alg: its algorithm.
        kid: its name; None: a random one.
        into: the key file that it is added to; None: it is printed.
        public: the key file that its public part is added to; None: none is.
    """

    alg: str
    kid: str | None
    into: Path | None
    public: Path | None


def key(new: NewKey) -> int:
    """Make a key; return the exit status."""
    if new.public is not None and new.alg == HS256:
        complain("token key: a key of HS256 has no public part")
        return USAGE
    try:
        entry = making.make_key(new.kid or secrets.token_hex(4), new.alg)
        texts = []
        if new.into is not None:
            texts.append((new.into, _with(new.into, entry), SECRET_MODE))
        if new.public is not None:
            texts.append((new.public, _with(new.public, making.public_part(entry)), PUBLIC_MODE))
        for path, text, mode in texts:
            replace_file(path, text, mode)
    except (KeyFileError, Unsound, OSError) as error:
        complain(f"token key: {error}")
        return FAILED
    print(making.key_set([entry]) if new.into is None else printable(entry["kid"]))
    return OK


def no_keys() -> int:
    """Say that nobody has named a key file."""
    complain("token: give --keys FILE, or token_keys in the settings")
    return USAGE


def make(keys: Path, kid: str | None, uid: str, audience: str, ttl_s: float) -> int:
    """Print a token; return the exit status."""
    if not tokens.is_uid(uid):
        complain(f"token make: {uid!r} is no uid")
        return USAGE
    try:
        entries = key_file.entries_of(key_file.read(keys))
        entry = _named(entries, kid)
        token = making.make_token(entry, uid, audience=audience, now=time.time(), ttl_s=ttl_s)
    except (KeyFileError, Unsound, CannotSign) as error:
        complain(f"token make: {error}")
        return FAILED
    print(token)
    return OK


def check(keys: Path, where: str, audience: str, leeway_s: float, *, as_json: bool) -> int:
    """Say whether a token is good; return the exit status, 0 if it is."""
    try:
        keyring = key_file.load(keys)
        token = tokens.parse(_token(where), keyring)
        now = time.time()
        claims = tokens.check(token, Terms(audience, leeway_s), now)
    except (KeyFileError, OSError) as error:
        complain(f"token check: {error}")
        return FAILED
    except TokenRefused as error:
        complain(f"token check: refused: {error}")
        return FAILED
    said = {"uid": claims.uid, "kid": token.key.kid, "alg": token.key.alg, "expires": claims.expires}
    print(json_line(said) if as_json else _line(said, now))
    return OK


def _line(said: Mapping[str, Any], now: float) -> str:
    ends = datetime.fromtimestamp(said["expires"], UTC).isoformat(" ", "seconds")
    name = f"{printable(said['kid'])} ({said['alg']})"
    return f"{printable(said['uid'])}  key {name}  good until {ends}, {said['expires'] - now:.0f} s from now"


def _token(where: str) -> str:
    if where == "-":
        return _text(sys.stdin.buffer)
    if where.startswith("@"):
        with Path(where[1:]).open("rb") as file:
            return _text(file)
    complain("token check: others on this machine can see arguments: give @FILE, or - for standard input")
    return where


def _text(file: BinaryIO) -> str:
    return file.read(TOKEN_READ_BYTES).decode("utf-8", "replace").strip()


def _named(entries: list[Any], kid: str | None) -> Mapping[str, Any]:
    """Return the entry of this name, or the last one.

    Raises:
        Unsound: there is none.
    """
    for entry in reversed(entries):
        if isinstance(entry, dict) and kid in (None, entry.get("kid")):
            return entry
    raise Unsound(f"no key is named {kid!r}")


def _with(path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text of a key file with one more key.

    Raises:
        KeyFileError: it cannot be read or is not sound.
        Unsound: it has a key of this name already.
    """
    if not path.exists():
        return making.key_set([entry])
    raw = key_file.read(path)
    text = making.key_set([*key_file.entries_of(raw), entry])
    key_file.parse(text.encode(), path)
    return text
