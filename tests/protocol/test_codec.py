"""Frames, the ways to fail, and what encode refuses to send."""

from typing import Any

import pytest

from protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    KEEPALIVE,
    NO_PAYLOAD,
    Code,
    EncodeError,
    Kind,
    Packet,
    ProtocolError,
    decode,
    encode,
    frame_end,
    keepalive,
    login,
    message,
    ok,
)


def test_keepalive_is_the_six_bytes_of_the_contract() -> None:
    assert encode(keepalive()) == KEEPALIVE == bytes([0, 0, 0, 2, 0x91, 0x03])


@pytest.mark.parametrize("start", [0, 1, 100])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_frame_end_counts_from_the_start_of_the_buffer(
    start: int, kind: type[bytes] | type[bytearray]
) -> None:
    assert frame_end(kind(b"x" * start + KEEPALIVE + b"more"), start, 2) == start + 6


@pytest.mark.parametrize("length", range(6))
def test_frame_end_of_an_unfinished_frame_is_0(length: int) -> None:
    assert frame_end(KEEPALIVE[:length], 0, 2) == 0


@pytest.mark.parametrize("limit_bytes", [FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES])
def test_frame_end_at_the_limit_waits_for_the_body(limit_bytes: int) -> None:
    assert frame_end(limit_bytes.to_bytes(4, "big"), 0, limit_bytes) == 0


@pytest.mark.parametrize("limit_bytes", [FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES])
def test_frame_end_over_the_limit_is_refused_on_four_bytes(limit_bytes: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        frame_end((limit_bytes + 1).to_bytes(4, "big"), 0, limit_bytes)
    assert caught.value.code is Code.TOO_LARGE


def test_frame_end_of_an_empty_frame_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        frame_end(b"\0\0\0\0", 0, 2)
    assert caught.value.code is Code.PROTOCOL_ERROR


def test_no_body_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(b"")


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_body_cut_short_is_refused(cut: int) -> None:
    body = encode(login("ann", id=1))[4:]
    assert len(body) == 12
    with pytest.raises(ProtocolError):
        decode(body[:cut])


def test_a_packet_without_payload_shares_one_that_cannot_change() -> None:
    packet = decode(b"\x91\x03")
    assert packet.payload is NO_PAYLOAD
    with pytest.raises(TypeError):
        packet.payload["x"] = 1  # type: ignore[index]  # that it is refused is the point


def test_an_id_larger_than_messagepack_holds_is_ours_to_mend() -> None:
    with pytest.raises(EncodeError):
        encode(keepalive(2**64))


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "body",
    [
        float("nan"),
        float("inf"),
        {1: 2},
        {b"k": 2},
        "\ud800",
        {"\ud800": 1},
        {1, 2},
        object(),
        2**64,
        -(2**63) - 1,
        _nested(12),
        _nested(100_000),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_body_that_no_peer_may_see_is_not_sent(body: Any) -> None:
    with pytest.raises(EncodeError):
        encode(message("bob", body))


@pytest.mark.parametrize(
    "packet",
    [
        login(""),
        login(None),
        login("a b"),
        login("ann", idle_timeout=True),
        login("ann", meta={"m": "x" * 252}),
        Packet(Kind.KEEPALIVE, True),
        Packet(Kind.KEEPALIVE, -1),
        Packet(True),
        Packet(-1),
        Packet(Kind.MESSAGE),
    ],
    ids=str,
)
def test_a_packet_that_decode_refuses_is_not_sent(packet: Packet) -> None:
    with pytest.raises(EncodeError):
        encode(packet)


def test_a_frame_over_the_receivers_limit_is_not_sent() -> None:
    frame = encode(message("bob", b"\0" * 1000))
    body_bytes = len(frame) - 4
    assert encode(message("bob", b"\0" * 1000), body_bytes) == frame
    with pytest.raises(EncodeError, match="over the limit"):
        encode(message("bob", b"\0" * 1000), body_bytes - 1)


def test_a_reply_without_payload_is_three_bytes() -> None:
    assert encode(ok(7)) == b"\0\0\0\3\x92\x40\x07"


def test_a_refused_secret_is_not_repeated() -> None:
    with pytest.raises(EncodeError) as caught:
        encode(login("ann", token="s3cret" * 200))
    assert "s3cret" not in str(caught.value)
