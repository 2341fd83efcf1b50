"""HTTP/1.1 for a few operators, which nobody who is slow or many can clog.

h11 speaks the protocol. Here are the sockets, ASGI, and how long one client can keep a place: `REQUEST_S` for
the head of a request, `BODY_S` for its body, `WRITE_S` for each piece of an answer. One request of a
connection is answered after the other, in HTTP/1.1, whatever protocol its client asks to change to.
"""

import contextlib
import socket
import struct
from collections.abc import Sequence
from email.utils import formatdate
from functools import partial
from typing import Final
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.types import ASGIApp, Message, Scope

from presence.admin.answers import ApiError
from presence.admin.http_figures import HttpFigures

CONNECTIONS_MAX: Final = 512
REQUEST_S: Final = 5.0  # from the accept, or the answer before, to a whole head
BODY_S: Final = 5.0
BODY_BYTES: Final = 65_536
WRITE_S: Final = 30.0  # for a piece of at most `WRITE_BYTES`
WRITE_BYTES: Final = 65_536
GONE_S: Final = 5.0  # for the application to end what a client asked who is gone
GRACE_S: Final = 0.3  # for requests under way when everything ends
_HEAD_BYTES: Final = 16_384
_READ_BYTES: Final = 65_536
_SEND_BUFFER_BYTES: Final = 65_536  # of the kernel; by default a viewer who reads nothing is sent 4 MB
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: what is left is thrown away
_VERSIONS: Final = (b"1.0", b"1.1")

log = structlog.get_logger("presence.admin")


async def serve_http(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    figures: HttpFigures,
    stop: trio.Event,
    *,
    write_s: float = WRITE_S,
) -> None:
    """Serve until `stop`, then for `GRACE_S` those whose requests are under way.

    Args:
        app: takes ``http`` only, with the whole body in one piece; its lifespan is not told.
        listeners: sockets that listen.
        figures: where connections and refusals are counted.
        stop: set when it is time to end.
        write_s: see `WRITE_S`.
    """
    server = _Server(app, figures, write_s)
    accepting = []
    for each in listeners:
        _bound(each)
        accepting.append(trio.SocketListener(trio.socket.from_stdlib_socket(each)))
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as nursery:
            accept = partial(trio.serve_listeners, server.serve, accepting, handler_nursery=connections)
            nursery.start_soon(accept)
            await stop.wait()
            nursery.cancel_scope.cancel()
        server.end_idle()
        connections.cancel_scope.deadline = trio.current_time() + GRACE_S


def _bound(listener: socket.socket) -> None:
    """Set what connections inherit from the socket that listens."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a viewer whose machine is gone acknowledges nothing
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_S * 1000))


class _Server:
    """What connections share.

    Attributes:
        waiting: the scopes of connections that wait for a request.
        is_ending: whether no further request is taken.
    """

    def __init__(self, app: ASGIApp, figures: HttpFigures, write_s: float) -> None:
        self.app = app
        self.figures = figures
        self.write_s = write_s
        self.waiting: set[trio.CancelScope] = set()
        self.is_ending = False

    def end_idle(self) -> None:
        """Take no further requests."""
        self.is_ending = True
        for each in self.waiting:
            each.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection; what goes wrong with it is no matter of others."""
        if self.figures.connections >= CONNECTIONS_MAX:
            self.figures.refused("connections")
            await trio.aclose_forcefully(stream)
            return
        self.figures.connections += 1
        try:
            await _HttpConnection(self, stream).run()
        except Exception:
            log.exception("admin connection failed")
        finally:
            self.figures.connections -= 1
            await trio.aclose_forcefully(stream)


