"""The command line: the module that has the command which was typed is loaded, and no other."""

import argparse
import io
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from presence import __version__
from presence.cli.errors import FAILED, OK, USAGE, abandon_output, complain
from presence.cli.options import Parser, UsageError
from presence.config.loading import FIELDS, ConfigError, Loaded, load

COMMANDS: Final = {
    "serve": "run the server",
    "tail": "print events as they happen",
    "status": "print the state of users",
    "kick": "end all sessions of users",
    "forget": "erase what Redis keeps of offline users",
    "explain": "why a user is online or offline, asked of all servers",
    "nodes": "print the servers that share a Redis",
    "followups": "what is to be done for users who stay away",
    "timers": "handle events whose time has come",
    "token": "make keys, make tokens, check tokens; tokens of operators",
    "doctor": "say what a server would miss here, and what mends it",
    "demo": "watch a server at work, and its events checked",
    "client": "be one device: log in, beat, send and see",
    "config": "show or check the settings",
}
"""Each is a module of `presence.cli` with `add_arguments(parser)` and `run(args, load)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 after success or a clean stop, 2 for a usage or configuration error, 1 otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a uid may be more than the terminal can show
    words = sys.argv[1:] if argv is None else argv
    try:
        status = _run(argument_parser(words).parse_args(words))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        abandon_output()
        return OK
    except (ConfigError, UsageError) as error:
        complain(error)
        return USAGE
    except KeyboardInterrupt:
        return FAILED
    except Exception:  # a mistake of ours; what Python would print may hold a secret
        complain(traceback.format_exc())
        return FAILED
    except SystemExit as stop:  # argparse has printed help, the version or a complaint
        return stop.code if isinstance(stop.code, int) else OK
    return status


def argument_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the one that `words` begin with.

    What settings mean is checked later, all together.
    """
    Parser.shows_all = "--help-all" in words
    parser = Parser(prog="presence", description="A TCP presence server: who is online, who went silent.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        if [*words[:1]] == [name]:
            _module(name).add_arguments(command)
    return parser


def _module(command: str) -> Any:
    return import_module(f"presence.cli.{command}")


def _run(args: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(args).items() if name in FIELDS or name == "config"}
    load_again: partial[Loaded] = partial(load, flags, serving=args.command in {"serve", "config", "doctor"})
    status: int = _module(args.command).run(args, load_again)
    return status
