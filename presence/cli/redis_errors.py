"""Commands that ask Redis, and how they complain where it does not answer."""

import argparse
import getpass
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from presence.cli.errors import FAILED, complain
from presence.cli.options import DataLocation, Load, servers_data
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.redis_url import redacted
from presence.store.client import RedisError
from presence.store.error_classes import passes


class _Complaints(logging.Handler):
    """Says on standard error what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


@contextmanager
def subscriber_complains() -> Iterator[None]:
    """Say on standard error what the subscriber logs as a warning or worse."""
    log, handler = logging.getLogger("presence.subscriber"), _Complaints(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def caller(command: str) -> str:
    """Return who runs a command, and where, for the logs of the servers: nobody checks it there."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # in a container a user may have no name
        name = "unknown"
    return f"{name}@{socket.gethostname()} (presence {command})"


def asks_redis(
    run: Callable[[argparse.Namespace, DataLocation], int],
) -> Callable[[argparse.Namespace, Load], int]:
    """Let a command run with the place of the servers' data; if Redis fails it, complain and return 1."""

    @wraps(run)
    def ask(args: argparse.Namespace, load: Load) -> int:
        place = servers_data(load().settings, args.command)
        return reaching(place.redis_url, lambda: run(args, place))

    return ask


def reaching(redis_url: str, ask: Callable[[], int]) -> int:
    """Return the exit status that `ask` returns; if Redis fails it, complain and return 1."""
    try:
        return ask()
    except (RedisError, StoreUnavailable, StoreError, ValueError) as error:
        is_away = isinstance(error, StoreUnavailable) or passes(error)
        complain(f"{'cannot reach Redis at ' if is_away else ''}{redacted(redis_url)}: {error}")
    return FAILED
