"""Runs commands that need Redis, and reports its errors.

Tests: `tests/cli/test_main.py`, `tests/system/matrices/test_inputs.py`.
"""

import argparse
import getpass
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from presence.cli.errors import FAILED, print_error
from presence.cli.local_server import locate_data
from presence.cli.options import DataLocation, Load
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.redis_url import redacted
from presence.store.error_classes import passes
from presence.store.redis_client import RedisError


class _ErrorPrinter(logging.Handler):
    """Prints log records on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_error(record.getMessage())


@contextmanager
def subscriber_errors() -> Iterator[None]:
    """Print warnings and errors of the subscriber on standard error."""
    with printed_log("presence.subscriber", logging.WARNING):
        yield


@contextmanager
def printed_log(name: str, level: int) -> Iterator[None]:
    """Print what a library logs at this level or above on standard error."""
    log, handler = logging.getLogger(name), _ErrorPrinter(level)
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def caller(command: str) -> str:
    """Return user, host and command for the logs of the servers, which do not verify it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # in a container a user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()} (presence {command})"


def with_redis(
    run: Callable[[argparse.Namespace, DataLocation], int],
) -> Callable[[argparse.Namespace, Load], int]:
    """Run a command with the location of the servers' data; on an error of Redis, print it and return 1."""

    @wraps(run)
    def ask(args: argparse.Namespace, load: Load) -> int:
        place = locate_data(load(), args.command)
        try:
            return run(args, place)
        except (RedisError, StoreUnavailable, StoreError, ValueError) as error:
            is_away = isinstance(error, StoreUnavailable) or passes(error)
            print_error(f"{'cannot reach Redis at ' if is_away else ''}{redacted(place.redis_url)}: {error}")
        return FAILED

    return ask
