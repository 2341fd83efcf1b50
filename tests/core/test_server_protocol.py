"""The server's side of the protocol, cell by cell of its state table, and its effects on sessions."""

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.core.service_requests import (
    ConfirmationRequest,
    RoomQueryRequest,
    RoomUnwatchRequest,
    RoomWatchRequest,
    UnwatchRequest,
)
from presence.protocol import TABLE, Code, ConnectionState, Kind, Packet
from presence.protocol.schema import SCHEMA
from tests.support.desks import NotingDesk, nobody_is_there
from tests.support.state_table import AT_CORE, AT_TRANSPORT, Cell, answers_expected, frames
from tests.support.worlds import GRACE, LOGIN, World, ended

LOGIN_ADA = protocol.encode(protocol.login("ada"))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("cell", "frame"),
    [
        pytest.param(cell, frame, id=f"{cell[0].value}-{cell[1].name}-{number}".lower())
        for cell in AT_CORE
        for number, frame in enumerate(frames(cell[1]))
    ],
)
def test_a_cell_of_the_table(cell: Cell, frame: bytes) -> None:
    state, reaction = cell[0], TABLE[cell]
    world = World()
    world.engine.request_handler = desk = NotingDesk()
    desk.answer = nobody_is_there
    handle = world.sockets.connect() if state is ConnectionState.CONNECTED else world.login()
    before = world.session() if state is ConnectionState.LOGGED_IN else None
    received_at = world.now
    world.sockets.answers(handle)
    world.now += 2.5
    world.sockets.feed(handle, frame)

    assert world.received(handle) == [*answers_expected(reaction, frame)]
    assert world.is_disconnected(handle) == (reaction.then is ConnectionState.CLOSING)
    if reaction.then is not ConnectionState.CLOSING:
        assert world.is_guest(handle) == (reaction.then is ConnectionState.CONNECTED)
    if before is not None:
        assert before.last_seen == (world.now if reaction.activity else received_at)
        assert (before not in world.registry) == reaction.offline
    assert [each.op for each in world.changes].count(Op.END) == reaction.offline


def test_every_cell_of_the_table_is_driven() -> None:
    assert {*AT_CORE, *AT_TRANSPORT} == set(TABLE)


def test_the_answer_to_a_login_has_the_granted_values(world: World) -> None:
    handle = world.login(id=5, idle_timeout=40)
    (answer,) = world.sockets.answers(handle)
    assert answer.kind == Kind.OK
    assert answer.id == 5
    assert answer.payload == {
        "session": world.changes[0].session,
        "idle_timeout": 40,
        "keepalive": 16,
        "time_ms": 1_700_000_000_000,
        "v": protocol.VERSION,
    }


def test_a_login_with_a_token_alone_is_refused(world: World) -> None:
    handle = world.sockets.connect()
    world.sockets.feed(handle, protocol.encode(protocol.login(None, token="secret", id=3)))
    assert world.received(handle) == [(Kind.ERROR, 3, Code.AUTH_FAILED)]
    assert world.changes == []


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind < Kind.OK], ids=lambda kind: kind.name.lower()
)
@pytest.mark.parametrize("value", [5, "phone", None, [], {}], ids=repr)
def test_keys_that_only_other_kinds_have_are_ignored(kind: Kind, value: object) -> None:
    (frame, *_) = frames(kind)
    plain = protocol.decode(frame[4:])
    foreign = {key for keys in SCHEMA.values() for key in keys} - SCHEMA[kind].keys()
    outcomes = []
    for payload in (plain.payload, {**dict.fromkeys(foreign, value), **plain.payload}):
        world = World()
        world.engine.request_handler = desk = NotingDesk()
        desk.answer = nobody_is_there
        handle = world.sockets.connect() if kind is Kind.LOGIN else world.login()
        world.sockets.feed(handle, protocol.encode_unchecked(Packet(kind, plain.id, payload)))
        changes = [change._replace(session="") for change in world.changes]
        outcomes.append((world.received(handle), changes, desk.requests))
        assert world.sockets.failures == []
    assert outcomes[0] == outcomes[1]


def test_requests_with_rooms_are_requests_of_their_own(world: World) -> None:
    world.engine.request_handler = desk = NotingDesk()
    handle = world.login()
    for packet in (
        protocol.query(rooms=["lobby"], id=1),
        protocol.watch(rooms=["lobby", "hall"], id=2),
        protocol.unwatch(rooms=["hall"], id=3),
        protocol.unwatch(rooms=[], id=4),
        protocol.unwatch(id=5),
    ):
        world.sockets.feed(handle, protocol.encode(packet))
    assert desk.requests == [
        RoomQueryRequest(1, ["lobby"]),
        RoomWatchRequest(2, ["lobby", "hall"]),
        RoomUnwatchRequest(3, ["hall"]),
        RoomUnwatchRequest(4, []),
        UnwatchRequest(5, None),
    ]
    assert [type(each) for each in desk.requests][:2] == [RoomQueryRequest, RoomWatchRequest]


# Confirmations


CONFIRMATION = protocol.encode(protocol.confirmation([3, 4]))


def test_a_keepalive_that_confirms_messages_is_a_keepalive_and_a_request(world: World) -> None:
    world.engine.request_handler = desk = NotingDesk()
    handle = world.login(confirms=True)
    world.sockets.answers(handle)
    world.now += 2.5
    frame = protocol.encode(Packet(Kind.KEEPALIVE, 5, {"confirmed": [3, 4]}))
    world.sockets.feed(handle, CONFIRMATION + frame)
    assert desk.requests == [ConfirmationRequest(None, [3, 4]), ConfirmationRequest(5, [3, 4])]
    assert world.received(handle) == [(Kind.OK, 5, None)]
    assert world.session().last_seen == world.now


