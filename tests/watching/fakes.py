"""Sessions whose connections are lists, and made-up states."""

from presence import protocol
from presence.core.registry import Handle, Session
from presence.protocol import Decoder, Packet
from presence.watching.known_states import KnownStates
from presence.watching.packed_states import PackedStates
from presence.watching.user_states import UserEvent, WatchedDevice, WatchedState, id_text
from presence.watching.user_table import UserTable


class Line:
    """The transport of one connection: what it accepts, and what it queues while its reader is slow."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.offers = 0
        self.slow = False

    def disconnect(self, handle: Handle, farewell: bytes) -> None:
        raise AssertionError("unexpected hang-up")

    def send(self, handle: Handle, data: bytes) -> None:
        self.taken += data

    def try_send(self, handle: Handle, data: bytes) -> bool:
        self.offers += 1
        if self.slow:
            return False
        self.taken += data
        return True

    def poll_now(self, handle: Handle) -> bool:
        return True

    def receive_queue_age_s(self, handle: Handle, now: float) -> float:
        return 0.0

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        return None

    def certificate(self, handle: Handle) -> None:
        return None

    def packets(self) -> list[Packet]:
        """Return the packets since the last call."""
        decoder = Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        decoder.feed(bytes(self.taken))
        self.taken.clear()
        found = []
        while (packet := decoder.next()) is not None:
            found.append(packet)
        return found


def session(uid: str = "watcher", line: Line | None = None) -> tuple[Session, Line]:
    line = line or Line()
    return Session(line, 0, uid, 1, 30.0, 0.0, 0.0), line


def known_states() -> KnownStates:
    """A table of known users in tables of its own."""
    return KnownStates(0, UserTable(), PackedStates())


def entry(uid: str, number: int, status: str = "online") -> UserEvent:
    """An event with the id ``<number>-0``."""
    last_seen_ms = number if status == "offline" else None
    return UserEvent(
        uid, (number, 0), WatchedState(status, number, last_seen_ms, id_text((number, 0))), "login"
    )


def device_entry(uid: str, number: int, status: str = "online", *, since_ms: int) -> UserEvent:
    """An event of a device that came; the user's status began at `since_ms`."""
    devices = (WatchedDevice("phone", status, number, "", ""),)
    state = WatchedState(status, since_ms, None, id_text((number, 0)), devices=devices)
    return UserEvent(uid, (number, 0), state, "login", is_of_device=True)
