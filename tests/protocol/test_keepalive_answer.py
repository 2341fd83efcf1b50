"""The answer to an acknowledged keepalive, made without decoding it, is the one that decoding would make."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from protocol import KEEPALIVE, Kind, ProtocolError, decode, encode, keepalive, keepalive_answer, ok
from tests.protocol.vectors import BAD, GOOD


@given(st.integers(0, 2**64 - 1))
@example(127)
@example(128)
@example(2**8)
@example(2**16)
@example(2**32)
@example(2**64 - 1)
def test_every_id_gets_the_ok_that_carries_it(number: int) -> None:
    assert keepalive_answer(encode(keepalive(number))) == encode(ok(number))


@given(st.one_of(st.binary(max_size=16), st.binary(max_size=9).map(lambda tail: b"\x92\x03" + tail)))
def test_whatever_is_answered_is_a_keepalive_with_that_id(body: bytes) -> None:
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


def test_of_the_vectors_keepalives_alone_are_answered() -> None:
    frames = [*(vector.frame for vector in GOOD), *(vector.frame for vector in BAD)]
    answers = {frame: keepalive_answer(frame) for frame in frames}
    answered = {frame: answer for frame, answer in answers.items() if answer}
    assert len(answered) > 2
    for frame, answer in answered.items():
        asked = decode(frame[4:])
        assert (asked.kind, decode(answer[4:])) == (Kind.KEEPALIVE, ok(asked.id))


def test_two_frames_and_half_a_frame_are_left_to_the_decoder() -> None:
    frame = encode(keepalive(7))
    assert (
        keepalive_answer(frame + frame) == keepalive_answer(frame[:-1]) == keepalive_answer(KEEPALIVE) == b""
    )
