"""The command line. Only the module of the given command is loaded."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

from presence import __version__
from presence.cli.errors import (
    FAILED,
    OK,
    USAGE,
    abandon_output,
    half_made_loops_ignored,
    print_error,
    print_lack,
    silence_finalizers,
)
from presence.cli.options import Parser, UsageError
from presence.common.scarcity import scarcity
from presence.config.loader import CONFIG_VARIABLE, FIELDS, ConfigError, Loaded, default_file, load

COMMANDS: Final = {
    "serve": "run the server",
    "tail": "print events as they happen",
    "status": "print the state of users",
    "kick": "end all sessions of users",
    "ban": "keep users out for a time or for ever",
    "unban": "lift bans of users",
    "bans": "print the bans",
    "roster": "print or change whom a user's clients watch",
    "forget": "erase the data of offline users from Redis",
    "explain": "explain why a user is online or offline, asking all servers",
    "nodes": "print the servers that share a Redis",
    "top": "show a running server live on the terminal",
    "followups": "manage follow-ups: actions for users who stay offline",
    "rooms": "print rooms and their members, rebuild them, keep them",
    "webhooks": "send events as signed HTTP requests",
    "timers": "inspect and change shared timers",
    "token": "generate keys, sign and verify tokens, add operator tokens",
    "doctor": "check the machine, the settings and Redis, and suggest fixes",
    "rebalance": "spread clients evenly over the servers, without an event",
    "advise": "print which time-out would have spared users short absences",
    "plan": "print what a number of users takes: workers, memory, Redis",
    "demo": "run a server with simulated clients and check its events",
    "client": "act as one device: log in, send keepalives and messages",
    "config": "show or check the settings",
}
"""Each name is a module of `presence.cli` with `add_arguments(parser)` and `run(args, load)`."""

SERVER_PACKAGES: Final = {
    "h11",
    "httpx2",
    "jwt",
    "prometheus_client",
    "rich",
    "starlette",
    "structlog",
    "trio",
}
"""What the extra `server` installs, by the names that are imported."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 after success or a clean stop, 2 for a usage or configuration error, 1 otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may lack characters of a uid
    words = sys.argv[1:] if argv is None else argv
    try:
        with _missing_package_named(), half_made_loops_ignored():
            status = _run(argument_parser(words).parse_args(words))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, such as head, has exited
        abandon_output()
        return OK
    except (ConfigError, UsageError) as error:
        print_error(error)
        return USAGE
    except KeyboardInterrupt:
        return FAILED
    except Exception as error:
        # An internal error has a traceback, but not Python's own, which may hold a secret.
        if lack := scarcity(error):
            silence_finalizers()
            print_lack(lack)
        else:
            print_error(traceback.format_exc())
        return FAILED
    except SystemExit as stop:  # argparse has printed help, the version or an error
        return stop.code if isinstance(stop.code, int) else OK
    return status


@contextmanager
def _missing_package_named() -> Iterator[None]:
    """Turn a missing package of the server into a usage error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in SERVER_PACKAGES:
            raise
        raise UsageError(f"{error.name} is missing: pip install 'presence-server[server]'") from None


def argument_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the one that `words` begin with.

    The values of settings are checked later, all together.
    """
    parser = Parser(prog="presence", description="A TCP presence server: tracks which users are online.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = [name for name in COMMANDS if [*words[:1]] == [name]]
    for name in named or COMMANDS:  # to make all takes longer than to run some
        command = commands.add_parser(name, help=COMMANDS[name])
        if named:
            _module(name).add_arguments(command)
    return parser


def _module(command: str) -> Any:
    return import_module(f"presence.cli.{command}")


def _run(args: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(args).items() if name in FIELDS or name == "config"}
    if "config" in flags and args.command != "demo":  # simulated clients need a Redis of their own
        flags["config"] = flags["config"] or os.environ.get(CONFIG_VARIABLE) or default_file(os.environ)
    load_again: partial[Loaded] = partial(load, flags, serving=args.command in {"serve", "config", "doctor"})
    status: int = _module(args.command).run(args, load_again)
    return status
