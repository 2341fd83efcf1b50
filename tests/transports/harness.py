"""A transport with a real engine, and clients that connect over real TCP or in memory."""

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import pytest
import trio
from trio.abc import Stream

from presence import protocol
from presence.common import networks
from presence.common.clock import Clock
from presence.core.admission import Admission, AdmissionLimits, PacketRate
from presence.core.authenticator import Authenticator, CertificateAuthenticator
from presence.core.changes import Change, Op
from presence.core.engine import Engine
from presence.core.flap_damping import FlapDamping
from presence.core.login_policy import LoginPolicy
from presence.core.registry import Registry, Session, SessionKey
from presence.core.server_protocol import ServerProtocol
from presence.core.sessions import Sessions
from presence.core.slots import SLOTS_PER_TICK, SlotClock
from presence.core.stall_guard import StallGuard
from presence.protocol import Code, Decoder, Kind, Packet
from presence.server.ticker import Ticker
from presence.transports import sockets
from presence.transports.epoll_transport import EpollTransport
from presence.transports.limits import Limits
from presence.transports.tls import HANDSHAKES, Certificate, TlsListening
from presence.transports.transport_counters import TransportCounters
from presence.transports.trio_transport import StreamTransport, listening
from presence.transports.websocket_head import WebSocketListening, origins_of
from tests.support.waiting import until
from tests.support.websocket_client import WebSocketStream
from tests.transports import certificates

# "tls", "ws" and "wss" are the epoll transport's
TransportKind = Literal["epoll", "stream", "tls", "tls stream", "ws", "wss", "ws stream", "wss stream"]
both = pytest.mark.parametrize("kind", ["epoll", "stream"])
every_kind = pytest.mark.parametrize("kind", ["epoll", "stream", "tls", "ws", "wss"])
all_four = pytest.mark.parametrize("kind", ["epoll", "stream", "tls", "tls stream"])
FAILING_WISH_S = 666  # a login with this idle time-out makes the handler fail
PATIENCE_S = 10.0  # for what should happen immediately
CLOCK_AHEAD_S = 1e6  # of trio's clock, which begins anywhere: no transport may mix the two


