"""The users whom a client watches, and their known states, across connections.

Two rules keep the view of watched users correct. A state whose id is not newer than the known one is ignored,
because a server may lag behind the previous one. And where the answer on a new connection differs from the
known state, the difference is reported as a change, so the view is correct again after any lost connection.

Tests: `tests/client/test_resubscription.py`, `tests/client/test_resubscription_model.py`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from presence.client.pushes import MEANWHILE, WATCHED, PresenceChanged, UserState
from presence.protocol import UIDS_MAX

MAX_UIDS_BYTES_PER_REQUEST = 15_000  # a client's frame holds 16 KiB
HIDDEN = "not_allowed"
_UNKNOWN: Final = UserState("unknown")  # of a user missing from an answer


class WatchedUsers:
    """The watched users and their newest known states; pending watch requests are kept by id."""

    def __init__(self) -> None:
        self._known: dict[str, UserState] = {}
        self._requested: dict[int, dict[str, None]] = {}

    def states(self) -> dict[str, UserState]:
        return dict(self._known)

    def newest(self, states: Mapping[str, UserState]) -> dict[str, UserState]:
        """Return the newest known states of the users in an answer: a later push may have been newer."""
        return {uid: self._known.get(uid, state) for uid, state in states.items()}

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def batches(self) -> Iterator[list[str]]:
        """Return all watched users, in lists that each fit into one request."""
        return _batches(list(self._known))

    def hidden_batches(self, without: Container[str] = ()) -> Iterator[list[str]]:
        """Return the users whom the server did not let this client see, except some, in such lists."""
        hidden = (uid for uid, state in self._known.items() if state.status == HIDDEN)
        return _batches([uid for uid in hidden if uid not in without])

    def add(self, uids: Iterable[str]) -> list[str]:
        """Add users whose state is not known yet; return those who were not watched before."""
        new = [uid for uid in dict.fromkeys(uids) if uid not in self._known]
        self._known.update(dict.fromkeys(new, _UNKNOWN))
        return new

    def request_sent(self, id: int, uids: Iterable[str]) -> None:
        self._requested[id] = dict.fromkeys(uids)

    def request_granted(self, id: int, states: Mapping[str, UserState]) -> list[PresenceChanged]:
        """Apply the answer to a request; return the changes of users who were watched before."""
        changed = []
        for uid in self._requested.pop(id, ()):
            state = states.get(uid, _UNKNOWN)
            known = self._known.get(uid)
            if known is None:
                self._known[uid] = state
            elif _differs(state, known):
                self._known[uid] = state
                changed.append(PresenceChanged(uid, state, WATCHED if known is _UNKNOWN else MEANWHILE))
            elif known.id is None:
                self._known[uid] = state  # the same, and by now it may have an id
        return changed

    def request_failed(self, id: int) -> list[str]:
        """Drop a failed request; return those of its users whom no other request watches."""
        failed = self._requested.pop(id, {})
        others = self._known.keys() | {uid for uids in self._requested.values() for uid in uids}
        return [uid for uid in failed if uid not in others]

    def connection_lost(self) -> None:
        """Drop all pending requests."""
        self._requested.clear()

    def apply_change(self, push: PresenceChanged) -> bool:
        """Apply a pushed change; return False if the user is not watched or the state is not newer."""
        known = self._known.get(push.uid)
        if known is None or not push.state.is_newer_than(known):
            return False
        self._known[push.uid] = push.state
        return True

    def end(self, uids: Iterable[str]) -> None:
        """The server has refused to let some users be watched; another request of them may be pending."""
        for uid in uids:
            self._known.pop(uid, None)

    def remove(self, uids: Iterable[str] | None) -> None:
        """Stop watching some users, all if `uids` is None, also in pending requests."""
        gone = list(self._known) if uids is None else list(uids)
        for requested in self._requested.values():
            for uid in list(requested) if uids is None else gone:
                requested.pop(uid, None)
        for uid in gone:
            self._known.pop(uid, None)


def _batches(uids: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for uid in uids:
        cost = len(uid.encode()) + 2  # its header in MessagePack
        if batch and (len(batch) == UIDS_MAX or size + cost > MAX_UIDS_BYTES_PER_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(uid)
        size += cost
    if batch:
        yield batch


def _differs(state: UserState, known: UserState) -> bool:
    """Whether the state in an answer differs from the known one.

    Compares ids; without an id, as of a user who left long ago, the shown states.
    """
    if state.id is not None and known.id is not None:
        return state.is_newer_than(known)
    return _shown(state) != _shown(known)


def _shown(state: UserState) -> tuple[object, ...]:
    return state.status, state.last_seen_ms, dict(state.meta)
