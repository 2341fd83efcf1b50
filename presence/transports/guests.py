"""The way of a guest, from the accept to its login; the states are those of `connection_states.py`.

    enter        the connection is counted, or refused
    HEADER       from a proxy: its header names the client (see `proxy_protocol.py`)
                 the client's address is counted, or refused
    HANDSHAKE    over TLS: see `tls_handshake.py`
    UPGRADE      over WebSocket: its request is answered (see `websocket_head.py`)
    LOGIN        the login is read, and the core answers it

`advance` takes a guest as far as its received bytes allow, and has it watched for the rest. A refusal says
why, except in place of a header or before a handshake, when nothing can be sent. All of it has to
finish within the login time-out, which starts at the accept and is never prolonged: sending a byte now and
then gains a client nothing.

Headers and handshakes have an epoll set each, and are taken in turns of their own. A handshake costs as much
as a hundred keepalives, so it goes on only there, a few at a time: many of them hardly delay others.

Tests: `tests/transports/test_proxied.py`, `tests/transports/test_tls.py`.
"""

import os
from contextlib import suppress
from http import HTTPStatus

import trio

from presence.common import networks
from presence.core.admission import Admission
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.core.registry import Guest, Transport
from presence.transports import proxy_protocol
from presence.transports.connection_states import (
    AWAITING_HEADER,
    HANDSHAKE,
    HANDSHAKING,
    HEADER,
    LOGIN,
    UPGRADE,
    Connection,
    LatencyClass,
)
from presence.transports.connections import WRITE, Connections, ListenerKind
from presence.transports.limits import LOGIN_TIMED_OUT, MAX_LOGINS_PER_TURN, too_many_connections
from presence.transports.reader import ConnectionReader
from presence.transports.tls import TlsListening
from presence.transports.tls_handshake import MAX_HANDSHAKES_PER_TURN, Handshakes
from presence.transports.websocket_head import Origins


