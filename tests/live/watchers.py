"""What a watcher has seen, and what it may have seen."""

from collections.abc import Iterable
from typing import Any

from presence.watching.states import State, id_of, read_entry
from protocol import Kind, Packet


class Eyes:
    """Whoever watches some users, over as many connections as it takes.

    Attributes:
        states: of each user, the last one that it was told.
        ids: of each user, all ids that it was told, in order.
    """

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, list[str]] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []

    def see(self, packets: Iterable[Packet]) -> None:
        """Take in packets in order; a push with an id that is not higher than all before fails."""
        for packet in packets:
            if packet.kind == Kind.PRESENCE:
                self._take(packet.payload["uid"], dict(packet.payload), is_push=True)
            elif packet.kind == Kind.OK:
                for uid, state in packet.payload.get("presence", {}).items():
                    self._take(uid, dict(state), is_push=False)

    def _take(self, uid: str, state: dict[str, Any], *, is_push: bool) -> None:
        before, id = self.ids.setdefault(uid, []), state["id"]
        if id is not None:
            assert not before or id_of(id) >= id_of(before[-1]), (uid, before, state)
            assert not (is_push and id in before), (uid, before, state)
            before.append(id)
        self.states[uid] = state
        self.told.append((uid, state))


def truth(events: Iterable[dict[str, Any]]) -> tuple[dict[str, State], dict[tuple[str, str], State]]:
    """Return the last state of each user, and that of every entry by uid and id."""
    last, every = {}, {}
    for event in events:
        if (entry := read_entry(event["entry"], event)) is not None:
            last[entry.uid] = every[entry.uid, entry.state.id] = entry.state
    return last, every


def assert_true(eyes: Eyes, every: dict[tuple[str, str], State]) -> None:
    """Each state that a watcher was told is that of its entry."""
    for uid, state in eyes.told:
        if state["id"] is not None:
            told = {name: state.get(name) for name in ("status", "since_ms", "last_seen_ms", "id", "meta")}
            assert told == {"meta": None, **every[uid, state["id"]].shown()}
