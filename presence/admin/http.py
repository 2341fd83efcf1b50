"""An HTTP/1.1 server for a few operators, bounded against slow and numerous clients.

h11 implements the protocol. This module has the sockets, ASGI, and the time-outs that bound how long a client
can hold a connection: `REQUEST_TIMEOUT_S` for the head of a request, `BODY_TIMEOUT_S` for its body and
`WRITE_TIMEOUT_S` for each piece of a response. Requests of a connection are answered one after the other;
requests to upgrade the protocol are ignored.

There are `MAX_CONNECTIONS` places. When they are taken, a new connection gets the place of one whose client
has not sent a complete request, so that clients that send nothing, or little by little, keep out no others,
such as the probes of a load balancer. It is the one that has waited longest, of the address that has the most
of them. A request that is complete keeps its place until it is answered.
"""

import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from typing import Final
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.types import ASGIApp, Message, Scope

from presence.admin.http_metrics import HttpMetrics
from presence.admin.responses import ApiError, busy
from presence.common.faults import LOG_INTERVAL_S
from presence.common.logs import RateLimited
from presence.common.networks import limit_key
from presence.common.scarcity import fault_fields

MAX_CONNECTIONS: Final = 512
REQUEST_TIMEOUT_S: Final = 5.0  # from the accept, or the previous response, to a complete head
BODY_TIMEOUT_S: Final = 5.0
MAX_BODY_BYTES: Final = 65_536
WRITE_TIMEOUT_S: Final = 30.0  # per piece of at most `WRITE_BYTES`
WRITE_BYTES: Final = 65_536
DISCONNECT_TIMEOUT_S: Final = 5.0  # for the application to finish after a disconnect
STOP_GRACE_S: Final = 0.3  # for requests in progress at the stop
_HEAD_BYTES: Final = 16_384
_READ_BYTES: Final = 65_536
# Of the kernel, whose default buffers 4 MB for a viewer that reads nothing.
_SEND_BUFFER_BYTES: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: discard unsent data
_VERSIONS: Final = (b"1.0", b"1.1")

log = structlog.get_logger("presence.admin")


async def serve_http(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    metrics: HttpMetrics,
    stop: trio.Event,
    *,
    write_s: float = WRITE_TIMEOUT_S,
) -> None:
    """Serve until `stop`, then for `STOP_GRACE_S` the requests in progress.

    `app` receives ``http`` only, with the whole body in one message, and no lifespan events.
    """
    server = _Server(app, metrics, write_s)
    accepting = []
    for each in listeners:
        _configure(each)
        accepting.append(trio.SocketListener(trio.socket.from_stdlib_socket(each)))
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as nursery:
            accept = partial(trio.serve_listeners, server.serve, accepting, handler_nursery=connections)
            nursery.start_soon(accept)
            await stop.wait()
            nursery.cancel_scope.cancel()
        server.end_idle()
        connections.cancel_scope.deadline = trio.current_time() + STOP_GRACE_S


