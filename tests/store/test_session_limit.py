"""More sessions than a user may have: their nodes hear which have to go, against a real server."""

import json
from collections.abc import Callable, Iterator

import pytest

from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import News, NewsKind
from tests.store.driving import Hand, listen, login, online_sessions, probed, reclaim, register
from tests.store.servers import Server

KEYS = Keys()
Open = Callable[[str, int, str], Hand]


@pytest.fixture
def node(server: Server) -> Iterator[Open]:
    """Opens a node with a limit and a policy."""
    stores = []

    def opened(name: str, max_sessions: int, policy: str) -> Hand:
        stores.append(RedisStore(server.url, Shape(KEYS, 1000, 10**13, max_sessions, policy)))
        hand = Hand(stores[-1], name)
        hand.open()
        return hand

    yield opened
    for store in stores:
        store.close()


def limited(hand: Hand) -> list[tuple[str, str]]:
    """Who of this node has to go, by its inbox: (device, session)."""
    inbox = probed(hand.store, hand.node).inbox
    assert {news.kind for news in inbox} <= {NewsKind.LIMITED}
    return [(news.device, news.session) for news in inbox]


def test_the_oldest_has_to_go_and_its_node_hears_who_came(node: Open) -> None:
    a, b = node("a", 2, "oldest"), node("b", 2, "oldest")
    a.apply(login("u", "s1", "1", age_s=3), login("u", "s2", "2", age_s=2))
    assert limited(a) == []
    b.apply(login("u", "s3", "3"))
    assert probed(a.store, "a").inbox == (News(NewsKind.LIMITED, "u", "1", "s1", "b"),)
    assert limited(b) == []


def test_a_node_hears_of_its_own_sessions_too(node: Open) -> None:
    a = node("a", 1, "oldest")
    a.apply(login("u", "s1", "1", age_s=2), login("u", "s2", "2"))
    assert limited(a) == [("1", "s1")]


def test_the_newest_has_to_go_where_it_is_the_policy(node: Open) -> None:
    a, b = node("a", 2, "newest"), node("b", 2, "newest")
    a.apply(login("u", "s1", "1", age_s=3), login("u", "s2", "2", age_s=2))
    b.apply(login("u", "s3", "3"))
    assert (limited(a), limited(b)) == ([], [("3", "s3")])


def test_all_that_are_too_many_have_to_go(node: Open) -> None:
    a, b = node("a", 8, "oldest"), node("b", 2, "oldest")
    a.apply(*(login("u", f"s{i}", str(i), age_s=9 - i) for i in range(4)))
    b.apply(login("u", "s9", "9"))
    assert limited(a) == [("0", "s0"), ("1", "s1"), ("2", "s2")]


def test_they_stay_on_record_until_their_nodes_end_them(node: Open, server: Server) -> None:
    a = node("a", 1, "oldest")
    a.apply(login("u", "s1", "1", age_s=2), login("u", "s2", "2"))
    assert online_sessions(server.client) == {("u", "1", "s1"), ("u", "2", "s2")}


def test_a_replaced_session_is_not_one_more(node: Open) -> None:
    a = node("a", 1, "oldest")
    a.apply(login("u", "s1"), login("u", "s2"))
    assert limited(a) == []


def test_registrations_are_limited_as_logins_are(node: Open) -> None:
    a, b = node("a", 1, "oldest"), node("b", 1, "oldest")
    a.apply(register("u", "s1", "1", age_s=2))
    b.apply(register("u", "s2", "2", age_s=1))
    assert (limited(a), limited(b)) == ([("1", "s1")], [])


def test_a_reclaimed_session_is_limited_too(node: Open) -> None:
    a, b = node("a", 1, "newest"), node("b", 1, "newest")
    a.apply(register("u", "s1", "1", age_s=2))
    b.apply(reclaim("u", "s2", "2", age_s=1))
    assert (limited(a), limited(b)) == ([], [("2", "s2")])


def test_what_a_node_has_not_registered_since_it_began_anew_may_have_ended(node: Open) -> None:
    a, b = node("a", 1, "newest"), node("b", 1, "newest")
    a.apply(login("u", "s1", "1", age_s=2))
    a.open(2)
    b.apply(login("u", "s2", "2"))
    assert limited(b) == []


def test_it_counts_as_soon_as_it_is_registered_again(node: Open) -> None:
    a, b = node("a", 1, "oldest"), node("b", 1, "oldest")
    a.apply(login("u", "s1", "1", age_s=2))
    a.open(2)
    b.apply(login("u", "s2", "2"))
    a.apply(register("u", "s1", "1", age_s=3))
    assert (limited(a), limited(b)) == ([("1", "s1")], [])


def test_a_fenced_node_is_told_nothing(node: Open) -> None:
    a, b = node("a", 1, "oldest"), node("b", 1, "oldest")
    a.apply(login("u", "s1", "1", age_s=2))
    b.fence("a")
    b.apply(login("u", "s2", "2"))
    assert (limited(a), limited(b)) == ([], [])


def test_what_a_fenced_node_had_takes_nobodys_place(node: Open) -> None:
    a, b = node("a", 1, "newest"), node("b", 1, "newest")
    a.apply(login("u", "s1", "1", age_s=2))
    b.fence("a")
    b.apply(login("u", "s2", "2"))
    assert limited(b) == []


def test_it_goes_over_the_control_channel_at_once(node: Open, server: Server) -> None:
    a = node("a", 1, "oldest")
    listener = listen(server.client, KEYS.control_channel("a"))
    a.apply(login("u", "s1", "1", age_s=2), login("u", "s2", "2"))
    message = listener.get_message(timeout=1)
    listener.close()
    assert message is not None
    assert json.loads(message["data"]) == {
        **{"type": "limited", "n": 1, "uid": "u", "device": "1", "session": "s1", "by": "a"},
        "return_allowed": False,
    }
