"""What may be said on the command line."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from presence import __version__
from presence.argument_types import READER_SETTINGS, seconds
from presence.commands.outcome import USAGE, complain
from presence.config import SPECS, Spec, nearest
from presence.doctor_arguments import add_doctor
from presence.followup_arguments import add_followups
from presence.timer_arguments import add_timers
from presence.token_arguments import add_token

_SERVERS_REDIS = "the servers' Redis: a redis://, rediss://, unix:// or redis+cluster:// URL"
FEW_SETTINGS = 6  # need no groups of their own in the help
_ENTRY_ID = re.compile(r"\d{1,19}(-\d{1,19})?", re.ASCII)


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, since a new flag would change their meaning, and says what was meant."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type] # passed through

    def parse_args(  # type: ignore[override] # a namespace of our own is never passed
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [spec.flag for spec in SPECS.values() if hasattr(parsed, spec.name)]
            hint = nearest(unknown[0].partition("=")[0], flags) if unknown[0].startswith("--") else ""
            self.error(f"unknown argument: {unknown[0]!r}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        complain(message)
        sys.exit(USAGE)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; what their settings mean is checked later, all together."""
    parser = _Parser(prog="presence", description="A TCP presence server: who is online, who went silent.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server", description=_SERVE)
    _add_settings(serve, tuple(SPECS))

    tail = commands.add_parser("tail", help="print events as they happen")
    kinds = ("online", "offline", "away", "update")
    tail.add_argument("--type", choices=kinds, help="events of this type only")
    tail.add_argument("--json", action="store_true", help="one JSON object a line")
    tail.add_argument(
        "--from",
        dest="after",
        metavar="ID",
        type=_entry_id,
        help="begin after this entry id; 0 for all that is kept; new events only by default; a group that is "
        "there goes on where it was",
    )
    tail.add_argument("--group", type=_name, help="share the events with others of this consumer group")
    tail.add_argument("--consumer", type=_name, help="this one's name in the group, its own among the living")
    _add_settings(tail, READER_SETTINGS)

    status = commands.add_parser("status", help="print the state of users")
    status.add_argument("uids", nargs="*", metavar="UID", type=_uid)
    status.add_argument("--json", action="store_true", help="one JSON object: uid to state")
    whole = status.add_mutually_exclusive_group()
    whole.add_argument("--count", action="store_true", help="how many users are online")
    whole.add_argument("--list", action="store_true", help="everybody online")
    _add_settings(status, READER_SETTINGS)

    _add_operators_commands(commands)
    add_timers(commands, _add_settings)
    add_followups(commands, _add_settings)
    add_token(commands, _add_settings)
    add_doctor(commands, _add_settings)

    demo = commands.add_parser("demo", help="watch a server at work, and its events checked")
    demo.add_argument("--seconds", type=float, default=60.0, help="how long at most (default 60)")
    demo.add_argument("--clients", type=int, default=500, help="how many (default 500)")
    _add_settings(demo, (*READER_SETTINGS, "no_admin"))

    client = commands.add_parser(
        "client", help="be one device: log in, beat, send and see", description=_CLIENT
    )
    client.add_argument("uid", metavar="UID")
    client.add_argument("--device", help="which of the user's devices")
    client.add_argument("--token", help="proof of who it is; @FILE reads it, whenever one is needed, there")
    client.add_argument("--tls", action="store_true", help="the server is behind TLS, and --host is its name")
    client.add_argument("--ca", metavar="FILE", help="trust these authorities only; implies --tls")
    _add_settings(client, ("host", "port", "idle_timeout", *READER_SETTINGS), _CLIENT_HELP)

    config = commands.add_parser("config", help="show or check the settings")
    actions = config.add_subparsers(dest="action", required=True, metavar="show|check")
    show = actions.add_parser("show", help="print each setting in effect and where it comes from")
    show.add_argument("--json", action="store_true", help="one JSON object: name to value and source")
    _add_settings(show, tuple(SPECS))
    _add_settings(
        actions.add_parser("check", help="exit 0 if serve would accept them, 2 if not"), tuple(SPECS)
    )
    return parser


_SERVE = (
    "Without --redis a private Valkey is started and stopped last. Every flag is also a variable "
    "(--idle-timeout: PRESENCE_IDLE_TIMEOUT) and a key of the file (idle_timeout)."
)


_CLIENT_HELP = {
    "host": "address of the server",
    "port": "TCP port of the server",
    "idle_timeout": "a wish: seconds of silence after which the server ends the session",
}
_CLIENT = (
    "Each line of input 'TO text' is a message; /query, /watch, /unwatch, /who, /away, /back, /status and "
    "/quit do what they say. Ctrl-C, Ctrl-D and /quit log out. Input that is no terminal may end: the device "
    "stays online."
)


