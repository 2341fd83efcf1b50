"""Reads for queries and watches: users who have been away for long, and turns for other tasks."""

import json
import time
from collections.abc import Mapping

import pytest

from presence.common import loop_calls
from presence.common.loop_calls import MAX_BYTES_PER_TURN
from presence.core.profiles import Profile
from presence.store.keys import Keys
from presence.store.watch_reads import StoredStates, forgotten_before_ms, read_snapshot
from presence.watching.user_states import WatchedState
from tests.store.driving import Hand, end, login, update
from tests.store.servers import Server

KEYS = Keys()
DAY_MS = 86_400_000
INVISIBLE = Profile(status="invisible")
# Last seen at the same moment: offline; invisible since; the same, and offline by now.
AWAY = ("off", "hidden", "gone")


@pytest.fixture
def since_ms(a: Hand) -> int:
    """When the users were last seen, two days ago."""
    at_ms = int(time.time() * 1000) - 2 * DAY_MS
    a.apply(*(login(uid, uid, at_ms=at_ms) for uid in AWAY))
    a.apply(end("off", "off", at_ms=at_ms))
    a.apply(*(update(uid, uid, at_ms=at_ms, profile=INVISIBLE) for uid in AWAY[1:]))
    a.apply(end("gone", "gone", at_ms=at_ms + DAY_MS))
    return at_ms


def shown(server: Server, how: str, days: int) -> Mapping[str, WatchedState]:
    """Return what clients are shown of the users, and of one who never came, with this retention."""
    uids = [*AWAY, "nobody"]
    if how == "watch":
        forgotten_ms = forgotten_before_ms(days * DAY_MS)
        return read_snapshot(server.client, KEYS, 0, uids, detail=True, forgotten_ms=forgotten_ms).states
    states = StoredStates(server.url, KEYS, retention_ms=days * DAY_MS)
    try:
        return states.read(uids, detail=True)
    finally:
        states.close()


@pytest.mark.parametrize("how", ["query", "watch"])
def test_a_user_invisible_for_long_is_shown_like_one_offline_for_long(
    server: Server, since_ms: int, how: str
) -> None:
    remembered, forgotten = shown(server, how, 3), shown(server, how, 1)
    assert {remembered[uid].last_seen_ms for uid in AWAY} == {since_ms}
    assert {forgotten[uid].shown()["last_seen_ms"] for uid in AWAY} == {None}
    assert all(forgotten[uid] == forgotten["nobody"] for uid in AWAY)


@pytest.mark.parametrize(("uid", "leases"), [("off", 0), ("hidden", 0), ("gone", 0), ("seen", 1)])
def test_a_query_asks_redis_the_same_of_an_invisible_user_as_of_one_who_is_offline(
    server: Server, a: Hand, since_ms: int, uid: str, leases: int
) -> None:
    a.apply(login("seen", "s1"))
    server.client.config_resetstat()
    states = StoredStates(server.url, KEYS)
    states.read([uid])
    states.close()
    calls = server.client.info("commandstats")
    assert calls["cmdstat_hmget"]["calls"] == 2
    assert calls["cmdstat_zmscore"]["calls"] == 1 + leases


def test_large_records_are_read_with_turns_for_other_tasks(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[None]()
    monkeypatch.setattr(loop_calls, "let_others_run", lambda: turns.append(None))
    uids = [f"u{number}" for number in range(20)]
    session = {"session": "s", "node": "a", "login_ms": 1, "meta": "x" * MAX_BYTES_PER_TURN}
    text = json.dumps({"id": "1-1", "since_ms": 1, "sessions": {"": session}})
    server.client.hset(KEYS.online(0), mapping=dict.fromkeys(uids, text))
    read_snapshot(server.client, KEYS, 0, uids)
    assert len(turns) == len(uids)
