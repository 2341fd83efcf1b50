"""A message router whose environment is replaced by small fakes: sessions, Redis, threads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from presence import protocol
from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import TrioRuntime
from presence.core.registry import ClientFeatures, Guest, Handle, NewSession, Registry, Session
from presence.core.service_requests import MessageRequest
from presence.messaging.message_bus import DeliveryReport, OutgoingMessage, RouteResult
from presence.messaging.message_queue import QueueBounds
from presence.messaging.router import MessageRouter
from presence.protocol import Packet
from presence.store.keys import Keys
from tests.watching.fakes import Line

T = TypeVar("T")

HERE = "here"
CALL_S = 0.001


class Wire(Line):
    """One transport for all connections; records each write with its handle.

    Attributes:
        acknowledged: the bytes that the other end's kernel has acknowledged; of others it is not known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[Handle, bytes]] = []
        self.acknowledged: dict[Handle, int] = {}

    def send(self, handle: Handle, data: bytes) -> None:
        self.writes.append((handle, data))

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        known = self.acknowledged.get(handle)
        return None if known is None else (known, self.bytes_sent(handle))

    def bytes_sent(self, handle: Handle) -> int:
        return sum(len(data) for to, data in self.writes if to == handle)

    def packets_of(self, handle: Handle) -> list[Packet]:
        """Return all packets sent on a connection."""
        self.taken += b"".join(data for to, data in self.writes if to == handle)
        return self.packets()


class FakeBus:
    """A `MessageBus` that knows where users are.

    Attributes:
        records: uid -> node -> devices.
        deaf: nodes that receive nothing.
        invisible: uids of users who are invisible.
        failures: the errors of the next calls, up to the first that works.
        calls: the uids of each call.
        sent: (node, devices, frame) of all published messages.
        here: the node's own sessions in the last call.
        during: called during each call.
        on_message: called with each message during a call.
    """

    def __init__(self) -> None:
        self.records: dict[str, dict[str, list[str]]] = {}
        self.deaf: set[str] = set()
        self.invisible: set[str] = set()
        self.failures: list[StoreUnavailable | StoreError] = []
        self.calls: list[list[str]] = []
        self.sent: list[tuple[str, tuple[str, ...], bytes]] = []
        self.messages: list[OutgoingMessage] = []  # all that it got
        self.here: Mapping[str, Mapping[str, int]] = {}
        self.during: Callable[[], object] = lambda: None
        self.on_message: Callable[[OutgoingMessage], object] = lambda _: None

    def deliver(
        self, node: str, messages: Sequence[OutgoingMessage], here: Mapping[str, Mapping[str, int]]
    ) -> list[RouteResult | StoreUnavailable | StoreError]:
        self.here = here
        self.calls.append([message.to for message in messages])
        if self.failures:
            return [self.failures.pop(0)] * len(messages)
        return [self._deliver(node, message) for message in messages]

    def _deliver(self, node: str, message: OutgoingMessage) -> RouteResult:
        self.messages.append(message)
        self.on_message(message)
        if message.to in self.invisible:
            return RouteResult(0, (), is_hidden=True)
        others = {name: each for name, each in self.records.get(message.to, {}).items() if name != node}
        handed = 0
        for name, devices in others.items():
            if name not in self.deaf:
                self.sent.append((name, tuple(devices), message.frame))
                handed += len(devices)
        return RouteResult(handed, tuple(device for devices in others.values() for device in devices))


class InlineRuntime(TrioRuntime):
    """Calls take a moment of the mock clock."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus

    def loop_caller(self) -> Any:
        return self

    async def call(self, blocking: Callable[[], T]) -> T:
        await trio.sleep(CALL_S)
        self._bus.during()
        return blocking()


class RouterHarness:
    """A node's router, with sessions and their connections; run it in a nursery."""

    def __init__(self, bounds: QueueBounds | None = None, *, shards: int = 1) -> None:
        self.wire = Wire()
        self._handles: dict[tuple[str, str], Handle] = {}
        self.bus = FakeBus()
        self.clock = Clock(trio.current_time, lambda: 1_700_000_000.0)
        self.registry = Registry("boot", self.clock)
        self.ended: list[Session] = []
        self.reports: list[DeliveryReport] = []
        self.faults = Faults(self.ended.append)
        self.router = MessageRouter(
            self.registry,
            Keys(shards=shards).shard,
            self.bus,
            self.clock,
            InlineRuntime(self.bus),
            node=lambda: HERE,
            ends_at=lambda session: session.last_seen + 5.0,
            report=self.reports.append,
            bounds=bounds or QueueBounds(),
            faults=self.faults,
        )

    def log_in(self, uid: str, device: str = "", *, confirms: bool = False) -> Session:
        """Return a session; Redis does not know of it."""
        guest = Guest(self.wire, self.handle_of(uid, device))
        now = self.clock.now()
        new = NewSession(
            (uid, device) if device else uid, 30.0, now, features=ClientFeatures(confirms=confirms)
        )
        return self.registry.login(guest, new, now).session

    def handle_of(self, uid: str, device: str = "") -> Handle:
        """Return the handle of all connections of a device."""
        return self._handles.setdefault((uid, device), len(self._handles))

    def disconnect(self, session: Session) -> None:
        """Lose the session's connection; it has its grace period."""
        session.detach()

    def end(self, session: Session) -> None:
        self.disconnect(session)
        self.registry.end(session, protocol.Code.LOGOUT, self.clock.now())

    def send(
        self,
        sender: Session,
        to: str,
        body: Any = "hello",
        id: int | None = 1,
        *,
        confirm_s: float | None = None,
    ) -> None:
        self.router.submit(sender, MessageRequest(id, to, body, confirm_s))

    def packets(self, uid: str, device: str = "") -> list[Packet]:
        return self.wire.packets_of(self.handle_of(uid, device))

    def bodies(self, uid: str, device: str = "") -> list[Any]:
        """Return the bodies delivered to a device, in order."""
        return [
            each.payload["body"] for each in self.packets(uid, device) if each.kind == protocol.Kind.DELIVER
        ]

    def answers(self, uid: str) -> list[tuple[int | None, int | str]]:
        """Return the answers to a sender: id, and the number of deliveries or the reason of the refusal."""
        return [
            (each.id, each.payload["delivered"] if each.kind == protocol.Kind.OK else each.payload["reason"])
            for each in self.packets(uid)
            if each.kind in (protocol.Kind.OK, protocol.Kind.ERROR)
        ]
