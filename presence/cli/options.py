"""What commands share: the parser, argument types, and flags of settings."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn

from presence.cli.errors import USAGE, print_error
from presence.common.text import named, printable
from presence.config.loader import FIELDS, Loaded, SettingField, Settings, nearest
from presence.config.removed import REMOVED, removal
from presence.protocol.schema import device_complaint, room_complaint, uid_complaint

Load = Callable[[], Loaded]
"""Loads the effective settings; raises `ConfigError` with all problems."""

READER_SETTINGS: Final = ("redis", "prefix")  # what a reader needs to find the data
_SERVERS_REDIS: Final = (
    "URL of the servers' Redis: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
)
FEW_SETTINGS: Final = 6  # fewer need no groups in the help
_DURATION: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_DURATION_S: Final = 3650 * 86_400
_ENTRY_ID: Final = re.compile(r"\d{1,19}(-\d{1,19})?", re.ASCII)


# argparse before Python 3.13 loses the value of these; `uid_argument` and `device_argument` take its codes.
_NAMED_DASHES: Final = {f"{flag}=--": f"{flag}=\\u{{2d}}\\u{{2d}}" for flag in ("--uid", "--device")}


class Parser(argparse.ArgumentParser):
    """Refuses abbreviated flags, because a new flag would change their meaning, and suggests corrections."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type] # passed through

    def parse_args(  # type: ignore[override] # a namespace of our own is never passed
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Return the arguments; an unknown one ends the program as any usage error does."""
        words = [*(sys.argv[1:] if args is None else args)]
        flags_end = words.index("--") if "--" in words else len(words)
        words[:flags_end] = [_NAMED_DASHES.get(word, word) for word in words[:flags_end]]
        parsed, unknown = self.parse_known_args(words, namespace)
        if unknown:
            flags = [spec.flag for spec in FIELDS.values() if hasattr(parsed, spec.name)]
            names = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in unknown]
            if removed := [removal(name) for name in names if name in REMOVED]:
                self.error("\n".join(removed))
            first = unknown[0].partition("=")[0]
            hint = nearest(first, [*flags, "--help"]) if first.startswith("--") else ""
            self.error(f"unknown argument: {unknown[0]!r}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with the status for usage errors."""
        self.print_usage(sys.stderr)
        print_error(message)
        sys.exit(USAGE)


class UsageError(Exception):
    """The arguments contradict each other or are incomplete."""


# Argument types: each raises `argparse.ArgumentTypeError` for invalid text.


def seconds(text: str) -> float:
    """Return a time, 0 included."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 5")
    return found


def positive_seconds(text: str) -> float:
    """Return a time above 0."""
    if not (found := seconds(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0")
    return found


def duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 10m, 1h or 7d."""
    found = _DURATION.fullmatch(text)
    if not found or not 0 < (found_s := int(found[1]) * _UNITS_S[found[2]]) <= MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 10m, 1h or 7d")
    return found_s


def whole_number(most: int) -> Callable[[str], int]:
    """Return an argument type for whole numbers from 1 to `most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return int(text)

    return parse


def uid_argument(text: str) -> str:
    r"""Return a uid by the rule of the protocol; codes such as ``\u{ad}`` stand for invisible characters."""
    if complaint := uid_complaint(name := named(text)):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a valid uid: it {complaint}")
    return name


def room_argument(text: str) -> str:
    """Return the name of a room as `uid_argument` returns a uid."""
    if complaint := room_complaint(name := named(text)):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a valid name of a room: it {complaint}")
    return name


def device_argument(text: str) -> str:
    """Return the name of a device as `uid_argument` returns a uid; "" is the default one."""
    if (name := named(text)) and (complaint := device_complaint(name)):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a valid device: it {complaint}")
    return name


def plain_text(text: str) -> str:
    """Return a name that operators choose: of a group, a consumer or an action."""
    if not (text and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be text without control characters")
    return text


def entry_id(text: str) -> str:
    if not _ENTRY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an entry id, such as 1700000000000-0, or 0")
    return text


def secret_source(text: str) -> str:
    """Return the source of a secret: ``@FILE``, or ``-`` for standard input."""
    if text == "-" or (text.startswith("@") and text != "@"):
        return text
    raise argparse.ArgumentTypeError("others on this machine can see arguments: give @FILE, or -")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_number(parser: argparse.ArgumentParser, flag: str, default: int, text: str, *, most: int) -> None:
    """Add a flag for a whole number from 1 to `most`; its help ends with the default."""
    help_text = f"{text} (default {default})"
    parser.add_argument(flag, type=whole_number(most), default=default, metavar="N", help=help_text)


def add_seconds(
    parser: argparse.ArgumentParser, flag: str, default: float, text: str, *, dest: str | None = None
) -> None:
    """Add a flag for a time above 0; its help ends with the default."""
    help_text = f"{text} (default {default:g} s)"
    parser.add_argument(flag, dest=dest, type=positive_seconds, default=default, metavar="S", help=help_text)


def add_reader(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Add the arguments of commands that read the servers' Redis: JSON output, and where the data is."""
    add_json(parser, json_help)
    add_settings(parser, READER_SETTINGS)


def add_settings(
    parser: argparse.ArgumentParser, names: tuple[str, ...], texts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add a flag for each setting; values are checked later, with all other settings.

    `texts` replaces help texts where a setting means something else to this command than to a server.
    """
    serves = len(names) > FEW_SETTINGS
    specs = [FIELDS[name]._replace(help=texts.get(name, FIELDS[name].help)) for name in names]
    file = parser.add_argument_group("settings")
    file.add_argument("--config", metavar="FILE", help="TOML file with settings (PRESENCE_CONFIG)")
    for title, some in groupby(specs, lambda spec: spec.group if serves else ""):
        group = parser.add_argument_group(f"settings: {title}") if title else file
        # argparse cannot print the usage of an empty group.
        either = group.add_mutually_exclusive_group() if "admin" in names and title == "server" else group
        for spec in some:
            text = _SERVERS_REDIS if spec.name == "redis" and not serves else _help(spec)
            _add_setting(either if spec.name in {"admin", "no_admin"} else group, spec, text)


def _add_setting(group: "argparse._ActionsContainer", spec: SettingField, text: str) -> None:
    if spec.kind is bool:
        group.add_argument(spec.flag, action="store_true", default=None, help=text)
    else:
        group.add_argument(spec.flag, metavar=_metavar(spec), help=text)


def _metavar(spec: SettingField) -> str:
    if spec.choices:
        return "|".join(spec.choices)
    named = {"redis": "URL", "data_dir": "DIR", "admin": "HOST:PORT", "proxy_from": "NETWORKS"}
    kinds: dict[type, str] = {str: "TEXT", Path: "FILE"}
    unit = "" if spec.unit.startswith("per ") else spec.unit.upper()
    return named.get(spec.name) or unit or kinds.get(spec.kind, "N")


def _help(spec: SettingField) -> str:
    if spec.default is None or spec.kind is bool:
        return spec.help.replace("%", "%%")
    return f"{spec.help} (default {spec.default}{' ' + spec.unit if spec.unit else ''})".replace("%", "%%")


class DataLocation(NamedTuple):
    redis_url: str
    prefix: str
    settings: Settings
