"""The command line: what may be said, and which room answers."""

import argparse
import io
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from presence import __version__
from presence.commands.outcome import FAILED, OK, USAGE, abandon_output, complain
from presence.config import DEFAULT_SOURCE, SPECS, ConfigError, Loaded, Settings, Spec, load, nearest

# What a reader needs to find the data; a server takes every setting.
READER_SETTINGS = ("redis", "prefix")
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
            flags = [spec.flag for spec in SPECS.values()]
            hint = nearest(unknown[0].partition("=")[0], flags) if unknown[0].startswith("--") else ""
            self.error(f"unknown argument: {unknown[0]!r}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        complain(message)
        sys.exit(USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 after success or a clean stop, 2 for a usage or configuration error, 1 otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a uid may be more than the terminal can show
    try:
        args = _parser().parse_args(argv)
        loaded = load(_given_flags(args), serving=args.command in {"serve", "config"})
        status = _run(args, loaded)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        abandon_output()
        return OK
    except ConfigError as error:
        complain(error)
        return USAGE
    except KeyboardInterrupt:
        return FAILED
    except SystemExit as stop:  # argparse has printed help, the version or a complaint
        return stop.code if isinstance(stop.code, int) else OK
    return status


def _run(args: argparse.Namespace, loaded: Loaded) -> int:
    # Each room is loaded when it is entered: help must not wait for redis-py and trio.
    if args.command == "serve":
        from presence.commands import serve  # noqa: PLC0415

        return serve.run(loaded.settings)
    if args.command == "config":
        from presence.commands import settings  # noqa: PLC0415

        return settings.show(loaded, as_json=args.json) if args.action == "show" else settings.check()
    if args.command == "demo":
        from presence.commands import demo  # noqa: PLC0415

        return demo.run(loaded.settings, args.seconds, args.clients)
    if args.command == "client":
        from presence.commands import client  # noqa: PLC0415

        given = loaded.settings
        if not given.port:
            complain("client: --port must name the server's port")
            return USAGE
        wish = None if loaded.sources["idle_timeout"] == DEFAULT_SOURCE else given.idle_timeout
        return client.run(client.Device(given.host, given.port, args.uid, args.device, args.token, wish))
    return _read(args, loaded.settings)


def _read(args: argparse.Namespace, settings: Settings) -> int:
    """Run a command that only looks into Redis."""
    if settings.redis is None:
        complain(f"{args.command} reads from the server's Redis: give --redis URL or PRESENCE_REDIS")
        return USAGE
    if args.command == "tail":
        from presence.commands import tail  # noqa: PLC0415

        if (args.group is None) != (args.consumer is None):
            complain("tail: --group and --consumer belong together")
            return USAGE
        selection = tail.Selection(args.type, args.after, args.json, args.group, args.consumer)
        return tail.run(settings.redis, settings.prefix, selection)
    return _status(args, settings.redis, settings.prefix)


def _status(args: argparse.Namespace, redis_url: str, prefix: str) -> int:
    from presence.commands import status  # noqa: PLC0415

    if args.uids and (args.count or args.list):
        complain("status: name users, or ask for --count or --list")
        return USAGE
    if args.count:
        return status.count(redis_url, prefix, as_json=args.json)
    if args.list:
        return status.list_online(redis_url, prefix, as_json=args.json)
    if not args.uids:
        complain("status: name at least one uid, or ask for --count or --list")
        return USAGE
    return status.run(redis_url, prefix, args.uids, as_json=args.json)


def _given_flags(args: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(args).items() if name in SPECS or name == "config"}


def _parser() -> _Parser:
    parser = _Parser(prog="presence", description="A TCP presence server: who is online, who went silent.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server", description=_SERVE)
    _add_settings(serve, tuple(SPECS))

    tail = commands.add_parser("tail", help="print events as they happen")
    tail.add_argument("--type", choices=("online", "offline"), help="events of this type only")
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
    status.add_argument("uids", nargs="*", metavar="UID")
    status.add_argument("--json", action="store_true", help="one JSON object: uid to state")
    whole = status.add_mutually_exclusive_group()
    whole.add_argument("--count", action="store_true", help="how many users are online")
    whole.add_argument("--list", action="store_true", help="everybody online")
    _add_settings(status, READER_SETTINGS)

    demo = commands.add_parser("demo", help="watch a server at work, and its events checked")
    demo.add_argument("--seconds", type=float, default=60.0, help="how long at most (default 60)")
    demo.add_argument("--clients", type=int, default=500, help="how many (default 500)")
    _add_settings(demo, READER_SETTINGS)

    client = commands.add_parser(
        "client", help="be one device: log in, beat, send and see", description=_CLIENT
    )
    client.add_argument("uid", metavar="UID")
    client.add_argument("--device", help="which of the user's devices")
    client.add_argument("--token", help="proof of who it is; @FILE reads it from a file")
    _add_settings(client, ("host", "port", "idle_timeout", *READER_SETTINGS))

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


_CLIENT = (
    "Each line of input 'TO text' is a message; /query, /watch, /unwatch, /away, /back and /quit do what "
    "they say. Ctrl-C, Ctrl-D and /quit log out. Input that is no terminal may end: the device stays online."
)


def _entry_id(text: str) -> str:
    if not _ENTRY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no entry id, such as 1700000000000-0, or 0")
    return text


def _name(text: str) -> str:
    if not (text and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is no name")
    return text


def _add_settings(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add a flag for each setting; its text is checked with all other settings, not here."""
    group = parser.add_argument_group("settings")
    group.add_argument("--config", metavar="FILE", help="TOML file with settings (PRESENCE_CONFIG)")
    # argparse cannot print the usage of an empty group.
    either = group.add_mutually_exclusive_group() if "admin" in names else group
    for name in names:
        spec = SPECS[name]
        target = either if name in {"admin", "no_admin"} else group
        if spec.kind is not bool:
            target.add_argument(spec.flag, metavar=_metavar(spec), help=_help(spec))
        elif spec.default:
            target.add_argument(
                spec.flag, action=argparse.BooleanOptionalAction, default=None, help=_help(spec)
            )
        else:
            target.add_argument(spec.flag, action="store_true", default=None, help=spec.help)


def _metavar(spec: Spec) -> str:
    if spec.choices:
        return "|".join(spec.choices)
    named = {"redis": "URL", "data_dir": "DIR", "admin": "HOST:PORT"}
    return named.get(spec.name) or spec.unit.upper() or ("TEXT" if spec.kind is str else "N")


def _help(spec: Spec) -> str:
    default = (
        "" if spec.default is None else f" (default {spec.default}{' ' + spec.unit if spec.unit else ''})"
    )
    return (spec.help + default).replace("%", "%%")
