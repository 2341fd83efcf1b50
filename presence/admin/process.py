"""What serves operators, wired: HTTP, the application, the orders of the server."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog
import trio

from presence.admin.app import App
from presence.admin.handlers import Context
from presence.admin.http import serve_http
from presence.admin.startup import Start
from presence.orders import ALIVE, interval_s

log = structlog.get_logger("presence.admin")


def run(start: Start, line: socket.socket) -> None:
    """Serve until the line ends.

    Args:
        start: what this process was told.
        line: from the server.
    """
    trio.run(_serve, start, line)


async def _serve(start: Start, line: socket.socket) -> None:
    stop = trio.Event()
    context = Context(
        settings=start.settings,
        redis_url=start.redis_url,
        lines=tuple(socket.socket(fileno=each) for each in start.lines),
        host=start.address.host,
        url=start.url,
    )
    line.setblocking(False)
    listeners = [socket.socket(fileno=each) for each in start.listeners]
    async with trio.open_nursery() as nursery:
        app = App(context)
        nursery.start_soon(_obey, line, app.reload, stop)
        nursery.start_soon(_beat, line, start.settings.hang_timeout)
        nursery.start_soon(app.run)
        log.info("operators are served", url=start.url, pid=os.getpid())
        await serve_http(app.asgi, listeners, context.http, stop)
        nursery.cancel_scope.cancel()


async def _beat(line: socket.socket, hang_timeout_s: float) -> None:
    """Tell the server that this loop turns."""
    while True:
        with suppress(OSError):  # the server is stopped, or gone, as `_obey` sees
            line.send(ALIVE)
        await trio.sleep(interval_s(hang_timeout_s))


async def _obey(line: socket.socket, reload: Callable[[], None], stop: trio.Event) -> None:
    """Take the orders of the server, until it is gone."""
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
