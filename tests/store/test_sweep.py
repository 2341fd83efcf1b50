"""Fences and sweeps, by script: who is dead may write nothing, and ends what he owns once."""

import time

import pytest

from presence.store.keys import Keys
from presence.store.packing import FENCE_KEPT_S, FIELDS_A_CALL
from presence.store.redis_store import RedisStore
from presence.store.replies import News, NewsKind, Status
from presence.store.scripting import Call
from tests.store.driving import (
    Hand,
    check_alternation,
    end,
    events,
    login,
    online_sessions,
    probed,
    story,
)
from tests.store.servers import Server

KEYS = Keys()


@pytest.fixture
def dead(store: RedisStore) -> Hand:
    dead = Hand(store, "dead")
    dead.open()
    return dead


@pytest.fixture
def peer(store: RedisStore, dead: Hand) -> Hand:
    peer = Hand(store, "peer")
    peer.open()
    return peer


def test_a_fenced_node_writes_nothing_more(dead: Hand, peer: Hand, server: Server) -> None:
    assert peer.fence("dead").status is Status.OK
    assert dead.apply(login("u", "s")).status is Status.FENCED
    assert dead.open(2).status is Status.FENCED
    assert dead.retire().status is Status.FENCED
    assert events(server.client) == []


def test_a_node_can_be_fenced_where_it_never_wrote(peer: Hand, store: RedisStore) -> None:
    peer.fence("stranger")
    assert Hand(store, "stranger").open().status is Status.FENCED


def test_the_sweep_ends_what_the_dead_node_owns(dead: Hand, peer: Hand, server: Server) -> None:
    dead.apply(login("u", "s1"), login("v", "s2", "phone"))
    peer.apply(login("w", "s3"))
    peer.fence("dead")
    reply = peer.sweep("dead")
    assert (reply.status, reply.ended, reply.done) == (Status.OK, 2, True)
    assert set(story(server.client)[3:]) == {("offline", "u", "node_down"), ("offline", "v", "node_down")}
    assert {event["node"] for event in events(server.client)[3:]} == {"dead"}
    assert online_sessions(server.client) == {("w", "", "s3")}
    assert check_alternation(events(server.client)) == {"w"}


def test_without_the_fence_nothing_is_swept(dead: Hand, peer: Hand, server: Server) -> None:
    dead.apply(login("u", "s1"))
    assert peer.sweep("dead").status is Status.UNFENCED
    assert online_sessions(server.client) == {("u", "", "s1")}


def test_an_opening_fences_the_id_before_it(dead: Hand, store: RedisStore) -> None:
    """What of the old id is still under way must not be applied after the opening has told what was."""
    Hand(store, "renamed").open(before="dead")
    assert dead.apply(login("u", "s1")).status is Status.FENCED


def test_a_session_with_a_longer_time_out_is_left_for_later(dead: Hand, peer: Hand) -> None:
    dead.apply(login("u", "s1"))  # 30 s
    peer.fence("dead")
    early = peer.sweep("dead", waited_ms=10_000)
    assert (early.ended, early.wait_ms, early.done) == (0, 20_000, False)
    late = peer.sweep("dead", waited_ms=30_000)
    assert (late.ended, late.done) == (1, True)


def test_last_seen_is_the_last_renewal_at_most(dead: Hand, peer: Hand, server: Server) -> None:
    earlier_ms = int(time.time() * 1000) - 60_000
    dead.apply(login("u", "s1", at_ms=earlier_ms - 1000))
    dead.apply(login("v", "s2", at_ms=earlier_ms + 5000))
    peer.fence("dead")
    peer.sweep("dead", latest_ms=earlier_ms)
    seen = {
        each["uid"]: int(each["last_seen_ms"]) for each in events(server.client) if each["type"] == "offline"
    }
    assert seen == {"u": earlier_ms, "v": earlier_ms + 5000}


def test_the_sweep_is_in_bounded_calls(dead: Hand, peer: Hand, server: Server) -> None:
    count = 3 * FIELDS_A_CALL
    dead.apply(*(login(f"u{i}", f"s{i}") for i in range(count)))
    peer.fence("dead")
    cursor, calls, ended, done = "0", 0, [], False
    while not done:
        reply = peer.sweep("dead", cursor=cursor)
        cursor, done, calls = reply.cursor, reply.done, calls + 1
        ended.append(reply.ended)
    assert sum(ended) == count
    assert max(ended) < 2 * FIELDS_A_CALL
    assert online_sessions(server.client) == set()


def test_two_sweepers_harm_nothing(dead: Hand, peer: Hand, store: RedisStore, server: Server) -> None:
    other = Hand(store, "other")
    other.open()
    dead.apply(login("u", "s1"))
    peer.fence("dead")
    other.fence("dead")
    assert peer.sweep("dead").ended + other.sweep("dead").ended == 1
    assert len(events(server.client)) == 2


@pytest.mark.parametrize("status", [Status.FENCED, Status.UNKNOWN, Status.HISTORY])
def test_a_sweeper_that_fell_behind_is_refused(
    dead: Hand, peer: Hand, store: RedisStore, server: Server, status: Status
) -> None:
    dead.apply(login("u", "s1"))
    peer.fence("dead")
    if status is Status.FENCED:
        third = Hand(store, "third")
        third.open()
        third.fence("peer")
    elif status is Status.UNKNOWN:
        peer.generation = 2
    else:
        peer.replication_id = "0" * 40
    assert peer.sweep("dead").status is status
    assert peer.fence("u").status is status
    assert peer.retire().status is status
    assert online_sessions(server.client) == {("u", "", "s1")}


def test_fence_and_counter_outlive_the_sweep(dead: Hand, peer: Hand, server: Server) -> None:
    dead.apply(login("u", "s1"))
    peer.fence("dead")
    assert peer.sweep("dead").done
    assert not server.client.hexists(KEYS.traces(0), "dead")
    assert dead.apply(login("v", "s2")).status is Status.FENCED
    kept: int = server.client.ttl(KEYS.node(0, "dead"))
    assert FENCE_KEPT_S - 10 < kept <= FENCE_KEPT_S


def test_a_fence_that_comes_after_the_sweep_leaves_no_trace(dead: Hand, peer: Hand, server: Server) -> None:
    dead.apply(login("u", "s1"))
    peer.fence("dead")
    assert server.client.hexists(KEYS.traces(0), "dead")
    assert peer.sweep("dead").done
    peer.fence("dead")
    assert not server.client.hexists(KEYS.traces(0), "dead")


def test_a_trail_of_openings_tells_what_was_applied(dead: Hand, store: RedisStore) -> None:
    """Two openings in a row whose answers got lost: the third still tells how the first counter stood."""
    dead.apply(login("u", "s1"), end("u", "s1"))
    dead.open(2)
    opened = Hand(store, "third").open(before="dead").opened
    assert opened is not None
    assert [(stand.counter.generation, stand.counter.n) for stand in opened.trail] == [(2, 1), (1, 2), (0, 0)]


def test_a_kick_tells_every_node_of_the_user(dead: Hand, peer: Hand, store: RedisStore) -> None:
    shape = store._shape
    dead.apply(login("u", "s1", "phone"))
    peer.apply(login("u", "s2", "desk"))
    peer.fence("dead")
    arguments = [*shape._common(0, "", 0, ""), "u", "an operator"]
    store._scripting.one(Call("kick", shape.key_names(0, ""), arguments))
    assert probed(store, "peer").inbox == (News(NewsKind.KICKED, "u", "desk", "s2", "an operator"),)
    assert probed(store, "dead").inbox == ()
