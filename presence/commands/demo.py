"""``presence demo``: see it work, and see it checked, within a minute."""

import contextlib
import sys

from presence.commands.outcome import FAILED, OK, USAGE, complain
from presence.config import Settings
from presence.embedded import EmbeddedError, embedded_redis
from presence.files import FileLimitError
from presence.logs import configure
from presence.store.address import redacted
from presence.store.failures import CONNECTION_LOST


def run(settings: Settings, seconds: float, clients: int) -> int:
    """Run the demo; return 0 if truth and events agree or it was interrupted, 1 if they differ."""
    try:
        import rich.console  # noqa: PLC0415 - only the demo draws
    except ImportError:
        complain("the demo draws with rich: pip install 'presence-server[demo]'")
        return USAGE
    from presence.demo import run as demo  # noqa: PLC0415 - loads rich and every room of the server

    if not (seconds >= demo.LEAST_SECONDS and clients >= demo.LEAST_CLIENTS):
        complain(f"demo: --seconds from {demo.LEAST_SECONDS}, --clients from {demo.LEAST_CLIENTS}")
        return USAGE
    agrees = None
    with contextlib.ExitStack() as cleanup, contextlib.suppress(KeyboardInterrupt):
        try:
            url = settings.redis or cleanup.enter_context(embedded_redis()).url
            cleanup.enter_context(configure("console", "error"))
            console = rich.console.Console()
            agrees = demo.run(
                url,
                settings.prefix,
                seconds=seconds,
                clients=clients,
                console=console,
                no_admin=settings.no_admin,
            )
        except (EmbeddedError, FileLimitError) as error:
            complain(error)
            return FAILED
        except CONNECTION_LOST as error:
            complain(f"cannot reach Redis at {redacted(settings.redis or 'the embedded server')}: {error}")
            return FAILED
    if agrees is None:
        print("interrupted", file=sys.stderr)
        return OK
    return OK if agrees else FAILED
