"""The bodies of requests, taken before the application is asked: of a bounded size, within bounded time."""

import json
from http import HTTPStatus
from typing import Final

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from presence.admin.http_figures import HttpFigures

BODY_BYTES: Final = 65_536
BODY_S: Final = 5.0


class Bounded:
    """An application that is asked when the body of a request is there, and not by WebSockets.

    Args:
        app: takes ``http`` only.
        figures: where refusals are counted.
    """

    def __init__(self, app: ASGIApp, figures: HttpFigures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be asked, as ASGI has it."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        try:
            with trio.fail_after(BODY_S):
                body = await _whole(receive)
        except trio.TooSlowError:
            self._figures.refused("slow_request")
            await _refuse(send, HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_S:g} s")
            return
        except _TooLargeError:
            self._figures.refused("body")
            limit = f"a body has at most {BODY_BYTES} bytes"
            await _refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, limit)
            return
        if body is not None:
            await self._app(scope, _Replayed(body, receive), send)


class _TooLargeError(Exception):
    """A body has more than `BODY_BYTES`."""


class _Replayed:
    """The body in one piece, then whatever else is received: that the client is gone."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._first: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Message:
        first, self._first = self._first, None
        return await self._receive() if first is None else first


async def _whole(receive: Receive) -> bytes | None:
    """Return a body; None if the client is gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message["body"]
        if len(body) > BODY_BYTES:
            raise _TooLargeError
        if not message["more_body"]:
            return bytes(body)


async def _refuse(send: Send, status: HTTPStatus, message: str) -> None:
    code = status.name.lower()
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),  # for the rest of the body is not read
    ]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
