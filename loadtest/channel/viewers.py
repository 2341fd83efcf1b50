"""Who changes, who reads what others are told, and who watches and never reads."""

import _socket
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import protocol
from loadtest.channel.entries import EntryId, parse_id
from loadtest.client_loop import Client, ClientLoop
from protocol import Kind

SEGMENT_BYTES = 536  # small segments make small buffers in both kernels
RECEIVE_BYTES = 4096
TEXT = "x" * 200  # a state's meta


class Changes:
    """What was changed when, by number; each number is the meta of a user for a while."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.newest: dict[str, int] = {}

    def next(self, uid: str) -> Mapping[str, Any]:
        """Return a user's next meta, which is sent now."""
        self.newest[uid] = len(self.sent)
        self.sent.append(time.monotonic())
        return {"n": self.newest[uid], "text": TEXT}


class Changer(Client):
    """Somebody whom others watch, and who changes.

    Attributes:
        refused: changes that the server did not take.
    """

    def __init__(self, loop: ClientLoop, uid: str, changes: Changes) -> None:
        super().__init__(loop, uid)
        self.refused = 0
        self._changes = changes

    def change(self) -> int:
        """Change; return the number of it."""
        number = len(self._changes.sent)
        self.send(protocol.encode(protocol.update(id=100, meta=self._changes.next(self.uid))))
        return number

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """Note a refusal."""
        self.refused += kind == Kind.ERROR


class Viewer(Client):
    """Watches, and knows the newest of each user.

    Attributes:
        delays: where to note by how much each push came after its change, seconds; None: nowhere.
        seen: by uid, the number of the newest change.
        pushes: how many came.
        fallen: pushes whose ids do not rise.
        is_answered: whether the watch is.
    """

    def __init__(self, loop: ClientLoop, uid: str, uids: list[str], changes: Changes) -> None:
        super().__init__(loop, uid)
        self.delays: list[float] | None = None
        self.seen: dict[str, int] = {}
        self.pushes = self.fallen = 0
        self.is_answered = False
        self._last: dict[str, EntryId] = {}
        self._uids, self._changes = uids, changes

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        """Watch."""
        self.send(protocol.encode(protocol.watch(self._uids, id=100)))

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """Note it."""
        if kind == Kind.PRESENCE:
            self.pushes += 1
            uid, entry_id = payload["uid"], parse_id(payload["id"])
            self.fallen += entry_id <= self._last.get(uid, (0, 0))
            self._last[uid] = entry_id
            number = payload.get("meta", {}).get("n", -1)
            self.seen[uid] = number
            if self.delays is not None and number >= 0:
                self.delays.append(now - self._changes.sent[number])
        elif kind == Kind.OK and "presence" in payload:
            self.is_answered = True
            known = {uid: state["meta"]["n"] for uid, state in payload["presence"].items() if "meta" in state}
            self.seen.update(known)


class Deaf(Viewer):
    """Reads until its watch is answered, and then no more, until it is woken."""

    def socket(self) -> _socket.socket:
        """See `Client`: keep the kernels from holding much between server and client."""
        sock = super().socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        return sock

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """See `Viewer`."""
        super().heard(kind, id, payload, now)
        if kind == Kind.OK and "presence" in payload:
            self.loop.hear(self, on=False)

    def name(self) -> str:
        """Return the address that it has connected from, as `/proc/net/tcp` writes it."""
        with socket.socket(fileno=os.dup(self.fd)) as twin:
            host, port = twin.getsockname()
        return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"

    def wake(self) -> None:
        """Read all that waits."""
        self.loop.hear(self, on=True)
