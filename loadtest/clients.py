"""What the clients of a swarm truly did, in columns: a few dozen bytes a client, and no object each.

Times are monotonic seconds. A client is a number from 0 on; that is its place in every column.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.facts import Sent

AWAY = -1  # in the column of descriptors: no connection


class Clients:
    """The columns.

    Attributes:
        name: what every uid of them begins with.
        fds: the connection's descriptor, or `AWAY`.
        beating: the same while the client is logged in and means to beat, else `AWAY`.
        online: 1 while the client is logged in, else 0.
        begun, done: right before and right after its last complete packet was handed to the kernel.
        before: `begun` of the packet before that one; an event may be decided while a beat is on its way.
        sessions: the session's name in events; empty until the server has told.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.fds = [AWAY] * count
        self.beating = [AWAY] * count
        self.online = bytearray(count)
        self.begun, self.done, self.before = (array("d", bytes(8 * count)) for _ in range(3))
        self.sessions = [""] * count

    def __len__(self) -> int:
        return len(self.fds)

    def uid(self, number: int) -> str:
        """Return the name that a client logs in with."""
        return f"{self.name}-{number}"

    def sent(self, number: int) -> Sent:
        """Return when the client's last complete packet was handed to the kernel."""
        return Sent(self.begun[number], self.done[number])

    def numbers(self, *, online: bool) -> list[int]:
        """Return who is logged in, or who has no connection."""
        if online:
            return [number for number, flag in enumerate(self.online) if flag]
        return [number for number, fd in enumerate(self.fds) if fd == AWAY]


class Watcher:
    """Is told what happens to the clients, as it happens; this one does not care. For a judge of events."""

    def login_sent(self, number: int, sent: Sent) -> None:
        """A login was handed to the kernel."""

    def entered(self, number: int, at: float, told: Mapping[str, Any]) -> None:
        """The login was granted; `told` is the ok's payload."""

    def beaten(self, numbers: Sequence[int]) -> None:
        """These were due for a beat; those of them that beat have the moment of it in the columns."""

    def answered(self, number: int, at: float) -> None:
        """A beat that asked was answered."""

    def left(self, number: int, sent: Sent) -> None:
        """The client closed its connection."""

    def ended(self, number: int, at: float, payload: Mapping[str, Any] | None) -> None:
        """The server closed the connection, or refused the login; `payload` says why, if it said."""


@dataclass
class Counts:
    """What happened so far.

    Attributes:
        logins: that were granted.
        beats: that were sent.
        answers: to beats that asked for one.
        stuck: beats that the kernel did not take, for its buffer was full.
        refused: logins, by the server's reason.
        lost: sessions that the server ended, or that broke, by its reason.
        failed: connections that did not come about or broke before they were logged in, by what went wrong.
        left: connections that the clients closed.
        late: seconds by which the last beat of each slot was late: one sample for every turn of the schedule.
        login_s, answer_s: seconds from a login, or a beat that asked, to its answer.
    """

    logins: int = 0
    beats: int = 0
    answers: int = 0
    stuck: int = 0
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    late: "array[float]" = field(default_factory=lambda: array("d"))
    login_s: "array[float]" = field(default_factory=lambda: array("d"))
    answer_s: "array[float]" = field(default_factory=lambda: array("d"))
