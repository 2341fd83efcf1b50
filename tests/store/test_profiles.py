"""How users online show themselves, away and `meta`: records, entries and hints, against a real server."""

import json
from typing import Any

import pytest

from presence.changes import PLAIN, Profile
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from tests.store.driving import (
    NOW_MS,
    Hand,
    check_alternation,
    end,
    events,
    hold,
    listen,
    login,
    online_sessions,
    record,
    register,
    update,
)
from tests.store.servers import Server
from tests.store.test_rules import Step, anew, fence, sweep
from tests.store.test_rules import a as one
from tests.store.test_rules import b as other

KEYS = Keys()
AWAY, META = Profile(away=True), Profile(meta='{"v":"é \\" 1"}')
AWAY_META = Profile(away=True, meta='{"v":2}')


@pytest.fixture
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


@pytest.fixture
def b(store: RedisStore) -> Hand:
    hand = Hand(store, "b")
    hand.open()
    return hand


def told(server: Server) -> list[tuple[str, str, str | None, str | None]]:
    """The stream as (type, reason, status, meta)."""
    return [(e["type"], e["reason"], e.get("status"), e.get("meta")) for e in events(server.client)]


def session(server: Server, uid: str = "u", device: str = "") -> Any:
    return record(server.client, uid)["sessions"][device]


Told = list[tuple[str, str, str | None, str | None]]
ONE, TWO, THREE = (Profile(meta=f'{{"n":{n}}}') for n in (1, 2, 3))
BY_NAME = [login("u", f"s{name}", name, profile=Profile(meta=f'"{name}"')) for name in ("a", "B", "é", "aa")]
CAME = ("online", "login", None, None)
AWAY_TOLD = ("away", "away", "away", None)
BACK = ("away", "back", "online", None)

SHOWN: dict[str, tuple[list[Step], Told]] = {
    "a login may bring meta": ([one(login("u", "s1", profile=META))], [("online", "login", None, META.meta)]),
    "who comes back away is online and away at once": (
        [one(register("u", "s1", profile=AWAY_META))],
        [("online", "returned", "away", AWAY_META.meta)],
    ),
    "meta that is taken away is an update without it": (
        [one(login("u", "s1", profile=META), update("u", "s1"))],
        [("online", "login", None, META.meta), ("update", "updated", "online", None)],
    ),
    "a registration brings what was lost": (
        [one(login("u", "s1")), anew("a"), one(register("u", "s1", profile=AWAY_META))],
        [CAME, ("away", "away", "away", AWAY_META.meta)],
    ),
    "meta is that of the latest login among those that are not away": (
        [
            one(login("u", "s1", "a", age_s=9, profile=ONE), login("u", "s2", "b", age_s=8, profile=TWO)),
            one(login("u", "s3", "c", age_s=8.5, profile=THREE)),
            one(update("u", "s2", "b", profile=TWO._replace(away=True))),
        ],
        [
            ("online", "login", None, ONE.meta),
            ("update", "updated", "online", TWO.meta),
            ("update", "updated", "online", THREE.meta),
        ],
    ),
    "the later device, by its bytes, decides between logins of the same moment": (
        [one(*BY_NAME)],
        [("online", "login", None, '"a"'), ("update", "updated", "online", '"é"')],
    ),
    "a session that is replaced takes what it showed with it": (
        [one(login("u", "s1", age_s=60, profile=META)), other(login("u", "s2"))],
        [("online", "login", None, META.meta), ("update", "updated", "online", None)],
    ),
    "a sweep tells what is shown afterwards": (
        [
            one(login("u", "s1", "phone", profile=AWAY)),
            other(login("u", "s2", "desk")),
            fence("b"),
            sweep("b"),
        ],
        [("online", "login", "away", None), BACK, AWAY_TOLD],
    ),
    "a marked session shows itself as the mark says": (
        [
            other(login("u", "sb", "phone")),
            one(hold("u", "sa", "desk", age_s=5, profile=AWAY_META)),
            other(end("u", "sb", "phone", age_s=1)),
            one(login("u", "sa", "desk", age_s=5, profile=AWAY_META)),
        ],
        [CAME, ("away", "away", "away", AWAY_META.meta)],
    ),
    "a lost period that a marked session goes on with shows it": (
        [one(hold("u", "sa", "desk", age_s=5, profile=META)), other(end("u", "sb", "phone"), restores=True)],
        [("online", "returned", None, None), ("update", "updated", "online", META.meta)],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_told(store: RedisStore, server: Server, name: str) -> None:
    steps, wanted = SHOWN[name]
    hands = {node: Hand(store, node) for node in "abc"}
    for hand in hands.values():
        hand.open()
    for step in steps:
        step(hands)
    assert told(server) == wanted
    if len(wanted) == 1:
        ((_, _, status, meta),) = wanted
        (session,) = record(server.client, "u")["sessions"].values()
        assert (session.get("away", False), session.get("meta")) == (status == "away", meta)


# Of one session


def test_a_plain_record_has_its_former_form_to_the_byte(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone"))
    a.apply(update("u", "s1", "phone", profile=PLAIN), register("u", "s1", "phone"))
    text: Any = server.client.hget(KEYS.online(0), "u")
    its = session(server, device="phone")
    assert text.decode() == (
        f'{{"id":"{events(server.client)[0]["id"]}","since_ms":{NOW_MS},"sessions":{{"phone":{{"session":"s1",'
        f'"node":"a","generation":1,"login_ms":{its["login_ms"]},"arrived_ms":{its["arrived_ms"]},'
        '"idle_timeout_ms":30000}}}'
    )
    assert len(events(server.client)) == 1


def test_away_is_an_entry_with_every_field(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", profile=META))
    a.apply(update("u", "s1", "phone", code=3, at_ms=NOW_MS + 9, profile=META._replace(away=True)))
    online, away = events(server.client)
    entry_id = away.pop("id")
    assert away == {
        **{"v": "1", "type": "away", "uid": "u", "code": "3", "reason": "away", "node": "a", "session": "s1"},
        **{"device": "phone", "since_ms": str(NOW_MS), "since_id": online["id"], "at_ms": str(NOW_MS + 9)},
        **{"last_seen_ms": str(NOW_MS + 9), "status": "away", "status_ms": str(NOW_MS + 9)},
        "meta": META.meta,
    }
    assert record(server.client, "u")["state"] == {"id": entry_id, "since_ms": NOW_MS + 9}


def test_back_is_an_entry_of_its_own_code(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), update("u", "s1", profile=AWAY), update("u", "s1", at_ms=NOW_MS + 5))
    assert told(server)[1:] == [("away", "away", "away", None), ("away", "back", "online", None)]
    back = events(server.client)[-1]
    assert (back["code"], back["status_ms"], back["at_ms"]) == ("4", str(NOW_MS + 5), str(NOW_MS + 5))


def test_another_meta_is_an_update_and_leaves_the_status_as_old_as_it_is(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    a.apply(update("u", "s1", profile=AWAY, at_ms=NOW_MS + 5))
    a.apply(update("u", "s1", profile=AWAY_META, at_ms=NOW_MS + 9))
    entry = events(server.client)[-1]
    assert (entry["type"], entry["code"], entry["reason"]) == ("update", "5", "updated")
    assert (entry["status"], entry["status_ms"], entry["at_ms"]) == ("away", str(NOW_MS + 5), str(NOW_MS + 9))
    assert record(server.client, "u")["state"] == {"id": entry["id"], "since_ms": NOW_MS + 5}


def test_a_first_update_leaves_the_status_as_old_as_the_period(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), update("u", "s1", profile=META, at_ms=NOW_MS + 5))
    entry = events(server.client)[-1]
    assert (entry["status"], entry["status_ms"]) == ("online", str(NOW_MS))


def test_the_end_of_one_who_was_away_is_an_offline_event_as_any(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), update("u", "s1", profile=AWAY_META), end("u", "s1"))
    online, _, offline = events(server.client)
    assert (offline["since_id"], offline["since_ms"]) == (online["id"], online["since_ms"])
    assert "status" not in offline
    assert check_alternation(events(server.client)) == set()


def test_a_lengthened_grace_is_told_with_the_end(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), end("u", "s1", grace_ms=12_000), login("w", "s2", "x"), login("w", "s3", "y"))
    a.apply(end("w", "s2", "x", grace_ms=24_000), end("w", "s3", "y", grace_ms=48_000), end("z", "s4"))
    assert [e.get("grace_ms") for e in events(server.client)] == [None, "12000", None, "48000"]


def test_a_damaged_state_counts_as_absent(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    text = record(server.client, "u")
    text["state"] = {"id": 7}
    text["sessions"][""] |= {"away": "yes", "meta": ["x"]}
    server.client.hset(KEYS.online(0), "u", json.dumps(text))
    a.apply(update("u", "s1", profile=META))
    assert told(server)[1:] == [("update", "updated", "online", META.meta)]


# Of several


def test_a_device_that_comes_or_goes_changes_what_the_user_shows(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", age_s=9), update("u", "s1", "phone", profile=AWAY))
    a.apply(login("u", "s2", "desk", at_ms=NOW_MS + 3, profile=META))
    a.apply(end("u", "s2", "desk", at_ms=NOW_MS + 8, last_seen_ms=NOW_MS + 4))
    assert told(server)[2:] == [("away", "back", "online", META.meta), ("away", "away", "away", None)]
    back, away = events(server.client)[2:]
    assert (back["session"], back["device"], back["at_ms"]) == ("s2", "desk", str(NOW_MS + 3))
    assert (away["session"], away["device"], away["at_ms"]) == ("s2", "desk", str(NOW_MS + 8))
    assert online_sessions(server.client) == {("u", "phone", "s1")}


# Hints


def watch(server: Server, *uids: str, also: str | None = None) -> Any:
    channels = [KEYS.watchers_channel(0), *map(KEYS.user_channel, uids)]
    return listen(server.client, *channels, *([also] if also else []))


def hints(listener: Any, count: int) -> list[Any]:
    heard = [listener.get_message(timeout=1) for _ in range(count)]
    assert None not in heard
    assert listener.get_message(timeout=0.05) is None
    return [json.loads(message["data"]) for message in heard]


def test_whoever_listens_to_a_user_hears_every_entry_of_the_user(a: Hand, server: Server) -> None:
    listener = watch(server, "u")
    a.apply(login("u", "s1", profile=META), login("w", "s2"))
    a.apply(update("u", "s1", profile=AWAY_META), update("u", "s1", profile=AWAY, at_ms=NOW_MS + 1))
    a.apply(end("u", "s1", grace_ms=9000, at_ms=NOW_MS + 2), end("w", "s2"))
    heard = hints(listener, 4)
    listener.close()
    entries = [entry for entry in events(server.client) if entry["uid"] == "u"]
    shown = [{key: str(value) for key, value in hint.items()} for hint in heard]
    assert [hint["status"] for hint in heard] == ["online", "away", "away", "offline"]
    assert [hint["status_ms"] - NOW_MS for hint in heard] == [0, 0, 0, 2]
    added = {"status": "", "status_ms": ""}
    assert [{**hint, **added} for hint in shown] == [{**entry, **added} for entry in entries]
    assert heard[0]["at_ms"] == NOW_MS, "numbers are numbers"


def test_hints_and_events_of_all_users_go_to_whoever_listens_to_both(a: Hand, server: Server) -> None:
    listener = watch(server, "u", also=KEYS.offline_channel)
    a.apply(login("u", "s1"), end("u", "s1"), login("w", "s2"), end("w", "s2"))
    heard = hints(listener, 4)
    listener.close()
    assert [(hint["uid"], hint.get("status")) for hint in heard] == [
        *[("u", "online"), ("u", None), ("u", "offline")],
        ("w", None),
    ]


def test_retirements_and_sweeps_hint_too(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    b.apply(login("w", "s2"))
    listener = watch(server, "u", "w")
    a.open(2)
    a.retire()
    a.fence("b")
    assert a.sweep("b").done
    heard = hints(listener, 2)
    listener.close()
    assert [(hint["uid"], hint["status"], hint["reason"], hint["node"]) for hint in heard] == [
        ("u", "offline", "node_down", "a"),
        ("w", "offline", "node_down", "b"),
    ]
