"""``presence demo``: runs a server with simulated clients for a minute and checks its events.

Tests: `tests/system/demo/test_demo.py`.
"""

import argparse
import contextlib
import sys

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import READER_SETTINGS, Load, UsageError, add_settings
from presence.common.files import FileLimitError
from presence.common.logs import configure
from presence.common.redis_url import redacted
from presence.store.embedded import EmbeddedError, embedded_redis
from presence.store.error_classes import CONNECTION_LOST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="maximum duration (default 60)")
    parser.add_argument("--clients", type=int, default=500, help="number of clients (default 500)")
    parser.add_argument(
        "--web", action="store_true", help="open a page that shows who is online, and stay until Ctrl-C"
    )
    add_settings(parser, (*READER_SETTINGS, "no_admin"))


def run(args: argparse.Namespace, load: Load) -> int:
    """Run the demo; return 0 if events match what clients did or it was interrupted, 1 if not."""
    settings = load().settings
    import rich.console  # noqa: PLC0415 - few commands need it

    from presence.demo import run as demo  # noqa: PLC0415 - loads the whole server

    if not (args.seconds >= demo.MIN_SECONDS and args.clients >= demo.MIN_CLIENTS):
        raise UsageError(
            f"demo: --seconds must be at least {demo.MIN_SECONDS}, --clients at least {demo.MIN_CLIENTS}"
        )
    agrees = None
    with contextlib.ExitStack() as cleanup, contextlib.suppress(KeyboardInterrupt):
        try:
            redis = settings.redis or cleanup.enter_context(embedded_redis())
            cleanup.enter_context(configure("console", "warning"))
            console = rich.console.Console()
            agrees = demo.run(
                redis,
                settings.prefix,
                seconds=args.seconds,
                clients=args.clients,
                console=console,
                no_admin=settings.no_admin,
                web=args.web,
            )
        except (EmbeddedError, FileLimitError) as error:
            print_error(error)
            return FAILED
        except CONNECTION_LOST as error:
            print_error(f"cannot reach Redis at {redacted(settings.redis or 'the embedded server')}: {error}")
            return FAILED
    if agrees is None:
        print("interrupted", file=sys.stderr)
        return OK
    return OK if agrees else FAILED
