"""More sessions than a user may have: their nodes hear which have to go, against a real server."""

import json
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import News, NewsKind, Reply
from tests.store.driving import Hand, listen, login, online_sessions, probed, reclaim, register
from tests.store.servers import Server

Step = Callable[[Hand, Hand], Reply]


def one(age_s: float = 2.0, number: int = 1, session: str = "") -> Step:
    """`a` tells a login, on a device of its own: 1, and so on."""
    return lambda a, _: a.apply(login("u", session or f"s{number}", str(number), age_s=age_s))


def other(tell: Callable[..., object] = login, age_s: float = 0.0) -> Step:
    """`b` tells a login, or what else, on device 9."""
    return lambda _, b: b.apply(tell("u", "s9", "9", age_s=age_s))  # type: ignore[arg-type]  # a change


def registered(age_s: float = 2.0) -> Step:
    return lambda a, _: a.apply(register("u", "s1", "1", age_s=age_s))


def anew(a: Hand, _b: Hand) -> Reply:
    return a.open(2)


def fenced(_a: Hand, b: Hand) -> Reply:
    return b.fence("a")


# Limits of the two nodes, policy, what they tell; which devices have to go, each in the inbox of its node.
RULES: dict[str, tuple[tuple[int, int], str, list[Step], str]] = {
    "as many as may be": ((2, 2), "oldest", [one(3), one(2, 2)], ""),
    "the oldest goes": ((2, 2), "oldest", [one(3), one(2, 2), other()], "a1"),
    "the newest goes where it is the policy": ((2, 2), "newest", [one(3), one(2, 2), other()], "b9"),
    "a node hears of its own sessions too": ((1, 1), "oldest", [one(2), one(0, 2)], "a1"),
    "all that are too many go": ((8, 2), "oldest", [one(9 - n, n) for n in range(4)] + [other()], "a0 a1 a2"),
    "a replaced session is not one more": ((1, 1), "oldest", [one(2), one(0, 1, "new")], ""),
    "registrations are limited as logins are": ((1, 1), "oldest", [registered(), other(register, 1)], "a1"),
    "what is reclaimed is limited too": ((1, 1), "newest", [registered(), other(reclaim, 1)], "b9"),
    "what was not registered since its node began anew may have ended": (
        (1, 1),
        "newest",
        [one(), anew, other()],
        "",
    ),
    "it counts as soon as it is registered again": (
        (1, 1),
        "oldest",
        [one(), anew, other(), registered(3)],
        "a1",
    ),
    "a fenced node is told nothing": ((1, 1), "oldest", [one(), fenced, other()], ""),
    "what a fenced node had takes nobody's place": ((1, 1), "newest", [one(), fenced, other()], ""),
}


@pytest.mark.parametrize("rule", RULES)
def test_who_has_to_go(server: Server, rule: str) -> None:
    limits, policy, steps, gone = RULES[rule]
    with ExitStack() as stack:
        hands = []
        for name, limit in zip("ab", limits, strict=True):
            store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, limit, policy))
            hands.append(Hand(stack.enter_context(closing(store)), name))
            hands[-1].open()
        for step in steps:
            step(*hands)
        told = {hand.node: probed(hand.store, hand.node).inbox for hand in hands}
    assert {news.kind for inbox in told.values() for news in inbox} <= {NewsKind.LIMITED}
    found = [node + each.device for node, inbox in told.items() for each in inbox]
    assert " ".join(found) == gone


def test_its_node_hears_at_once_who_came_and_it_stays_on_record_until_that_ends_it(server: Server) -> None:
    with closing(RedisStore(server.url, Shape(Keys(), 1000, 10**13, 1, "oldest"))) as store:
        a, b = Hand(store, "a"), Hand(store, "b")
        a.open()
        b.open()
        listener = listen(server.client, Keys().control_channel("a"))
        a.apply(login("u", "s1", "1", age_s=2))
        b.apply(login("u", "s2", "2"))
        message = listener.get_message(timeout=1)
        listener.close()
        assert probed(store, "a").inbox == (News(NewsKind.LIMITED, "u", "1", "s1", "b"),)
    assert message is not None
    assert json.loads(message["data"]) == {
        **{"type": "limited", "n": 1, "uid": "u", "device": "1", "session": "s1", "by": "b"},
        "return_allowed": False,
    }
    assert online_sessions(server.client) == {("u", "1", "s1"), ("u", "2", "s2")}
