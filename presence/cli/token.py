"""``presence token``: generates keys, signs and verifies tokens, and adds tokens of operators.

Secrets of keys stay in files: no argument and no error message holds one.
"""

import argparse
import contextlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from presence.auth import key_file, operator_tokens, token_signer, tokens
from presence.auth.operator_tokens import TokenFileError
from presence.auth.signing_keys import HS256, InvalidKey, KeySetError
from presence.auth.token_signer import CannotSign
from presence.auth.tokens import TokenRefused, TokenRules
from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import (
    Load,
    UsageError,
    add_json,
    add_seconds,
    add_settings,
    secret_source,
    uid_argument,
)
from presence.common.text import json_line, printable
from presence.config.settings import Settings, is_url
from presence.protocol import PASS_MAX_BYTES, ROOMS_MAX, TOKEN_MAX_BYTES
from presence.protocol.schema import room_complaint
from presence.server import credentials
from presence.server.credentials import CredentialsError

SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
OTHERS: Final = 0o007
TOKEN_READ_BYTES: Final = 65_536  # of a file or standard input; a token has fewer than a thousand


_KEYGEN = (
    "Generates a key, appends it to a key file (created if missing, readable by its owner only) and prints "
    "its kid, which tokens refer to. Except for HS256, --public appends the public part to another file: "
    "servers need only that, and cannot sign tokens with it. Servers load it within seconds."
)
_SIGN = "Prints a token for a user, signed with a key of a file. No server is needed."
_SIGN_TEXTS = {
    "token_issuer": "issuer of the token (iss)",
    "token_audience": "audience of the token (aud); of several, the first",
}
_SEE = "whom the user may see: uids, and beginnings of uids with a * after them"
_ROOMS_IN = "claim rooms: rooms that the session is in"
_ROOMS_JOIN = "claim rooms: rooms that the client may join, and beginnings of their names with a * after them"
_ROOMS_WATCH = "claim rooms: rooms that the client may watch, and beginnings of their names"
_ROOMS_MEMBERS = "claim rooms: the client is shown the members of rooms that it watches, or not"
_VISIBILITY = (
    "Prints a pass, signed with a key of a file: its user may see others for a time, on servers with "
    "visibility = claims. No server is needed."
)
_VERIFY = (
    "Prints whether servers with these keys accept a token, and if not, the reason, which clients never "
    "learn. Without an argument, or with -, the token is read from standard input."
)
_ADMIN = (
    "Prints a line with a new token for the file of the setting admin_tokens. The token permits reading over "
    "HTTP, and with the role act also ending sessions. With --append-to the line is appended to that file "
    "(created if missing, readable by its owner only). Servers read it at start and at SIGHUP."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="keygen|sign|pass|verify|admin")

    keygen = actions.add_parser("keygen", help="generate a key", description=_KEYGEN)
    keygen.add_argument(
        "--append-to", type=Path, metavar="FILE", help="key file; without it the key is printed"
    )
    keygen.add_argument("--public", type=Path, metavar="FILE", help="append the public part to this file")
    algorithms = ("HS256", "RS256", "ES256", "EdDSA")
    keygen.add_argument("--alg", choices=algorithms, default="EdDSA", help="algorithm (default EdDSA)")
    keygen.add_argument("--kid", metavar="NAME", help="id of the key (default: random)")
    add_settings(keygen, ())

    sign = actions.add_parser("sign", help="print a signed token", description=_SIGN)
    _add_signing(sign, "token")
    sign.add_argument("--see", nargs="+", metavar="UID", help=f"claim see: {_SEE}")
    sign.add_argument("--rooms-in", nargs="+", metavar="ROOM", help=_ROOMS_IN)
    sign.add_argument("--rooms-join", nargs="+", metavar="ROOM", help=_ROOMS_JOIN)
    sign.add_argument("--rooms-watch", nargs="+", metavar="ROOM", help=_ROOMS_WATCH)
    sign.add_argument("--rooms-members", action=argparse.BooleanOptionalAction, help=_ROOMS_MEMBERS)

    visibility_pass = actions.add_parser("pass", help="print a signed pass", description=_VISIBILITY)
    _add_signing(visibility_pass, "pass")
    visibility_pass.add_argument("--see", nargs="+", required=True, metavar="UID", help=_SEE)
    visibility_pass.set_defaults(rooms_in=None, rooms_join=None, rooms_watch=None, rooms_members=None)

    verify = actions.add_parser(
        "verify", help="check a token and print why it is refused", description=_VERIFY
    )
    _add_keys(verify)
    verify.add_argument(
        "token", nargs="?", default="-", type=secret_source, metavar="@FILE|-", help="source of the token"
    )
    verify.add_argument("--pass", action="store_true", dest="is_pass", help="check a pass, not a token")
    add_json(verify, "print one JSON object: the claims of the token")
    add_settings(verify, ("token_issuer", "token_audience", "token_leeway", "visibility"))

    admin = actions.add_parser("admin", help="generate a token for an operator", description=_ADMIN)
    admin.add_argument("--role", choices=("read", "act"), required=True, help="permission; act includes read")
    admin.add_argument("--name", required=True, help="name of the operator, for the log")
    admin.add_argument(
        "--append-to", type=Path, metavar="FILE", help="file of tokens; without it the line is printed"
    )
    add_settings(admin, ())


