"""HTTP/1.1 for a few operators, which nobody who is slow or many can clog.

hypercorn speaks the protocol; its connections are served here, for its own wait without bound for a client
that takes nothing, also when everything ends, may be as many as come, and change to HTTP/2 when asked.
How long one client can keep a place: `REQUEST_S` for the head of a request, `BODY_S` for its body, `WRITE_S`
for each piece of an answer.
"""

import contextlib
import logging
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

from presence.admin.bodies import Bounded
from presence.admin.http_figures import HttpFigures

CONNECTIONS_MAX: Final = 512
REQUEST_S: Final = 5.0  # from the accept, or the answer before, to a whole head
WRITE_S: Final = 30.0  # for a piece of at most `WRITE_BYTES`
WRITE_BYTES: Final = 65_536
GONE_S: Final = 5.0  # for the application to end what a client asked who is gone
GRACE_S: Final = 0.3  # for requests under way when everything ends
_HEAD_BYTES: Final = 16_384
_READ_BYTES: Final = 65_536
_SEND_BUFFER_BYTES: Final = 65_536  # of the kernel; by default a viewer who reads nothing is sent 4 MB
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: what is left is thrown away

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
        app: takes ``http`` only; its lifespan is not told.
        listeners: sockets that listen.
        figures: where connections and refusals are counted.
        stop: set when it is time to end.
        write_s: see `WRITE_S`.
    """
    serving = _Serving(app, figures, write_s)
    accepting = []
    for each in listeners:
        _bound(each)
        accepting.append(trio.SocketListener(trio.socket.from_stdlib_socket(each)))
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as nursery:
            accept = partial(trio.serve_listeners, serving.serve, accepting, handler_nursery=connections)
            nursery.start_soon(accept)
            await stop.wait()
            nursery.cancel_scope.cancel()
        await serving.context.terminated.set()  # ends those that are idle
        connections.cancel_scope.deadline = trio.current_time() + GRACE_S


def _bound(listener: socket.socket) -> None:
    """Set what connections inherit from the socket that listens."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a viewer whose machine is gone acknowledges nothing
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_S * 1000))


class _Serving:
    """What connections share."""

    def __init__(self, app: ASGIApp, figures: HttpFigures, write_s: float) -> None:
        bounded: Any = Bounded(app, figures)  # two libraries name the same types differently
        self.app = ASGIWrapper(bounded)
        self.figures = figures
        self.write_s = write_s
        self.context = WorkerContext(None)
        self.config = Config()
        self.config.accesslog = None
        self.config.errorlog = logging.getLogger("presence.admin.http")
        self.config.include_server_header = False
        self.config.h11_max_incomplete_size = _HEAD_BYTES

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection; what goes wrong with it is no matter of others."""
        self.figures.accepted += 1
        if self.figures.connections >= CONNECTIONS_MAX:
            self.figures.refused("connections")
            await trio.aclose_forcefully(stream)
            return
        self.figures.connections += 1
        connection = _Connection(self, stream)
        try:
            await connection.run()
        except Exception as error:
            if not connection.is_closed:
                log.exception("a connection of an operator failed")
            else:  # hypercorn may answer a request that came with others from who has gone meanwhile
                log.debug("a connection of an operator ended", error=str(error))
        finally:
            self.figures.connections -= 1
            await trio.aclose_forcefully(stream)


class _Http1(H11Protocol):
    """HTTP/1.1, and no way from it to HTTP/2 or web sockets, whose streams would have time-outs of their own.

    Who asks for another protocol has an answer in this one, as the standard allows.
    """

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]  # in lower case
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        )


class _Connection:
    """A connection, as `hypercorn.trio.tcp_server` serves it but for its bounds."""

    def __init__(self, serving: _Serving, stream: trio.SocketStream) -> None:
        self._serving = serving
        self._stream = stream
        self._writing = trio.Lock()
        self.is_closed = False
        self._idle = trio.CancelScope()
        self._everything = trio.CancelScope()
        self._tasks = TaskGroup()

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            client = parse_socket_addr(self._stream.socket.family, self._stream.socket.getpeername())
            server = parse_socket_addr(self._stream.socket.family, self._stream.socket.getsockname())
        except OSError:  # gone already
            return
        serving = self._serving
        with self._everything:
            async with self._tasks as tasks:
                self._protocol = _Http1(
                    serving.app,
                    serving.config,
                    serving.context,
                    tasks,
                    ConnectionState({}),
                    False,  # no TLS
                    client,
                    server,
                    self._send,
                )
                self._await_request()
                await self._read()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                break
            await self._protocol.handle(RawData(bytes(data)))
        self.is_closed = True
        await self._protocol.handle(Closed())
        self._idle.cancel()
        await self._close()

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            try:
                await self._write(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self._close()
                await self._protocol.handle(Closed())
        elif isinstance(event, Closed):
            await self._close()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._idle.cancel()
            if event.idle:
                self._await_request()

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            for start in range(0, len(data), WRITE_BYTES):
                with trio.move_on_after(self._serving.write_s) as patience:
                    await self._stream.send_all(data[start : start + WRITE_BYTES])
                if patience.cancelled_caught:
                    self._serving.figures.refused("slow_viewer")
                    self._reset()
                    raise trio.BrokenResourceError("takes nothing")

    def _await_request(self) -> None:
        """Close the connection unless a request comes in time, or if everything ends before."""
        self._idle = trio.CancelScope()
        self._tasks.spawn(self._lose_patience, self._idle)

    async def _lose_patience(self, idle: trio.CancelScope) -> None:
        with idle:
            with trio.move_on_after(REQUEST_S):
                await self._serving.context.terminated.wait()
            await self._close()

    async def _close(self) -> None:
        """Say that nothing more comes. The task that reads ends with it, and the application soon.

        hypercorn alone may leave either behind, where a client asks again before it has its answer.
        """
        self.is_closed = True
        self._everything.deadline = min(self._everything.deadline, trio.current_time() + GONE_S)
        await self._stream.aclose()

    def _reset(self) -> None:
        """Close the connection without any further wait for what the client has not taken."""
        with contextlib.suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._stream.socket.close()
