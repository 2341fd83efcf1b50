"""How the benchmark's clients speak to each kind of server."""

import shutil
import socket
from collections.abc import Iterator

import pytest

import protocol
from loadtest.bench import servers
from loadtest.bench.dialects import ANSWERED, DIALECTS, MQTT, NATS, PRESENCE, UNANSWERED
from loadtest.bench.generator import log_in, welcome
from loadtest.bench.servers import Running


def test_a_refused_login_is_no_welcome() -> None:
    refusal = protocol.encode(protocol.error(1, protocol.Code.BUSY, "later"))
    with pytest.raises(ConnectionRefusedError):
        PRESENCE.welcome(refusal)


def test_an_answer_in_pieces_is_waited_for() -> None:
    answer = protocol.encode(protocol.ok(1, session="s"))
    assert not PRESENCE.welcome(answer[:-1])
    assert PRESENCE.welcome(answer)


def test_the_name_is_in_mqtts_connect_with_its_length() -> None:
    assert MQTT.login("ann") == b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03ann"


def test_a_refusing_connack_is_no_welcome() -> None:
    with pytest.raises(ConnectionRefusedError):
        MQTT.welcome(b"\x20\x02\x00\x05")


def test_nats_first_line_alone_is_no_welcome() -> None:
    assert not NATS.welcome(b'INFO {"version":"2.9"}\r\n')
    assert NATS.welcome(b'INFO {"version":"2.9"}\r\nPONG\r\n')


SPEAKERS = [
    pytest.param("floor", marks=pytest.mark.needs("gcc")),
    "uvloop",
    "asyncio",
    "trio",
    pytest.param("mosquitto", marks=pytest.mark.needs("mosquitto")),
    pytest.param("nats", marks=pytest.mark.needs("nats-server")),
]


@pytest.fixture(scope="module", params=SPEAKERS)
def peer(request: pytest.FixtureRequest) -> Iterator[tuple[str, Running]]:
    """One of the servers that this one is compared with; its name, and where it is."""
    contender = servers.contenders(512)[request.param]
    with servers.running(contender) as server:
        yield contender.dialect, server


def connect(peer: tuple[str, Running]) -> socket.socket:
    name, server = peer
    sock = log_in((server.host, server.port), DIALECTS[name], "ann")
    welcome(sock, DIALECTS[name])
    return sock


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(4096)
    return data


def test_a_peer_answers_of_packets_that_come_together_those_that_ask(peer: tuple[str, Running]) -> None:
    dialect = DIALECTS[peer[0]]
    plain = dialect.beats.get(UNANSWERED, b"")
    with connect(peer) as sock:
        sock.sendall(plain + dialect.beats[ANSWERED] + plain + dialect.beats[ANSWERED])
        assert read(sock, 2 * len(dialect.answer)) == 2 * dialect.answer


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "nats-server" in servers.contenders(512)["nats"].missing()


def test_a_server_that_does_not_come_up_shows_what_it_said() -> None:
    broken = servers.Contender(
        "broken", "", "presence", (ANSWERED,), lambda _folder, _port: ["sh", "-c", "echo no such luck"]
    )
    with pytest.raises(SystemExit, match="no such luck"), servers.running(broken):
        pass
