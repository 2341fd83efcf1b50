"""What encode accepts, decode returns; in any mixture and through any split."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from presence import protocol
from presence.protocol import Code, Decoder, Kind, Packet, decode, encode
from tests.protocol.vectors import exact

UINTS = st.integers(0, 2**64 - 1)
IDS = st.none() | UINTS
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# Letters of one to four bytes, without control characters, white space or braces.
UIDS = st.text(st.sampled_from("abz09-._~:@/é€😀"), min_size=1, max_size=32)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary(max_size=40)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
META = st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9) | st.booleans(), max_size=8)
SECONDS = st.floats(0.001, 1e6) | st.integers(1, 10**6)
CODES = st.sampled_from(Code)
STATES = st.fixed_dictionaries(
    {"status": st.sampled_from(["online", "away", "offline", "unknown"])},
    optional={"since_ms": UINTS, "last_seen_ms": st.none() | UINTS, "id": TEXT, "meta": META},
)
CHANGES = st.builds(
    lambda uid, code, ids, meta: [uid, "online", code, *ids, meta],
    UIDS,
    CODES.map(int) | TEXT,
    st.tuples(UINTS, UINTS, st.none() | st.just(0), st.none()) | st.just([None] * 4),
    st.none() | META,
)
UID_LISTS = st.lists(UIDS, max_size=20)
ROOMS = st.text("abz09-._~:@/é€", min_size=1, max_size=20)
ROOM_LISTS = st.lists(ROOMS, max_size=4)
ROOM_ROWS = st.lists(
    st.builds(
        lambda room, count, members: [room, count, *members],
        ROOMS,
        st.none() | UINTS,
        st.lists(st.lists(UIDS, max_size=4), max_size=2),
    ),
    max_size=4,
)

PACKETS = {
    Kind.LOGIN: st.builds(
        protocol.login,
        UIDS,
        id=IDS,
        device=st.none() | UIDS.filter(lambda uid: len(uid.encode()) <= 64),
        token=st.none() | st.text("abc.", min_size=1),
        idle_timeout=st.none() | SECONDS,
        meta=st.none() | META,
        v=st.none() | UINTS,
    ),
    Kind.MESSAGE: st.builds(protocol.message, UIDS, VALUES, id=IDS),
    Kind.KEEPALIVE: st.builds(protocol.keepalive, IDS),
    Kind.LOGOUT: st.builds(protocol.logout, st.sampled_from([None, "logout", "background"]), id=IDS),
    Kind.QUERY: st.builds(protocol.query, UID_LISTS, id=IDS)
    | st.builds(protocol.query, id=IDS, rooms=ROOM_LISTS),
    Kind.WATCH: st.builds(protocol.watch, UID_LISTS, id=IDS)
    | st.builds(protocol.watch, id=IDS, rooms=ROOM_LISTS),
    Kind.UNWATCH: st.builds(protocol.unwatch, st.none() | UID_LISTS, id=IDS)
    | st.builds(protocol.unwatch, id=IDS, rooms=ROOM_LISTS),
    Kind.UPDATE: st.builds(
        protocol.update, id=IDS, meta=st.none() | META, status=st.sampled_from([None, "away", "online"])
    ),
    Kind.OK: st.builds(
        protocol.ok,
        IDS,
        presence=st.dictionaries(UIDS, STATES, max_size=4),
        delivered=UINTS,
        time_ms=UINTS,
        states=st.lists(UIDS | CHANGES, max_size=4),
        rooms=ROOM_ROWS,
    ),
    Kind.ERROR: st.builds(protocol.error, IDS, CODES, TEXT, st.none() | SECONDS),
    Kind.PRESENCE: st.builds(protocol.presence, UIDS, STATES, TEXT),
    Kind.DELIVER: st.builds(protocol.deliver, UIDS, VALUES, UINTS),
    Kind.GOODBYE: st.builds(protocol.goodbye, CODES, st.none() | TEXT, st.none() | SECONDS),
    Kind.CHANGES: st.builds(protocol.changes, st.lists(CHANGES, max_size=4)),
    Kind.ROOMS: st.builds(protocol.rooms, ROOM_ROWS),
}
UNKNOWN = st.builds(
    Packet, UINTS.filter(lambda kind: kind not in {*Kind}), IDS, st.dictionaries(TEXT, VALUES, max_size=4)
)
ANY = st.one_of(*PACKETS.values(), UNKNOWN)


@settings(max_examples=5 * settings().max_examples, deadline=None)
@given(ANY)
def test_decode_returns_what_encode_accepted(packet: Packet) -> None:
    assert exact(decode(encode(packet)[4:])) == exact(packet)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.lists(ANY, max_size=6), st.integers(1, 64))
def test_a_stream_in_pieces_yields_every_packet(packets: list[Packet], piece_bytes: int) -> None:
    stream = b"".join(map(encode, packets))
    decoder = Decoder()
    read = []
    for at in range(0, len(stream), piece_bytes):
        decoder.feed(stream[at : at + piece_bytes])
        while (packet := decoder.next()) is not None:
            read.append(exact(packet))
    assert read == [exact(packet) for packet in packets]


def test_every_kind_has_a_constructor() -> None:
    assert PACKETS.keys() == {*Kind}