class Client:
    """The client's end of a connection."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._decoder = Decoder()

    async def send(self, *packets: Packet) -> None:
        await self.stream.send_all(b"".join(map(protocol.encode, packets)))

    async def receive(self) -> Packet | None:
        """Return the next packet, None at the end of the stream."""
        while (packet := self._decoder.next()) is None:
            data = await self.stream.receive_some(4096)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    async def take(self, count: int) -> list[Packet]:
        """Return that many packets."""
        packets = []
        with trio.fail_after(PATIENCE_S):
            for _ in range(count):
                packet = await self.receive()
                assert packet is not None
                packets.append(packet)
        return packets

    async def rest(self) -> list[Packet]:
        """Return all packets up to the end of the stream."""
        packets = []
        with trio.fail_after(PATIENCE_S):
            while (packet := await self.receive()) is not None:
                packets.append(packet)
        return packets

    async def login(
        self,
        uid: str,
        device: str | None = None,
        idle_timeout: float | None = None,
        *,
        confirms: bool | None = None,
    ) -> Packet:
        await self.send(protocol.login(uid, device=device, idle_timeout=idle_timeout, confirms=confirms))
        answer = await self.receive()
        assert answer is not None
        return answer

    async def beat(self) -> None:
        """Send a keepalive and wait for its answer."""
        with trio.fail_after(PATIENCE_S):
            await self.send(protocol.keepalive(1))
            answer = await self.receive()
        assert answer is not None
        assert answer.kind == Kind.OK

    @property
    def tcp(self) -> trio.SocketStream:
        """The TCP connection, below WebSocket and TLS if there are any."""
        stream = self.stream.transport_stream if isinstance(self.stream, WebSocketStream) else self.stream
        stream = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        assert isinstance(stream, trio.SocketStream)
        return stream

    async def all_bytes(self) -> bytes:
        """Return all bytes over TCP until its end; a reset is an end."""
        data = b""
        with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
            while chunk := await self.tcp.receive_some(4096):
                data += chunk
        return data

    def close(self) -> None:
        """Close a connection over TCP; a second call does nothing."""
        self.tcp.socket.close()

    def reset(self) -> None:
        """Drop the connection with a RST."""
        linger = b"\1\0\0\0" + bytes(4)
        self.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()


class Harness:
    """An engine with its outbox as a list, its transport, and a ticker.

    Args:
        limits: of the transport.
        admission: of the server.
        idle_timeout: T, seconds; a tick is a tenth of it.
        grace: seconds.
    """

    def __init__(
        self,
        limits: Limits,
        idle_timeout: float,
        grace: float,
        admission: AdmissionLimits,
        authenticator: Callable[[Clock], Authenticator] | None,
        certificates: CertificateAuthenticator | None,
        packet_rate: PacketRate | None,
    ) -> None:
        self.limits = limits
        self.changes: list[Change] = []
        self.clock = Clock(lambda: trio.current_time() + CLOCK_AHEAD_S, lambda: 0.0)
        now = self.clock.now()
        tick = idle_timeout / 10
        slots = SlotClock(tick / SLOTS_PER_TICK, now)
        guard = StallGuard(tick, idle_timeout, now)
        self.registry = Registry("boot", self.clock)

        def clamped(wish: float | None) -> float:
            if wish == FAILING_WISH_S:
                raise RuntimeError("a mistake of ours")
            return wish or idle_timeout

        self.admission = Admission(admission, self.clock)
        login_policy = LoginPolicy(
            self.registry,
            clamped,
            limits.login_timeout,
            self.admission,
            authenticator=authenticator and authenticator(self.clock),
            certificates=certificates,
        )
        self.engine = Engine(
            Sessions(
                self.registry,
                slots,
                now,
                idle_timeout=idle_timeout,
                max_idle_timeout=max(idle_timeout, 300.0),
            ),
            login_policy,
            ServerProtocol(checks_tokens=login_policy.authenticator is not None),
            self,
            guard=guard,
            clock=self.clock,
            disconnect_grace=grace,
            flap_damping=FlapDamping(grace),
            packet_rate=packet_rate,
        )
        self.ticker = Ticker(self.engine.expiry, self.engine.slot_done, slots, guard, self.clock)
        self.transport: EpollTransport | StreamTransport
        self.address: tuple[str, int]
        self.nursery: trio.Nursery
        self.clients: list[Client] = []
        self.secured = False
        self.is_websocket = False

    @property
    def epoll(self) -> EpollTransport:
        assert isinstance(self.transport, EpollTransport)
        return self.transport

    @property
    def counted(self) -> TransportCounters:
        """The counters of the transport."""
        return self.transport.statistics()

    def append(self, change: Change) -> None:
        """The outbox."""
        self.changes.append(change)

    def history(self) -> list[tuple[str, str, str]]:
        """Return the changes so far: operation, uid, reason."""
        return [(each.op.value, each.uid, Code(each.code).reason) for each in self.changes]

    def ends(self) -> list[Change]:
        return [each for each in self.changes if each.op is Op.END]

    def session(self, key: SessionKey) -> Session:
        session = self.registry.get(key)
        assert session is not None
        return session

    async def until(self, true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Wait for a condition that becomes true soon."""
        await until(true, seconds, look_s=0.005)

    async def connect(
        self,
        receive_buffer: int = 0,
        *,
        source: str = "",
        header: bytes = b"",
        context: ssl.SSLContext | None = None,
        subprotocol: str | None = "presence.v1",
    ) -> Client:
        """Connect over TCP, after a proxy's header, with what the port needs of TLS and WebSocket."""
        client = await self.dial(receive_buffer, source=source)
        await client.tcp.send_all(header)
        if self.secured:
            context = context or certificates.client_context()
            client.stream = stream = trio.SSLStream(client.tcp, context, server_hostname=certificates.HOST)
            with trio.fail_after(PATIENCE_S):
                await stream.do_handshake()
        if self.is_websocket:
            client.stream = websocket = WebSocketStream(client.stream, subprotocol=subprotocol)
            with trio.fail_after(PATIENCE_S):
                assert (await websocket.shake()).status_code == 101
        return client

    async def logged_in(self, uid: str = "ada", receive_buffer: int = 0) -> Client:
        client = await self.connect(receive_buffer)
        answer = await client.login(uid)
        assert answer.kind == Kind.OK, answer
        return client

    async def remain(self, connections: int = 0) -> None:
        """Wait until there are that many connections."""
        await self.until(lambda: self.counted.connections == connections)

    async def dial(self, receive_buffer: int = 0, *, source: str = "") -> Client:
        """Only connect over TCP, from an address of this machine."""
        sock = trio.socket.socket()
        await sock.bind((source, 0))
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client = Client(trio.SocketStream(sock))
        self.clients.append(client)  # closed at the end of the test
        await sock.connect(self.address)
        return client

    async def connect_in_memory(self) -> Client:
        """Connect over a pair of memory streams; for a `StreamTransport` only."""
        assert isinstance(self.transport, StreamTransport)
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.transport.serve, theirs)
        return Client(ours)


