"""Who sends messages and receives them, and the ledger of all that were sent."""

import random
import time
from collections.abc import Mapping
from typing import Any

import msgpack

from loadtest.channel.message_judge import Received, Sent
from loadtest.client_loop import Client, ClientLoop
from protocol import Kind

PADDING = "x" * 100  # a body is about as long as a line of a chat
FIRST_ID = 1000  # of a packet; the message's number is added


class Ledger:
    """All messages of a run, by number, in columns.

    Attributes:
        routes: sender and recipient.
        over: which connection each was sent over; no two have the same number.
        due: when each was to be sent, monotonic seconds.
        answers, handed, codes, answered_s, received_s: what the answer was, and seconds from `due` to it, and
            to the first receipt; below 0 there was none.
    """

    def __init__(self) -> None:
        self.routes: list[tuple[str, str]] = []
        self.over: list[int] = []
        self.due: list[float] = []
        self.answers: list[int] = []
        self.handed: list[int] = []
        self.codes: list[int] = []
        self.answered_s: list[float] = []
        self.received_s: list[float] = []
        self.open = 0
        self.answered_at = 0.0
        self._connections = 0

    def __len__(self) -> int:
        return len(self.routes)

    def connection(self) -> int:
        """Return the number of a new connection."""
        self._connections += 1
        return self._connections

    def enter(self, sender: str, recipient: str, over: int, due: float) -> int:
        """Note a message that is about to be sent; return its number."""
        self.routes.append((sender, recipient))
        self.over.append(over)
        self.due.append(due)
        self.answers.append(0)
        self.handed.append(0)
        self.codes.append(0)
        self.answered_s.append(-1.0)
        self.received_s.append(-1.0)
        self.open += 1
        return len(self.routes) - 1

    def answered(self, number: int, payload: Mapping[str, Any], now: float) -> None:
        """Note an answer."""
        self.open -= not self.answers[number]
        self.answers[number] += 1
        self.handed[number] = payload.get("delivered", 0)
        self.codes[number] = payload.get("code", 0)
        self.answered_s[number] = now - self.due[number]
        self.answered_at = now

    def received(self, number: int, now: float) -> None:
        """Note a receipt."""
        if 0 <= number < len(self) and self.received_s[number] < 0:
            self.received_s[number] = now - self.due[number]

    def sent(self) -> list[Sent]:
        """Return all for the judge."""
        return [
            Sent(*route, *what)
            for route, *what in zip(
                self.routes, self.answers, self.handed, self.codes, self.over, strict=True
            )
        ]


class Correspondent(Client):
    """Somebody who sends and receives.

    Attributes:
        inbox: what was received, in order.
        stays: whether the connection has never ended.
    """

    def __init__(self, loop: ClientLoop, uid: str, device: str, ledger: Ledger) -> None:
        super().__init__(loop, uid, device)
        self.inbox: list[Received] = []
        self.stays = True
        self._ledger = ledger
        self._over = 0
        self._open = 0
        self._moves = False

    @property
    def can_send(self) -> bool:
        """Whether it is logged in, and not about to move."""
        return self.is_in and not self._moves

    def write_to(self, recipient: str, count: int, due: float) -> None:
        """Send so many messages to a user in one go."""
        frames = bytearray()
        for _ in range(count):
            number = self._ledger.enter(self.uid, recipient, self._over, due)
            packet = [int(Kind.MESSAGE), FIRST_ID + number, {"to": recipient, "body": [number, PADDING]}]
            body = msgpack.packb(packet)
            frames += len(body).to_bytes(4, "big") + body
        self._open += count
        self.send(bytes(frames))

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        """It is another connection."""
        self._over = self._ledger.connection()

    def move(self) -> None:
        """Lose the connection as soon as all that was sent is answered, and be back somewhere soon."""
        if self.is_in:
            self._moves, self.stays = True, False
            self._move_on()

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """Note it."""
        if kind == Kind.DELIVER:
            number = payload["body"][0]
            self.inbox.append(Received(number, payload["from"]))
            self._ledger.received(number, now)
        elif id is not None and id >= FIRST_ID:
            self._open -= 1
            self._ledger.answered(id - FIRST_ID, payload, now)
            self._move_on()

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """Not what was wanted."""
        self._open, self.stays, self._moves = 0, False, False

    def _move_on(self) -> None:
        if self._moves and not self._open and self.is_in:
            self._moves = False
            self.drop(reset=random.random() < 0.5)
            self.loop.at(time.monotonic() + random.uniform(0.0, 0.5), self.connect)