def _configure(listener: socket.socket) -> None:
    """Set the options that connections inherit from a listening socket."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # detects viewers whose machine is gone
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_TIMEOUT_S * 1000))


class _Server:
    """The state that connections share.

    Attributes:
        waiting: the connections whose request is not complete, longest waiting first, and what ends the wait.
        is_ending: whether no further requests are accepted.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, write_s: float) -> None:
        self.app = app
        self.metrics = metrics
        self.write_s = write_s
        self.waiting: dict[_HttpConnection, trio.CancelScope] = {}
        self.is_ending = False
        self.log = RateLimited(log, interval_s=LOG_INTERVAL_S)

    def end_idle(self) -> None:
        """Accept no further requests."""
        self.is_ending = True
        for connection, scope in self.waiting.items():
            if connection.is_idle:
                scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection; its errors do not affect others."""
        try:
            address = stream.socket.getpeername()[:2]
        except OSError:  # reset already
            await trio.aclose_forcefully(stream)
            return
        if self.metrics.connections >= MAX_CONNECTIONS:
            self.metrics.count_refusal("connections")
            if not self._make_room():
                await trio.aclose_forcefully(stream)
                return
        self.metrics.connections += 1
        try:
            await _HttpConnection(self, stream, address).run()
        except Exception as error:
            self.log.error("admin connection failed", **fault_fields(error))  # noqa: TRY400 - it has the error
        finally:
            self.metrics.connections -= 1
            await trio.aclose_forcefully(stream)

    def _make_room(self) -> bool:
        """Close a connection whose request is not complete; return False if there is none."""
        if not self.waiting:
            return False
        # Some 50 us with every place taken.
        host = Counter(each.host for each in self.waiting).most_common(1)[0][0]
        longest = next(each for each in self.waiting if each.host == host)
        self.waiting.pop(longest).cancel()
        return True


class _HttpConnection:
    """A connection and its current request.

    Attributes:
        host: the address of the client, as limits count it.
    """

    def __init__(self, server: _Server, stream: trio.SocketStream, address: tuple[str, int]) -> None:
        self.host = limit_key(address[0])
        self._server = server
        self._stream = stream
        self._address = address
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._gone = trio.Event()  # set when the client has disconnected
        self._answering = trio.CancelScope()

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, or only a part of its head."""
        return self._http.their_state is h11.IDLE

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
        """Return the head of the next request; None if there is none in time."""
        wait_s = 0 if self._server.is_ending else REQUEST_TIMEOUT_S
        with trio.move_on_after(wait_s) as waiting, self._yielding(waiting):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return None
            if event.http_version not in _VERSIONS:
                raise ApiError(505, "http_version_not_supported", "use HTTP/1.1")
            return event
        return None

    async def _body(self) -> bytes:
        body = bytearray()
        with trio.move_on_after(BODY_TIMEOUT_S) as waiting, self._yielding(waiting):
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    text = f"the body exceeds {MAX_BODY_BYTES} bytes"
                    raise ApiError(413, "request_entity_too_large", text, reason="body")
            return bytes(body)
        if trio.current_time() < waiting.deadline:
            raise busy("too many connections")
        text = f"the body was not received within {BODY_TIMEOUT_S:g} s"
        raise ApiError(408, "request_timeout", text, reason="slow_request")

    @contextmanager
    def _yielding(self, scope: trio.CancelScope) -> Iterator[None]:
        """Let another connection have the place, by the end of `scope`, for the length of the block."""
        self._server.waiting[self] = scope
        try:
            yield
        finally:
            self._server.waiting.pop(self, None)

    async def _next_event(self) -> object:
        """Return the next event of the client, `h11.ConnectionClosed` if it has disconnected.

        Raises:
            h11.RemoteProtocolError: it is not HTTP, or is truncated.
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

    # A complete request

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        """Run the application; it is cancelled soon after its client disconnects."""
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
        except OSError:  # it has no address of its own any more: the client has reset it
            return
        with trio.CancelScope() as self._answering:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                try:
                    await self._server.app(scope, receive, send)
                except Exception as error:
                    self._server.log.error("admin response failed", **fault_fields(error))  # noqa: TRY400 - it has the error
                    await self._refuse(ApiError(500, "internal", "see the server's log"))
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Detect a disconnect. After a further request from the client it is no longer watched."""
        data = await self._read()
        if data:
            self._http.receive_data(data)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._gone.set()
        self._answering.deadline = min(self._answering.deadline, trio.current_time() + DISCONNECT_TIMEOUT_S)

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
            "client": self._address,
            "server": self._stream.socket.getsockname()[:2],
        }

    # Sending

    async def _send_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        more = [(b"date", formatdate(usegmt=True).encode())]
        if self._server.is_ending:
            more.append((b"connection", b"close"))
        await self._send(h11.Response(status_code=status, headers=[*headers, *more]))

    async def _refuse(self, error: ApiError) -> None:
        """Respond with an error, unless a response has begun, and close."""
        if error.reason:
            self._server.metrics.count_refusal(error.reason)
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error.response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            await self._send_head(error.status, headers)
            await self._send(h11.Data(data=bytes(response.body)))
            await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        """Send an event; give up on a client that does not read it in time or has disconnected."""
        data = self._http.send(event) or b""
        for start in range(0, len(data), WRITE_BYTES):
            if self._gone.is_set():
                return
            with trio.move_on_after(self._server.write_s) as timeout:
                try:
                    await self._stream.send_all(data[start : start + WRITE_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._give_up()
            if timeout.cancelled_caught:
                self._server.metrics.count_refusal("slow_viewer")
                self._reset()
                self._give_up()

    def _reset(self) -> None:
        """Close the connection immediately, discarding unsent data."""
        with contextlib.suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._stream.socket.close()
