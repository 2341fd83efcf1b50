"""``presence token``: keys and tokens for whoever has no issuer yet, and answers for whoever is refused.

A key's secret goes from file to file: no argument holds it, and no complaint shows it.
"""

import argparse
import contextlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from presence.auth import issuing, key_file, operator_tokens, tokens
from presence.auth.issuing import CannotSign
from presence.auth.key_file import KeyFileError
from presence.auth.keys import HS256, InvalidKey
from presence.auth.operator_tokens import TokenFileError
from presence.auth.tokens import TokenRefused, TokenRules
from presence.cli.errors import FAILED, OK, complain
from presence.cli.options import Load, UsageError, add_json, add_settings, secret_source, some_seconds
from presence.common.text import json_line, printable
from presence.config.settings import Settings

SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
OTHERS: Final = 0o007
TOKEN_READ_BYTES: Final = 65_536  # of a file or of standard input; a token has less than a thousand


_KEY = (
    "Adds a fresh key to a key file, which is made if it is not there, for its owner alone to read. The kid "
    "that tokens name it by is printed. For RS256 and EdDSA --public adds the public part to another file: "
    "servers need no more, and cannot make tokens with it. Servers notice within seconds."
)
_MAKE = "Prints a token for a user, signed by a key of a file. The server need not be there."
_CHECK = (
    "Says whether servers with these keys would take a token, and if not, why; clients are never told. "
    "Without a token, or with -, it is read from standard input."
)
_ADMIN = (
    "Prints a line with a fresh token for the file that admin_tokens names: who has it reads over HTTP, or, "
    "with the role act, ends sessions, too. With --into the line is added to the file, which is made if it "
    "is not there, for its owner alone to read. Servers read it at the start, and again on SIGHUP."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said after ``presence token``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="key|make|check|admin")

    key = actions.add_parser("key", help="make a key", description=_KEY)
    key.add_argument("--into", type=Path, metavar="FILE", help="key file; by default a new one is printed")
    key.add_argument("--public", type=Path, metavar="FILE", help="key file for the public part")
    algorithms = ("HS256", "RS256", "EdDSA")
    key.add_argument("--alg", choices=algorithms, default="EdDSA", help="algorithm (default EdDSA)")
    key.add_argument("--kid", metavar="NAME", help="its name; by default a random one")
    add_settings(key, ())

    make = actions.add_parser("make", help="print a token", description=_MAKE)
    _add_keys(make)
    make.add_argument("--uid", required=True, help="whom it is made out for")
    make.add_argument("--kid", metavar="NAME", help="the key that signs; by default the file's last one")
    make.add_argument(
        "--ttl",
        type=some_seconds,
        default=3600.0,
        metavar="S",
        help="for how long it is good (default 3600 s)",
    )
    add_settings(make, ("token_audience",))

    check = actions.add_parser("check", help="say whether a token is good, and why not", description=_CHECK)
    _add_keys(check)
    check.add_argument(
        "token", nargs="?", default="-", type=secret_source, metavar="@FILE|-", help="where the token is"
    )
    add_json(check, "one JSON object: what the token says")
    add_settings(check, ("token_audience", "token_leeway"))

    admin = actions.add_parser("admin", help="make a token for an operator", description=_ADMIN)
    admin.add_argument("--role", choices=("read", "act"), required=True, help="what it may; act reads, too")
    admin.add_argument("--name", required=True, help="whose it is, for the log")
    admin.add_argument("--into", type=Path, metavar="FILE", help="file of tokens; by default it is printed")
    add_settings(admin, ())


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=Path, metavar="FILE", help="key file; by default that of token_keys")


