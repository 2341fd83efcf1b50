"""What a client keeps across connections: its login, its rooms, its passes, and what it watches.

Tests: `tests/client/test_resubscription.py`, `tests/client/test_resubscription_model.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from presence import protocol
from presence.client.pushes import PresenceChanged, RoomChanged, user_states
from presence.client.watched_rooms import WatchedRooms
from presence.client.watched_users import WatchedUsers
from presence.protocol import HEADER_BYTES, EncodeError, Kind, Packet

MAX_PASSES: Final = 16  # that a server takes on one connection


class PersistentState:
    """The login and the watches that the server has granted, to be restored on the next connection.

    A failed request changes nothing here. Only an unwatch takes effect as soon as it is sent, because no
    answer can undo it. With `token_comes_later` the token is added to the login later, with `watch_devices`
    watches ask for the devices of users. Raises `EncodeError` if the login breaks a rule of the protocol.

    What one login cannot carry follows it in an `update`: `meta`, `private` and rooms that do not fit, and a
    status with an end, where another status than online returns after it.

    The rooms of the login are those that the program wants. The server may have left some out, which the
    token does not allow: `joined` are those that the session is in, None if the server has no rooms.
    """

    def __init__(
        self, login: Packet, *, token_comes_later: bool = False, watch_devices: bool = False
    ) -> None:
        self._token_comes_later = token_comes_later
        self.watch_devices = watch_devices
        self.login = own_copy(self._validated(login))
        self._lasting_status = login.payload.get("status", "online")  # the last one without an end
        self._left_out: set[str] = set()  # fields that the latest login did not carry
        self._rooms_left_out: set[str] = set()  # rooms that it did not carry
        # Of these, by the update whose answer decides about them.
        self._superseded: dict[int, tuple[set[str], set[str]]] = {}
        self.joined: list[str] | None = None
        self.watches = WatchedUsers()
        self.watched_rooms = WatchedRooms()
        self.passes: dict[str, None] = {}  # the newest that the server has taken, in order

    @property
    def token(self) -> str | None:
        """The newest token that the client has."""
        token: str | None = self.login.payload.get("token")
        return token

    def watch(self, uids: Iterable[str], *, roster: bool = False) -> Packet:
        return protocol.watch(uids, detail=self.watch_devices or None, roster=roster or None)

    def login_packet(self, time_ms: float | None) -> Packet:
        """Return the login to send now; what it leaves out is in `rest` until the next one.

        `time_ms`: Unix milliseconds by the server's clock; None if unknown.
        """
        payload = {"confirms": True, **self.login.payload}
        login = self.login._replace(payload=payload)
        self._left_out.clear()
        self._rooms_left_out.clear()
        self._superseded.clear()
        if (until_ms := payload.get("until_ms")) is not None:
            is_over = time_ms is not None and until_ms <= time_ms
            hides = payload.get("status") == "invisible" and self._lasting_status != "invisible"
            # After a login's status ends, `online` follows. A hiding user must not be visible first.
            if is_over or not (hides or self._lasting_status == "online"):
                del payload["until_ms"], payload["status"]
                if self._lasting_status != "online":  # the default
                    payload["status"] = self._lasting_status
                self._left_out.update(() if is_over else ("status", "until_ms"))
        # Rooms last of what can follow: leaving them for a moment is seen. With the longest names there is no
        # space for `confirms`.
        for name in ("private", "meta", "rooms", "confirms"):
            if name in payload and not _fits(login):
                del payload[name]
                self._left_out.add(name)
        if "rooms" in self._left_out:
            self._left_out.remove("rooms")
            self._rooms_left_out.update(self._rooms)
        payload["batch"] = True
        if not _fits(login):  # it saves bytes, and is not worth another packet
            del payload["batch"]
        return login

    def rest(self) -> Packet | None:
        """Return the update that completes the latest login, as granted by now; None if it is complete."""
        fields = {name: self.login.payload[name] for name in self._left_out & self.login.payload.keys()}
        return protocol.update(**fields) if fields else None

    def rooms_to_join(self) -> list[str]:
        """Return the rooms that the latest login did not carry, and that the program still wants."""
        return [room for room in self._rooms if room in self._rooms_left_out]

    @property
    def _rooms(self) -> list[str]:
        rooms: list[str] = self.login.payload.get("rooms", [])
        return rooms

    def supersede(self, id: int, payload: Mapping[str, Any]) -> None:
        """The program has sent an update: `rest` must not overtake it with what was granted before."""
        fields = self._left_out & payload.keys()
        left = self._rooms_left_out & {*payload.get("leave", ())}
        rooms = {*self._rooms_left_out} if "rooms" in payload else left
        if fields or rooms:
            self._left_out -= fields
            self._rooms_left_out -= rooms
            self._superseded[id] = fields, rooms

    def update_refused(self, id: int) -> bool:
        """Return whether `rest` has fields again, because an update was refused that was to replace them."""
        fields, rooms = self._superseded.pop(id, (set(), set()))
        self._left_out |= fields
        self._rooms_left_out |= rooms
        return bool(fields or rooms)

    def log_in_with(
        self,
        *,
        token: str | None = None,
        meta: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        status: str | None = None,
        until_ms: int | None = None,
        idle_timeout: float | None = None,
        quiet: bool | None = None,
        rooms: Iterable[str] | None = None,
    ) -> None:
        """Change what later logins carry; None leaves a field unchanged, an empty map or list removes it.

        A status replaces the end of the former one, too.

        Raises:
            protocol.EncodeError: a field breaks a rule of the protocol; nothing was changed.
        """
        shown = protocol.update(meta=meta, private=private, status=status, until_ms=until_ms)
        update = protocol.update(
            token=token, idle_timeout=idle_timeout, quiet=quiet, rooms=rooms, **shown.payload
        )
        protocol.encode(update)
        payload = {**self.login.payload, **update.payload}
        for name in ("meta", "private", "quiet", "rooms"):
            if not payload.get(name, True):
                del payload[name]
        if status is not None and until_ms is None:
            payload.pop("until_ms", None)
            self._lasting_status = status
        if payload.get("status") == "online" and "until_ms" not in payload:  # the default
            del payload["status"]
        self.login = own_copy(self._validated(self.login._replace(payload=payload)))

    def request_sent(self, id: int, packet: Packet) -> None:
        rooms = packet.payload.get("rooms")
        if packet.kind == Kind.WATCH and rooms is not None:
            self.watched_rooms.request_sent(id, rooms)
        elif packet.kind == Kind.WATCH and packet.payload.get("roster"):
            self.watches.roster_requested(id)
        elif packet.kind == Kind.WATCH:
            self.watches.request_sent(id, packet.payload["uids"])
        elif packet.kind == Kind.UNWATCH and rooms is not None:
            self.watched_rooms.remove(rooms)
        elif packet.kind == Kind.UNWATCH:
            uids = packet.payload.get("uids")
            self.watches.unwatch_sent(id, uids)
            if uids is None:
                self.watched_rooms.remove(None)
            if packet.payload.get("roster"):
                self.watches.unwatch_roster()

    def request_granted(
        self, id: int, packet: Packet, answer: Mapping[str, Any], *, is_own: bool
    ) -> Sequence[PresenceChanged | RoomChanged]:
        """Apply a granted request; return the changes of users and rooms that were watched before.

        `is_own`: the client made it by itself.
        """
        if packet.kind == Kind.WATCH and "rooms" in packet.payload:
            return self.watched_rooms.request_granted(id, answer, is_own=is_own)
        if packet.kind == Kind.WATCH:
            if visibility_pass := packet.payload.get("pass"):
                self.passes.pop(visibility_pass, None)
                self.passes[visibility_pass] = None
                while len(self.passes) > MAX_PASSES:
                    del self.passes[next(iter(self.passes))]
            is_roster = packet.payload.get("roster")
            granted = self.watches.roster_granted if is_roster else self.watches.request_granted
            return granted(id, user_states(answer), is_own=is_own)
        if packet.kind == Kind.UPDATE:
            self._superseded.pop(id, None)
            with suppress(EncodeError):  # with the longest names even a login without `meta` may be too long
                rooms = None if is_own else self._rooms_after(packet.payload, answer)
                self.log_in_with(**self._of_this_device(packet.payload, answer), rooms=rooms)
        return []

    def request_refused(self, id: int) -> None:
        self.watches.request_failed(id)
        self.watched_rooms.request_refused(id)

    def request_abandoned(self, id: int) -> Packet | None:
        """Drop a watch that no call waits for; return the unwatch that undoes it, in case it was granted."""
        return self.watches.request_failed(id) or self.watched_rooms.request_abandoned(id)

    def connection_lost(self) -> None:
        """Drop all pending watches."""
        self.watches.connection_lost()
        self.watched_rooms.connection_lost()

    def unwatch(self, uids: Iterable[str] | None) -> None:
        """Stop watching some users while there is no connection, or all, the roster and all rooms."""
        self.watches.remove(uids)
        if uids is None:
            self.watched_rooms.remove(None)

    def _of_this_device(self, update: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return what later logins carry of a granted update: not what the server keeps with the user."""
        others = {"scope", "hide", "rooms", "join", "leave"}
        kept = {name: value for name, value in update.items() if name not in others}
        if answer.get("scope") == "user" and kept.get("status") == "invisible":
            del kept["status"]  # sent again, it would undo what another device has changed since
            if self.login.payload.get("status") == "invisible":
                kept["status"] = "online"
        return kept

    def _rooms_after(self, update: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str] | None:
        """Return the rooms that the program wants from now on; None: as before.

        Those that the session is not in are left out if there are too many for a login.
        """
        if "joined" not in answer or not update.keys() & {"rooms", "join", "leave"}:
            return None
        joined, left = answer["joined"], update.get("leave", ())
        before = [room for room in update.get("rooms", self._rooms) if room not in left]
        wanted = dict.fromkeys([*before, *update.get("join", ())])
        return sorted(wanted, key=lambda room: room not in joined)[: protocol.ROOMS_MAX]

    def _validated(self, login: Packet) -> Packet:
        any_token = {"token": "-"} if self._token_comes_later else {}
        trial = {**any_token, **login.payload}
        protocol.encode(login._replace(payload=trial))
        for name in ("private", "meta", "rooms"):  # they may follow the login
            trial.pop(name, None)
        protocol.encode(login._replace(payload=trial), protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES)
        return login


def own_copy(packet: Packet) -> Packet:
    """Return a valid login or update with maps of its own: the program may change those it has passed."""
    maps = {name: packet.payload[name] for name in ("meta", "private") if name in packet.payload}
    if not maps:
        return packet
    copied = protocol.decode(protocol.encode(protocol.update(**maps))[HEADER_BYTES:])
    return packet._replace(payload={**packet.payload, **copied.payload})


def _fits(login: Packet) -> bool:
    """Whether a login is small enough for a server."""
    return len(protocol.encode(login)) - HEADER_BYTES <= protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES
