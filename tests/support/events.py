"""Reading the events that the server wrote to Redis."""

from typing import Any

from loadtest.checker import Periods
from presence.store.keys import Keys
from presence.store.redis_client import open_client


def read_events(url: str, shards: int = 1) -> list[dict[str, Any]]:
    """Return every entry of all streams, numbers parsed, with its id under "entry"."""
    client: Any = open_client(url)  # redis-py types its answers for every protocol and decoding together
    keys = Keys("presence", shards)
    events: list[dict[str, Any]] = []
    try:
        for shard in range(shards):
            for entry_id, fields in client.xrange(keys.events(shard)):
                event: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
                for name in ("code", "at_ms", "since_ms", "last_seen_ms"):
                    if name in event:
                        event[name] = int(event[name])
                event["entry"] = entry_id.decode()
                event["shard"] = shard
                events.append(event)
    finally:
        client.close()
    return events


def of_type(events: list[dict[str, Any]], kind: str) -> dict[str, list[dict[str, Any]]]:
    """Return the events of one type by uid, in the stream's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["type"] == kind:
            found.setdefault(event["uid"], []).append(event)
    return found


def assert_alternation(events: list[dict[str, Any]]) -> None:
    """Each uid goes online, offline, online …, and each offline names the online event that it ends."""
    periods = Periods()
    for event in events:
        uid, session = event.get("uid", ""), event.get("session", "")
        if event["type"] == "online":
            assert not periods.user_online(uid, session, event["entry"], 0.0)
        elif event["type"] == "offline":
            assert not periods.user_offline(uid, session, event["since_id"])