def _add_signing(parser: argparse.ArgumentParser, what: str) -> None:
    _add_keys(parser)
    parser.add_argument("--uid", required=True, type=uid_argument, help=f"user of the {what}")
    parser.add_argument("--kid", metavar="NAME", help="key to sign with (default: the last one of the file)")
    add_seconds(parser, "--ttl", 3600.0, f"lifetime of the {what}")
    add_settings(parser, ("token_issuer", "token_audience"), _SIGN_TEXTS)


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", metavar="FILE|URL", help="keys (default: the setting token_keys)")


def run(args: argparse.Namespace, load: Load) -> int:
    settings = load().settings
    try:
        if args.action == "keygen":
            _keygen(args)
        elif args.action == "admin":
            _admin(args)
        else:
            keys: str | None = args.keys or settings.token_keys
            if keys is None:
                raise UsageError("token: give --keys FILE, or token_keys in the settings")
            (_verify if args.action == "verify" else _sign)(keys, args, settings)
    except TokenRefused as error:
        print_error(f"token verify: refused: {error}")
    except CredentialsError as error:
        print_error(f"token {args.action}: {error.problem}")
    except (KeySetError, TokenFileError, InvalidKey, CannotSign, CannotWrite, OSError) as error:
        print_error(f"token {args.action}: {error}")
    else:
        return OK
    return FAILED


def _keygen(args: argparse.Namespace) -> None:
    if args.public is not None and args.alg == HS256:
        raise UsageError("token keygen: an HS256 key has no public part")
    if None not in (args.public, args.append_to) and args.public.resolve() == args.append_to.resolve():
        raise UsageError("token keygen: --public must name another file than --append-to")
    entry = token_signer.make_key(args.kid or secrets.token_hex(4), args.alg)
    contents = []
    if args.public is not None:
        text = _with(args.public, token_signer.public_entry(entry))
        contents.append(Content(args.public, text, PUBLIC_MODE))
    if args.append_to is not None:
        contents.append(Content(args.append_to, _with(args.append_to, entry), SECRET_MODE))
    replace_files(contents)
    if args.append_to is None:
        print(token_signer.key_set([entry]))
        return
    public = "" if args.public is None else f", its public part to {args.public}"
    print_error(f"key {entry['kid']} added to {args.append_to}{public}")
    print(printable(entry["kid"]))


def _sign(keys: str, args: argparse.Namespace, settings: Settings) -> None:
    if is_url(keys):
        text = "token_keys is a URL, whose keys sign nothing: give --keys FILE"
        raise UsageError(f"token {args.action}: {text}")
    if args.see is not None and not tokens.is_seeing_uid(args.uid):
        raise UsageError(
            f"token {args.action}: a uid with * at its end stands for beginnings of uids, and sees none"
        )
    if args.see is not None and not tokens.is_sight(args.see):
        raise UsageError(f"token {args.action}: --see takes uids, and beginnings of uids with a * after them")
    claimed = {key: getattr(args, f"rooms_{key}") for key in ("in", "join", "watch", "members")}
    rooms = {key: value for key, value in claimed.items() if value is not None}
    if invalid := _room_claim_complaint(rooms):
        raise UsageError(f"token {args.action}: {invalid}")
    signer = token_signer.Signer(key_file.named(key_file.entries_of(key_file.read(Path(keys))), args.kid))
    claims: dict[str, Any] = {} if settings.token_issuer is None else {"iss": settings.token_issuer}
    if args.see is not None:
        claims["see"] = args.see
    if rooms:
        claims["rooms"] = rooms
    sign = signer.visibility_pass if args.action == "pass" else signer.token
    print(sign(args.uid, audience=settings.token_audiences[0], now=time.time(), ttl_s=args.ttl, **claims))


