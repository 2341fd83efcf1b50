"""Frames, errors, what encode refuses to send, and the answers that are packed without it."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presence.protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    KEEPALIVE,
    KEEPALIVE_PACKET,
    NO_PAYLOAD,
    Decoder,
    EncodeError,
    Kind,
    Packet,
    ProtocolError,
    decode,
    encode,
    frame_end,
    keepalive,
    keepalive_answer,
    login,
    message,
    ok,
    rooms,
)
from presence.protocol.prepacked import (
    is_plain,
    pack_row,
    pack_state,
    rooms_answer,
    rooms_packet,
    rows_answer,
    states_answer,
)
from presence.protocol.rows import make_row

LARGE = encode(message("bob", b"\0" * 2000))
ONLINE = {"status": "online", "since_ms": 5, "last_seen_ms": None, "id": "5-0", "meta": {"a": b"\x00"}}
OFFLINE = {"status": "offline", "since_ms": None, "last_seen_ms": 7, "id": None}


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


def test_a_packet_without_payload_shares_one_that_cannot_change() -> None:
    packet = decode(b"\x91\x03")
    assert packet.payload is NO_PAYLOAD
    with pytest.raises(TypeError):
        packet.payload["x"] = 1  # type: ignore[index]  # the refusal is the test


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


NOT_UTF8 = "\ud800"
NO_BODIES = [
    *(float("nan"), float("inf"), 2**64, -(2**63) - 1, object(), {1, 2}),
    *({1: 2}, {b"k": 2}, NOT_UTF8, {NOT_UTF8: 1}, _nested(12), _nested(100_000)),
]


@pytest.mark.parametrize("body", NO_BODIES, ids=lambda body: type(body).__name__)
def test_a_body_that_no_peer_accepts_is_not_sent(body: Any) -> None:
    with pytest.raises(EncodeError):
        encode(message("bob", body))


NO_PACKETS = [
    *(login(""), login(None), login("a b"), login("ann", idle_timeout=True)),
    login("ann", meta={"m": "x" * 252}),
    *(keepalive(2**64), Packet(Kind.KEEPALIVE, True), Packet(Kind.KEEPALIVE, -1)),
    *(Packet(True), Packet(-1), Packet(Kind.MESSAGE)),
]


@pytest.mark.parametrize("packet", NO_PACKETS, ids=str)
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


# Answers made without encoding or decoding


@given(st.integers(0, 2**64 - 1) | st.sampled_from([127, 128, 2**8, 2**16, 2**32, 2**64 - 1]))
def test_every_id_gets_the_ok_with_that_id(number: int) -> None:
    assert keepalive_answer(encode(keepalive(number))) == encode(ok(number))


@given(st.one_of(st.binary(max_size=16), st.binary(max_size=9).map(lambda tail: b"\x92\x03" + tail)))
def test_only_keepalives_with_an_id_are_answered_directly(body: bytes) -> None:
    answer = keepalive_answer(struct.pack("!I", len(body)) + body)
    if answer:
        asked = decode(body)
        assert asked.kind == Kind.KEEPALIVE
        assert asked.id is not None
        assert decode(answer[4:]) == ok(asked.id)
    else:
        try:
            asked = decode(body)
        except ProtocolError:
            return
        minimal = encode(keepalive(asked.id))[4:]
        assert asked.kind != Kind.KEEPALIVE or asked.id is None or body != minimal


def test_other_input_than_one_keepalive_is_left_to_the_decoder() -> None:
    frame = encode(keepalive(7))
    assert (
        keepalive_answer(frame + frame) == keepalive_answer(frame[:-1]) == keepalive_answer(KEEPALIVE) == b""
    )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 500])
@pytest.mark.parametrize("id", [None, 0, 300])
def test_a_prepacked_answer_equals_an_encoded_one(count: int, id: int | None) -> None:
    states = {f"user-{number}": ONLINE if number % 3 else OFFLINE for number in range(count)}
    packed = {uid: pack_state(state) for uid, state in states.items()}
    assert states_answer(id, packed) == encode(ok(id, presence=states))


@pytest.mark.parametrize("wrong", [{"since_ms": -1}, {"meta": {"a": "x" * 300}}, {"id": 5}, {"status": None}])
def test_a_state_that_no_answer_may_hold_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        pack_state({**ONLINE, **wrong})


# Of these some are valid in some places; those without a check of their own must be valid everywhere.
ODD = (
    st.none() | st.booleans() | st.integers(-(2**64), 2**65) | st.floats() | st.text(max_size=3) | st.binary()
)
BIG = st.integers(-5, 2**65)
ODDER = ODD | st.sampled_from(["online", "offline", "5-0", 7, "\ud800", {}, [], [{}]])


@settings(max_examples=5 * settings().max_examples)
@given(
    st.fixed_dictionaries(
        {"status": ODD | st.sampled_from(["online", "offline", "\ud800"])},
        optional=dict.fromkeys(
            ("since_ms", "last_seen_ms", "id", "reason", "meta", "devices", "more"), ODDER
        ),
    )
)
def test_what_counts_as_plain_obeys_the_protocol(state: dict[str, Any]) -> None:
    if is_plain(state):
        encode(ok(None, presence={"ann": state}))


@settings(max_examples=5 * settings().max_examples)
@given(
    st.tuples(
        st.sampled_from(["online", "offline", "asleep", "\ud800"]),
        st.sampled_from([None, "logout", "teleported", "\ud800"]),
        st.none() | st.just(9) | BIG,
        st.none() | st.just(9) | BIG,
        st.none() | st.builds("{}-{}".format, st.just(7) | BIG, st.just(0) | BIG),
        st.sampled_from([None, {}, {"a": 1}, {"a": "x" * 300}, {"a": float("nan")}]),
    )
)
def test_a_packed_row_obeys_the_protocol(state: tuple[Any, ...]) -> None:
    try:
        packed = pack_row(make_row("ann", *state))
    except EncodeError:
        return
    (row,) = decode(rows_answer(1, [packed])[4:]).payload["states"]
    assert row == make_row("ann", *state)


@pytest.mark.parametrize("id", [f"5-{2**64}", f"{2**64}-5"])
def test_a_row_with_an_id_beyond_64_bits_is_refused(id: str) -> None:
    with pytest.raises(EncodeError):
        pack_row(make_row("ann", "online", id=id))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 64])
def test_packed_rows_of_rooms_make_the_packets_of_the_codec(count: int) -> None:
    rows = [[f"room-{number}", number, ["ann"]] for number in range(count)]
    packed = [msgpack.packb(row) for row in rows]
    assert rooms_answer(7, packed) == encode(ok(7, rooms=rows))
    assert rooms_packet(packed) == encode(rooms(rows))


def test_values_that_are_too_long_are_refused() -> None:
    with pytest.raises(EncodeError):
        rooms_packet([b"\xc0" * 5000] * 64)
    with pytest.raises(EncodeError):
        states_answer(1, {f"user-{number}": b"\xc0" * 1000 for number in range(500)})


# The incremental reader: changing limits, permanent failure, a bounded buffer


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


def test_a_failure_that_is_raised_repeatedly_does_not_grow() -> None:
    decoder = _failed()
    tracebacks = set()
    for _ in range(3):
        with pytest.raises(ProtocolError) as caught:
            decoder.next()
        tracebacks.add(len(caught.traceback))
    assert len(tracebacks) == 1


def test_feeding_without_reading_is_an_error() -> None:
    decoder = Decoder(FRAME_LIMIT_BEFORE_LOGIN_BYTES)
    decoder.feed(KEEPALIVE * 200)
    with pytest.raises(BufferError):
        decoder.feed(KEEPALIVE)


def test_feeding_while_one_frame_is_unfinished_is_allowed() -> None:
    decoder = Decoder(2000 + 20)
    for at in range(len(LARGE)):
        assert decoder.next() is None
        decoder.feed(LARGE[at : at + 1])
    assert decoder.next() is not None
