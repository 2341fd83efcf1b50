"""The members of rooms in Redis, and those by the records of users, which must be the same."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from presence.store.keys import Keys
from presence.store.records import online_state

LETTERS: Final = {"online": "-", "away": "a", "busy": "b", "dnd": "d"}
INVISIBLE: Final = "i"
ROOMS_PER_PIPELINE: Final = 1_000

Members = dict[str, dict[str, str]]
"""By room, the letter of the status of each member by uid."""


class MemberDifference(NamedTuple):
    """A member of a room, with the letters of their status; None: not a member."""

    room: str
    uid: str
    stored: str | None
    recorded: str | None


def stored_members(client_of: Callable[[str], Any], keys: Keys) -> Members:
    """Return the members of all rooms, as Redis has them.

    Args:
        client_of: returns a connection to the Redis with a key.
    """
    members: Members = {}
    for shard in range(keys.shards):
        client = client_of(keys.room_sizes(shard))
        rooms = [room.decode() for room, _ in client.zscan_iter(keys.room_sizes(shard), count=1000)]
        for first in range(0, len(rooms), ROOMS_PER_PIPELINE):
            some = rooms[first : first + ROOMS_PER_PIPELINE]
            pipe = client.pipeline(transaction=False)
            for room in some:
                pipe.hgetall(keys.room(room))
            for room, fields in zip(some, pipe.execute(), strict=True):
                members[room] = {
                    uid.decode(): value.decode()[-1]
                    for uid, value in fields.items()
                    if not uid.startswith(b" ")
                }
    return members


def stored_records(client_of: Callable[[str], Any], keys: Keys) -> dict[str, dict[str, Any]]:
    """Return the states of all users who are online, by uid; `client_of` as above."""
    records = {}
    for key in map(keys.online, range(keys.shards)):
        for uid, text in client_of(key).hgetall(key).items():
            state = online_state(text)
            assert state is not None
            records[uid.decode()] = state
    return records


def recorded_members(client_of: Callable[[str], Any], keys: Keys) -> Members:
    """Return the members of all rooms, by the records of users; `client_of` as above."""
    members: Members = {}
    for uid, state in stored_records(client_of, keys).items():
        letter = INVISIBLE if "invisible" in state else LETTERS[state["status"]]
        for room in state.get("rooms", ()):
            members.setdefault(room, {})[uid] = letter
    return members


def differences(stored: Members, recorded: Members) -> set[MemberDifference]:
    """Return the members that are not the same in both; a room without members is one, with the uid ""."""
    found = {
        MemberDifference(room, uid, one.get(uid), other.get(uid))
        for room in {*stored, *recorded}
        for one, other in [(stored.get(room, {}), recorded.get(room, {}))]
        for uid in {*one, *other}
        if one.get(uid) != other.get(uid)
    }
    return found | {MemberDifference(room, "", None, None) for room, uids in stored.items() if not uids}
