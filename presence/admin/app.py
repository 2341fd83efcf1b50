"""Wires the HTTP interface: endpoints, handlers, background tasks, and commands of the server.

Tests: `tests/admin/test_access.py`, `tests/admin/test_http.py`.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
import trio
from starlette.types import ASGIApp

from presence.admin.access import AccessRules
from presence.admin.auth_middleware import Audit, AuthMiddleware, Endpoint
from presence.admin.broadcast import EventBroadcaster
from presence.admin.handlers import Context, Handlers, Sources
from presence.admin.history import EventHistory
from presence.admin.http import serve_http
from presence.admin.page_files import PageFiles
from presence.admin.sampler import Sampler
from presence.admin.start_message import StartMessage
from presence.admin.views import RedisQueries
from presence.admin.workers import Workers
from presence.auth import operator_tokens
from presence.auth.operator_tokens import TokenFileError, Tokens
from presence.prefork.control_pipe import ALIVE, interval_s

TOKENS_RETRY_INTERVAL_S: Final = 30.0  # between two reads of a file that could not be used

log = structlog.get_logger("presence.admin")


class App:
    """The ASGI application `asgi`, its endpoints, its sources of data, and its background tasks."""

    def __init__(self, context: Context) -> None:
        settings, metrics = context.settings, context.http
        self._token_file = settings.admin_tokens
        self._access = AccessRules(None if self._token_file is None else Tokens(()), context.host)
        self.reload()
        audit = Audit(metrics)
        workers = Workers(context.lines, context.first_number)
        self.sources = Sources(
            workers=workers,
            sampler=Sampler(workers, context.redis_url, settings.prefix, has_rooms=settings.rooms != "off"),
            queries=RedisQueries(context.redis_url, settings.prefix, settings.roster_memory),
            broadcaster=EventBroadcaster(context.redis_url, settings.prefix),
            history=EventHistory(context.redis_url, settings.prefix),
            audit=audit,
        )
        self._handlers = Handlers(context, self.sources)
        self.endpoints = endpoints(self._handlers, PageFiles())
        self.asgi: ASGIApp = AuthMiddleware(self.endpoints, self._access, metrics, audit)

    async def run(self) -> None:
        self._handlers.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.sources.workers.run)
                nursery.start_soon(self.sources.sampler.run)
                nursery.start_soon(self.sources.broadcaster.run)
                nursery.start_soon(self._retry_tokens)
        finally:
            self.sources.queries.close()
            self.sources.history.close()

    def reload(self) -> None:
        """Reread the tokens; the previous ones stay in effect if the file is invalid. Never raises."""
        if self._token_file is None:
            return
        try:
            self._access.tokens = tokens = operator_tokens.load(self._token_file)
        except TokenFileError as error:
            kept = len(self._access.tokens or ())
            log.error("operator token file rejected", error=str(error), kept=kept)  # noqa: TRY400 - no traceback needed
        else:
            log.info("operator tokens loaded", tokens=len(tokens))

    async def _retry_tokens(self) -> None:
        """Reread the token file until it is valid, if it was not when this process started.

        It was valid when the server started, so the operator who repairs it may not know about this process.
        """
        while self._access.tokens is not None and not len(self._access.tokens):
            await trio.sleep(TOKENS_RETRY_INTERVAL_S)
            self.reload()


def endpoints(handlers: Handlers, page: PageFiles) -> list[Endpoint]:
    """Return all endpoints and the roles that they require."""
    return [
        Endpoint("GET", "/healthz", None, handlers.healthz),
        Endpoint("GET", "/readyz", None, handlers.readyz),
        Endpoint("GET", "/metrics", "read", handlers.metrics),
        Endpoint("GET", "/v1/presence", "read", handlers.presence_of),
        Endpoint("GET", "/v1/presence/{uid}", "read", handlers.presence),
        Endpoint("POST", "/v1/presence/query", "read", handlers.query),
        Endpoint("GET", "/v1/online", "read", handlers.online),
        Endpoint("GET", "/v1/nodes", "read", handlers.nodes),
        Endpoint("GET", "/v1/events", "read", handlers.events),
        Endpoint("GET", "/v1/live", "read", handlers.live),
        Endpoint("GET", "/v1/explain", "read", handlers.explain_of),
        Endpoint("GET", "/v1/explain/{uid}", "read", handlers.explain),
        Endpoint("POST", "/v1/kick", "act", handlers.kick, act="kick"),
        Endpoint("GET", "/v1/bans", "read", handlers.bans),
        Endpoint("POST", "/v1/ban", "act", handlers.ban, act="ban"),
        Endpoint("POST", "/v1/unban", "act", handlers.unban, act="unban"),
        Endpoint("POST", "/v1/message", "act", handlers.message, act="message"),
        Endpoint("GET", "/v1/roster", "read", handlers.roster_of),
        Endpoint("GET", "/v1/roster/{uid}", "read", handlers.roster),
        Endpoint("POST", "/v1/roster", "act", handlers.change_roster, act="roster"),
        Endpoint("GET", "/v1/rooms", "read", handlers.rooms),
        Endpoint("GET", "/v1/rooms/{name}", "read", handlers.room),
        Endpoint("GET", "/openapi.json", "read", page.describe),
        Endpoint("GET", "/", "read", page.index),
        Endpoint("GET", "/static/{file}", "read", page.file),
    ]


def run(start: StartMessage, line: socket.socket) -> None:
    """Serve until the line, the connection to the server, ends."""
    trio.run(_serve, start, line)


async def _serve(start: StartMessage, line: socket.socket) -> None:
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
        nursery.start_soon(_handle_commands, line, app.reload, stop)
        nursery.start_soon(_send_heartbeats, line, start.settings.hang_timeout)
        nursery.start_soon(app.run)
        log.info("admin HTTP server ready", url=start.url, pid=os.getpid())
        await serve_http(app.asgi, listeners, context.http, stop)
        nursery.cancel_scope.cancel()


async def _send_heartbeats(line: socket.socket, hang_timeout_s: float) -> None:
    """Send heartbeats to the server while this event loop runs."""
    while True:
        with suppress(OSError):  # the server is stopped or gone, which `_handle_commands` notices
            line.send(ALIVE)
        await trio.sleep(interval_s(hang_timeout_s))


async def _handle_commands(line: socket.socket, reload: Callable[[], None], stop: trio.Event) -> None:
    """Handle commands of the server until it is gone."""
    commands = trio.socket.from_stdlib_socket(line)
    while True:
        try:
            command = await commands.recv(64)
        except OSError:
            command = b""
        if not command:
            stop.set()
            return
        reload()
