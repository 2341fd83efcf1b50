"""The HTTP interface, wired: what may be asked, who answers, the tasks beside it, the server's orders."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
import trio
from starlette.types import ASGIApp

from presence.admin.access import AccessRules
from presence.admin.backlog_pages import BacklogPages
from presence.admin.guard import Audit, AuthMiddleware, Verb
from presence.admin.handlers import Context, Handlers, Sources
from presence.admin.http import serve_http
from presence.admin.page_files import PageFiles
from presence.admin.sampler import Sampler
from presence.admin.startup import Start
from presence.admin.tidings import EventBroadcaster
from presence.admin.views import RedisQueries
from presence.admin.workers import Workers
from presence.auth import operator_tokens
from presence.auth.operator_tokens import TokenFileError, Tokens
from presence.prefork.control_pipe import ALIVE, interval_s

TOKENS_S: Final = 30.0  # between two looks at a file that could not be used

log = structlog.get_logger("presence.admin")


class App:
    """The application, and the tasks beside it.

    Args:
        context: what the process was started with.

    Attributes:
        asgi: what answers requests.
        verbs: what may be asked.
        sources: who knows what is answered.
    """

    def __init__(self, context: Context) -> None:
        settings, figures = context.settings, context.http
        self._token_file = settings.admin_tokens
        self._access = AccessRules(None if self._token_file is None else Tokens(()), context.host)
        self.reload()
        audit = Audit(figures)
        workers = Workers(context.lines, context.first_number)
        self.sources = Sources(
            workers=workers,
            sampler=Sampler(workers, context.redis_url, settings.prefix),
            views=RedisQueries(context.redis_url, settings.prefix),
            tidings=EventBroadcaster(context.redis_url, settings.prefix),
            backlog=BacklogPages(context.redis_url, settings.prefix),
            audit=audit,
        )
        self._handlers = Handlers(context, self.sources)
        self.verbs = verbs(self._handlers, PageFiles())
        self.asgi: ASGIApp = AuthMiddleware(self.verbs, self._access, figures, audit)

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        self._handlers.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.sources.workers.run)
                nursery.start_soon(self.sources.sampler.run)
                nursery.start_soon(self.sources.tidings.run)
                nursery.start_soon(self._await_tokens)
        finally:
            self.sources.views.close()
            self.sources.backlog.close()

    def reload(self) -> None:
        """Read the tokens again; those of before stay in effect if the file is not sound. Never raises."""
        if self._token_file is None:
            return
        try:
            self._access.tokens = tokens = operator_tokens.load(self._token_file)
        except TokenFileError as error:
            kept = len(self._access.tokens or ())
            log.error("operator token file rejected", error=str(error), kept=kept)  # noqa: TRY400 - it says all
        else:
            log.info("operator tokens loaded", tokens=len(tokens))

    async def _await_tokens(self) -> None:
        """Look at the file until it can be used, where it could not when this process was started.

        It could when the server was: whoever repairs it need not know that it was wanted meanwhile.
        """
        while self._access.tokens is not None and not len(self._access.tokens):
            await trio.sleep(TOKENS_S)
            self.reload()


def verbs(handlers: Handlers, page: PageFiles) -> list[Verb]:
    """Return what may be asked, and what it takes."""
    return [
        Verb("GET", "/healthz", None, handlers.healthz),
        Verb("GET", "/readyz", None, handlers.readyz),
        Verb("GET", "/metrics", "read", handlers.metrics),
        Verb("GET", "/v1/presence/{uid}", "read", handlers.presence),
        Verb("POST", "/v1/presence/query", "read", handlers.query),
        Verb("GET", "/v1/online", "read", handlers.online),
        Verb("GET", "/v1/nodes", "read", handlers.nodes),
        Verb("GET", "/v1/events", "read", handlers.events),
        Verb("GET", "/v1/live", "read", handlers.live),
        Verb("GET", "/v1/explain/{uid}", "read", handlers.explain),
        Verb("POST", "/v1/kick", "act", handlers.kick, act="kick"),
        Verb("GET", "/openapi.json", "read", page.describe),
        Verb("GET", "/", "read", page.index),
        Verb("GET", "/static/{file}", "read", page.file),
    ]


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
        log.info("admin HTTP server ready", url=start.url, pid=os.getpid())
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