class _HttpConnection:
    """A connection, and the request that is under way."""

    def __init__(self, server: _Server, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._gone = trio.Event()  # nobody takes an answer any more
        self._answering = trio.CancelScope()

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            while (request := await self._next_request()) is not None:
                await self._answer(request, await self._body())
                if {self._http.our_state, self._http.their_state} != {h11.DONE}:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(ApiError(error.error_status_hint, "bad_request", str(error)))
        except ApiError as error:
            await self._refuse(error)

    async def _next_request(self) -> h11.Request | None:
        """Return the head of a request; None: there will be none, or not in time."""
        with trio.move_on_after(0 if self._server.is_ending else REQUEST_S) as waiting:
            self._server.waiting.add(waiting)
            try:
                event = await self._next_event()
            finally:
                self._server.waiting.discard(waiting)
            if not isinstance(event, h11.Request):
                return None
            if event.http_version not in _VERSIONS:
                raise ApiError(505, "http_version_not_supported", "this is HTTP/1.1")
            return event
        return None

    async def _body(self) -> bytes:
        body = bytearray()
        try:
            with trio.fail_after(BODY_S):
                while isinstance(event := await self._next_event(), h11.Data):
                    body += event.data
                    if len(body) > BODY_BYTES:
                        text = f"a body has at most {BODY_BYTES} bytes"
                        raise ApiError(413, "request_entity_too_large", text, reason="body")
        except trio.TooSlowError:
            text = f"the body did not come within {BODY_S:g} s"
            raise ApiError(408, "request_timeout", text, reason="slow_request") from None
        return bytes(body)

    async def _next_event(self) -> object:
        """Return what the client says next; of a client that is gone `h11.ConnectionClosed`.

        Raises:
            h11.RemoteProtocolError: it is no HTTP, or ends in its middle.
        """
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._read())
        return event

    async def _read(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    # A request that has come whole

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        """Let the application answer; it ends soon after its client is gone."""
        requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if self._gone.is_set():
                await trio.lowlevel.checkpoint()
            elif message["type"] == "http.response.start":
                await self._send_head(message["status"], message.get("headers", ()))
            else:
                if message.get("body") and request.method != b"HEAD":
                    await self._send(h11.Data(data=message["body"]))
                if not message.get("more_body"):
                    await self._send(h11.EndOfMessage())

        try:
            scope = self._scope(request)
        except OSError:  # gone already
            return
        with trio.CancelScope() as self._answering:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                try:
                    await self._server.app(scope, receive, send)
                except Exception:
                    log.exception("admin response failed")
                    await self._refuse(ApiError(500, "internal", "see the server's log"))
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """See when the client goes. One that asks again meanwhile is not watched any more."""
        data = await self._read()
        if data:
            self._http.receive_data(data)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._gone.set()
        self._answering.deadline = min(self._answering.deadline, trio.current_time() + GONE_S)

    def _scope(self, request: h11.Request) -> Scope:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self._stream.socket.getpeername()[:2],
            "server": self._stream.socket.getsockname()[:2],
        }

    # What is sent

    async def _send_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        more = [(b"date", formatdate(usegmt=True).encode())]
        if self._server.is_ending:
            more.append((b"connection", b"close"))
        await self._send(h11.Response(status_code=status, headers=[*headers, *more]))

    async def _refuse(self, error: ApiError) -> None:
        """Answer with an error, unless an answer has begun; nothing more is read."""
        if error.reason:
            self._server.figures.refused(error.reason)
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error.response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            await self._send_head(error.status, headers)
            await self._send(h11.Data(data=bytes(response.body)))
            await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        """Send something; a client that does not take it in time, or is gone, is given up."""
        data = self._http.send(event) or b""
        for start in range(0, len(data), WRITE_BYTES):
            if self._gone.is_set():
                return
            with trio.move_on_after(self._server.write_s) as patience:
                try:
                    await self._stream.send_all(data[start : start + WRITE_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._give_up()
            if patience.cancelled_caught:
                self._server.figures.refused("slow_viewer")
                self._reset()
                self._give_up()

    def _reset(self) -> None:
        """Close the connection without any further wait for what the client has not taken."""
        with contextlib.suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._stream.socket.close()