class Guests:
    """Connections that have not logged in.

    Args:
        engine: is notified of new connections.
        transport: the transport, as the core addresses it.
        connections: where they are added.
        reader: reads their logins.
        admission: decides which connections are accepted.
        tls: listeners for TLS; None for none.
        proxies: networks whose connections must begin with a header of the PROXY protocol.
        origins: of web pages that may connect over WebSocket.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        connections: Connections,
        reader: ConnectionReader,
        *,
        admission: Admission,
        tls: TlsListening | None,
        proxies: tuple[networks.Network, ...],
        origins: Origins,
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._connections = connections
        self._reader = reader
        self._admission = admission
        self._proxies = proxies
        self._origins = origins
        self._handshakes = Handshakes(connections, tls)
        self._failures = connections.failures

    async def run(self) -> None:
        """Serve headers and handshakes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_set, AWAITING_HEADER, MAX_LOGINS_PER_TURN)
            nursery.start_soon(self._serve_set, HANDSHAKING, MAX_HANDSHAKES_PER_TURN)

    async def _serve_set(self, latency_class: LatencyClass, turn: int) -> None:
        epoll = self._connections.sets[latency_class]
        while True:
            events = epoll.poll(0, turn)
            if not events:
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            for fd, mask in events:
                with self._reader.contained(fd), suppress(OSError):  # closed: it cannot be watched
                    self._serve(fd, mask)
            self._connections.flush_replies()
            await trio.lowlevel.checkpoint()

    def _serve(self, fd: int, mask: int) -> None:
        connection = self._connections.by_fd.get(fd)
        if connection is None or not connection.is_guest:  # closed by another event of this turn
            return
        if mask & WRITE:
            self._connections.flush(connection)
        self.advance(connection)

    def enter(
        self, fd: int, address: str, listener: ListenerKind, *, retry_after: float | None = None
    ) -> Connection | None:
        """Add an accepted connection; return it if it is to be admitted.

        Args:
            fd: its descriptor, non-blocking.
            address: of the peer, as the kernel writes it.
            listener: what it begins with.
            retry_after: to refuse it, the seconds until a retry.
        """
        guest = self._engine.opened(self._transport, fd, networks.limit_key(address))
        connection = self._connections.add(fd, guest, listener)
        if retry_after is not None:
            self._refuse(connection, too_many_connections(retry_after))
        elif self._proxies and networks.contains(self._proxies, address):
            connection.state, connection.header = HEADER, bytearray()
            self._connections.counters.awaiting_proxy_headers += 1
        elif (refusal := self._connections.identify(fd, guest.address)) is not None:
            self._refuse(connection, refusal)
        return connection if connection.is_guest else None

    def advance(self, connection: Connection, *, may_shake: bool = True) -> None:
        """Take a guest as far as its received bytes allow, and watch it for the rest.

        Args:
            connection: that of the guest; one that is closing is only watched.
            may_shake: False if handshakes have to wait for their turn.

        Raises:
            OSError: it could not be watched, and was closed.
        """
        try:
            if connection.state is HEADER:
                self._read_header(connection)
            if connection.state is HANDSHAKE and may_shake:
                self._handshakes.advance(connection)
            if connection.state is UPGRADE:
                self._answer_request(connection)
            if connection.state is LOGIN:
                self._reader.read(connection.fd)
            self._connections.watch_guest(connection)
        except OSError:  # the limit of epoll watches, or no memory
            if not connection.is_closed:
                self._connections.close(connection.fd)
            raise

    def timed_out(self, connection: Connection) -> None:
        """Handle a login time-out; read first: the login may have arrived while this process paused."""
        with suppress(OSError):  # closed: it cannot be watched
            self.advance(connection)
        self._connections.flush_replies()
        if not connection.is_guest:
            return
        if connection.state is HEADER:
            self._connections.counters.login_timeouts += 1
            self._refuse_header(connection, "it was not complete in time")
            return
        self._failures.login_timed_out(self._address_of(connection))
        if connection.state is HANDSHAKE:
            self._connections.close(connection.fd)
        else:
            self._connections.close_gracefully(connection.fd, LOGIN_TIMED_OUT)

    def _answer_request(self, connection: Connection) -> None:
        """Read more of a request of WebSocket, and answer it if it is complete."""
        connections, websocket = self._connections, connection.websocket
        if websocket is None:
            return
        try:
            answer = websocket.answer_request(self._origins)
        except BlockingIOError:
            return
        except OSError:
            connections.close(connection.fd)
            return
        finally:
            if websocket.has_output and not connection.is_closed:
                connections.send_output(connection)
        if answer is None:
            return
        if answer.status is HTTPStatus.SWITCHING_PROTOCOLS:
            connections.counters.upgrades += 1
            connection.state = LOGIN
        else:
            self._failures.upgrade_refused(answer.status)
            connections.close_gracefully(connection.fd, b"")

    def _read_header(self, connection: Connection) -> None:
        """Read more of a proxy's header, and identify the client if it is complete."""
        fd, header = connection.fd, connection.header
        if header is None:
            return
        try:
            while wanted := proxy_protocol.missing(header):
                if not (data := os.read(fd, wanted)):
                    self._connections.close(fd)  # as the health checks of proxies do
                    return
                header += data
            client = proxy_protocol.client(header)
        except BlockingIOError:
            return
        except OSError:
            self._connections.close(fd)
            return
        except proxy_protocol.HeaderError as error:
            self._refuse_header(connection, str(error))
            return
        connection.header = None
        connection.state = connection.next_guest_state
        self._connections.counters.awaiting_proxy_headers -= 1
        self._connections.counters.proxied += 1
        self._identify_proxied(connection, client)

    def _identify_proxied(self, connection: Connection, client: str | None) -> None:
        """Count a connection by the client that a proxy has named; None: the proxy is the client."""
        guest = self._connections.clients[connection.fd]
        if not isinstance(guest, Guest):
            return
        if client is not None:
            guest.address = networks.limit_key(client)
        refusal = self._connections.identify(connection.fd, guest.address, from_proxy=client is not None)
        if refusal is not None:
            self._refuse(connection, refusal)

    def _refuse(self, connection: Connection, refusal: Refusal) -> None:
        packet = self._failures.refused(refusal, self._address_of(connection))
        self._connections.close_gracefully(connection.fd, packet)
        try:
            self._connections.watch_guest(connection)
        except OSError:  # the limit of epoll watches, or no memory
            self._connections.close(connection.fd)

    def _address_of(self, connection: Connection) -> str:
        guest = self._connections.clients[connection.fd]
        return guest.address if isinstance(guest, Guest) else ""

    def _refuse_header(self, connection: Connection, problem: str) -> None:
        """Close a connection without a packet: a misconfigured proxy could not use one."""
        self._failures.header_refused(problem)
        self._connections.close(connection.fd)
