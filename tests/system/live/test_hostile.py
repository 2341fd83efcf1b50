"""2,000 frames that no honest client sends, over real sockets, while 50 clients beat beside them."""

import random
import socket
import threading
from collections import Counter

import pytest

import protocol
from presence.embedded import EmbeddedRedis
from protocol import Code, Kind, Packet, ProtocolError
from tests.live.events import of_type, read_events
from tests.live.server_process import ServerProcess, running_server
from tests.live.swarm import Swarm
from tests.protocol.hostile import hostile_frame

FRAMES = 1000  # before the login, and as many after it
LOGIN = protocol.encode(protocol.login("mallory", id=1))


def expected_refusal(frame: bytes, *, logged_in: bool) -> Code | None:
    """Return the code that the specification gives to what is wrong with the frame, None if nothing is."""
    limit = protocol.FRAME_LIMIT_BYTES if logged_in else protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES
    decoder = protocol.Decoder(limit)
    try:
        decoder.feed(frame)
        while (packet := decoder.next()) is not None:
            if not logged_in and packet.kind == Kind.LOGIN:
                return None if "uid" in packet.payload else Code.AUTH_FAILED
            if not logged_in:
                return Code.NOT_LOGGED_IN
            if packet.kind == Kind.LOGIN or packet.kind in range(Kind.OK, Kind.GOODBYE + 1):
                return Code.PROTOCOL_ERROR
            if packet.kind == Kind.LOGOUT:
                return None
    except ProtocolError as error:
        return error.code
    return None


def answers_to(server: ServerProcess, data: bytes) -> list[Packet]:
    """Send everything at once, say no more, and return what the server answers until it closes."""
    packets = []
    decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while received := sock.recv(65536):
            decoder.feed(received)
            while (packet := decoder.next()) is not None:
                packets.append(packet)
    return packets


@pytest.mark.parametrize("logged_in", [False, True], ids=["before-login", "after-login"])
def test_bad_frames_are_refused_by_name_and_hurt_nobody(redis_server: EmbeddedRedis, logged_in: bool) -> None:
    rng = random.Random(7)
    refusals: Counter[str] = Counter()
    lost = 0
    with running_server("--redis", redis_server.url, "--idle-timeout", "3", "--tick", "0.5") as server:
        with Swarm(server.address, beat_s=1.2) as swarm:
            swarm.log_in(f"beating-{n}" for n in range(50))
            finished = threading.Event()
            beating = threading.Thread(target=swarm.run, args=(60.0, finished.is_set))
            beating.start()
            try:
                for _ in range(FRAMES):
                    frame = hostile_frame(rng)
                    expected = expected_refusal(frame, logged_in=logged_in)
                    try:
                        packets = answers_to(server, (LOGIN if logged_in else b"") + frame)
                    except ConnectionError:
                        lost += 1
                        continue
                    if expected is None:
                        continue
                    refusal = packets[-1]
                    assert refusal.kind in (Kind.ERROR, Kind.GOODBYE), (frame.hex(), packets)
                    assert refusal.payload["code"] == expected, (frame.hex(), refusal)
                    assert refusal.payload["reason"] == expected.reason
                    assert refusal.payload["message"]
                    refusals[expected.reason] += 1
            finally:
                finished.set()
                beating.join()
            assert not any(client.closed for client in swarm.clients)
            offline = of_type(read_events(redis_server.url), "offline")
    when = "after login" if logged_in else "before login"
    print(f"hostile, {FRAMES} frames {when}: refusals {dict(refusals)}, lost {lost}; of 50 others lost 0")
    assert lost == 0
    assert sum(refusals.values()) > FRAMES / 4
    assert not [uid for uid in offline if uid.startswith("beating")]
    assert server.report["transport"]["failures"] == 0
