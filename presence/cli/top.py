"""``presence top``: shows a running server on the terminal."""

import argparse
import sys
from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import Final

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.local_server import local_server
from presence.cli.options import Load, UsageError, secret_source
from presence.server.running_servers import RunningServer

DEFAULT_URL: Final = "http://127.0.0.1:7480"
_DESCRIPTION: Final = (
    "Shows users, workers, nodes, rates, detection delays, the timing wheel, Redis and the latest events, "
    "over the HTTP interface of the server. q and Ctrl-C leave."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--url",
        type=_url,
        help=f"HTTP interface of the server (default: of the server that you run here, else {DEFAULT_URL})",
    )
    parser.add_argument(
        "--token",
        type=secret_source,
        metavar="@FILE|-",
        help="token of an operator: a file, read for each connection, or the first line of input",
    )
    parser.add_argument("--once", action="store_true", help="print it once, as plain text")


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as {DEFAULT_URL}")
    return text.rstrip("/")


def run(args: argparse.Namespace, _load: Load) -> int:
    """Show the server until the user leaves; return the exit status: 1 if it cannot be read."""
    if not args.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top: needs a terminal; give --once to print it")
    from presence.top import terminal  # noqa: PLC0415 - so that a missing package is named as such

    if problem := terminal.run(args.url or _local_url(), _token_source(args.token), once=args.once):
        print_error(problem)
        return FAILED
    return OK


def _local_url() -> str:
    server = local_server("top: give --url of the server", _flags)
    if server is not None and server.admin_url is None:
        raise UsageError("top: that server has no HTTP interface (no_admin)")
    return DEFAULT_URL if server is None or server.admin_url is None else server.admin_url.rstrip("/")


def _flags(server: RunningServer) -> str:
    return "no HTTP interface (no_admin)" if server.admin_url is None else f"--url {server.admin_url}"


def _token_source(given: str | None) -> Callable[[], str]:
    """Return what returns the token for a connection; it may be the last word of a line of a token file."""
    if given is None:
        return str
    if given == "-":
        line = getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()
        return lambda: _last_word(line)
    file = Path(given[1:])
    return lambda: _last_word(file.read_text("utf-8"))


def _last_word(text: str) -> str:
    return (text.split() or [""])[-1]
