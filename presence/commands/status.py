"""``presence status``: who is online, from Redis alone."""

import json
from datetime import UTC, datetime
from typing import Any

from presence.commands.outcome import FAILED, OK, USAGE, complain
from presence.reader import read_states, stored_shards
from presence.rendering import printable
from presence.store.client import CONNECTION_LOST, RedisError, open_client, redacted
from presence.store.keys import Keys


def run(redis_url: str, prefix: str, uids: list[str], *, as_json: bool) -> int:
    """Print the state of each user; return the exit status."""
    for uid in uids:
        if not uid or not uid.isprintable():  # no server takes such a uid; bytes that are no UTF-8 among them
            complain(f"uid {uid!r}: must be text without control characters")
            return USAGE
    try:
        with open_client(redis_url) as client:
            keys = Keys(prefix, stored_shards(client, prefix) or 1)
            states = read_states(client, keys, uids)
    except CONNECTION_LOST as error:
        complain(f"cannot reach Redis at {redacted(redis_url)}: {error}")
        return FAILED
    except (RedisError, ValueError) as error:
        complain(f"{redacted(redis_url)}: {error}")
        return FAILED
    if as_json:
        print(json.dumps(states))
        return OK
    width = max(len(printable(uid)) for uid in uids)
    for uid, state in states.items():
        print(f"{printable(uid):<{width}}  {_described(state)}")
    return OK


def _described(state: dict[str, Any]) -> str:
    if state["status"] == "online":
        devices = ", ".join(_session(session) for session in state["sessions"])
        return f"online   since {_time(state['since_ms'])}  {devices}"
    if state["last_seen_ms"] is None:
        return "offline  never seen, or long ago"
    return f"offline  last seen {_time(state['last_seen_ms'])}"


def _session(session: dict[str, Any]) -> str:
    return f"{printable(session['device']) or 'default device'} on {printable(session['node'])}"


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # nobody's time, but somebody's data
        return f"{unix_ms} ms"