def run(args: argparse.Namespace, load: Load) -> int:
    """Run the action that was named; return the exit status."""
    settings = load().settings
    try:
        if args.action == "key":
            _key(args)
        elif args.action == "admin":
            _admin(args)
        else:
            keys: Path | None = args.keys or settings.token_keys
            if keys is None:
                raise UsageError("token: give --keys FILE, or token_keys in the settings")
            (_make if args.action == "make" else _check)(keys, args, settings)
    except TokenRefused as error:
        complain(f"token check: refused: {error}")
    except (KeyFileError, TokenFileError, InvalidKey, CannotSign, OSError) as error:
        complain(f"token {args.action}: {error}")
    else:
        return OK
    return FAILED


def _key(args: argparse.Namespace) -> None:
    if args.public is not None and args.alg == HS256:
        raise UsageError("token key: a key of HS256 has no public part")
    entry = issuing.make_key(args.kid or secrets.token_hex(4), args.alg)
    texts = []
    if args.into is not None:
        texts.append((args.into, _with(args.into, entry), SECRET_MODE))
    if args.public is not None:
        texts.append((args.public, _with(args.public, issuing.public_entry(entry)), PUBLIC_MODE))
    for path, text, mode in texts:
        replace_file(path, text, mode)
    print(issuing.key_set([entry]) if args.into is None else printable(entry["kid"]))


def _make(keys: Path, args: argparse.Namespace, settings: Settings) -> None:
    if not tokens.is_uid(args.uid):
        raise UsageError(f"token make: {args.uid!r} is no uid")
    entry = _named(key_file.entries_of(key_file.read(keys)), args.kid)
    audience, now = settings.token_audience, time.time()
    print(issuing.make_token(entry, args.uid, audience=audience, now=now, ttl_s=args.ttl))


def _check(keys: Path, args: argparse.Namespace, settings: Settings) -> None:
    """Say what a token says, or why it is refused."""
    keyring = key_file.load(keys)
    token = tokens.parse(_token(args.token), keyring)
    now = time.time()
    claims = tokens.check(token, TokenRules(settings.token_audience, settings.token_leeway), now)
    said = {"uid": claims.uid, "kid": token.key.kid, "alg": token.key.alg, "expires": claims.expires}
    print(json_line(said) if args.json else _line(said, now))


def _line(said: Mapping[str, Any], now: float) -> str:
    ends = datetime.fromtimestamp(said["expires"], UTC).isoformat(" ", "seconds")
    name = f"{printable(said['kid'])} ({said['alg']})"
    return f"{printable(said['uid'])}  key {name}  good until {ends}, {said['expires'] - now:.0f} s from now"


def _token(source: str) -> str:
    with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else Path(source[1:]).open("rb") as file:
        return file.read(TOKEN_READ_BYTES).decode("utf-8", "replace").strip()


def _named(entries: list[Any], kid: str | None) -> Mapping[str, Any]:
    """Return the entry of this name, or the last one."""
    for entry in reversed(entries):
        if isinstance(entry, dict) and kid in (None, entry.get("kid")):
            return entry
    raise InvalidKey(f"no key is named {kid!r}")


def _with(path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text of a key file with one more key."""
    if not path.exists():
        return issuing.key_set([entry])
    raw = key_file.read(path)
    text = issuing.key_set([*key_file.entries_of(raw), entry])
    key_file.parse(text.encode(), path)
    return text


def _admin(args: argparse.Namespace) -> None:
    """Print a line with a fresh secret, or add it to a file."""
    try:
        line = operator_tokens.make_line(args.role, args.name)
    except ValueError as error:
        raise UsageError(f"token admin: {error}") from None
    if args.into is None:
        print(line)
        return
    before = args.into.read_text("utf-8", "replace") if args.into.exists() else ""
    if before.strip():
        operator_tokens.load(args.into)  # nothing is added to a file that no server would take
    end = "" if not before or before.endswith("\n") else "\n"
    replace_file(args.into, f"{before}{end}{line}\n", SECRET_MODE)
    print(f"{args.role} {args.name}")


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a file in one go as its readers see it, with owner and mode as they were.

    `mode` is for a file that is not there; where others may not read that, they never may.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            if path.exists():
                before = path.stat()
                mode = stat.S_IMODE(before.st_mode) & (mode | ~OTHERS)
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
