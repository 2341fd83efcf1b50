"""TCP between a device and a process: bytes arrive, wait in a kernel, and are read when a process runs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from presence import protocol
from presence.core.registry import Client, Session
from presence.protocol import KEEPALIVE, Code, Decoder, Kind, Packet

if TYPE_CHECKING:
    from presence.protocol.constants import Status
    from tests.simulation.devices import SimulatedDevice
    from tests.simulation.host import Host
    from tests.simulation.machine import Agenda
    from tests.simulation.plan import ShownStatus
    from tests.simulation.truth import TrueSession

ONE_WAY_S: Final = (0.001, 0.05)
WINDOW_S: Final = 0.1  # as the server's `BATCH_WINDOW_S`
LOGOUT_FRAME: Final = protocol.encode(protocol.logout(id=2))


class SimulatedConnection:
    """Both ends of one connection."""

    def __init__(self, agenda: Agenda, host: Host, device: SimulatedDevice, random: Random) -> None:
        self.agenda = agenda
        self.host = host
        self.device = device
        self._random = random
        self.client: Client | None = None  # who it belongs to at the server; None once hung up there
        self.is_open = True  # whether the client has not closed it
        self.life: TrueSession | None = None  # its session, once there is one
        self.unread = b""  # bytes that were not read
        self.data_at = 0.0  # true time at which the last of them arrived
        self.has_fin = False  # whether the client's FIN has arrived
        self.is_disconnected = False  # whether the server has closed its end
        self.is_login_read = False  # whether the client has read that it is logged in
        self.sent_status: ShownStatus | None = None  # how the client last said that it is
        self.arrived_status: ShownStatus | None = None  # the last of that which has arrived
        self.status_arrived_at = 0.0  # true time of the last packet that sets something; ends auto-away
        self.lasting_status: Status = "online"  # the last without an end that has arrived
        self.sent_rooms: frozenset[str] = frozenset()  # those that the client last sent
        self.arrived_rooms: frozenset[str] = frozenset()  # the last of these that have arrived
        self._last_arrival = 0.0
        self._read_due = False

    # The client's end

    def send(
        self, data: bytes, status: ShownStatus | None = None, rooms: frozenset[str] | None = None
    ) -> None:
        """Send one whole frame; `status`, `rooms`: those that it sets."""
        self.sent_status = status or self.sent_status
        if rooms is not None and not self.device.is_cut(self.host):
            self.sent_rooms = rooms  # the next difference is one from these: what is cut off never arrives
        self._deliver_later(lambda: self._arrive(data, status, rooms))

    def close(self) -> None:
        """Close the client's end; the FIN arrives after what was sent."""
        if self.is_open:
            self.is_open = False
            self._deliver_later(self._arrive_fin)

    def abandon(self) -> None:
        """Forget the client's end without a FIN."""
        self.is_open = False

    def _deliver_later(self, arrive: object) -> None:
        if self.device.is_cut(self.host):
            return
        due = max(self._last_arrival, self.agenda.now + self._random.uniform(*ONE_WAY_S))
        self._last_arrival = due
        self.agenda.at(due, arrive)  # type: ignore[arg-type]

    # The server's kernel

    def _arrive(self, data: bytes, status: ShownStatus | None, rooms: frozenset[str] | None) -> None:
        machine = self.host.machine
        if not machine.is_alive or self.is_disconnected:
            if not self.host.died_with_machine:
                self.reset()
            return
        self.unread += data
        self.data_at = self.agenda.now
        if status is not None:
            self.arrived_status, self.status_arrived_at = status, self.agenda.now
            if status.ends_at is None:
                self.lasting_status = status.status
        if rooms is not None:
            self.arrived_rooms, self.status_arrived_at = rooms, self.agenda.now
        if self.life is not None:
            self.life.readable = self.agenda.now
            if data == LOGOUT_FRAME and self.life.logout_at is None:
                self.life.logout_at = self.agenda.now
        self._wake_reader()

    def _arrive_fin(self) -> None:
        if self.host.machine.is_alive and not self.is_disconnected:
            self.has_fin = True
            if self.life is not None and self.life.fin_at is None:
                self.life.fin_at = self.agenda.now
            self._wake_reader()

    def _wake_reader(self) -> None:
        if not self._read_due:
            self._read_due = True
            window_s = WINDOW_S if isinstance(self.client, Session) else 0.002
            delay = self._random.uniform(0.0, window_s)
            self.agenda.after(delay, lambda: self.host.machine.post(self.read))

    def reset(self) -> None:
        if self.is_open:
            self.agenda.after(self._random.uniform(*ONE_WAY_S), lambda: self.device.connection_lost(self))

    # The server's process

    def read(self) -> None:
        """Read all bytes that have arrived, and handle them."""
        self._read_due = False
        data, self.unread = self.unread, b""
        if self.client is None:
            return
        engine = self.host.node.engine
        if data == KEEPALIVE and isinstance(self.client, Session) and not self.client.unhandled:
            engine.connections_read([self.client])
        elif data:
            self.host.connection_being_read = self
            outcome = engine.received(self.client, data)
            if outcome.failure is not None:
                raise outcome.failure
            if (
                self.client is not None
            ):  # a login of its own device on another connection does not come from here
                self.client = outcome.client
            if outcome.end_code is not None:
                self.disconnect(bytes(outcome.reply))
            elif outcome.reply:
                self._to_client(bytes(outcome.reply))
        if self.has_fin and self.client is not None:
            engine.disconnected(self.client)
            self.client = None
            self.is_disconnected = True

    def disconnect(self, farewell: bytes) -> None:
        """Send the last bytes and close the server's end."""
        self.client = None
        self.is_disconnected = True
        for packet in _packets(farewell):
            if packet.payload.get("code") == Code.BANNED:
                self.host.ban_told(self.device)
            if packet.kind == Kind.GOODBYE and self.life is not None:
                self.host.goodbye_sent(self.life, Code(packet.payload["code"]))
        self._to_client(farewell)

    def _to_client(self, data: bytes) -> None:
        delay = self._random.uniform(*ONE_WAY_S)

        def arrive() -> None:
            if self.is_open and not self.device.is_cut(self.host):
                for packet in _packets(data):
                    self.device.receive(self, packet)

        self.agenda.after(delay, arrive)


def _packets(data: bytes) -> list[Packet]:
    decoder = Decoder()
    decoder.feed(data)
    packets = []
    while (packet := decoder.next()) is not None:
        packets.append(packet)
    return packets
