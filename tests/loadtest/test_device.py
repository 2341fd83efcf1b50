"""A device's actions reach the judge, and its failures the report."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presence import protocol
from presence.loadtest import device
from presence.loadtest.client_loop import KEEPALIVE_WITH_ID, NO_CONNECTION, ClientLoop
from presence.loadtest.device import LoadDevice, Run
from presence.loadtest.judge import DeviceFinding, DeviceJudge, EventDeadlines
from presence.loadtest.options import Act, Scenario
from presence.protocol import Code, Kind

T_S = 1.0
TIMEOUT_S = 5.0
UNASKED = "the server ended a session without a reason that the device gave"
GRANTED = {"session": "s-1", "idle_timeout": T_S, "keepalive": 0.02, "time_ms": 0, "v": 1}


class World(Run):
    """A device that repeats one action, and a server that does what the test says."""

    def __init__(self, listener: socket.socket, action: str) -> None:
        self.listener = listener
        loop = ClientLoop(listener.getsockname(), sources=0)
        super().__init__(loop, DeviceJudge(EventDeadlines(0.1, 0.2, 0.1)), "localhost:7400", "device")
        self.scenario = Scenario(
            "mixed", {action: 1.0}, mean_action_s=0.001 if action != "nothing" else 60.0, joint_action_s=60.0
        )
        self.reported: list[tuple[str, str | None]] = []
        self.token = "token of device-0"
        self.device = LoadDevice(self)
        self.device.start(0.0)

    def get_token(self, _uid: str, on_token: Callable[[str, str], object]) -> None:
        on_token(self.token, "")

    def next_act(self) -> Act:
        return self.scenario.next(time.monotonic(), time.time())

    def record_time(self, name: str, seconds: float | None = None) -> None:
        self.reported.append((name, None))

    def report_exchange(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        self.reported.append((name, failure))

    def report_promise(self, finding: DeviceFinding) -> None:
        self.reported.append((finding.name, finding.broken))

    def wait_for_report(self, name: str, failure: str | None = None) -> None:
        assert self.loop.run(TIMEOUT_S, lambda: (name, failure) in self.reported), self.reported

    def accept(self, *packets: protocol.Packet) -> socket.socket:
        """Accept the login, and answer it."""
        assert self.loop.run(TIMEOUT_S, lambda: self.device._login is not None)
        server, _ = self.listener.accept()
        server.settimeout(TIMEOUT_S)
        login = protocol.decode(server.recv(1024)[4:])
        assert (login.kind, login.payload.get("token", "")) == (Kind.LOGIN, self.token)
        server.sendall(b"".join(map(protocol.encode, packets or (protocol.ok(1, **GRANTED),))))
        return server

    @property
    def session(self) -> Any:
        return self.device._session


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        found = World(listener, getattr(request, "param", "nothing"))
        with found.loop:
            yield found


def test_a_device_sends_keepalives_and_every_third_requests_an_answer(world: World) -> None:
    with world.accept() as server:
        world.wait_for_report("login")
        server.sendall(protocol.encode(protocol.ok(2)) * 20)
        assert world.loop.run(TIMEOUT_S, lambda: world.reported.count(("keepalive", None)) >= 8)
        data = server.recv(4096)
    unanswered, answered = world.reported.count(("keepalive", None)), data.count(KEEPALIVE_WITH_ID)
    assert abs(answered - unanswered / 2) <= 1
    assert len(world.session.packet_times) // 2 == 1 + unanswered + answered


@pytest.mark.parametrize(
    ("code", "token", "failure"),
    [
        (Code.BUSY, "one", None),
        (Code.AUTH_FAILED, "one", "no"),
        (Code.AUTH_FAILED, "", "no (give --token-key-file or --token-command)"),
        (Code.PROTOCOL_ERROR, "one", "no (with TLS: --host presences://localhost:7400)"),
        (Code.SESSION_LIMIT, "one", "session_limit"),
    ],
)
def test_a_refused_login_is_a_failure_unless_the_server_is_busy(
    world: World, code: Code, token: str, failure: str | None
) -> None:
    world.token = token
    with world.accept(protocol.error(1, code, "no")):
        world.wait_for_report(f"login refused, {code.reason}", failure)
    world.accept().close()


def test_a_refused_login_leaves_due_what_was_due(world: World) -> None:
    with world.accept():
        world.wait_for_report("login")
        world.device._lose_connection(world.session, within_share=1.0)
    due = world.session.offline_due
    with world.accept(protocol.error(1, Code.BUSY, "no")):
        world.wait_for_report("login refused, busy")
    assert [found.broken for found in world.judge.overdue(due)] == ["no offline event in time"]


@pytest.mark.parametrize("world", ["message"], indirect=True)
def test_a_request_that_is_never_answered_is_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "ANSWER_TIMEOUT_S", 0.2)
    world.peers.append("bob")
    with world.accept():
        world.wait_for_report("message", "not answered")


@pytest.mark.parametrize(
    ("code", "failure"),
    [(Code.SERVER_DRAIN, None), (Code.KICKED, UNASKED), (Code.SLOW_CONSUMER, UNASKED)],
)
def test_a_goodbye_without_a_reason_that_the_device_gave_is_a_failure(
    world: World, code: Code, failure: str | None
) -> None:
    with world.accept(protocol.ok(1, **GRANTED), protocol.goodbye(code)):
        world.wait_for_report(f"goodbye {code.reason}", failure)


def test_a_server_that_does_not_listen_is_named_with_the_reason(world: World) -> None:
    world.listener.close()
    world.wait_for_report("login", "no connection to localhost:7400: Connection refused")


def test_a_broken_connection_is_a_failure_without_a_deadline_for_the_event(world: World) -> None:
    world.accept().close()
    world.wait_for_report("connection lost", "closed by the server")
    assert world.session.closed
    assert world.session.offline_due is None


@pytest.mark.parametrize("world", ["silence"], indirect=True)
def test_a_silent_device_must_be_ended_and_reconnects(world: World) -> None:
    with world.accept() as server:
        assert world.loop.run(TIMEOUT_S, lambda: world.session and world.session.is_silent)
        assert world.session.offline_due == pytest.approx(world.session.last_packet().end + T_S + 0.2)
        server.sendall(protocol.encode(protocol.goodbye(Code.IDLE_TIMEOUT)))
        world.wait_for_report("goodbye idle_timeout", "goodbye too early")
    assert world.session.closed
    assert world.loop.run(TIMEOUT_S, lambda: world.device.fd != NO_CONNECTION)


def test_a_device_that_is_to_connect_twice_has_one_connection(world: World) -> None:
    world.accept().close()
    world.wait_for_report("connection lost", "closed by the server")
    world.device.connect()
    world.device.connect()
    assert len(world.loop) == 1


@pytest.mark.parametrize("world", ["logout"], indirect=True)
def test_a_logout_that_was_answered_ends_the_session(world: World) -> None:
    with world.accept() as server:
        assert world.loop.run(TIMEOUT_S, lambda: world.session and world.session.logout)
        assert not world.loop.run(0.1, lambda: world.session.offline_due is not None)
        server.sendall(protocol.encode(protocol.ok(3)))
        world.wait_for_report("logout")
    assert world.session.offline_due == pytest.approx(world.session.logout.end + 0.1)


@pytest.mark.parametrize("world", ["away", "flap", "storm"], indirect=True)
def test_a_device_that_loses_its_connection_reconnects(world: World) -> None:
    with world.accept():
        assert world.loop.run(TIMEOUT_S, lambda: world.session and world.session.closed)
    world.accept().close()


@pytest.mark.parametrize(("world", "counted"), [("away", 0), ("storm", 1)], indirect=["world"])
def test_a_joint_action_has_a_row_and_the_return_from_it_another(world: World, counted: int) -> None:
    def rows() -> list[int]:
        return [world.reported.count((name, None)) for name in ("joint action", "joint action, returned")]

    with world.accept():
        assert world.loop.run(TIMEOUT_S, lambda: world.session and world.session.closed)
    assert rows() == [counted, 0]
    with world.accept():
        assert world.loop.run(TIMEOUT_S, lambda: world.reported.count(("login", None)) == 2)
    assert rows()[1] == counted