def test_a_server_without_messages_takes_a_confirmation_as_a_keepalive(world: World) -> None:
    handle = world.login()
    world.sockets.answers(handle)
    world.sockets.feed(handle, CONFIRMATION)
    assert world.received(handle) == []
    assert world.engine.statistics().keepalives == 1


def test_a_confirmation_behind_which_the_connection_ends_still_counts(world: World) -> None:
    world.engine.request_handler = desk = NotingDesk()
    handle = world.login(confirms=True)
    world.sockets.feed(handle, CONFIRMATION + protocol.encode(protocol.query(["bob"])) + b"\xff" * 8)
    assert desk.requests == [ConfirmationRequest(None, [3, 4])]


@pytest.mark.parametrize("name", ["confirms", "batch"])
@pytest.mark.parametrize(("given", "expected"), [(None, False), (False, False), (True, True)])
def test_a_session_has_a_feature_if_its_login_says_so(
    world: World, name: str, given: bool | None, expected: bool
) -> None:
    world.login("ada", **{name: given})
    features = world.session().features
    assert getattr(features, name) == expected
    assert sum(features) == expected


# Several frames in one read, and frames in pieces


def test_packets_after_a_logout_are_ignored(world: World) -> None:
    handle = world.login()
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.logout(id=1)) + LOGIN_ADA + b"\xff" * 100)
    assert world.received(handle) == [(Kind.OK, 1, None)]


@pytest.mark.parametrize("excess", [0, 1])
def test_frame_limits_are_enforced_from_the_first_four_bytes(world: World, excess: int) -> None:
    guest, session = world.sockets.connect(), world.login()
    limits = protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES, protocol.FRAME_LIMIT_BYTES
    for handle, limit in zip((guest, session), limits, strict=True):
        world.sockets.feed(handle, (limit + excess).to_bytes(4, "big"))
        assert world.is_disconnected(handle) == bool(excess)
    assert world.received(guest) == [(Kind.ERROR, None, Code.TOO_LARGE)] * excess


def test_frames_in_pieces_of_any_size_give_the_same_packets() -> None:
    data = LOGIN_ADA + protocol.encode(protocol.message("bob", b"x" * 300, id=2)) + protocol.KEEPALIVE
    expected = None
    for size in (len(data), *range(1, 40)):
        world = World()
        handle = world.sockets.connect()
        for start in range(0, len(data), size):
            world.sockets.feed(handle, data[start : start + size])
        counts = world.engine.statistics()
        seen = world.received(handle), (counts.other_packets, counts.keepalives)
        expected = expected or seen
        assert seen == expected
        assert not world.session().unhandled
    assert expected is not None
    assert expected[1] == (2, 1)


# Ages of logins, and faults


def test_the_age_of_a_login_counts_from_its_arrival_and_one_too_old_is_refused(
    world: World,
) -> None:
    world.sockets.lain_s = 5.1
    assert world.send(world.sockets.connect(), protocol.login("ada")) == [
        (Kind.ERROR, None, Code.LOGIN_TIMEOUT)
    ]
    assert world.changes == []
    world.sockets.lain_s = 4.0
    world.login()
    assert world.changes[0].at == world.now - 4.0
    assert world.session().last_seen == world.now


def test_the_later_of_two_unread_logins_wins_in_any_read_order(world: World) -> None:
    abandoned = world.sockets.connect()
    world.sockets.lain_s = 1.0
    present = world.login()
    session = world.session()
    world.sockets.lain_s = 2.0
    world.sockets.feed(abandoned, LOGIN_ADA)
    assert world.received(abandoned) == [(Kind.ERROR, None, Code.REPLACED)]
    assert world.is_disconnected(abandoned)
    assert not world.is_disconnected(present)
    assert world.session() is session


@pytest.mark.parametrize(
    ("lain_s", "expected"),
    [((2.0, 2.01), Code.CLOSED), ((2.01, 2.0), Code.CLOSED), ((0.0, 0.0), Code.REPLACED)],
)
def test_the_order_of_two_unread_logins_may_be_uncertain(
    world: World, lain_s: tuple[float, float], expected: Code
) -> None:
    first, second = world.sockets.connect(), world.sockets.connect()
    for handle, world.sockets.lain_s in zip((first, second), lain_s, strict=True):
        world.sockets.feed(handle, LOGIN_ADA)
    assert world.received(first)[-1] == (Kind.GOODBYE, None, expected)
    assert not world.is_disconnected(second)


def test_a_failure_after_a_login_in_the_same_read_ends_its_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = world.sockets.connect()
    monkeypatch.setattr(protocol, "error", None)  # every error reply fails
    world.sockets.feed(handle, LOGIN_ADA + protocol.encode(protocol.message("bob", 1)))
    assert len(world.sockets.failures) == 1
    assert world.is_disconnected(handle)
    world.pass_time(GRACE + 1)
    assert world.history() == [LOGIN, ended(Code.SERVER_ERROR)]
    assert len(world.registry) == 0


def test_keepalives_are_counted_in_reads_of_any_size() -> None:
    asking, query = protocol.encode(protocol.keepalive(7)), protocol.encode(protocol.query(["bob"], id=8))
    sent = protocol.KEEPALIVE * 2 + asking + query + protocol.KEEPALIVE
    for cut in range(len(sent) + 1):
        world = World()
        handle = world.login()
        before = world.engine.statistics()
        world.now += 3
        world.sockets.feed(handle, sent[:cut])
        if cut >= len(protocol.KEEPALIVE):
            assert world.session().last_seen == world.now, "packets before the rest of a frame are activity"
        world.sockets.feed(handle, sent[cut:])
        after = world.engine.statistics()
        assert after.keepalives - before.keepalives == 4, cut
        assert after.other_packets - before.other_packets == 1, cut