def _room_claim_complaint(claim: Mapping[str, Any]) -> str | None:
    """Return why a claim `rooms` would be refused."""
    for key in ("in", "join", "watch"):
        for name in claim.get(key, ()):
            if not (name == "*" and key != "in") and (complaint := room_complaint(name)):
                return f"--rooms-{key}: {name!r} is not a valid name of a room: it {complaint}"
    return None if tokens.is_room_claim(dict(claim)) else f"--rooms-in takes at most {ROOMS_MAX} rooms"


def _verify(keys: str, args: argparse.Namespace, settings: Settings) -> None:
    """Print the claims of a token.

    Raises:
        TokenRefused: it is not accepted.
    """
    keyring = trio.run(credentials.read_keys, settings, keys)
    token = tokens.parse(_token(args.token), keyring, PASS_MAX_BYTES if args.is_pass else TOKEN_MAX_BYTES)
    now = time.time()
    reads_sight = settings.visibility == "claims"
    rules = TokenRules(settings.token_audiences, settings.token_leeway, settings.token_issuer, reads_sight)
    claims = tokens.check(token, rules.of_passes if args.is_pass else rules, now)
    shown = {"uid": claims.uid, "kid": token.key.kid, "alg": token.key.alg, "expires": claims.expires}
    print(json_line(shown) if args.json else _line(shown, now))


def _line(shown: Mapping[str, Any], now: float) -> str:
    ends = datetime.fromtimestamp(min(shown["expires"], tokens.LATEST_S), UTC).isoformat(" ", "seconds")
    name = f"{printable(shown['kid'])} ({shown['alg']})"
    return f"{printable(shown['uid'])}  key {name}  valid until {ends}, for {shown['expires'] - now:.0f} s"


def _token(source: str) -> str:
    with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else Path(source[1:]).open("rb") as file:
        return file.read(TOKEN_READ_BYTES).decode("utf-8", "replace").strip()


def _with(path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text of the key file with one more key."""
    if not path.exists():
        return token_signer.key_set([entry])
    raw = key_file.read(path)
    text = token_signer.key_set([*key_file.entries_of(raw), entry])
    key_file.parse(text.encode(), path)
    return text


def _admin(args: argparse.Namespace) -> None:
    """Print a line with a new secret, or append it to a file."""
    try:
        line = operator_tokens.make_line(args.role, args.name)
    except ValueError as error:
        raise UsageError(f"token admin: {error}") from None
    if args.append_to is None:
        print(line)
        return
    before = args.append_to.read_text("utf-8", "replace") if args.append_to.exists() else ""
    if before.strip():
        operator_tokens.load(args.append_to)  # refuse to append to a file that servers would refuse
    end = "" if not before or before.endswith("\n") else "\n"
    replace_files([Content(args.append_to, f"{before}{end}{line}\n", SECRET_MODE)])
    where = f"added to {args.append_to}: the third word of the last line is its secret"
    print_error(f"token of {args.name}, role {args.role}, {where}")
    print(f"{args.role} {args.name}")


class CannotWrite(Exception):
    """A file cannot be written; the message names it and shows nothing of it."""


class Content(NamedTuple):
    """The new content of a file."""

    path: Path
    text: str
    mode: int  # of a new file; permissions that it denies to others are removed from an existing one


def replace_files(contents: Iterable[Content]) -> None:
    """Replace files, each atomically, keeping owners and modes; none if one of them cannot be written.

    Raises:
        CannotWrite: one of them.
    """
    with contextlib.ExitStack() as cleanup:
        written = [(_written(each, cleanup), each.path) for each in contents]
        for fresh, path in written:
            fresh.replace(path)


def _written(content: Content, cleanup: contextlib.ExitStack) -> Path:
    """Write a content next to its file, where `cleanup` removes it unless it replaces that; return where."""
    path, text, mode = content
    if not path.parent.is_dir():
        raise CannotWrite(f"{path}: cannot be written: there is no directory {path.parent}")
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
        cleanup.callback(fresh.unlink, missing_ok=True)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            if path.exists():
                before = path.stat()
                mode = stat.S_IMODE(before.st_mode) & (mode | ~OTHERS)
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CannotWrite(f"{path}: cannot be written: {error.strerror}") from None
    return fresh
