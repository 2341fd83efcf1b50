"""What the scripts of a shard make of what nodes tell: each rule is a row, played on a real server."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from presence.changes import Change, Profile
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.records import online_state
from presence.store.redis_store import RedisStore
from presence.store.replies import NewsKind, Reply, Status
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
    probed,
    reclaim,
    register,
    update,
    written,
)
from tests.store.servers import Server

Hands = dict[str, Hand]
Step = Callable[[Hands], Reply]
NODES = ("a", "b", "c")
AWAY, META = Profile(away=True), Profile(meta='{"v":"é \\" 1"}')
AWAY_META = Profile(away=True, meta='{"v":2}')
ONE, TWO, THREE = (Profile(meta=f'{{"n":{n}}}') for n in (1, 2, 3))
BY_NAME = [login("u", f"s{name}", name, profile=Profile(meta=f'"{name}"')) for name in ("a", "B", "é", "aa")]
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
        [ONLINE, "away u away away", "away u back online"],
        {"u/phone/s1", "u/desk/s2"},
    ),
    "an update of a session that was replaced does nothing": (
        [a(login("u", "s1"), login("u", "s2"), update("u", "s1", profile=AWAY))],
        [ONLINE],
        {"u//s2"},
    ),
    "an update that changes nothing is no event": (
        [a(login("u", "s1", profile=AWAY), update("u", "s1", profile=AWAY), update("w", "s2"))],
        [f"{ONLINE} away"],
        {"u//s1"},
    ),
    "the end of one who was away is as any": (
        [a(login("u", "s1"), update("u", "s1", profile=AWAY_META), end("u", "s1"))],
        [ONLINE, f"away u away away {AWAY_META.meta}", OFFLINE],
        NOBODY,
    ),
    "a login may bring meta": (
        [a(login("u", "s1", profile=META))],
        [f"{ONLINE} {META.meta}"],
        {"u//s1"},
    ),
    "who comes back away is online and away at once": (
        [a(register("u", "s1", profile=AWAY_META))],
        [f"{RETURNED} away {AWAY_META.meta}"],
        {"u//s1"},
    ),
    "meta that is taken away is an update without it": (
        [a(login("u", "s1", profile=META), update("u", "s1"))],
        [f"{ONLINE} {META.meta}", "update u updated online"],
        {"u//s1"},
    ),
    "a registration brings what was lost": (
        [a(login("u", "s1")), anew("a"), a(register("u", "s1", profile=AWAY_META))],
        [ONLINE, f"away u away away {AWAY_META.meta}"],
        {"u//s1"},
    ),
    "meta is that of the latest login among those that are not away": (
        [
            a(login("u", "s1", "a", age_s=9, profile=ONE), login("u", "s2", "b", age_s=8, profile=TWO)),
            a(login("u", "s3", "c", age_s=8.5, profile=THREE)),
            a(update("u", "s2", "b", profile=TWO._replace(away=True))),
        ],
        [f"{ONLINE} {ONE.meta}", *(f"update u updated online {each.meta}" for each in (TWO, THREE))],
        {"u/a/s1", "u/b/s2", "u/c/s3"},
    ),
    "the later device, by its bytes, decides between logins of the same moment": (
        [a(*BY_NAME)],
        [f'{ONLINE} "a"', 'update u updated online "é"'],
        {f"u/{change.device}/{change.session}" for change in BY_NAME},
    ),
    "a session that is replaced takes what it showed with it": (
        [a(login("u", "s1", age_s=60, profile=META)), b(login("u", "s2"))],
        [f"{ONLINE} {META.meta}", "update u updated online"],
        {"u//s2"},
    ),
    "a sweep tells what is shown afterwards": (
        [a(login("u", "s1", "phone", profile=AWAY)), b(login("u", "s2", "desk")), fence("b"), sweep("b")],
        [f"{ONLINE} away", "away u back online", "away u away away"],
        {"u/phone/s1"},
    ),
    "a marked session shows itself as the mark says": (
        [
            b(login("u", "sb", "phone")),
            a(hold("u", "sa", "desk", age_s=5, profile=AWAY_META)),
            b(end("u", "sb", "phone", age_s=1)),
            a(login("u", "sa", "desk", age_s=5, profile=AWAY_META)),
        ],
        [ONLINE, f"away u away away {AWAY_META.meta}"],
        {"u/desk/sa"},
    ),
    "a lost period that a marked session goes on with shows it": (
        [a(hold("u", "sa", "desk", age_s=5, profile=META)), b(end("u", "sb", "phone"), restores=True)],
        [RETURNED, f"update u updated online {META.meta}"],
        {"u/desk/sa"},
    ),
}


def line(event: dict[str, str]) -> str:
    names = ("type", "uid", "reason", "status", "meta")
    return " ".join(event[name] for name in names if name in event)


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
    stream = events(server.client)
    assert [line(event) for event in stream] == told
    assert check_alternation(stream) == {each.rsplit("/", 2)[0] for each in online}
    assert transitions.report() == written(stream), "each event is counted with the answer of its call"
    assert named(online_sessions(server.client)) == online
    raw: Any = server.client.hgetall(Keys().online(0))
    for uid, text in raw.items():
        state, event = online_state(text), [each for each in stream if each["uid"] == uid.decode()][-1]
        assert state is not None
        assert (state["status"], state.get("meta")) == (event.get("status", "online"), event.get("meta"))
    offline = {event["uid"] for event in stream} - {each.rsplit("/", 2)[0] for each in online}
    seen: Any = server.client.zrange(Keys().seen(0), 0, -1)
    assert {uid.decode() for uid in seen} == offline
    assert named(set().union(*(owned(server.client, name) for name in NODES))) == online
    assert yielded == YIELDS.get(rule, set())


# More sessions than a user may have


def on_device(number: int, age_s: float, session: str = "") -> Step:
    """`a` tells a login, on a device of its own."""
    return a(login("u", session or f"s{number}", str(number), age_s=age_s))


NINE = b(login("u", "s9", "9"))
RENEWED = a(register("u", "s1", "1", age_s=2))

# How many sessions each of two nodes allows, which have to go, what nodes tell; and who has to go:
# node and device.
LIMITS: dict[str, tuple[tuple[int, int], str, list[Step], str]] = {
    "as many as may be": ((2, 2), "oldest", [on_device(1, 3), on_device(2, 2)], ""),
    "the oldest goes": ((2, 2), "oldest", [on_device(1, 3), on_device(2, 2), NINE], "a1"),
    "the newest goes where it is the policy": (
        (2, 2),
        "newest",
        [on_device(1, 3), on_device(2, 2), NINE],
        "b9",
    ),
    "a node hears of its own sessions too": ((1, 1), "oldest", [on_device(1, 2), on_device(2, 0)], "a1"),
    "all that are too many go": (
        (8, 2),
        "oldest",
        [on_device(n, 9 - n) for n in range(4)] + [NINE],
        "a0 a1 a2",
    ),
    "a replaced session is not one more": ((1, 1), "oldest", [on_device(1, 2), on_device(1, 0, "new")], ""),
    "registrations are limited as logins are": (
        (1, 1),
        "oldest",
        [RENEWED, b(register("u", "s9", "9", age_s=1))],
        "a1",
    ),
    "what is reclaimed is limited too": (
        (1, 1),
        "newest",
        [RENEWED, b(reclaim("u", "s9", "9", age_s=1))],
        "b9",
    ),
    "what was not registered since its node began anew may have ended": (
        (1, 1),
        "newest",
        [on_device(1, 2), anew("a"), NINE],
        "",
    ),
    "it counts as soon as it is registered again": (
        (1, 1),
        "oldest",
        [on_device(1, 2), anew("a"), NINE, a(register("u", "s1", "1", age_s=3))],
        "a1",
    ),
    "a fenced node is told nothing": ((1, 1), "oldest", [on_device(1, 2), fence("a"), NINE], ""),
    "what a fenced node had takes nobody's place": (
        (1, 1),
        "newest",
        [on_device(1, 2), fence("a"), NINE],
        "",
    ),
}


@pytest.mark.parametrize("rule", LIMITS)
def test_who_has_to_go(server: Server, rule: str) -> None:
    limits, policy, steps, gone = LIMITS[rule]
    hands: Hands = {}
    with ExitStack() as stack:
        for name, limit in zip(NODES, (*limits, 8), strict=True):
            store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, limit, policy))
            hands[name] = Hand(stack.enter_context(closing(store)), name)
            hands[name].open()
        for step in steps:
            assert step(hands).status is Status.OK
        told = {name: probed(hand.store, name).inbox for name, hand in hands.items()}
    assert {news.kind for inbox in told.values() for news in inbox} <= {NewsKind.LIMITED}
    assert " ".join(node + each.device for node, inbox in told.items() for each in inbox) == gone
