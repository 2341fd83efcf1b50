"""The codec under fuzzing: for any bytes it agrees with the second decoder, or raises its one error.

The first byte selects what the others are: a frame's body, or a stream that is cut into pieces. An
exception from `run` is a finding.
"""

from collections.abc import Iterator
from typing import Any, Final

from presence.protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    SERVER_FRAME_LIMIT_BYTES,
    Decoder,
    Kind,
    Packet,
    ProtocolError,
    decode,
    encode,
    frame_end,
    keepalive_answer,
)
from tests.fuzz.oracle import Refused, Taken, judge, length_of

LIMITS: Final = (
    FRAME_LIMIT_BYTES,
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    SERVER_FRAME_LIMIT_BYTES,
    16,
)
BODY, STREAM = range(2)
Found = Taken | Refused | int  # the int: bytes of an incomplete frame


def run(data: bytes) -> None:
    """Try one input.

    Raises:
        Exception: any; the codec or the second decoder is wrong.
    """
    numbers = iter(data)
    if next(numbers, 0) % 2 == BODY:
        _body(bytes(numbers))
    else:
        _stream(numbers)


def exact(kind: int, id: int | None, payload: Any) -> str:
    """Return text that differs for different packets: plain equality treats 1, 1.0 and True as equal."""
    return f"{int(kind)} {id!r} {dict(payload)!r}"


def _found(body: bytes) -> Taken | Refused:
    """Return the codec's result for a body, in the second decoder's terms."""
    try:
        packet = decode(body)
    except ProtocolError as error:
        return _refused(error)
    return Taken(packet.kind, packet.id, dict(packet.payload))


def _refused(error: ProtocolError) -> Refused:
    assert error.message.isprintable(), "a refusal must not echo what it refuses"
    assert error.id is None or error.kind is not None, "an id without a kind"
    return Refused(frozenset({int(error.code)}), error.kind, error.id)


def _agree(found: Found, expected: Found) -> None:
    """Compare the codec's result with the second decoder's."""
    if isinstance(found, Refused) and isinstance(expected, Refused):
        assert found.codes <= expected.codes, f"{found} is not {expected}"
        assert found[1:] == expected[1:], f"{found} is not {expected}"
    elif isinstance(found, Taken) and isinstance(expected, Taken):
        assert exact(*found) == exact(*expected)
    else:
        assert found == expected, f"{found} is not {expected}"


def _body(body: bytes) -> None:
    found, expected = _found(body), judge(body)
    _agree(found, expected)
    frame = len(body).to_bytes(4, "big") + body
    if answer := keepalive_answer(frame):
        assert isinstance(expected, Taken)
        assert (expected.kind, expected.payload) == (Kind.KEEPALIVE, {})
        assert judge(answer[4:]) == Taken(Kind.OK, expected.id, {})
        assert length_of(answer, 0, FRAME_LIMIT_BYTES) == len(answer)
    if isinstance(expected, Taken):
        again = encode(Packet(*expected))
        assert exact(*decode(again[4:])) == exact(*expected)
        if (expected.kind, expected.payload) == (Kind.KEEPALIVE, {}) and expected.id is not None:
            assert keepalive_answer(again), "the shortest form of a keepalive has no direct answer"


def _stream(numbers: Iterator[int]) -> None:
    """Feed a stream in pieces, and compare the packets with those of the whole."""
    limit = LIMITS[next(numbers, 0) % len(LIMITS)]
    sizes = [next(numbers, 0) % 32 for _ in range(next(numbers, 0) % 5)]
    data = bytes(numbers)
    decoder = Decoder(limit)
    found: list[Found] = []
    at = 0
    for size in (*sizes, len(data)):
        decoder.feed(data[at : at + size])
        at += size
        while (each := _next(decoder)) is not None:
            found.append(each)
            if isinstance(each, Refused):
                assert _next(decoder) == each, "a failed decoder stays failed"
                break
    expected = _whole(data, limit)
    for one, other in zip(_first_refusal(found), expected, strict=True):
        _agree(one, other)


def _next(decoder: Decoder) -> Taken | Refused | None:
    try:
        packet = decoder.next()
    except ProtocolError as error:
        return _refused(error)
    return None if packet is None else Taken(packet.kind, packet.id, dict(packet.payload))


def _first_refusal(found: list[Found]) -> list[Found]:
    """Return the results up to the first refusal, which each later piece repeats."""
    for number, each in enumerate(found):
        if isinstance(each, Refused):
            assert all(later == each for later in found[number:])
            return found[: number + 1]
    return found


def _whole(data: bytes, limit: int) -> list[Found]:
    """Return what the second decoder reads in a stream, with a refusal last; test `frame_end` on the way."""
    expected: list[Found] = []
    start = 0
    while True:
        length = length_of(data, start, limit)
        try:
            end = frame_end(data, start, limit)
        except ProtocolError as error:
            _agree(_refused(error), length)
            return [*expected, _refused(error)]
        assert isinstance(length, int)
        assert end == (start + length if length else 0)
        if not end:
            return expected
        expected.append(judge(data[start + 4 : end]))
        if isinstance(expected[-1], Refused):
            return expected
        start = end
