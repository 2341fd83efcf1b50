"""The incremental reader: limits that change, failure that stays, a buffer that is bounded."""

import pytest

from protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    KEEPALIVE,
    KEEPALIVE_PACKET,
    Decoder,
    ProtocolError,
    encode,
    message,
)

LARGE = encode(message("bob", b"\0" * 2000))


def _failed() -> Decoder:
    decoder = Decoder(FRAME_LIMIT_BYTES)
    decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError):
        decoder.next()
    return decoder


def test_a_fed_keepalive_is_the_shared_packet() -> None:
    decoder = Decoder()
    decoder.feed(KEEPALIVE)
    assert decoder.next() is KEEPALIVE_PACKET


def test_a_limit_raised_between_packets_holds_for_the_next() -> None:
    decoder = Decoder(FRAME_LIMIT_BEFORE_LOGIN_BYTES)
    decoder.feed(KEEPALIVE + LARGE)
    assert decoder.next() is KEEPALIVE_PACKET
    decoder.limit_bytes = FRAME_LIMIT_BYTES
    packet = decoder.next()
    assert packet is not None
    assert packet.payload["to"] == "bob"


def test_failure_keeps_kind_and_id() -> None:
    decoder = Decoder()
    decoder.feed(b"\0\0\0\4\x93\x03\x07\xc0")
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            decoder.next()
        assert (caught.value.kind, caught.value.id) == (3, 7)


def test_failure_raised_often_does_not_grow() -> None:
    decoder = _failed()
    tracebacks = set()
    for _ in range(3):
        with pytest.raises(ProtocolError) as caught:
            decoder.next()
        tracebacks.add(len(caught.traceback))
    assert len(tracebacks) == 1


def test_feeding_without_reading_is_the_callers_mistake() -> None:
    decoder = Decoder(FRAME_LIMIT_BEFORE_LOGIN_BYTES)
    decoder.feed(KEEPALIVE * 200)
    with pytest.raises(BufferError):
        decoder.feed(KEEPALIVE)


def test_feeding_while_one_frame_is_unfinished_is_not() -> None:
    decoder = Decoder(2000 + 20)
    for at in range(len(LARGE)):
        assert decoder.next() is None
        decoder.feed(LARGE[at : at + 1])
    assert decoder.next() is not None
