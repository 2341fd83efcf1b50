"""What commands share: the parser, types of words, flags of settings, the way to Redis."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, NoReturn

from presence.cli.errors import USAGE, complain
from presence.config.loading import FIELDS, Loaded, SettingField, Settings, nearest

Load = Callable[[], Loaded]
"""Loads the settings in effect; raises `ConfigError` with all problems."""

READER_SETTINGS: Final = ("redis", "prefix")  # what a reader needs to find the data
_SERVERS_REDIS: Final = "the servers' Redis: a redis://, rediss://, unix:// or redis+cluster:// URL"
FEW_SETTINGS: Final = 6  # need no groups of their own in the help
_ENTRY_ID: Final = re.compile(r"\d{1,19}(-\d{1,19})?", re.ASCII)


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, since a new flag would change their meaning, and says what was meant.

    Attributes:
        shows_all: whether help is to show settings for experts, too.
    """

    shows_all: ClassVar = False

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type] # passed through

    def parse_args(  # type: ignore[override] # a namespace of our own is never passed
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Return what was said; what is unknown ends the program as any other mistake does."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [spec.flag for spec in FIELDS.values() if hasattr(parsed, spec.name)]
            hint = nearest(unknown[0].partition("=")[0], flags) if unknown[0].startswith("--") else ""
            self.error(f"unknown argument: {unknown[0]!r}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end the program with the status for that."""
        self.print_usage(sys.stderr)
        complain(message)
        sys.exit(USAGE)


class UsageError(Exception):
    """What was typed makes no sense as a whole."""


# Types of words: each raises `argparse.ArgumentTypeError` for what is none.


def seconds(text: str) -> float:
    """Return a time, 0 included."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 5")
    return found


def some_seconds(text: str) -> float:
    """Return a time above 0."""
    if not (found := seconds(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time")
    return found


def whole_number(most: int) -> Callable[[str], int]:
    """Return what takes a whole number from 1 to `most`, and refuses everything else."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return int(text)

    return parse


def plain_text(text: str) -> str:
    """Return a uid, a name or an id: no server takes one with control characters or without UTF-8."""
    if not (text and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be text without control characters")
    return text


def entry_id(text: str) -> str:
    """Return the id of an entry in a stream."""
    if not _ENTRY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no entry id, such as 1700000000000-0, or 0")
    return text


def secret_source(text: str) -> str:
    """Return where a secret is: ``@FILE``, or ``-`` for standard input."""
    if text == "-" or (text.startswith("@") and text != "@"):
        return text
    raise argparse.ArgumentTypeError("others on this machine can see arguments: give @FILE, or -")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the flag with which a command prints JSON."""
    parser.add_argument("--json", action="store_true", help=what)


def add_reader(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Add what every command takes that asks the servers' Redis: a flag for JSON, and where the data is."""
    add_json(parser, json_help)
    add_settings(parser, READER_SETTINGS)


def add_settings(
    parser: argparse.ArgumentParser, names: tuple[str, ...], texts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add a flag for each setting; its text is checked with all other settings, not here.

    `texts` are helps that say what a setting means to this command, in place of what it means to a server.
    """
    serves = len(names) > FEW_SETTINGS
    specs = [FIELDS[name]._replace(help=texts.get(name, FIELDS[name].help)) for name in names]
    file = parser.add_argument_group("settings")
    file.add_argument("--config", metavar="FILE", help="TOML file with settings (PRESENCE_CONFIG)")
    if serves:
        file.add_argument("--help-all", action="help", help="show settings for experts, too, and exit")
    for title, some in groupby(specs, lambda spec: spec.group if serves else ""):
        group = parser.add_argument_group(f"settings: {title}") if title else file
        # argparse cannot print the usage of an empty group.
        either = group.add_mutually_exclusive_group() if "admin" in names and title == "server" else group
        for spec in some:
            text = _SERVERS_REDIS if spec.name == "redis" and not serves else _help(spec)
            if serves and spec.expert and not Parser.shows_all:
                text = argparse.SUPPRESS
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
    """Where the servers' data is."""

    redis_url: str
    prefix: str
    settings: Settings


def servers_data(settings: Settings, command: str) -> DataLocation:
    """Return where the data is: without a URL, in the one embedded Redis that this user runs here."""
    if settings.redis:
        return DataLocation(settings.redis, settings.prefix, settings)
    from presence.store.embedded import announced  # noqa: PLC0415 - most commands are given a URL

    urls = announced()
    if len(urls) == 1:
        return DataLocation(urls[0], settings.prefix, settings)
    found = (
        f"several servers here have one of their own: {', '.join(urls)}" if urls else "no server here has one"
    )
    raise UsageError(f"{command} asks the servers' Redis: give --redis URL or PRESENCE_REDIS ({found})")
