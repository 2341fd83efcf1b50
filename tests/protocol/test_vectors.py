"""Every vector, whole and cut anywhere by the network; and the vectors cover what they promise."""

from collections.abc import Iterable

import pytest

from presence.protocol import (
    KEEPALIVE,
    KEEPALIVE_PACKET,
    Decoder,
    Kind,
    Packet,
    ProtocolError,
    decode,
    encode,
)
from tests.protocol.vectors import BAD, GOOD, Bad, Good, exact

CUTS_MAX = 400  # of one vector; those of a large frame are spread


def read(limit_bytes: int, *pieces: bytes) -> list[Packet]:
    decoder = Decoder(limit_bytes)
    packets = []
    for piece in pieces:
        decoder.feed(piece)
        while (packet := decoder.next()) is not None:
            packets.append(packet)
    return packets


def each_way(frame: bytes) -> Iterable[list[bytes]]:
    """Yield the frame whole, byte by byte, and in two pieces after a keepalive."""
    stream = KEEPALIVE + frame
    yield [stream]
    yield [stream[at : at + 1] for at in range(len(stream))]
    for cut in range(1, len(stream), 1 + len(stream) // CUTS_MAX):
        yield [stream[:cut], stream[cut:]]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector.name)
def test_good_vector_decodes_to_its_packet_and_survives_an_encoder(vector: Good) -> None:
    expected = exact(vector.packet)
    for pieces in each_way(vector.frame):
        first, packet = read(vector.limit_bytes, *pieces)
        assert first == KEEPALIVE_PACKET
        assert exact(packet) == expected
    assert exact(decode(encode(vector.packet)[4:])) == expected


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector.name)
def test_bad_vector_is_refused_with_its_code(vector: Bad) -> None:
    for pieces in each_way(vector.frame):
        with pytest.raises(ProtocolError) as caught:
            read(vector.limit_bytes, *pieces)
        error = caught.value
        assert (error.code, error.code.reason, error.kind, error.id) == vector[3:]
        assert str(error).isprintable()


def test_vectors_cover_every_kind_with_and_without_id_by_names_of_their_own() -> None:
    covered = {(vector.packet.kind, vector.packet.id is not None) for vector in GOOD}
    assert {(kind, with_id) for kind in Kind for with_id in (False, True)} <= covered
    names = [*(vector.name for vector in GOOD), *(vector.name for vector in BAD)]
    assert len(set(names)) == len(names)
    assert min(len(GOOD), len(BAD)) >= 60
