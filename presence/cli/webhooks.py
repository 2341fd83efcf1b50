"""``presence webhooks``: sends events as signed HTTP requests.

Tests: `tests/webhooks/test_command.py`.
"""

import argparse
import logging
import os
import secrets
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx2

from presence.cli.errors import OK
from presence.cli.options import (
    READER_SETTINGS,
    DataLocation,
    UsageError,
    add_number,
    add_seconds,
    add_settings,
    entry_id,
    plain_text,
)
from presence.cli.redis_errors import printed_log, subscriber_errors, with_redis
from presence.common.files import SecretFileError, read_secret_file
from presence.common.scarcity import scarcity
from presence.rooms.keys import RoomKeys
from presence.store.keys import Keys
from presence.webhooks.http_client import WebhookClient
from presence.webhooks.metrics import RunnerMetrics
from presence.webhooks.runner import Runner
from presence.webhooks.shard_sender import SendOptions

TYPES: Final = ("online", "offline", "away", "update", "device", "rooms")
ROOM_TYPES: Final = ("occupied", "vacated", "joined", "left")
DEFAULT_TYPES: Final = ("online", "offline")
MAX_BATCH: Final = 1000  # some 400 KB
MAX_ATTEMPTS: Final = 10**6
MAX_SECRETS: Final = 2  # the old one and the new one, while it is replaced
MIN_SECRET_BYTES: Final = 16
MAX_FILE_BYTES: Final = 64 * 1024

_RUN: Final = (
    "Sends events of users, or of rooms, to a URL as signed HTTP requests: at least once, and in order per "
    "user or room. Any number may run: they share the work, and replace each other. A receiver that cannot "
    "be reached, or answers 429, 502, 503 or 504, is tried again for as long as it takes. After --attempts "
    "other answers, or time-outs, an event becomes a dead letter. Gaps are always sent."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="run")
    run = actions.add_parser("run", help="send events until stopped", description=_RUN)
    run.add_argument("--url", type=_url, required=True, help="receiver, https:// or http://")
    run.add_argument(
        "--secret-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="secret to sign with; two lines while it is being replaced: requests have a signature by each",
    )
    run.add_argument(
        "--types",
        type=_types,
        default=frozenset(DEFAULT_TYPES),
        metavar="TYPES",
        help=f"of events: of {', '.join(TYPES)} (default {','.join(DEFAULT_TYPES)}), or of "
        f"{', '.join(ROOM_TYPES)}, which are those of rooms",
    )
    add_number(run, "--batch", 1, "most events in one request", most=MAX_BATCH)
    add_seconds(run, "--timeout", 10.0, "time for a request")
    add_number(run, "--attempts", 20, "attempts before an event becomes a dead letter", most=MAX_ATTEMPTS)
    run.add_argument(
        "--group",
        type=plain_text,
        default="webhooks",
        help="consumer group; one for each receiver (default webhooks)",
    )
    run.add_argument(
        "--after", type=entry_id, metavar="ID", help="where a new group begins; 0: with all that is kept"
    )
    run.add_argument("--metrics", type=_address, metavar="HOST:PORT", help="serve metrics for Prometheus")
    add_settings(run, READER_SETTINGS)


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Send until a signal comes; return the exit status."""
    metrics = RunnerMetrics()
    signing = _secrets(args.secret_file)
    kind = RoomKeys if args.types <= {*ROOM_TYPES} else Keys
    options = SendOptions(args.group, args.types, args.batch, args.attempts, args.after, kind)
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    async def send() -> None:
        client = WebhookClient(args.url, signing, args.timeout)
        runner = Runner(place.redis_url, place.prefix, options, client, metrics=metrics, name=name)
        stop = anyio.Event()

        async def stop_on_signal() -> None:
            async for _ in signals:
                stop.set()

        await runner.join()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop_on_signal)
                try:
                    await runner.run(stop)
                finally:
                    await client.close()
                tasks.cancel_scope.cancel()

    with ExitStack() as stack:
        if args.metrics is not None:
            try:
                stack.enter_context(metrics.served(*args.metrics))
            except OSError as error:
                if scarcity(error):
                    raise
                raise UsageError(f"--metrics: {error.strerror}") from None
        stack.enter_context(subscriber_errors())
        stack.enter_context(printed_log("presence.webhooks", logging.INFO))
        anyio.run(send)
    return OK


def _secrets(path: Path) -> list[bytes]:
    try:
        lines = [line.strip() for line in read_secret_file(path, MAX_FILE_BYTES).splitlines()]
    except SecretFileError as error:
        raise UsageError(f"--secret-file: {error}") from None
    found = [line for line in lines if line]
    if not 1 <= len(found) <= MAX_SECRETS:
        raise UsageError(f"--secret-file: {path}: must have one line with a secret, or two")
    if min(map(len, found)) < MIN_SECRET_BYTES:
        raise UsageError(f"--secret-file: {path}: a secret must have at least {MIN_SECRET_BYTES} characters")
    return found


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        httpx2.URL(text).host.encode("idna")  # or each request would fail
    except (ValueError, httpx2.InvalidURL):
        valid = False
    if not valid or not text.isprintable():
        raise argparse.ArgumentTypeError("must be a URL such as https://example.com/presence")
    return text


def _types(text: str) -> frozenset[str]:
    found = frozenset(text.split(","))
    if not (found <= {*TYPES} or found <= {*ROOM_TYPES}):
        raise argparse.ArgumentTypeError(
            f"{text}: must be of {', '.join(TYPES)}; or of {', '.join(ROOM_TYPES)}, which are those of rooms"
        )
    return found


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
