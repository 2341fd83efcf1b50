"""WebSocket frames in, frames of presence out: the rules of RFC 6455, each violation with its close code."""

import pytest
from websockets.frames import Close

from presence import protocol
from presence.protocol import KEEPALIVE, Code
from presence.transports.websocket import MAX_MESSAGE_BYTES, WebSocket
from tests.support.websocket_client import masked

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def close_of(frame: bytes) -> Close:
    """Return what a close frame of the server says."""
    assert (frame[0], frame[1]) == (0x88, len(frame) - 2)
    return Close.parse(frame[2:])


def fragments(*parts: bytes, opcode: int = BINARY) -> bytes:
    return b"".join(
        masked(CONT if number else opcode, part, fin=number == len(parts) - 1)
        for number, part in enumerate(parts)
    )


@pytest.mark.parametrize(
    ("wire", "frames"),
    [
        (masked(BINARY, KEEPALIVE), KEEPALIVE),
        (fragments(KEEPALIVE[:1], b"", KEEPALIVE[1:]), KEEPALIVE),
        (masked(BINARY, KEEPALIVE[:3]) + masked(BINARY, KEEPALIVE[3:] + KEEPALIVE), 2 * KEEPALIVE),
        (
            masked(BINARY, KEEPALIVE[:2], fin=False) + masked(PING, b"?") + masked(CONT, KEEPALIVE[2:]),
            KEEPALIVE,
        ),
        (masked(BINARY, b""), b""),
        (b"\x82\xff" + (6).to_bytes(8, "big") + bytes(4) + KEEPALIVE, KEEPALIVE),
        (
            b"\x82\x86\1\2\3\4" + bytes(a ^ b for a, b in zip(KEEPALIVE, b"\1\2\3\4\1\2", strict=True)),
            KEEPALIVE,
        ),
        (masked(BINARY, bytes(MAX_MESSAGE_BYTES)), bytes(MAX_MESSAGE_BYTES)),
        (masked(PONG, b"unasked") + masked(BINARY, KEEPALIVE), KEEPALIVE),
    ],
    ids=[
        "one",
        "fragments",
        "cut anywhere",
        "a ping between",
        "empty",
        "64 bits",
        "a mask",
        "longest",
        "pong",
    ],
)
@pytest.mark.parametrize("size", [1, 1024])
def test_messages_carry_the_byte_stream(wire: bytes, frames: bytes, size: int) -> None:
    websocket = WebSocket(is_json=False)
    pieces = [wire[start : start + size] for start in range(0, len(wire), size)]
    assert b"".join(map(websocket.receive, pieces)) == frames
    assert not websocket.has_ended
    assert websocket.output == (b"\x8a\1?" if b"?" in wire else b"")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"\x82\x06" + KEEPALIVE, 1002),
        (masked(3, b""), 1002),
        (masked(11, b""), 1002),
        (masked(0x42, KEEPALIVE), 1002),
        (masked(0x12, KEEPALIVE), 1002),
        (masked(PING, bytes(126)), 1002),
        (masked(PING, b"", fin=False), 1002),
        (masked(CONT, KEEPALIVE), 1002),
        (fragments(b"a", b"b") + masked(CONT, b"c"), 1002),
        (masked(BINARY, b"a", fin=False) + masked(BINARY, b"b"), 1002),
        (masked(CLOSE, b"\3"), 1002),
        (masked(CLOSE, (999).to_bytes(2, "big")), 1002),
        (masked(CLOSE, (1005).to_bytes(2, "big")), 1002),
        (masked(CLOSE, (5000).to_bytes(2, "big")), 1002),
        (masked(CLOSE, (1000).to_bytes(2, "big") + b"\xff"), 1007),
        (masked(BINARY, bytes(MAX_MESSAGE_BYTES + 1)), 1009),
        (b"\x82\xff" + (2**63 - 1).to_bytes(8, "big"), 1009),
        (b"\x82\xff" + (2**64 - 1).to_bytes(8, "big"), 1009),
        (fragments(bytes(MAX_MESSAGE_BYTES), b"a"), 1009),
        (masked(TEXT, b"[3]"), 1003),
        (masked(TEXT, b"[", fin=False), 1003),
    ],
    ids=[
        "no mask",
        "opcode 3",
        "opcode 11",
        "reserved bit",
        "another",
        "long ping",
        "fragmented ping",
        "continuation of nothing",
        "one too many",
        "a message in another",
        "half a close code",
        "close code 999",
        "close code 1005",
        "close code 5000",
        "close reason not UTF-8",
        "one byte too long",
        "2^63-1 bytes",
        "2^64-1 bytes",
        "fragments too long together",
        "text",
        "text, fragmented",
    ],
)
@pytest.mark.parametrize("size", [1, 1024])
def test_a_violation_has_its_close_code(wire: bytes, code: int, size: int) -> None:
    websocket = WebSocket(is_json=False)
    for start in range(0, len(wire), size):
        if not websocket.has_ended:
            websocket.receive(wire[start : start + size])
    assert websocket.refusal is not None
    assert websocket.refusal.code == (Code.TOO_LARGE if code == 1009 else Code.PROTOCOL_ERROR)
    websocket.note_last_packet(protocol.encode(protocol.goodbye(Code.PROTOCOL_ERROR)))
    assert close_of(websocket.end()).code == code
    assert websocket.end() == b"", "only once"


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (masked(BINARY, KEEPALIVE), 1003),
        (masked(TEXT, b"\xff"), 1007),
        (fragments(b'["\xc3', b'\xff"]', opcode=TEXT), 1007),
        (masked(TEXT, b"[3"), 4310),
        (masked(TEXT, b"[NaN]"), 4310),
        (masked(TEXT, b""), 4310),
    ],
)
def test_a_bad_text_has_its_close_code(wire: bytes, code: int) -> None:
    websocket = WebSocket(is_json=True)
    assert websocket.receive(wire) == b""
    assert websocket.refusal is not None
    assert close_of(websocket.end()).code == code


