"""The known states of users: what was put is found, and a walk sees every user who stays."""

import random

from presence.watching.known_states import KnownStates
from presence.watching.user_states import NO_ENTRY, WatchedState
from tests.watching.fakes import entry, known_states

OFFLINE = WatchedState("offline")


def table(*uids: str) -> KnownStates:
    known = known_states()
    for uid in uids:
        known.put(uid, OFFLINE, NO_ENTRY)
    return known


def walked(known: KnownStates, most: int) -> list[str]:
    uids, cursor = known.walk(0, most)
    while cursor:
        some, cursor = known.walk(cursor, most)
        uids += some
    return uids


def test_the_last_state_of_a_user_is_found() -> None:
    known = table("ann")
    away = entry("ann", 7, "away")
    known.put("ann", away.state, away.id)
    assert (known.state("ann"), known.get("ann"), len(known)) == (away.state, (away.state, (7, 0)), 1)


def test_nothing_is_known_of_a_user_who_was_removed() -> None:
    known = table("ann")
    assert known.remove("ann")
    assert not known.remove("ann")
    assert (known.state("ann"), "ann" in known, len(known), known.all()) == (None, False, 0, [])


def test_a_walk_sees_every_user_once() -> None:
    known = table("ann", "bob", "cy", "dee", "eve")
    known.remove("bob")
    assert walked(known, 2) == ["ann", "cy", "dee", "eve"]


def test_a_walk_ends_although_most_places_are_free() -> None:
    known = table(*map(str, range(1000)))
    for number in range(999):
        known.remove(str(number))
    assert walked(known, 1) == ["999"]


def test_a_walk_sees_all_who_stay_whatever_others_do() -> None:
    rng = random.Random(7)
    staying = {f"stays-{number}" for number in range(50)}
    known = table(*(f"goes-{number}" for number in range(50)), *sorted(staying))
    seen: list[str] = []
    cursor = 0
    while True:
        some, cursor = known.walk(cursor, 3)
        seen += some
        known.remove(f"goes-{rng.randrange(50)}")
        known.put(f"comes-{rng.randrange(50)}", OFFLINE, NO_ENTRY)
        if cursor == 0:
            break
    assert staying <= set(seen)
    assert len(seen) == len(set(seen))
