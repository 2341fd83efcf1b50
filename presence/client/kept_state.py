"""What a client keeps across connections: its login, its passes, and the users it watches.

Tests: `tests/client/test_resubscription.py`, `tests/client/test_resubscription_model.py`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from presence import protocol
from presence.client.pushes import PresenceChanged, user_states
from presence.client.watched_users import WatchedUsers
from presence.protocol import HEADER_BYTES, EncodeError, Kind, Packet

MAX_PASSES: Final = 16  # that a server takes on one connection


class PersistentState:
    """The login and the watches that the server has granted, to be restored on the next connection.

    A failed request changes nothing here. Only an unwatch takes effect as soon as it is sent, because no
    answer can undo it. With `token_comes_later` the token is added to the login later, with `watch_devices`
    watches ask for the devices of users. Raises `EncodeError` if the login breaks a rule of the protocol.

    What one login cannot carry follows it in an `update`: `meta` and `private` that do not fit, and a status
    with an end, where another status than online returns after it.
    """

    def __init__(
        self, login: Packet, *, token_comes_later: bool = False, watch_devices: bool = False
    ) -> None:
        self._token_comes_later = token_comes_later
        self.watch_devices = watch_devices
        self.login = own_copy(self._validated(login))
        self._lasting_status = login.payload.get("status", "online")  # the last one without an end
        self._left_out: set[str] = set()  # fields that the latest login did not carry
        self._superseded: dict[int, set[str]] = {}  # of these, by the update whose answer decides about them
        self.watches = WatchedUsers()
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
        for name in ("private", "meta", "confirms"):  # with the longest names there is no room for the last
            if name in payload and not _fits(login):
                del payload[name]
                self._left_out.add(name)
        payload["batch"] = True
        if not _fits(login):  # it saves bytes, and is not worth another packet
            del payload["batch"]
        return login

    def rest(self) -> Packet | None:
        """Return the update that completes the latest login, as granted by now; None if it is complete."""
        fields = {name: self.login.payload[name] for name in self._left_out & self.login.payload.keys()}
        return protocol.update(**fields) if fields else None

    def supersede(self, id: int, payload: Mapping[str, Any]) -> None:
        """The program has sent an update: `rest` must not overtake it with what was granted before."""
        if superseded := self._left_out & payload.keys():
            self._left_out -= superseded
            self._superseded[id] = superseded

    def update_refused(self, id: int) -> bool:
        """Return whether `rest` has fields again, because an update was refused that was to replace them."""
        superseded = self._superseded.pop(id, set())
        self._left_out |= superseded
        return bool(superseded)

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
    ) -> None:
        """Change what later logins carry; None leaves a field unchanged, an empty map removes it.

        A status replaces the end of the former one, too.

        Raises:
            protocol.EncodeError: a field breaks a rule of the protocol; nothing was changed.
        """
        shown = protocol.update(meta=meta, private=private, status=status, until_ms=until_ms)
        update = protocol.update(token=token, idle_timeout=idle_timeout, quiet=quiet, **shown.payload)
        protocol.encode(update)
        payload = {**self.login.payload, **update.payload}
        for name in ("meta", "private", "quiet"):
            if not payload.get(name, True):
                del payload[name]
        if status is not None and until_ms is None:
            payload.pop("until_ms", None)
            self._lasting_status = status
        if payload.get("status") == "online" and "until_ms" not in payload:  # the default
            del payload["status"]
        self.login = own_copy(self._validated(self.login._replace(payload=payload)))

    def request_sent(self, id: int, packet: Packet) -> None:
        if packet.kind == Kind.WATCH and packet.payload.get("roster"):
            self.watches.roster_requested(id)
        elif packet.kind == Kind.WATCH:
            self.watches.request_sent(id, packet.payload["uids"])
        elif packet.kind == Kind.UNWATCH:
            self.watches.unwatch_sent(id, packet.payload.get("uids"))
            if packet.payload.get("roster"):
                self.watches.unwatch_roster()

    def request_granted(
        self, id: int, packet: Packet, answer: Mapping[str, Any], *, is_own: bool
    ) -> list[PresenceChanged]:
        """Apply a granted request; return the changes of users who were watched before.

        `is_own`: the client made it by itself.
        """
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
                self.log_in_with(**self._of_this_device(packet.payload, answer))
        return []

    def _of_this_device(self, update: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return what later logins carry of a granted update: not what the server keeps with the user."""
        kept = {name: value for name, value in update.items() if name not in {"scope", "hide"}}
        if answer.get("scope") == "user" and kept.get("status") == "invisible":
            del kept["status"]  # sent again, it would undo what another device has changed since
            if self.login.payload.get("status") == "invisible":
                kept["status"] = "online"
        return kept

    def _validated(self, login: Packet) -> Packet:
        any_token = {"token": "-"} if self._token_comes_later else {}
        trial = {**any_token, **login.payload}
        protocol.encode(login._replace(payload=trial))
        for name in ("private", "meta"):  # they may follow the login
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
