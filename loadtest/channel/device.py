"""One device: its connection, what it sends and what comes; as cheap as a client can be.

Packets are unpacked without the checks of the codec, which cost more than all else here; every
`CHECKED_EACH`th goes through the codec as well.
"""

import _socket
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgpack

import protocol
from protocol import HEADER_BYTES, Code, Kind

LOGIN_ID = 1
READ_BYTES = 262_144
CHECKED_EACH = 64
RETURN_S = 0.5  # at most, until a device whose connection ended is back
AWAY = -1  # for a descriptor: there is no connection
NOTHING: Mapping[str, Any] = {}


class Around(Protocol):
    """What a device knows of those among whom it is: see `loadtest.channel.devices`."""

    packets: int
    endings: Counter[int]

    def enter(self, device: "Device") -> None:
        """Take one in."""

    def open(self, device: "Device") -> None:
        """Begin to connect one."""

    def close(self, fd: int, *, reset: bool) -> None:
        """Close a connection."""

    def write_later(self, fd: int, *, on: bool) -> None:
        """Call `flush` when the kernel takes more."""

    def hear(self, device: "Device", *, on: bool) -> None:
        """Read what comes on a connection from now on, or nothing but its end."""

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Do something then."""

    def unix_ms(self, moment: float) -> float:
        """Return what the wall clock shows at a moment."""
        ...


class Device:
    """One device of a user, connection after connection. What happens to it, its kind overrides.

    Args:
        devices: those among whom it is.
        uid, device: who it is.

    Attributes:
        is_in: whether it is logged in.
        beats: whether it beats while it is.
        returns: whether it comes back by itself when its connection ended and it may.
        meta: what it logs in with.
    """

    def __init__(self, devices: Around, uid: str, device: str = "") -> None:
        self.uid, self.device = uid, device
        self.devices = devices
        self.fd = AWAY
        self.is_in = False
        self.beats = self.returns = True
        self.meta: Mapping[str, Any] | None = None
        self._unread = b""
        self._unsent = bytearray()
        devices.enter(self)

    def entered(self, now: float) -> None:
        """The login was granted."""

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """A packet has come; moments are monotonic seconds."""

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """The server ended the connection, and why, or it broke: None."""

    def prepare(self, sock: _socket.socket) -> None:
        """A socket is about to be connected."""

    def connect(self) -> None:
        """Connect and log in, unless that is so already."""
        if self.fd == AWAY:
            self.devices.open(self)

    def log_in(self) -> None:
        """The connection is open."""
        self.send(
            protocol.encode(
                protocol.login(self.uid, id=LOGIN_ID, device=self.device or None, meta=self.meta or None)
            )
        )

    def send(self, frame: bytes) -> None:
        """Send, or keep what the kernel does not take; without a connection nothing."""
        if self.fd == AWAY:
            return
        if not self._unsent:
            try:
                sent = os.write(self.fd, frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # its next read says so
            if sent == len(frame):
                return
            frame = frame[sent:]
            self.devices.write_later(self.fd, on=True)
        self._unsent += frame

    def flush(self) -> None:
        """The kernel takes more."""
        with contextlib.suppress(OSError):
            del self._unsent[: os.write(self.fd, self._unsent)]
        if not self._unsent:
            self.devices.write_later(self.fd, on=False)

    def drop(self, *, reset: bool = False) -> None:
        """Close the connection, if there is one, with a FIN or a reset."""
        if self.fd != AWAY:
            fd, self.fd, self.is_in = self.fd, AWAY, False
            self._unread = b""
            self._unsent.clear()
            self.devices.close(fd, reset=reset)

    def read(self) -> None:
        """Take what the server has sent."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        now = time.monotonic()
        if not data:
            self._lost(None, now)
            return
        unread, fd, start = self._unread + data if self._unread else data, self.fd, 0
        while len(unread) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            end = body + int.from_bytes(unread[start:body], "big")
            if end > len(unread):
                break
            self._take(unread[body:end], now)
            if self.fd != fd:
                return
            start = end
        self._unread = unread[start:]

    def _take(self, body: bytes, now: float) -> None:
        self.devices.packets += 1
        if self.devices.packets % CHECKED_EACH == 0:
            protocol.decode(body)
        packet: list[Any] = msgpack.unpackb(body)
        kind = packet[0]
        id = packet[1] if len(packet) > 1 else None
        payload = packet[2] if len(packet) > 2 else NOTHING
        if kind == Kind.GOODBYE or (kind == Kind.ERROR and not self.is_in):
            self._lost(payload, now)
        elif kind == Kind.OK and not self.is_in:
            self.is_in = True
            self.entered(now)
        else:
            self.heard(kind, id, payload, now)

    def _lost(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.devices.endings[payload["code"] if payload else 0] += 1
        self.drop()
        self.ended(payload, now)
        if self.returns and (payload is None or Code(payload["code"]).reconnect):
            wait_s = (payload or NOTHING).get("retry_after") or random.uniform(0.02, RETURN_S)
            self.devices.at(now + wait_s, self.connect)
