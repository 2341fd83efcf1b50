"""Each cell of the protocol's table, on the real program over real sockets."""

import socket
import time

import protocol
from presence.embedded import EmbeddedRedis
from protocol import TABLE, Answer, Kind, Other, Packet, State
from tests.cells import answers_expected, brief, frames
from tests.live.server_process import ServerProcess, running_server

LOGIN_TIMEOUT_S = 0.5


MARK = 4321  # the id of a beat whose answer shows that all before it were answered


Brief = tuple[Kind, int | None, int | None]


def heard(sock: socket.socket, decoder: protocol.Decoder, until: int | None = None) -> list[Packet]:
    """Return what the server says up to the answer of that id, or to the end of the connection."""
    packets: list[Packet] = []
    while True:
        while (packet := decoder.next()) is not None:
            if until is not None and packet.id == until:
                return packets
            packets.append(packet)
        if not (data := sock.recv(65_536)):
            return packets
        decoder.feed(data)


def first(sock: socket.socket, decoder: protocol.Decoder) -> Packet:
    """Return what the server says next."""
    while (packet := decoder.next()) is None:
        data = sock.recv(65_536)
        assert data, "the connection has ended"
        decoder.feed(data)
    return packet


def answers_to(server: ServerProcess, state: State, trigger: Kind | Other, frame: bytes) -> list[Brief]:
    """Bring a connection into the state, send the frame, and return what the server says to it."""
    reaction = TABLE[state, trigger]
    decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
    with socket.create_connection(server.address, timeout=10) as sock:
        if state is not State.CONNECTED:
            sock.sendall(protocol.encode(protocol.login(f"{state.value}-{trigger.name}", id=MARK)))
            heard(sock, decoder, MARK)
        if state is State.CLOSING:
            sock.sendall(bytes(4))
            while decoder.next() is None:
                decoder.feed(sock.recv(65_536))
        if frame:
            sock.sendall(frame)
        elif state is not State.CONNECTED:
            time.sleep(1.2 * LOGIN_TIMEOUT_S)
        if reaction.then is State.LOGGED_IN:
            # The answer to a request comes when others have said what it takes; a beat does not wait for it.
            later = [brief(first(sock, decoder))] if reaction.answer is Answer.OK_OR_REFUSAL else []
            sock.sendall(protocol.encode(protocol.keepalive(MARK)))
            return later + [brief(each) for each in heard(sock, decoder, MARK)]
        return [brief(each) for each in heard(sock, decoder)]


def test_every_cell_of_the_table_on_the_real_program(redis_server: EmbeddedRedis) -> None:
    flags = ("--login-timeout", str(LOGIN_TIMEOUT_S))
    differing: list[object] = []
    tried = 0
    with running_server("--redis", redis_server.url, *flags) as server:
        for (state, trigger), reaction in TABLE.items():
            for frame in frames(trigger):
                expected = [] if state is State.CLOSING else [*answers_expected(reaction, frame)]
                if trigger is Other.LOGIN_TIMEOUT and reaction.answer is Answer.ERROR:
                    expected = [(Kind.ERROR, None, reaction.code)]
                found = answers_to(server, state, trigger, frame)
                tried += 1
                if found != expected:
                    differing.append((state, trigger, frame, found, expected))
    print(f"state table: {len(TABLE)} of {len(TABLE)} cells by {tried} packets, differing {len(differing)}")
    assert not differing
