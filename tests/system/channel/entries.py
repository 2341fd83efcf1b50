"""What the streams say of users, as the protocol shows it to watchers: the truth of a run. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from loadtest.checker import id_order
from loadtest.stream_events import StreamEvent
from presence.protocol import Code

EntryId = tuple[int, int]
State = Mapping[str, Any]

OFFLINE = "offline"
TYPES = frozenset({"online", "away", "update", OFFLINE})


class ChannelEntry(NamedTuple):
    """A stream entry that changed a user's state."""

    id: EntryId  # the first number is when it was written, Unix ms
    uid: str
    at_ms: int  # when it was decided, Unix ms
    code: int
    state: State  # as on the wire
    fields: Mapping[str, str]  # as in the stream

    @property
    def is_offline(self) -> bool:
        return bool(self.state["status"] == OFFLINE)


def entry_of(id: str, fields: Mapping[str, str]) -> ChannelEntry:
    """Return an entry as a state; its type is one of `TYPES`."""
    state: dict[str, Any] = {"id": id}
    if fields["type"] == OFFLINE:
        state |= {"status": OFFLINE, "since_ms": int(fields["at_ms"])}
        # Clients see one time of a logout; a keepalive just before it would tell an operator's end apart.
        is_logout = fields.get("reason") == Code.LOGOUT.reason
        state["last_seen_ms"] = state["since_ms"] if is_logout else int(fields["last_seen_ms"])
    else:
        since_ms = int(fields.get("status_ms") or fields["since_ms"])
        state |= {"status": fields.get("status", "online"), "since_ms": since_ms, "last_seen_ms": None}
        if fields.get("meta"):
            state["meta"] = json.loads(fields["meta"])
    return ChannelEntry(id_order(id), fields["uid"], int(fields["at_ms"]), int(fields["code"]), state, fields)


def read_entries(events: Iterable[StreamEvent]) -> list[ChannelEntry]:
    """Return the events that changed a user's state."""
    return [entry_of(event.id, event.fields) for event in events if event.type in TYPES]


def by_user(entries: Iterable[ChannelEntry]) -> dict[str, list[ChannelEntry]]:
    found: dict[str, list[ChannelEntry]] = {}
    for entry in entries:
        found.setdefault(entry.uid, []).append(entry)
    return found


def differences(state: State, wanted: State) -> list[str]:
    """Return the keys in which two states differ; nil equals absent."""
    return [key for key in sorted({*state, *wanted} - {"uid", "reason"}) if state.get(key) != wanted.get(key)]
