"""Devices against a server that does what a test says."""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

import protocol
from loadtest.channel.device import AWAY, Device
from loadtest.channel.devices import Devices
from protocol import Code

OK = protocol.encode(protocol.ok(1, session="s-1"))
PUSH = protocol.encode(protocol.deliver("ann", "hello", 5))
RUN_S = 5.0


class Listening(Device):
    """Keeps what comes."""

    def __init__(self, devices: Devices) -> None:
        super().__init__(devices, "bob", "pad")
        self.packets: list[Any] = []
        self.ends: list[Any] = []

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.packets.append((kind, id, payload))

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.ends.append(payload)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(RUN_S)
        yield sock


@pytest.fixture
def devices(listener: socket.socket) -> Iterator[Devices]:
    with Devices(listener.getsockname(), beat_s=0.1) as found:
        yield found


def accepted(devices: Devices, listener: socket.socket, device: Device) -> socket.socket:
    """Let the device connect; return the server's end, once it is logged in."""
    device.connect()
    devices.run(0.02)
    server, _ = listener.accept()
    server.settimeout(RUN_S)
    devices.run(0.02)
    server.sendall(OK)
    assert devices.run(RUN_S, lambda: device.is_in)
    return server


def test_a_device_logs_in_and_beats(devices: Devices, listener: socket.socket) -> None:
    with accepted(devices, listener, Listening(devices)) as server:
        devices.run(0.15)
        login, beats = protocol.encode(protocol.login("bob", id=1, device="pad")), protocol.KEEPALIVE
        assert server.recv(4096).startswith(login + beats)


def test_packets_are_heard_however_they_are_cut(devices: Devices, listener: socket.socket) -> None:
    device = Listening(devices)
    with accepted(devices, listener, device) as server:
        server.sendall(PUSH * 2 + PUSH[:7])
        devices.run(0.02)
        assert len(device.packets) == 2
        server.sendall(PUSH[7:])
        assert devices.run(RUN_S, lambda: len(device.packets) == 3)
    assert device.packets[2] == (67, None, {"from": "ann", "body": "hello", "at_ms": 5})


def test_what_the_kernel_does_not_take_is_sent_later(devices: Devices, listener: socket.socket) -> None:
    device = Listening(devices)
    with accepted(devices, listener, device) as server:
        device.beats = False
        server.setblocking(False)
        size, got = 8 << 20, bytearray()
        device.send(bytes(size))
        device.send(b"end")

        def is_all_there() -> bool:
            with suppress(BlockingIOError):
                got.extend(server.recv(1 << 20))
            return got.endswith(b"end")

        assert devices.run(RUN_S, is_all_there)
    assert got.count(0) >= size


@pytest.mark.parametrize(
    ("farewell", "is_back"),
    [
        (b"", True),
        (protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=0.01)), True),
        (protocol.encode(protocol.goodbye(Code.KICKED)), False),
    ],
    ids=["broken", "drain", "kicked"],
)
def test_a_device_returns_if_it_may(
    devices: Devices, listener: socket.socket, farewell: bytes, is_back: bool
) -> None:
    device = Listening(devices)
    with accepted(devices, listener, device) as server:
        server.sendall(farewell)
    assert devices.run(RUN_S, lambda: bool(device.ends))
    assert (device.fd, device.is_in) == (AWAY, False)
    assert devices.run(0.6, lambda: device.fd != AWAY) == is_back


def test_whoever_is_deaf_reads_nothing_until_woken(devices: Devices, listener: socket.socket) -> None:
    device = Listening(devices)
    with accepted(devices, listener, device) as server:
        devices.hear(device, on=False)
        server.sendall(PUSH)
        devices.run(0.05)
        assert device.packets == []
        devices.hear(device, on=True)
        assert devices.run(RUN_S, lambda: len(device.packets) == 1)


def test_things_are_done_when_they_are_due(devices: Devices) -> None:
    done: list[int] = []
    now = time.monotonic()
    devices.at(now + 0.02, lambda: done.append(2))
    devices.at(now + 0.01, lambda: done.append(1))
    assert devices.run(RUN_S, lambda: len(done) == 2)
    assert done == [1, 2]
