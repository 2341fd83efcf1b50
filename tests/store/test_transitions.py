"""What Redis has written is counted once, whatever became of the answers."""

from collections.abc import Iterator

import pytest

from presence.changes import Profile
from presence.store.redis_store import RedisStore
from presence.store.replies import Status
from presence.transitions import Told, Transitions
from tests.store.driving import Hand, end, events, login, register, update, written
from tests.store.nodes import Loss, ManualNode
from tests.store.servers import Server

NOTHING = Transitions().report()


@pytest.fixture
def hand(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


@pytest.fixture
def node(server: Server) -> Iterator[ManualNode]:
    """A node with one shard, whose outbox holds ten changes."""
    node = ManualNode(server.url, max_items=10)
    node.settle()
    yield node
    node.store.close()


def counted(node: ManualNode) -> dict[str, dict[str, int]]:
    return node.transitions.report()


def test_a_call_tells_what_it_has_written_by_type_and_code(hand: Hand) -> None:
    away = update("u", "s1", code=3, profile=Profile(away=True))
    reply = hand.apply(
        login("u", "s1"), login("v", "s2"), away, register("w", "s3"), end("v", "s2", code=201)
    )
    assert set(reply.told) == {
        Told("online", 1, 2),
        Told("online", 2, 1),
        Told("away", 3, 1),
        Told("offline", 201, 1),
    }


def test_what_is_no_transition_is_not_told(hand: Hand) -> None:
    hand.apply(login("u", "s1"))
    reply = hand.apply(login("u", "s2", "phone"), end("u", "s1"), end("nobody", "s9"))
    assert reply.told == ()


def test_another_meta_is_told_as_an_update(hand: Hand) -> None:
    hand.apply(login("u", "s1"))
    reply = hand.apply(update("u", "s1", profile=Profile(meta='{"a":1}')))
    assert reply.told == (Told("update", 5, 1),)


def test_a_refusal_tells_nothing(hand: Hand) -> None:
    reply = hand.send(hand.batch([login("u", "s1")], n=9))
    assert reply.status is Status.GAP
    assert reply.told == ()


def test_a_batch_that_is_sent_again_tells_the_same(hand: Hand) -> None:
    batch = hand.batch([login("u", "s1")], n=2)
    assert hand.send(batch).told == hand.send(batch).told == (Told("online", 1, 1),)


def test_a_retirement_and_a_sweep_tell_their_ends(hand: Hand, store: RedisStore) -> None:
    hand.apply(login("u", "s1"))
    hand.open(2)
    assert hand.retire().told == (Told("offline", 402, 1),)
    hand.apply(login("v", "s2"), login("w", "s3"))
    peer = Hand(store, "peer")
    peer.open()
    peer.fence("a")
    assert peer.sweep("a").told == (Told("offline", 402, 2),)


def test_a_node_counts_a_batch_once_that_it_sent_again(node: ManualNode, server: Server) -> None:
    node.login("u")
    for _ in range(3):
        node.round(Loss.REPLY)
    assert counted(node) == NOTHING
    node.round()
    assert counted(node)["online"] == {"login": 1}
    node.settle()
    assert counted(node) == written(events(server.client))


def test_a_node_counts_a_batch_that_it_finds_in_the_trail(node: ManualNode, server: Server) -> None:
    node.login("u")
    node.round(Loss.REPLY)
    node.writers[0].resync()  # the answer will never be asked for again
    node.settle()
    assert counted(node)["online"] == {"login": 1}
    assert counted(node) == written(events(server.client))


def test_a_batch_that_was_never_applied_is_counted_when_it_is(node: ManualNode, server: Server) -> None:
    node.login("u")
    node.round(Loss.REQUEST)
    node.writers[0].resync()
    node.settle()
    assert counted(node)["online"] == {"login": 1}
    assert counted(node) == written(events(server.client))


def test_a_batch_is_found_behind_openings_whose_answers_got_lost_too(
    node: ManualNode, server: Server
) -> None:
    node.login("u")
    node.round(Loss.REPLY)
    for _ in range(2):
        node.writers[0].resync()
        node.round(Loss.REPLY)
    node.writers[0].resync()
    node.settle()
    assert node.writers[0].resyncs == 1, "the others were never heard of"
    assert counted(node) == written(events(server.client))
    assert counted(node)["online"] == {"login": 1}


def test_a_node_that_got_another_id_counts_what_it_wrote_under_the_old_one(
    node: ManualNode, server: Server
) -> None:
    node.login("u")
    node.round(Loss.REPLY)
    for writer in node.writers:
        writer.rename("b")
    node.node = "b"
    node.settle()
    assert counted(node)["online"] == {"login": 1}
    assert counted(node) == written(events(server.client))


def test_a_gap_is_counted_also_where_the_openings_answer_got_lost(node: ManualNode, server: Server) -> None:
    for n in range(12):
        node.login(f"u{n}")
    while not any(event["type"] == "gap" for event in events(server.client)):
        taken = node.writers[0].next(node.now)
        node.round(Loss.REPLY if taken is not None and getattr(taken, "opening", None) else Loss.NONE)
        node.now += 0.5
    node.writers[0].resync()
    node.settle()
    assert counted(node) == written(events(server.client))
    assert counted(node)["gap"]["gap"] == 2, "the second opening cannot know of the first one's"
