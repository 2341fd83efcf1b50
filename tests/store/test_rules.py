"""What the scripts of a shard make of what nodes tell: each rule is a row, played on a real server."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from presence.changes import Change, Profile
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.replies import Reply, Status
from presence.transitions import Transitions
from tests.store.driving import (
    Hand,
    check_alternation,
    end,
    events,
    hold,
    login,
    online_sessions,
    owned,
    reclaim,
    register,
    story,
    update,
    written,
)
from tests.store.servers import Server

Hands = dict[str, Hand]
Step = Callable[[Hands], Reply]
NODES = ("a", "b", "c")
AWAY = Profile(away=True)
DEVICES = ('"', "\\", 'a","b', "é\u2028", "%d", "x" * 64)


def a(*changes: Change, restores: bool = False) -> Step:
    return lambda hands: hands["a"].apply(*changes, restores=restores)


def b(*changes: Change, restores: bool = False) -> Step:
    return lambda hands: hands["b"].apply(*changes, restores=restores)


def anew(node: str) -> Step:
    """The node begins its second generation."""
    return lambda hands: hands[node].open(2)


def retire(node: str) -> Step:
    return lambda hands: hands[node].retire()


def fence(other: str) -> Step:
    return lambda hands: hands["c"].fence(other)


def sweep(other: str) -> Step:
    return lambda hands: hands["c"].sweep(other)


def renamed(other: str) -> Step:
    """The node `b` was `other` until now."""
    return lambda hands: hands["b"].open(2, before=other)


ONLINE, OFFLINE, RETURNED = "online u login", "offline u logout", "online u returned"
SWEPT = "offline u node_down"
NOBODY: set[str] = set()

RULES: dict[str, tuple[list[Step], list[str], set[str]]] = {
    # One node
    "a second device is no event": (
        [a(login("u", "s1", "phone"), login("u", "s2", "desk"))],
        [ONLINE],
        {"u/phone/s1", "u/desk/s2"},
    ),
    "a user stays online until the last device ends": (
        [a(login("u", "s1", "phone"), login("u", "s2", "desk"), end("u", "s1", "phone"))],
        [ONLINE],
        {"u/desk/s2"},
    ),
    "the end of a replaced session does nothing": (
        [a(login("u", "s1"), login("u", "s2"), end("u", "s1"))],
        [ONLINE],
        {"u//s2"},
    ),
    "the end of an unknown user does nothing": ([a(end("u", "s1"))], [], NOBODY),
    "items of one user in a batch see each other": (
        [a(login("u", "s1"), end("u", "s1"), login("u", "s2"), login("u", "s3", "tv"), end("u", "s2"))],
        [ONLINE, OFFLINE, ONLINE],
        {"u/tv/s3"},
    ),
    "the last word of a batch on a user stands": (
        [a(login("u", "s1")), a(end("u", "s1"), login("u", "s2"), end("u", "s2"))],
        [ONLINE, OFFLINE, ONLINE, OFFLINE],
        NOBODY,
    ),
    "a batch may be larger than one call takes": (
        [
            a(*(login(f"u{i}", "s") for i in range(1100))),
            a(*(end(f"u{i}", "s") for i in range(1100))),
        ],
        [f"online u{i} login" for i in range(1100)] + [f"offline u{i} logout" for i in range(1100)],
        NOBODY,
    ),
    "names may hold anything": (
        [a(login("9/ü'\"\\", "s1", "7"), *(login("u", f"s{i}", d) for i, d in enumerate(DEVICES)))],
        ["online 9/ü'\"\\ login", ONLINE],
        {"9/ü'\"\\/7/s1", *(f"u/{device}/s{i}" for i, device in enumerate(DEVICES))},
    ),
    # Sessions of other nodes
    "a login takes the place of another node's session": (
        [a(login("u", "sa")), b(login("u", "sb"))],
        [ONLINE],
        {"u//sb"},
    ),
    "a late login yields to a younger one": (
        [b(login("u", "sb")), a(login("u", "sa", age_s=1.5))],
        [ONLINE],
        {"u//sb"},
    ),
    "a late login takes the place of an older one": (
        [b(login("u", "sb", age_s=60)), a(login("u", "sa", age_s=50))],
        [ONLINE],
        {"u//sa"},
    ),
    "a login that is hardly late yields to nobody": (
        [b(login("u", "sb")), a(login("u", "sa", age_s=0.9))],
        [ONLINE],
        {"u//sa"},
    ),
    "a late login takes the place of its own node's session": (
        [a(login("u", "s1"), login("u", "s2", age_s=60))],
        [ONLINE],
        {"u//s2"},
    ),
    "a registration yields to another node's session": (
        [b(login("u", "sb", age_s=60)), a(register("u", "sa"))],
        [ONLINE],
        {"u//sb"},
    ),
    "a registration takes the place of a fenced node's session": (
        [b(login("u", "sb")), fence("b"), a(register("u", "sa"))],
        [ONLINE],
        {"u//sa"},
    ),
    "a registration replaces that of an older generation": (
        [a(login("u", "s1")), anew("a"), a(register("u", "s2"))],
        [ONLINE],
        {"u//s2"},
    ),
    "a registration of an unknown user is a return": ([a(register("u", "s1"))], [RETURNED], {"u//s1"}),
    "the end of a session that has moved does nothing to the new one": (
        [a(login("u", "sa")), b(login("u", "sb")), a(end("u", "sa", code=300))],
        [ONLINE],
        {"u//sb"},
    ),
    "an end is one whoever owns the session": (
        [a(login("u", "s1")), b(register("u", "s1")), a(end("u", "s1"))],
        [ONLINE, OFFLINE],
        NOBODY,
    ),
    # Where Redis went back the one that is surely younger stays
    **{
        f"reclaimed, {old_s} s beside {new_s} s": (
            [a(register("u", "old", age_s=old_s)), b(reclaim("u", "new", age_s=new_s))],
            [RETURNED],
            {f"u//{stays}"},
        )
        for old_s, new_s, stays in (
            (20.0, 3.0, "new"),
            (20.0, 14.0, "new"),
            (20.0, 16.0, "old"),
            (3.0, 20.0, "old"),
            (400.0, 385.0, "old"),
        )
    },
    # Ends that restore
    "a restoring end of a user online tells nothing": (
        [a(login("u", "s2")), a(end("u", "s1"), restores=True)],
        [ONLINE],
        {"u//s2"},
    ),
    "a restoring end of a session on record is an end": (
        [a(login("u", "s1")), a(end("u", "s1"), restores=True)],
        [ONLINE, OFFLINE],
        NOBODY,
    ),
    # What older generations and dead nodes own
    "a retirement ends what older generations own": (
        [a(login("u", "s1"), login("w", "s2")), anew("a"), a(register("w", "s2")), retire("a")],
        [ONLINE, "online w login", SWEPT],
        {"w//s2"},
    ),
    "a sweep passes over who came back elsewhere": (
        [a(login("u", "s1")), fence("a"), b(login("u", "s3")), sweep("a")],
        [ONLINE],
        {"u//s3"},
    ),
    "a node that takes a new id keeps its users": (
        [a(login("u", "s1")), fence("a"), renamed("a"), b(register("u", "s1")), sweep("a")],
        [ONLINE],
        {"u//s1"},
    ),
    "a second device keeps the user online through a sweep": (
        [a(login("u", "s1", "phone")), b(login("u", "s2", "desk")), fence("a"), sweep("a")],
        [ONLINE],
        {"u/desk/s2"},
    ),
    # Logins held back behind ends that wait
    "a mark tells nothing by itself": ([a(hold("u", "s1"))], [], NOBODY),
    **{
        f"by {name} the end of the last session gives over to a marked one": (
            [b(login("u", "sb", "phone")), a(hold("u", "sa", "desk", age_s=5)), *ends],
            [ONLINE],
            {"u/desk/sa"},
        )
        for name, ends in (
            ("its node", [b(end("u", "sb", "phone", age_s=1))]),
            ("a retirement", [anew("b"), retire("b")]),
            ("a sweep", [fence("b"), sweep("b")]),
        )
    },
    "what was marked ends as any": (
        [
            b(login("u", "sb", "phone")),
            a(hold("u", "sa", "desk", age_s=5)),
            b(end("u", "sb", "phone", age_s=1)),
            a(end("u", "before", "tv"), login("u", "sa", "desk", age_s=5), end("u", "sa", "desk")),
        ],
        [ONLINE, OFFLINE],
        NOBODY,
    ),
    "a period that Redis lost goes on in a marked session": (
        [a(hold("u", "sa", "desk", age_s=5)), b(end("u", "sb", "phone", age_s=1), restores=True)],
        [RETURNED],
        {"u/desk/sa"},
    ),
    "an end before the marked login makes the user offline": (
        [
            b(login("u", "sb", "phone")),
            a(hold("u", "sa", "desk", age_s=2)),
            b(end("u", "sb", "phone", age_s=5)),
            a(login("u", "sa", "desk", age_s=2)),
        ],
        [ONLINE, OFFLINE, ONLINE],
        {"u/desk/sa"},
    ),
    "a node's own mark holds up none of its ends": (
        [
            a(login("u", "s1")),
            a(hold("u", "s2", age_s=1)),
            a(end("u", "s1", age_s=2), login("u", "s2", age_s=1)),
        ],
        [ONLINE, OFFLINE, ONLINE],
        {"u//s2"},
    ),
    "marks of a fenced node count for nothing": (
        [b(login("u", "sb")), a(hold("u", "sa", "desk")), fence("a"), b(end("u", "sb"))],
        [ONLINE, OFFLINE],
        NOBODY,
    ),
    # How users show themselves
    "a user is away only when all devices are": (
        [
            a(login("u", "s1", "phone"), login("u", "s2", "desk"), update("u", "s1", "phone", profile=AWAY)),
            a(update("u", "s2", "desk", profile=AWAY)),
            a(update("u", "s1", "phone")),
        ],
        [ONLINE, "away u away", "away u back"],
        {"u/phone/s1", "u/desk/s2"},
    ),
    "an update of a session that was replaced does nothing": (
        [a(login("u", "s1"), login("u", "s2"), update("u", "s1", profile=AWAY))],
        [ONLINE],
        {"u//s2"},
    ),
    "an update that changes nothing is no event": (
        [a(login("u", "s1", profile=AWAY), update("u", "s1", profile=AWAY), update("w", "s2"))],
        [ONLINE],
        {"u//s1"},
    ),
}


def named(sessions: Iterable[tuple[str, ...]]) -> set[str]:
    return {"/".join(each) for each in sessions}


YIELDS = {
    "a late login yields to a younger one": {"sa"},
    "a registration yields to another node's session": {"sa"},
    **{name: {"new"} for name, (_, _, online) in RULES.items() if "u//old" in online},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule(store: RedisStore, server: Server, rule: str) -> None:
    steps, told, online = RULES[rule]
    hands, transitions, yielded = {name: Hand(store, name) for name in NODES}, Transitions(), set[str]()
    for hand in hands.values():
        hand.open()
    for step in steps:
        reply = step(hands)
        assert reply.status is Status.OK
        transitions.note(reply.told)
        yielded |= {each.session for each in reply.superseded if each.return_allowed}
    assert [" ".join(each) for each in story(server.client)] == told
    stream = events(server.client)
    assert check_alternation(stream) == {each.rsplit("/", 2)[0] for each in online}
    assert transitions.report() == written(stream), "each event is counted with the answer of its call"
    assert named(online_sessions(server.client)) == online
    offline = {event["uid"] for event in stream} - {each.rsplit("/", 2)[0] for each in online}
    seen: Any = server.client.zrange(Keys().seen(0), 0, -1)
    assert {uid.decode() for uid in seen} == offline
    assert named(set().union(*(owned(server.client, name) for name in NODES))) == online
    assert yielded == YIELDS.get(rule, set())
