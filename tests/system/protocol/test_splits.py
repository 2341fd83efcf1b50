"""However the network cuts a stream of packets, the same packets come out."""

import pytest

from protocol import KEEPALIVE, KEEPALIVE_PACKET, SERVER_FRAME_LIMIT_BYTES, Decoder, Packet, ProtocolError
from tests.protocol.vectors import BAD, GOOD, Good

LARGE_BYTES = 4096  # a frame longer than this is cut in a stream of its own: the work grows with the square

SMALL = [vector for vector in GOOD if len(vector.frame) <= LARGE_BYTES]
STREAMS = [
    SMALL,
    *([SMALL[0], vector, SMALL[1]] for vector in GOOD if len(vector.frame) > LARGE_BYTES),
]


def _drain(decoder: Decoder) -> list[Packet]:
    packets = []
    while (packet := decoder.next()) is not None:
        packets.append(packet)
    return packets


def _read(*pieces: bytes) -> list[Packet]:
    decoder = Decoder(SERVER_FRAME_LIMIT_BYTES)
    packets = []
    for piece in pieces:
        decoder.feed(piece)
        packets += _drain(decoder)
    return packets


def _refusal(limit_bytes: int, *pieces: bytes) -> tuple[int, str, object, object, int]:
    decoder = Decoder(limit_bytes)
    packets = 0
    try:
        for piece in pieces:
            decoder.feed(piece)
            while decoder.next() is not None:
                packets += 1
    except ProtocolError as error:
        return error.code, error.message, error.kind, error.id, packets
    pytest.fail("it was not refused")


def test_the_streams_hold_every_good_vector() -> None:
    assert {vector.name for stream in STREAMS for vector in stream} == {vector.name for vector in GOOD}


@pytest.mark.nightly
@pytest.mark.parametrize("vectors", STREAMS, ids=lambda vectors: f"{len(vectors)}_vectors")
def test_two_pieces_cut_at_every_byte(vectors: list[Good]) -> None:
    stream = b"".join(vector.frame for vector in vectors)
    expected = [vector.packet for vector in vectors]
    cuts = range(len(stream) + 1)
    differing = [cut for cut in cuts if _read(stream[:cut], stream[cut:]) != expected]
    print(f"cut points {len(cuts)}, differing {len(differing)}")
    assert not differing


@pytest.mark.parametrize("vectors", STREAMS, ids=lambda vectors: f"{len(vectors)}_vectors")
def test_byte_by_byte(vectors: list[Good]) -> None:
    stream = b"".join(vector.frame for vector in vectors)
    assert _read(*(stream[at : at + 1] for at in range(len(stream)))) == [vector.packet for vector in vectors]


def test_bad_vectors_are_refused_alike_wherever_they_are_cut() -> None:
    cuts = 0
    for vector in BAD:
        stream = KEEPALIVE + vector.frame
        whole = _refusal(vector.limit_bytes, stream)
        assert whole[-1] == 1, "the packet before the bad one is handed out"
        for cut in range(len(stream)):
            assert _refusal(vector.limit_bytes, stream[:cut], stream[cut:]) == whole
            cuts += 1
    print(f"cut points {cuts}")
    assert cuts > 1000


def test_an_unfinished_frame_yields_nothing_and_is_kept() -> None:
    decoder = Decoder()
    decoder.feed(KEEPALIVE[:5])
    assert decoder.next() is None
    decoder.feed(KEEPALIVE[5:])
    assert decoder.next() == KEEPALIVE_PACKET