_FORGET = (
    "Erases from Redis when offline users were last seen, their entries in the event streams, their "
    "follow-ups, dead letters of these and what consumer groups noted on them. A subscriber whose last event "
    "is among them sees a gap. Not reached: what subscribers keep themselves, backups and append-only files "
    "of Redis, logs, and, for a while, what nodes told each other and remember of sessions that ended."
)

_KICK = (
    "Ends all sessions of users and waits until they are gone. Their clients are told not to come back by "
    "themselves. This is no ban: a user may log in again immediately. To keep users out, issue no more "
    "tokens for them, and kick them when those that they have are expired."
)


def _add_operators_commands(commands: "argparse._SubParsersAction[_Parser]") -> None:
    kick = commands.add_parser("kick", help="end all sessions of users", description=_KICK)
    kick.add_argument("uids", nargs="+", metavar="UID", type=_uid)
    kick.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="how long the servers may take; then exit status 1 (default 5)",
    )
    kick.add_argument("--json", action="store_true", help="one JSON object: uid to sessions, and those left")
    _add_settings(kick, READER_SETTINGS)

    forget = commands.add_parser(
        "forget", help="erase what Redis keeps of offline users", description=_FORGET
    )
    forget.add_argument("uids", nargs="+", metavar="UID", type=_uid)
    forget.add_argument("--json", action="store_true", help="one JSON object: who, and how much was erased")
    _add_settings(forget, READER_SETTINGS)

    explain = commands.add_parser("explain", help="why a user is online or offline, asked of all servers")
    explain.add_argument("uid", metavar="UID", type=_uid)
    explain.add_argument("--json", action="store_true", help="one JSON object")
    _add_settings(explain, READER_SETTINGS)

    nodes = commands.add_parser("nodes", help="print the servers that share a Redis")
    nodes.add_argument("--json", action="store_true", help="one JSON object: node to what it tells of itself")
    _add_settings(nodes, READER_SETTINGS)


def _uid(text: str) -> str:
    if not (text and text.isprintable()):  # no server takes such a uid; bytes that are no UTF-8 among them
        raise argparse.ArgumentTypeError(f"uid {text!r}: must be text without control characters")
    return text


def _entry_id(text: str) -> str:
    if not _ENTRY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no entry id, such as 1700000000000-0, or 0")
    return text


def _name(text: str) -> str:
    if not (text and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is no name")
    return text


def _add_settings(
    parser: argparse.ArgumentParser, names: tuple[str, ...], texts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add a flag for each setting; its text is checked with all other settings, not here.

    `texts` are helps that say what a setting means to this command, in place of what it means to a server.
    """
    specs = [SPECS[name]._replace(help=texts.get(name, SPECS[name].help)) for name in names]
    file = parser.add_argument_group("settings")
    file.add_argument("--config", metavar="FILE", help="TOML file with settings (PRESENCE_CONFIG)")
    for title, some in groupby(specs, lambda spec: spec.group if len(names) > FEW_SETTINGS else ""):
        group = parser.add_argument_group(f"settings: {title}") if title else file
        # argparse cannot print the usage of an empty group.
        either = group.add_mutually_exclusive_group() if "admin" in names and title == "server" else group
        for spec in some:
            place = either if spec.name in {"admin", "no_admin"} else group
            _add_setting(place, spec, serves=len(names) > FEW_SETTINGS)


def _add_setting(group: "argparse._ActionsContainer", spec: Spec, *, serves: bool) -> None:
    if spec.name == "redis" and not serves:
        spec = spec._replace(help=_SERVERS_REDIS)
    if spec.kind is not bool:
        group.add_argument(spec.flag, metavar=_metavar(spec), help=_help(spec))
    elif spec.default:
        group.add_argument(spec.flag, action=argparse.BooleanOptionalAction, default=None, help=_help(spec))
    else:
        group.add_argument(spec.flag, action="store_true", default=None, help=spec.help)


def _metavar(spec: Spec) -> str:
    if spec.choices:
        return "|".join(spec.choices)
    named = {"redis": "URL", "data_dir": "DIR", "admin": "HOST:PORT", "proxy_from": "NETWORKS"}
    kinds: dict[type, str] = {str: "TEXT", Path: "FILE"}
    return named.get(spec.name) or spec.unit.upper() or kinds.get(spec.kind, "N")


def _help(spec: Spec) -> str:
    default = (
        "" if spec.default is None else f" (default {spec.default}{' ' + spec.unit if spec.unit else ''})"
    )
    return (spec.help + default).replace("%", "%%")
