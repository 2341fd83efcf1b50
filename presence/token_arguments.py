"""What may be said after ``presence token``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presence.argument_types import AddSettings, some_seconds

if TYPE_CHECKING:
    from presence.settings import Settings

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


def add_token(commands: Any, add_settings: AddSettings) -> None:
    """Add the command.

    Args:
        commands: the subparsers of the command line.
        add_settings: adds flags for settings to a parser.
    """
    token = commands.add_parser("token", help="make keys, make tokens, check tokens; tokens of operators")
    actions = token.add_subparsers(dest="action", required=True, metavar="key|make|check|admin")

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
    check.add_argument("token", nargs="?", default="-", metavar="@FILE|-", help="where the token is")
    check.add_argument("--json", action="store_true", help="one JSON object: what the token says")
    add_settings(check, ("token_audience", "token_leeway"))

    admin = actions.add_parser("admin", help="make a token for an operator", description=_ADMIN)
    admin.add_argument("--role", choices=("read", "act"), required=True, help="what it may; act reads, too")
    admin.add_argument("--name", required=True, help="whose it is, for the log")
    admin.add_argument("--into", type=Path, metavar="FILE", help="file of tokens; by default it is printed")
    add_settings(admin, ())


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=Path, metavar="FILE", help="key file; by default that of token_keys")


def run_token(args: argparse.Namespace, settings: "Settings") -> int:
    """Run what was said; return the exit status."""
    if args.action == "admin":
        from presence.commands import token_admin  # noqa: PLC0415 - as below

        return token_admin.run(args.role, args.name, args.into)
    from presence.commands import token  # noqa: PLC0415 - help must not wait for cryptography

    if args.action == "key":
        return token.key(token.NewKey(args.alg, args.kid, args.into, args.public))
    keys: Path | None = args.keys or settings.token_keys
    if keys is None:
        return token.no_keys()
    if args.action == "make":
        return token.make(keys, args.kid, args.uid, settings.token_audience, args.ttl)
    return token.check(keys, args.token, settings.token_audience, settings.token_leeway, as_json=args.json)
