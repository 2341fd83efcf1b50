"""Fences and sweeps, by script: dead nodes cannot write, and their sessions are ended once."""

import time

import pytest

from presence.outbox.replies import NodeNotice, NodeNoticeKind, ReplyStatus
from presence.outbox.steps import FENCE_TTL_S
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import MAX_FIELDS_PER_CALL
from presence.store.script_runner import Call
from tests.store.driving import (
    Hand,
    brief_events,
    check_alternation,
    end,
    events,
    hold,
    login,
    online_sessions,
    probed,
)
from tests.store.servers import Server
from tests.support.script_texts import changed, little_room

KEYS = Keys()


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


@pytest.fixture
def dead(a: Hand) -> Hand:
    a.apply(login("u", "s1"))
    return a


@pytest.fixture
def peer(dead: Hand, b: Hand) -> Hand:
    """A node that has fenced the dead one."""
    assert b.fence("a").status is ReplyStatus.OK
    return b


def test_a_fenced_node_writes_nothing_even_where_it_never_wrote(
    dead: Hand, peer: Hand, store: RedisStore, server: Server
) -> None:
    assert dead.apply(login("v", "s")).status is ReplyStatus.FENCED
    assert dead.open(2).status is ReplyStatus.FENCED
    assert dead.retire().status is ReplyStatus.FENCED
    assert len(events(server.client)) == 1
    peer.fence("stranger")
    assert Hand(store, "stranger").open().status is ReplyStatus.FENCED


def test_the_sweep_ends_the_dead_nodes_sessions_and_its_fence_stays(
    dead: Hand, b: Hand, server: Server
) -> None:
    dead.apply(login("v", "s2", "phone"))
    b.apply(login("w", "s3"))
    assert b.sweep("a").status is ReplyStatus.UNFENCED
    assert len(online_sessions(server.client)) == 3
    b.fence("a")
    reply = b.sweep("a")
    assert (reply.status, reply.ended, reply.done) == (ReplyStatus.OK, 2, True)
    assert set(brief_events(server.client)[3:]) == {
        ("offline", "u", "node_down"),
        ("offline", "v", "node_down"),
    }
    assert {event["node"] for event in events(server.client)[3:]} == {"a"}
    assert online_sessions(server.client) == {("w", "", "s3")}
    assert check_alternation(events(server.client)) == {"w"}
    assert dead.apply(login("v", "s2")).status is ReplyStatus.FENCED
    kept: int = server.client.ttl(KEYS.node(0, "a"))
    assert FENCE_TTL_S - 10 < kept <= FENCE_TTL_S
    b.fence("a")
    assert not server.client.hexists(KEYS.peer_traces(0), "a"), "a fence after the sweep leaves no trace"


def test_an_opening_fences_the_previous_id(dead: Hand, store: RedisStore) -> None:
    """Batches in flight under the old id must not be applied after the opening has returned the history."""
    Hand(store, "renamed").open(before="a")
    assert dead.apply(login("u", "s1")).status is ReplyStatus.FENCED


def test_a_session_with_a_longer_idle_timeout_is_left_for_later(peer: Hand) -> None:
    early = peer.sweep("a", waited_ms=10_000)  # of 30 s
    assert (early.ended, early.wait_ms, early.done) == (0, 20_000, False)
    late = peer.sweep("a", waited_ms=30_000)
    assert (late.ended, late.done) == (1, True)


def test_last_seen_is_no_later_than_the_last_renewal(a: Hand, b: Hand, server: Server) -> None:
    earlier_ms = int(time.time() * 1000) - 60_000
    a.apply(login("u", "s1", at_ms=earlier_ms - 1000))
    a.apply(login("v", "s2", at_ms=earlier_ms + 5000))
    b.fence("a")
    b.sweep("a", latest_ms=earlier_ms)
    seen = {each["uid"]: int(each["last_seen_ms"]) for each in events(server.client)[2:]}
    assert seen == {"u": earlier_ms, "v": earlier_ms + 5000}


@pytest.mark.parametrize("how", ["sweep", "retirement"])
def test_a_large_hash_is_covered_in_bounded_calls(a: Hand, b: Hand, server: Server, how: str) -> None:
    count = 3 * MAX_FIELDS_PER_CALL
    a.apply(*(login(f"u{i}", f"s{i}") for i in range(count)))
    if how == "sweep":
        b.fence("a")
    else:
        a.open(2)
    cursor, ended = "0", list[int]()
    while not ended or cursor != "0":
        reply = b.sweep("a", cursor=cursor) if how == "sweep" else a.retire(cursor)
        cursor = reply.cursor
        ended.append(reply.ended)
    assert sum(ended) == count
    assert max(ended) < 2 * MAX_FIELDS_PER_CALL
    assert online_sessions(server.client) == set()


