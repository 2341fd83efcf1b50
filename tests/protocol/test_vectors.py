"""Every vector, whole; and that the vectors cover what they promise to."""

import pytest

from protocol import Decoder, Kind, ProtocolError, decode, encode
from tests.protocol.vectors import BAD, GOOD, Bad, Good, exact


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector.name)
def test_good_vector_decodes_to_its_packet(vector: Good) -> None:
    decoder = Decoder(vector.limit_bytes)
    decoder.feed(vector.frame)
    packet = decoder.next()
    assert packet is not None
    assert exact(packet) == exact(vector.packet)
    assert decoder.next() is None


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector.name)
def test_good_vector_survives_an_encoder(vector: Good) -> None:
    assert exact(decode(encode(vector.packet)[4:])) == exact(vector.packet)


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector.name)
def test_bad_vector_is_refused_as_it_says(vector: Bad) -> None:
    decoder = Decoder(vector.limit_bytes)
    decoder.feed(vector.frame)
    with pytest.raises(ProtocolError) as caught:
        decoder.next()
    error = caught.value
    assert (error.code, error.code.reason, error.kind, error.id) == vector[3:]
    assert str(error).isprintable()


def test_vectors_cover_every_kind_with_and_without_id() -> None:
    covered = {(vector.packet.kind, vector.packet.id is not None) for vector in GOOD}
    assert {(kind, with_id) for kind in Kind for with_id in (False, True)} <= covered


def test_there_are_enough_vectors_with_names_of_their_own() -> None:
    names = [*(vector.name for vector in GOOD), *(vector.name for vector in BAD)]
    assert len(set(names)) == len(names)
    assert len(GOOD) >= 60
    assert len(BAD) >= 60
