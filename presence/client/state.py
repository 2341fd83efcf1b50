"""What a client keeps over all its connections: how it logs in, whom it watches, and what it knows of them.

Two things keep a view right. A state that is not newer by its id than what is known is passed over: a server
may be a moment behind the one before it. And what a new connection's answer shows otherwise than it was known
is told as a change, so that a view is right again after any loss.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from presence import protocol
from presence.client.pushes import MEANWHILE, WATCHED, PresenceChanged, UserState, user_states
from presence.protocol import UIDS_MAX, Kind, Packet

MAX_UIDS_BYTES_PER_REQUEST = 15_000  # of uids in one request: a client's frame holds 16 KiB
_UNKNOWN = UserState("unknown")  # of a user of whom an answer says nothing


class WatchedUsers:
    """A view of others; every request for more is known by its id until it is settled."""

    def __init__(self) -> None:
        self._known: dict[str, UserState] = {}
        self._requested: dict[int, dict[str, None]] = {}

    def states(self) -> dict[str, UserState]:
        """Return the newest known state of everybody who is watched."""
        return dict(self._known)

    def newest(self, states: Mapping[str, UserState]) -> dict[str, UserState]:
        """Return the newest known states of those in an answer, which may be older than what followed it."""
        return {uid: self._known.get(uid, state) for uid, state in states.items()}

    def batches(self) -> Iterator[list[str]]:
        """Return everybody who is watched, as lists that fit into a request each."""
        batch: list[str] = []
        size = 0
        for uid in list(self._known):
            cost = len(uid.encode()) + 2  # its header in MessagePack
            if batch and (len(batch) == UIDS_MAX or size + cost > MAX_UIDS_BYTES_PER_REQUEST):
                yield batch
                batch, size = [], 0
            batch.append(uid)
            size += cost
        if batch:
            yield batch

    def add(self, uids: Iterable[str]) -> list[str]:
        """Watch some of whom nothing is known yet; return those who were not watched before."""
        new = [uid for uid in dict.fromkeys(uids) if uid not in self._known]
        self._known.update(dict.fromkeys(new, _UNKNOWN))
        return new

    def request_sent(self, id: int, uids: Iterable[str]) -> None:
        """A request to watch these was sent."""
        self._requested[id] = dict.fromkeys(uids)

    def request_granted(self, id: int, states: Mapping[str, UserState]) -> list[PresenceChanged]:
        """The request was granted; return what has changed of those who were watched before."""
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
        """The request came to nothing; return those of its users who are not watched otherwise."""
        return [uid for uid in self._requested.pop(id, ()) if uid not in self._known]

    def connection_lost(self) -> None:
        """The connection is gone, and with it what was asked for on it."""
        self._requested.clear()

    def apply_change(self, push: PresenceChanged) -> bool:
        """Take a change; return whether it is one, and of somebody who is watched."""
        known = self._known.get(push.uid)
        if known is None or not push.state.is_newer_than(known):
            return False
        self._known[push.uid] = push.state
        return True

    def remove(self, uids: Iterable[str] | None) -> None:
        """Watch some no more, or nobody if `uids` is None, not by requests under way either."""
        gone = list(self._known) if uids is None else list(uids)
        for requested in self._requested.values():
            for uid in list(requested) if uids is None else gone:
                requested.pop(uid, None)
        for uid in gone:
            self._known.pop(uid, None)


def _differs(state: UserState, known: UserState) -> bool:
    """Whether an answer shows a user otherwise than he was known.

    Compares ids. An answer about an offline user has none; then the shown states are compared.
    """
    if state.id is not None and known.id is not None:
        return state.is_newer_than(known)
    return _shown(state) != _shown(known)


def _shown(state: UserState) -> tuple[object, ...]:
    return state.status, state.last_seen_ms, dict(state.meta)


class PersistentState:
    """Follows what the server has granted, so that the next connection is as the last one was.

    A request that failed, in whatever way, changes nothing here; only an unwatch holds from the moment it is
    sent, for nothing that the server says can make it void. With `token_comes_later` a token is put into the
    login later. `EncodeError` is raised where the login breaks a rule of the protocol.
    """

    def __init__(self, login: Packet, *, token_comes_later: bool = False) -> None:
        self._token_comes_later = token_comes_later
        self.login = self._validated(login)
        self.watches = WatchedUsers()

    @property
    def token(self) -> str | None:
        """The newest token that the client has."""
        token: str | None = self.login.payload.get("token")
        return token

    def log_in_with(
        self,
        *,
        token: str | None = None,
        meta: Mapping[str, Any] | None = None,
        status: str | None = None,
    ) -> None:
        """Change what later logins carry; None leaves a part as it is, an empty meta removes it.

        Raises:
            protocol.EncodeError: a part breaks a rule of the protocol; nothing was changed.
        """
        given = {"token": token, "meta": meta, "status": status}
        payload = {**self.login.payload, **{key: value for key, value in given.items() if value is not None}}
        protocol.encode(protocol.update(token=token, meta=meta, status=status))
        if not payload.get("meta", True):
            del payload["meta"]
        if payload.get("status") == "online":  # as everybody is who says nothing
            del payload["status"]
        self.login = self._validated(self.login._replace(payload=payload))

    def request_sent(self, id: int, packet: Packet) -> None:
        """A request was sent."""
        if packet.kind == Kind.WATCH:
            self.watches.request_sent(id, packet.payload["uids"])
        elif packet.kind == Kind.UNWATCH:
            self.watches.remove(packet.payload.get("uids"))

    def request_granted(self, id: int, packet: Packet, answer: Mapping[str, Any]) -> list[PresenceChanged]:
        """A request was granted; return what that tells of those who were watched before."""
        if packet.kind == Kind.WATCH:
            return self.watches.request_granted(id, user_states(answer))
        if packet.kind == Kind.UPDATE:
            self.log_in_with(**packet.payload)
        return []

    def _validated(self, login: Packet) -> Packet:
        any_token = {"token": "-"} if self._token_comes_later else {}
        trial = login._replace(payload={**any_token, **login.payload})
        protocol.encode(trial, protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES)
        return login