@pytest.mark.parametrize("how", ["sweep", "retirement"])
def test_large_records_are_ended_in_more_calls_than_pages(a: Hand, b: Hand, server: Server, how: str) -> None:
    uids = [f"u{i}" for i in range(40)]
    a.apply(*(login(uid, f"{uid}-{device}", device) for uid in uids for device in ("desk", "phone")))
    if how == "sweep":
        b.fence("a")
    else:
        a.open(2)
    cursor, ended = "0", list[int]()
    with changed(little_room()):
        while not ended or cursor != "0":
            reply = b.sweep("a", cursor=cursor) if how == "sweep" else a.retire(cursor)
            cursor = reply.cursor
            ended.append(reply.ended)
    assert sum(ended) == 2 * len(uids)
    assert max(ended) <= 4, "of two users"
    assert online_sessions(server.client) == set()
    assert check_alternation(events(server.client)) == set()


def test_where_records_are_large_a_sweep_goes_on_behind_the_sessions_that_it_leaves_for_later(
    a: Hand, b: Hand, server: Server
) -> None:
    count = 40
    a.apply(*(login(f"u{i}", f"s{i}")._replace(idle_timeout_ms=30_000 + i % 2 * 1000) for i in range(count)))
    b.fence("a")

    def pass_over(waited_ms: int) -> tuple[int, bool]:
        cursor, ended, calls, is_done = "0", 0, 0, False
        while not calls or cursor != "0":
            reply = b.sweep("a", cursor=cursor, waited_ms=waited_ms)
            cursor, is_done = reply.cursor, reply.done
            ended, calls = ended + reply.ended, calls + 1
            assert calls <= count, "it does not go on"
        return ended, is_done

    with changed(little_room()):
        assert pass_over(30_000) == (count / 2, False)
        assert pass_over(31_000) == (count / 2, True)


def test_two_sweepers_do_no_harm(peer: Hand, store: RedisStore, server: Server) -> None:
    other = Hand(store, "other")
    other.open()
    other.fence("a")
    assert peer.sweep("a").ended + other.sweep("a").ended == 1
    assert len(events(server.client)) == 2


def test_a_sweep_finds_sessions_that_are_handed_to_pending_logins_behind_its_place(
    a: Hand, b: Hand, server: Server
) -> None:
    count = 2 * MAX_FIELDS_PER_CALL
    late = [f"late{i}" for i in range(100)]
    a.apply(*(login(f"u{i}", f"s{i}") for i in range(count)))
    b.apply(*(login(uid, f"{uid}-b", "phone") for uid in late))
    a.apply(*(hold(uid, f"{uid}-a", age_s=5) for uid in late))
    b.fence("a")
    reply = b.sweep("a")
    assert reply.cursor != "0"
    b.apply(*(end(uid, f"{uid}-b", "phone", age_s=1) for uid in late))
    ended, passes = reply.ended, 0
    while not reply.done:
        reply = b.sweep("a", cursor=reply.cursor)
        ended += reply.ended
        passes += reply.cursor == "0"
    assert (ended, passes) == (count + len(late), 2)
    assert online_sessions(server.client) == set()
    assert check_alternation(events(server.client)) == set()


@pytest.mark.parametrize("status", [ReplyStatus.FENCED, ReplyStatus.UNKNOWN, ReplyStatus.OTHER_REPLICATION])
def test_a_sweeper_that_fell_behind_is_refused(
    peer: Hand, store: RedisStore, server: Server, status: ReplyStatus
) -> None:
    if status is ReplyStatus.FENCED:
        third = Hand(store, "third")
        third.open()
        third.fence("b")
    elif status is ReplyStatus.UNKNOWN:
        peer.generation = 2
    else:
        peer.replication_id = "0" * 40
    assert peer.sweep("a").status is status
    assert peer.fence("u").status is status
    assert peer.retire().status is status
    assert online_sessions(server.client) == {("u", "", "s1")}


def test_a_history_of_openings_returns_what_was_applied(dead: Hand, store: RedisStore) -> None:
    """Two openings in a row whose answers were lost: the third still returns the first counter."""
    dead.apply(end("u", "s1"))
    dead.open(2)
    opened = Hand(store, "third").open(before="a").opened
    assert opened is not None
    assert [(stand.counter.generation, stand.counter.n) for stand in opened.batch_history] == [
        (2, 1),
        (1, 3),
        (0, 0),
    ]


def test_a_kick_notifies_every_node_of_the_user(dead: Hand, peer: Hand, store: RedisStore) -> None:
    shape = store._shape
    peer.apply(login("u", "s2", "desk"))
    arguments = [*shape._common(0, "", 0, ""), "u", "an operator"]
    store.one(Call("kick", shape.key_names(0, ""), arguments))
    assert probed(store, "b").inbox == (NodeNotice(NodeNoticeKind.KICKED, "u", "desk", "s2", "an operator"),)
    assert probed(store, "a").inbox == ()
