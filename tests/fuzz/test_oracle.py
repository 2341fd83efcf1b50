"""The second decoder against the test vectors: it must know the protocol before it judges the first one."""

import pytest

from loadtest.fuzz.codec import exact
from loadtest.fuzz.oracle import Refused, Taken, judge, length_of
from tests.protocol.vectors import BAD, GOOD, Bad, Good


def read(frame: bytes, limit_bytes: int) -> Taken | Refused | None:
    length = length_of(frame, 0, limit_bytes)
    if isinstance(length, Refused):
        return length
    return judge(frame[4:length]) if length else None


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector.name)
def test_good_vectors_are_taken(vector: Good) -> None:
    found = read(vector.frame, vector.limit_bytes)
    assert isinstance(found, Taken)
    assert exact(*found) == exact(*vector.packet)


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector.name)
def test_bad_vectors_are_refused(vector: Bad) -> None:
    found = read(vector.frame, vector.limit_bytes)
    assert isinstance(found, Refused)
    assert vector.code in found.codes
    assert (found.kind, found.id) == (vector.kind, vector.id)


def test_an_unfinished_frame_is_neither() -> None:
    assert read(b"\0\0\0\x02\x91", 16) is None
