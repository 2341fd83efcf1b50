"""What a client keeps over all its connections: how it logs in, and whom it watches."""

from collections.abc import Mapping
from typing import Any

import protocol
from presence.client.pushes import PresenceChanged, user_states
from presence.client.watches import Watches
from protocol import Kind, Packet


class Lasting:
    """Follows what the server has granted, so that the next connection is as the last one was.

    A request that failed, in whatever way, changes nothing here; only an unwatch holds from the moment it is
    sent, for nothing that the server says can make it void.

    Args:
        login: what to log in with.
        names_token: whether a token is put in before each login, and need not be there yet.

    Attributes:
        login: the same by now.
        watches: whom it watches.

    Raises:
        protocol.EncodeError: the login breaks a rule of the protocol.
    """

    __slots__ = ("_names_token", "login", "watches")

    def __init__(self, login: Packet, *, names_token: bool = False) -> None:
        self._names_token = names_token
        self.login = self._checked(login)
        self.watches = Watches()

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
        self.login = self._checked(self.login._replace(payload=payload))

    def asked(self, id: int, packet: Packet) -> None:
        """A request was sent."""
        if packet.kind == Kind.WATCH:
            self.watches.ask(id, packet.payload["uids"])
        elif packet.kind == Kind.UNWATCH:
            self.watches.forget(packet.payload.get("uids"))

    def granted(self, id: int, packet: Packet, answer: Mapping[str, Any]) -> list[PresenceChanged]:
        """A request was granted; return what that tells of those who were watched before."""
        if packet.kind == Kind.WATCH:
            return self.watches.grant(id, user_states(answer))
        if packet.kind == Kind.UPDATE:
            self.log_in_with(**packet.payload)
        return []

    def _checked(self, login: Packet) -> Packet:
        any_token = {"token": "-"} if self._names_token else {}
        trial = login._replace(payload={**any_token, **login.payload})
        protocol.encode(trial, protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES)
        return login