def test_frames_before_a_violation_count() -> None:
    websocket = WebSocket(is_json=False)
    assert (
        websocket.receive(masked(BINARY, KEEPALIVE) + masked(3, b"") + masked(BINARY, KEEPALIVE)) == KEEPALIVE
    )
    assert websocket.refusal is not None


def test_a_character_may_be_cut_by_a_fragment() -> None:
    websocket = WebSocket(is_json=True)
    frames = websocket.receive(fragments(b'[1,1,{"uid":"\xc3', b'\xa9"}]', opcode=TEXT))
    assert protocol.decode(frames[4:]) == protocol.login("é", id=1)


@pytest.mark.parametrize("payload", [b"", (1001).to_bytes(2, "big"), (4000).to_bytes(2, "big") + b"bye"])
def test_a_close_is_returned(payload: bytes) -> None:
    websocket = WebSocket(is_json=False)
    assert websocket.receive(masked(BINARY, KEEPALIVE) + masked(CLOSE, payload) + b"rest") == KEEPALIVE
    assert (websocket.has_ended, websocket.refusal) == (True, None)
    assert websocket.output == b"", "answers to packets come first"
    assert websocket.end() == b"\x88" + bytes([len(payload)]) + payload
    assert websocket.end() == b"", "only once"


@pytest.mark.parametrize(
    ("last", "close"),
    [
        (protocol.ok(4), (1000, "")),
        (protocol.goodbye(Code.IDLE_TIMEOUT), (4201, "idle_timeout")),
        (protocol.error(1, Code.BUSY, "later", 3), (4404, "busy")),
    ],
)
def test_the_close_code_follows_from_the_last_packet(last: protocol.Packet, close: tuple[int, str]) -> None:
    websocket = WebSocket(is_json=False)
    websocket.note_last_packet(protocol.encode(protocol.ok(1)) + protocol.encode(last))
    said = close_of(websocket.end())
    assert (said.code, said.reason) == close


def test_without_a_last_packet_there_is_no_close_frame() -> None:
    assert WebSocket(is_json=False).end() == b""


def test_frames_are_sent_as_one_message_or_as_texts() -> None:
    frames = protocol.encode(protocol.ok(1)) + protocol.encode(protocol.ok(2))
    assert WebSocket(is_json=False).encode(frames) == b"\x82" + bytes([len(frames)]) + frames
    assert WebSocket(is_json=True).encode(frames) == b"\x81\x06[64,1]\x81\x06[64,2]"


@pytest.mark.parametrize(
    ("wire", "idle"),
    [
        (masked(PING, b"") + masked(PONG, bytes(100)), 2),
        (masked(BINARY, b"") + masked(BINARY, KEEPALIVE[:5]), 2),
        (masked(BINARY, KEEPALIVE), 0),
    ],
)
def test_frames_without_a_packet_are_counted(wire: bytes, idle: int) -> None:
    websocket = WebSocket(is_json=False)
    websocket.receive(wire)
    assert websocket.idle_frames == idle
