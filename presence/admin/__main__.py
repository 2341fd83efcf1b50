"""The process that serves operators; `presence.admin.keeper` starts it, and nobody else."""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable

import structlog
import trio

from presence import logs
from presence.admin import frames
from presence.admin.context import Context
from presence.admin.keeper import IGNORED
from presence.admin.start import Start
from presence.embedded import die_with_parent

log = structlog.get_logger("presence.admin")


def main() -> int:
    """Serve until standard input ends; return the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)  # whoever starts and ends the server decides of us, too
    if (ask_kernel := die_with_parent(signal.SIGKILL)) is not None:
        ask_kernel()  # also while we are stopped, and could not notice
    line = socket.socket(fileno=0)
    message = frames.read(line)
    if message is None:
        return 0
    start: Start = pickle.loads(message)  # noqa: S301 - whoever can write there is who started us
    with logs.configure(start.settings.log_format, start.settings.log_level):
        try:
            trio.run(_serve, start, line)
        except Exception:
            log.exception("operators are not served any more")
            return 1
    return 0


async def _serve(start: Start, line: socket.socket) -> None:
    # What cannot be loaded is told in the log, as anything else that goes wrong.
    from presence.admin.app import make_app  # noqa: PLC0415 - see above
    from presence.admin.http import serve_http  # noqa: PLC0415 - see above

    stop = trio.Event()
    context = Context(
        settings=start.settings,
        redis_url=start.redis_url,
        lines=tuple(socket.socket(fileno=each) for each in start.lines),
        host=start.address.host,
        port=start.address.port,
        url=start.url,
    )
    listeners = [socket.socket(fileno=each) for each in start.listeners]
    async with trio.open_nursery() as nursery:
        app = make_app(context)
        nursery.start_soon(_obey, line, app.reload, stop)
        nursery.start_soon(app.run)
        log.info("operators are served", url=start.url, pid=os.getpid())
        await serve_http(app.asgi, listeners, context.http, stop)
        nursery.cancel_scope.cancel()


async def _obey(line: socket.socket, reload: Callable[[], None], stop: trio.Event) -> None:
    """Take the orders of whoever started us, until there is nobody who could give one."""
    line.setblocking(False)
    orders = trio.socket.from_stdlib_socket(line)
    while True:
        try:
            order = await orders.recv(64)
        except OSError:
            order = b""
        if not order:
            stop.set()
            return
        reload()


if __name__ == "__main__":
    sys.exit(main())
