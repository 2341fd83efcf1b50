"""The second decoder with the test vectors: it must know the protocol before it judges the first one."""

from tests.fuzz.codec import exact
from tests.fuzz.oracle import Refused, Taken, judge, length_of
from tests.protocol.vectors import BAD, GOOD


def read(frame: bytes, limit_bytes: int) -> Taken | Refused | None:
    length = length_of(frame, 0, limit_bytes)
    if isinstance(length, Refused):
        return length
    return judge(frame[4:length]) if length else None


def test_good_vectors_are_accepted_and_bad_ones_refused() -> None:
    for good in GOOD:
        found = read(good.frame, good.limit_bytes)
        assert isinstance(found, Taken), good.name
        assert exact(*found) == exact(*good.packet), good.name
    for bad in BAD:
        found = read(bad.frame, bad.limit_bytes)
        assert isinstance(found, Refused), bad.name
        assert bad.code in found.codes, bad.name
        assert (found.kind, found.id) == (bad.kind, bad.id), bad.name


def test_an_incomplete_frame_is_neither_accepted_nor_refused() -> None:
    assert read(b"\0\0\0\x02\x91", 16) is None