@asynccontextmanager
async def serving(
    kind: TransportKind,
    limits: Limits | None = None,
    *,
    idle_timeout: float = 30.0,
    grace: float = 5.0,
    window_s: float = 0.0,
    send_buffer: int = 0,
    listen: bool = True,
    admission: AdmissionLimits | None = None,
    handshakes: int = HANDSHAKES,
    authenticator: Callable[[Clock], Authenticator] | None = None,
    certificate: Certificate | None = None,
    client_certificates: CertificateAuthenticator | None = None,
    proxies: str = "",
    packet_rate: PacketRate | None = None,
    origins: Sequence[str] = (),
) -> AsyncIterator[Harness]:
    """Run a transport, and a ticker, for the length of an ``async with`` block; then close its clients.

    Args:
        kind: which transport.
        idle_timeout: T, seconds.
        grace: seconds.
        window_s: seconds that the epoll transport rests after a batch.
        send_buffer: bytes; makes a kernel that takes less from the server.
        listen: False for memory streams alone.
        handshakes: concurrent TLS handshakes.
        authenticator: makes what checks tokens.
        certificate: the server's.
        client_certificates: finds their users.
        proxies: networks whose connections begin with a header of the PROXY protocol.
        origins: of web pages that may connect over WebSocket; none: pages of this machine.
    """
    harness = Harness(
        limits or Limits(),
        idle_timeout,
        grace,
        admission or AdmissionLimits(),
        authenticator,
        client_certificates,
        packet_rate,
    )
    listeners = sockets.open_listeners("127.0.0.1", 0) if listen else []
    for listener in listeners:
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        harness.address = listener.getsockname()
    async with trio.open_nursery() as nursery:
        harness.nursery = nursery
        harness.secured, harness.is_websocket = kind.startswith(("tls", "wss")), kind.startswith("ws")
        tls, websocket, plain = None, None, listeners
        if harness.is_websocket:
            websocket, plain = WebSocketListening(listeners, origins_of(origins)), []
        if harness.secured:
            secured = [] if harness.is_websocket else listeners
            tls, plain = TlsListening(secured, certificate or certificates.loaded(), handshakes), []
        if not kind.endswith("stream"):
            harness.transport = EpollTransport(
                harness.engine,
                plain,
                harness.limits,
                harness.admission,
                window_s=window_s,
                clock=harness.clock,
                tls=tls,
                websocket=websocket,
                proxies=networks.parse(proxies),
            )
            nursery.start_soon(harness.transport.run)
        else:
            harness.transport = StreamTransport(
                harness.engine, harness.limits, harness.admission, tls, websocket
            )
            if listeners:
                nursery.start_soon(harness.transport.run, listening(plain))
        nursery.start_soon(harness.ticker.run)
        try:
            yield harness
        finally:
            for client in harness.clients:
                client.close()
            nursery.cancel_scope.cancel()
