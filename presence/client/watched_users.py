"""The users whom a client watches, and their known states, across connections.

Two rules keep the view of watched users correct. A state whose id is not newer than the known one is ignored,
because a server may lag behind the previous one. And where the answer on a new connection differs from the
known state, the difference is reported as a change, so the view is correct again after any lost connection.

Tests: `tests/client/test_resubscription.py`, `tests/client/test_resubscription_model.py`,
`tests/client/test_roster.py`.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Final

from presence import protocol
from presence.client.pushes import MEANWHILE, REMOVED, WATCHED, PresenceChanged, UserState
from presence.protocol import UIDS_MAX, Packet

MAX_UIDS_BYTES_PER_REQUEST = 15_000  # a client's frame holds 16 KiB
HIDDEN = "not_allowed"
_UNKNOWN: Final = UserState("unknown")  # of a user missing from an answer
_REMOVED: Final = UserState(REMOVED)  # of a user who has left the roster while the client was offline


class WatchedUsers:
    """The watched users and their newest known states; pending watch requests are kept by id.

    A user is watched because the program has named them, or only because of the roster: those are `_listed`.
    The answer to a request for the roster is the whole roster, so listed users who are not in it are gone.
    Users whom the program has named stay watched, by the server too, when the roster loses them.
    """

    def __init__(self) -> None:
        self._known: dict[str, UserState] = {}
        self._requested: dict[int, dict[str, None]] = {}
        self._listed: set[str] = set()  # of the known users, those watched only because of the roster
        self._roster_requested: dict[int, set[str]] = {}  # and the users unwatched since
        self._unwatched: dict[int, Collection[str]] = {}  # by unwatch without an answer
        self.follows_roster = False  # whether the roster is watched again after each login
        self.roster_was_granted = False  # by a server, since the client follows it

    def states(self) -> dict[str, UserState]:
        return dict(self._known)

    def newest(self, states: Mapping[str, UserState]) -> dict[str, UserState]:
        """Return the newest known states of the users in an answer: a later push may have been newer."""
        return {uid: self._known.get(uid, state) for uid, state in states.items()}

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def batches(self) -> Iterator[list[str]]:
        """Return the users whom the program watches, in lists that each fit into one request."""
        return _batches([uid for uid in self._known if uid not in self._listed])

    def listed_batches(self) -> Iterator[list[str]]:
        """Return the users watched only because of the roster, in such lists."""
        return _batches([uid for uid in self._known if uid in self._listed])

    def hidden_batches(self, without: Container[str] = ()) -> Iterator[list[str]]:
        """Return those whom the server did not let this client see, except some, in such lists."""
        hidden = (uid for uid, state in self._known.items() if state.status == HIDDEN)
        return _batches([uid for uid in hidden if uid not in without and uid not in self._listed])

    def is_listed(self, uid: str) -> bool:
        """Whether a user is watched only because of the roster."""
        return uid in self._listed

    @property
    def hides_listed(self) -> bool:
        """Whether the server did not let this client see some of those watched because of the roster."""
        return any(self._known[uid].status == HIDDEN for uid in self._listed)

    def add(self, uids: Iterable[str]) -> list[str]:
        """Add users whose state may be unknown; return those whom the program did not watch before."""
        added = list(dict.fromkeys(uids))
        new = [uid for uid in added if uid not in self._known or uid in self._listed]
        self._listed.difference_update(new)
        for uid in new:
            self._known.setdefault(uid, _UNKNOWN)
        return new

    def request_sent(self, id: int, uids: Iterable[str]) -> None:
        self._requested[id] = dict.fromkeys(uids)

    def roster_requested(self, id: int) -> None:
        self._roster_requested[id] = set()

    def request_granted(
        self, id: int, states: Mapping[str, UserState], *, is_own: bool
    ) -> list[PresenceChanged]:
        """Apply the answer to a request; return the changes of users who were watched before.

        `is_own`: it was the client's own request, for users whom it watches already.
        """
        requested: Iterable[str] = self._requested.pop(id, {})
        if is_own:  # they may have left with the roster since
            requested = [uid for uid in requested if uid in self._known]
        else:
            self._listed.difference_update(requested)
        changed = (self._answered(uid, states.get(uid, _UNKNOWN)) for uid in requested)
        return [change for change in changed if change is not None]

    def roster_granted(
        self, id: int, states: Mapping[str, UserState], *, is_own: bool
    ) -> list[PresenceChanged]:
        """Apply the answer to a request for the roster; return the changes of users watched before.

        `is_own`: no call of the program returns the states, so those of new users are changes, too.
        """
        if (unwatched := self._roster_requested.pop(id, None)) is None:
            return []  # all were unwatched since
        self.follows_roster = self.roster_was_granted = True
        states = {uid: state for uid, state in states.items() if uid not in unwatched}
        gone = [uid for uid in self._known if uid in self._listed and uid not in states]
        self.end(gone)
        changes = [PresenceChanged(uid, _REMOVED, REMOVED) for uid in gone]
        for uid, state in states.items():
            if uid not in self._known:
                self._listed.add(uid)
                if is_own:
                    self._known[uid] = _UNKNOWN
            if (change := self._answered(uid, state)) is not None:
                changes.append(change)
        return changes

    def _answered(self, uid: str, state: UserState) -> PresenceChanged | None:
        """Take a user's state from an answer; return the change, if the user was watched before."""
        known = self._known.get(uid)
        if known is None:
            self._known[uid] = state
        elif _differs(state, known):
            self._known[uid] = state
            return PresenceChanged(uid, state, WATCHED if known is _UNKNOWN else MEANWHILE)
        elif known.id is None:
            self._known[uid] = state  # the same, and by now it may have an id
        return None

    def request_failed(self, id: int) -> Packet | None:
        """Drop a failed request; return the unwatch that undoes it, in case it was granted."""
        if self._roster_requested.pop(id, None) is not None:
            is_watched = self.follows_roster or self._roster_requested
            return None if is_watched else protocol.unwatch([], roster=True)
        failed = self._requested.pop(id, {})
        others = self._known.keys() | {uid for uids in self._requested.values() for uid in uids}
        uids = [uid for uid in failed if uid not in others]
        return protocol.unwatch(uids) if uids else None

    def connection_lost(self) -> None:
        """Drop all pending requests."""
        self._requested.clear()
        self._roster_requested.clear()
        self._unwatched.clear()

    def apply_change(self, push: PresenceChanged) -> bool:
        """Apply a pushed change; return False if the user is not watched or the state is not newer."""
        known = self._known.get(push.uid)
        if push.reason == REMOVED:
            was_listed = push.uid in self._listed
            self.end([push.uid] if was_listed else ())
            return was_listed
        if known is None:
            if not (push.reason in (WATCHED, HIDDEN) and self._joins(push.uid)):
                return False
            self._listed.add(push.uid)
        elif not push.state.is_newer_than(known):
            return False
        self._known[push.uid] = push.state
        return True

    def _joins(self, uid: str) -> bool:
        """Whether to watch a user whom the server adds: not if it is about to read an unwatch."""
        return self.follows_roster and not any(uid in uids for uids in self._unwatched.values())

    def follow_roster(self) -> bool:
        """Follow the roster from now on; return whether that is new."""
        is_new = not self.follows_roster
        self.follows_roster = True
        return is_new

    def end(self, uids: Iterable[str]) -> None:
        """The server has refused to let some users be watched; another request of them may be pending."""
        for uid in uids:
            self._known.pop(uid, None)
            self._listed.discard(uid)

    def unwatch_roster(self) -> None:
        """Follow the roster no longer, also if a request for it is granted that was sent before."""
        self._roster_requested.clear()
        self.end_roster()

    def end_roster(self) -> tuple[str, ...]:
        """Follow the roster no longer; return the users watched only because of it, who are not any more."""
        self.follows_roster = self.roster_was_granted = False
        ended = tuple(uid for uid in self._known if uid in self._listed)
        self.end(ended)
        return ended

    def unwatch_sent(self, id: int, uids: Collection[str] | None) -> None:
        """Stop watching some users, or all; until the answer the server may add them by the roster."""
        self._unwatched[id] = uids or ()
        self.remove(uids)

    def unwatch_answered(self, id: int) -> None:
        self._unwatched.pop(id, None)

    def remove(self, uids: Iterable[str] | None) -> None:
        """Stop watching some users, all and the roster if `uids` is None, also in pending requests."""
        gone = list(self._known) if uids is None else list(uids)
        if uids is None:
            self.unwatch_roster()
        for requested in self._requested.values():
            for uid in list(requested) if uids is None else gone:
                requested.pop(uid, None)
        for unwatched in self._roster_requested.values():
            unwatched.update(gone)
        self.end(gone)


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
