"""``presence advise`` against real streams."""

import json
from typing import Any

import pytest

from presence.ops import advise
from presence.protocol import Code
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("clean_environment")
KEYS = Keys(shards=2)
HOUR_MS = 3_600_000


@pytest.fixture
def now_ms(client: Redis) -> int:
    seconds, microseconds = client.time()
    client.hset(KEYS.meta, "shards", KEYS.shards)
    client.hset(KEYS.lease_keys[1], "n1", "1")
    client.zadd(KEYS.nodes, {"n1": 10**15})
    client.hset(KEYS.lease_keys[2], "n1", json.dumps({"settings": "idle_timeout=30.0 disconnect_grace=5.0"}))
    return int(seconds * 1000 + microseconds // 1000)


def put(client: Redis, uid: str, type: str, at_ms: int, code: Code, silent_s: float = 0) -> None:
    seen_ms = at_ms - round(1000 * silent_s)
    fields: Any = {"type": type, "uid": uid, "code": int(code), "at_ms": at_ms, "last_seen_ms": seen_ms}
    client.xadd(KEYS.events(KEYS.shard(uid)), fields, id=f"{at_ms}-*")


def put_absence(client: Redis, uid: str, at_ms: int, code: Code, silent_s: float, away_s: float) -> None:
    put(client, uid, "offline", at_ms, code, silent_s)
    put(client, uid, "online", at_ms + round(1000 * away_s), Code.LOGIN)


def advice(command: Command, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command("advise", "--json", *words).out)
    return found


def test_an_idle_time_out_is_named_that_would_have_spared_most(
    command: Command, client: Redis, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advise, "ENTRIES_PER_PAGE", 3)
    for n in range(10):
        put_absence(client, f"u{n}", now_ms - HOUR_MS + 100_000 * n, Code.IDLE_TIMEOUT, 30.5, 1 + n)
    found = advice(command)
    (absences,) = found["absences"]
    assert (found["entries"], absences["reason"], absences["idle_timeout_s"]) == (20, "idle_timeout", 30)
    assert absences["returned"] == {"5": 5, "30": 10, "60": 10}
    spare = {"setting": "idle_timeout", "more_s": 9, "seconds": 40, "idle_timeout_s": 40}
    assert absences["spare"] == spare


def test_a_grace_is_named_and_the_idle_time_out_that_it_needs(
    command: Command, client: Redis, now_ms: int
) -> None:
    put_absence(client, "ann", now_ms - HOUR_MS, Code.CLOSED, 12, 7)
    (absences,) = advice(command)["absences"]
    spare = {"setting": "disconnect_grace", "more_s": 7, "seconds": 12, "idle_timeout_s": 19}
    assert absences["spare"] == spare


def test_without_a_live_node_the_grace_is_not_known(command: Command, client: Redis, now_ms: int) -> None:
    client.zadd(KEYS.nodes, {"n1": 1})
    put_absence(client, "ann", now_ms - HOUR_MS, Code.CLOSED, 12, 7)
    found = advice(command)
    assert (found["disconnect_grace_s"], found["absences"][0]["spare"]["seconds"]) == (None, None)
    assert "disconnect_grace 7 s longer, idle_timeout 19" in command("advise").out


@pytest.mark.parametrize("code", [Code.LOGOUT, Code.KICKED, Code.NODE_DOWN])
def test_no_setting_spares_what_no_silence_caused(
    command: Command, client: Redis, now_ms: int, code: Code
) -> None:
    put_absence(client, "ann", now_ms - HOUR_MS, code, 5, 1)
    (absences,) = advice(command)["absences"]
    assert (absences["returned"]["5"], absences["spare"]) == (1, None)


def test_only_the_asked_time_is_read(command: Command, client: Redis, now_ms: int) -> None:
    put_absence(client, "ann", now_ms - 2 * HOUR_MS, Code.CLOSED, 5, 1)
    put_absence(client, "ann", now_ms - HOUR_MS // 2, Code.CLOSED, 5, 1)
    found = advice(command, "--last", "1h")
    assert (found["entries"], found["absences"][0]["offline"]) == (2, 1)
    assert found["from_ms"] == now_ms - HOUR_MS // 2


def test_the_table_says_what_it_covers_and_what_it_does_not_see(
    command: Command, client: Redis, now_ms: int
) -> None:
    put_absence(client, "ann", now_ms - HOUR_MS, Code.IDLE_TIMEOUT, 30.2, 1)
    put(client, "bob", "offline", now_ms - 1000, Code.LOGOUT)
    lines = command("advise").out.splitlines()
    assert lines[0].startswith("3 entries since 20")
    assert lines[0].endswith("; the streams begin here")
    shares = "1 (100.0 %)  1 (100.0 %)  1 (100.0 %)"
    assert lines[2].split() == f"idle_timeout 30 s 1 {shares} idle_timeout 32".split()
    assert lines[3] == "not seen: users who stayed away, and those who were back later than in a minute"
    assert lines[4] == "not counted: 1 users who went offline within the last minute"


def test_without_entries_there_is_nothing_to_advise(command: Command) -> None:
    assert advice(command)["absences"] == []
