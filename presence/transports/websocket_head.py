"""The HTTP request that begins a WebSocket connection, and the answer to it.

The request is parsed once all of it is here, so a slow client costs the bytes that it has sent, and no parser
remains. It may name any path. `Origin` says for which web page a browser connects; other clients send none.

Tests: `tests/transports/test_websocket_head.py`.
"""

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from socket import socket
from typing import Final, NamedTuple, TypeAlias, cast

from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from presence import protocol
from presence.protocol import Code

MAX_HEAD_BYTES: Final = 8192  # what most HTTP servers allow for a line: the cookies of a domain fit
HEAD_END: Final = b"\r\n\r\n"
BINARY, JSON = Subprotocol("presence.v1"), Subprotocol("presence.v1.json")
NOT_HTTP: Final = protocol.encode(
    protocol.error(None, Code.PROTOCOL_ERROR, "this port is for WebSocket: use the TCP port")
)
SILENT: Final = logging.Logger("websockets", logging.CRITICAL + 1)  # answers say what the library would log
# Pages that this machine serves, on any port: those of a developer.
_LOCAL_PAGES = re.compile(r"https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?", re.ASCII)
_STATUS_OF_CODES = {  # of refusals before the request was read
    Code.LOGIN_TIMEOUT: HTTPStatus.REQUEST_TIMEOUT,
    Code.PROTOCOL_ERROR: HTTPStatus.BAD_REQUEST,
    Code.RATE_LIMITED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.BANNED: HTTPStatus.FORBIDDEN,
}

Origins: TypeAlias = list[Origin | re.Pattern[str] | None]


class WebSocketListening(NamedTuple):
    """Listeners for WebSocket, and the origins of web pages that may connect."""

    listeners: Sequence[socket]
    origins: Origins


class Answer(NamedTuple):
    """The answer to a request."""

    data: bytes
    status: HTTPStatus
    is_json: bool = False  # whether the packets of this connection are JSON texts


def origins_of(allowed: Sequence[str]) -> Origins:
    """Return what the library compares an origin with.

    Args:
        allowed: as in the setting `ws_origins`; empty: pages of this machine only.
    """
    if not allowed:
        return [None, _LOCAL_PAGES]
    if "*" in allowed:
        return [None, re.compile(r".*")]
    return [None, *(re.compile(re.escape(each).replace(r"\*", r"[^./:]+")) for each in allowed)]


def respond(head: bytes | bytearray, origins: Origins) -> Answer:
    """Return the answer to a request.

    Args:
        head: the whole request, up to its empty line.
        origins: the allowed ones.
    """
    server = ServerProtocol(
        origins=origins, subprotocols=[BINARY, JSON], select_subprotocol=_select, logger=SILENT
    )
    server.receive_data(head)
    events = server.events_received()
    if not events:
        line = b"".join(server.data_to_send()).split(b" ", 2)  # the library's answer, if it has one
        status = HTTPStatus(int(line[1])) if len(line) > 1 else HTTPStatus.BAD_REQUEST
        return refused(status, "this is no request of HTTP/1.1 with a head of usual size")
    request = cast("Request", events[0])  # the only event before an answer
    if "Host" not in request.headers:
        return refused(HTTPStatus.BAD_REQUEST, "the request has no Host")
    response: Response = server.accept(request)
    server.send_response(response)
    data, status = b"".join(server.data_to_send()), HTTPStatus(response.status_code)
    return Answer(data, status, server.subprotocol != BINARY)


def respond_to_part(head: bytearray, origins: Origins) -> Answer | None:
    """Return the answer once the request is complete, or shows that it never will be; else None.

    Args:
        head: what has arrived: perhaps a part of the request, perhaps more than it.
        origins: the allowed ones.
    """
    end = head.find(HEAD_END)
    if not head[:1].isupper():  # no method of HTTP begins so
        return Answer(NOT_HTTP, HTTPStatus.BAD_REQUEST)
    if end >= 0:
        return respond(head[: end + len(HEAD_END)], origins)
    if len(head) > MAX_HEAD_BYTES:
        problem = f"a head has at most {MAX_HEAD_BYTES} bytes"
        return refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)
    return None


def refused(status: HTTPStatus, problem: str, retry_after: float | None = None) -> Answer:
    """Return a refusal of a request, whether it was read or not."""
    body = f"{problem}\n".encode()
    retry = "" if retry_after is None else f"Retry-After: {max(1, round(retry_after))}\r\n"
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\n{retry}"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Answer(head.encode() + body, status)


def refused_as(packet: bytes | bytearray) -> Answer:
    """Return what a client is sent in place of a refusal packet, because its request was not answered yet."""
    payload = protocol.decode(bytes(packet[protocol.HEADER_BYTES :])).payload
    code = Code(payload["code"])
    status = _STATUS_OF_CODES.get(code, HTTPStatus.SERVICE_UNAVAILABLE)
    return refused(status, f"{code.reason}: {payload.get('message', '')}", payload.get("retry_after"))


def _select(_server: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose the first that is known of those that the client offers; without an offer it speaks JSON."""
    if not offered:
        return None
    for each in offered:
        if each in {BINARY, JSON}:
            return each
    raise NegotiationError(f"no known subprotocol: offer {BINARY} or {JSON}")
