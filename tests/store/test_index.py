"""The index of sessions by node, which sweeps follow: what it lacks is restored from the records."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.core.changes import SessionName
from presence.core.profiles import PLAIN
from presence.ops.forget import Eraser
from presence.ops.kick import request_kick
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.steps import Compare, Counter, Reindex
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from tests.store.driving import (
    Hand,
    brief_events,
    check_alternation,
    events,
    login,
    online_sessions,
    owned,
    probed,
)
from tests.store.servers import Server
from tests.support.script_texts import changed, little_room

KEYS = Keys()
SESSIONS = [SessionName("u", "", "s1"), SessionName("v", "phone", "s2")]


def compared(hand: Hand) -> Reply:
    counter = Counter(hand.node, hand.generation, hand.n)
    plain = tuple(PLAIN for _ in SESSIONS)
    return hand.send(Compare(0, counter, hand.replication_id, "0", 100, tuple(SESSIONS), plain))


def reindexed(hand: Hand, cursor: str = "0") -> Reply:
    counter = Counter(hand.node, hand.generation, hand.n)
    return hand.send(Reindex(0, counter, hand.replication_id, cursor, 100))


@pytest.fixture
def node(a: Hand) -> Hand:
    a.apply(*(login(each.uid, each.session, each.device) for each in SESSIONS))
    return a


def lose_index(server: Server, lost: str) -> None:
    """Delete what leads to the sessions of the node."""
    if lost != "traces":
        server.client.delete(KEYS.sessions(0, "a"))
    if lost != "sessions":
        server.client.delete(KEYS.peer_traces(0))


@pytest.mark.parametrize("value", [None, "1 another", "2 s1", "x"])
def test_a_comparison_names_sessions_that_the_index_lacks(
    node: Hand, server: Server, value: str | None
) -> None:
    assert compared(node).missing == ()
    if value is None:
        server.client.hdel(KEYS.sessions(0, "a"), "u ")
    else:
        server.client.hset(KEYS.sessions(0, "a"), "u ", value)
    assert compared(node).missing == (0,)


def test_a_comparison_says_how_many_sessions_have_too_large_records_for_it(
    node: Hand, server: Server
) -> None:
    server.client.delete(KEYS.sessions(0, "a"))
    with changed(little_room(1)):
        reply = compared(node)
        assert (reply.missing, reply.uncompared) == ((0,), 1), "one user is never too many"
    assert (compared(node).missing, compared(node).uncompared) == ((0, 1), 0)


def test_a_walk_over_large_records_takes_more_calls(a: Hand, b: Hand, server: Server) -> None:
    a.apply(*(login(f"u{i}", f"s{i}") for i in range(100)))
    lose_index(server, "sessions")
    restored, cursor = list[int](), ""
    with changed(little_room()):
        while cursor != "0":
            reply = reindexed(b, cursor or "0")
            cursor = reply.cursor
            restored.append(reply.restored)
    assert sum(restored) == 100
    assert max(restored) < 50


@pytest.mark.parametrize("lost", ["sessions", "traces", "both"])
def test_after_a_walk_a_sweep_ends_each_session_once(node: Hand, b: Hand, server: Server, lost: str) -> None:
    lose_index(server, lost)
    assert reindexed(b).restored == (0 if lost == "traces" else 2)
    assert owned(server.client, "a") == {tuple(each) for each in SESSIONS}
    assert "a" in probed(b.store, "b").peer_traces
    b.fence("a")
    assert (b.sweep("a").ended, b.sweep("a").done) == (2, True)
    assert sorted(brief_events(server.client)[2:]) == [("offline", uid, "node_down") for uid in ("u", "v")]
    assert check_alternation(events(server.client)) == set()
    assert reindexed(b).restored == 0


def test_a_walk_over_a_complete_index_writes_nothing(node: Hand, b: Hand, server: Server) -> None:
    before = {key: server.client.dump(key) for key in server.client.scan_iter()}
    assert reindexed(b) == Reply(ReplyStatus.OK, b.replication_id)
    assert {key: server.client.dump(key) for key in server.client.scan_iter()} == before


def test_a_walk_names_users_whose_records_are_unreadable(node: Hand, b: Hand, server: Server) -> None:
    server.client.hset(KEYS.online(0), "u", '{"id":')
    assert reindexed(b).damaged == ("u",)


@pytest.fixture
def scripting(server: Server) -> Iterator[Scripting]:
    with closing(Scripting(server.url)) as scripting:
        yield scripting


@pytest.mark.parametrize("command", ["kick", "forget"])
def test_an_operator_who_names_an_orphaned_user_has_the_session_swept(
    node: Hand, b: Hand, server: Server, scripting: Scripting, command: str
) -> None:
    b.fence("a")
    b.sweep("a")
    node.open(2)  # refused: it is fenced
    assert online_sessions(server.client) == set()
    orphan = '{"id":"1-1","since_ms":1,"sessions":{"":{"session":"s1","node":"a","generation":1,' + (
        '"login_ms":1,"arrived_ms":1,"idle_timeout_ms":1000}}}'
    )
    server.client.hset(KEYS.online(0), "u", orphan)
    assert b.sweep("a").done, "nothing leads to it"
    if command == "kick":
        assert [each.fenced for each in request_kick(scripting, KEYS, ["u"])] == [True]
    else:
        with Eraser(server.url, KEYS) as eraser:
            assert eraser.forget(["u"]).online == ["u"]
    assert "a" in probed(b.store, "b").peer_traces
    assert b.sweep("a").ended == 1
    assert online_sessions(server.client) == set()
