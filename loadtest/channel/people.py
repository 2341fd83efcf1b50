"""Who is watched, and who watches: devices that live at random, and devices that write down what they see."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import protocol
from loadtest.channel.watch_judge import Answered, Lost, Pushed, Unwatched
from loadtest.client_loop import AWAY, Client, ClientLoop
from protocol import Kind

STATUS_TEXTS = ("at work", "im Zug", "おはよう", "")
VERSIONS = 40
RETRY_S = 0.5  # where the server names no time


class Person(Client):
    """Somebody whom others watch: at each `act` does one of the things that devices do.

    Args:
        grace_s: the server's; the pauses are made of it.
    """

    def __init__(
        self, loop: ClientLoop, uid: str, device: str, chance: random.Random, grace_s: float
    ) -> None:
        super().__init__(loop, uid, device)
        self.returns = False
        self.done: Counter[str] = Counter()
        self._chance = chance
        self._grace_s = grace_s
        self._is_away = False
        self._acts = [
            (self._log_out, 16),
            (self._go, 8),
            (self._move, 10),
            (self._fall_silent, 4),
            (self._turn, 27),
            (self._tell, 35),
        ]

    def act(self) -> None:
        """Do something, whatever is possible now."""
        if self.fd == AWAY:
            self._is_away, self.beats = False, True
            self.meta = self._some_meta() if self._chance.random() < 0.6 else None
            self.connect()
        elif self.is_in and self.beats:
            acts, weights = zip(*self._acts, strict=True)
            self._chance.choices(acts, weights)[0]()

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """Return soon where the server has gone, but not each time; others have to be told then."""
        if payload is None and self.beats and self._chance.random() < 0.5:
            self.loop.at(now + self._chance.uniform(0.0, 1.5), self.connect)

    def _log_out(self) -> None:
        self.beats = False
        self.send(protocol.encode(protocol.logout(self._chance.choice(("logout", "background")))))

    def _go(self) -> None:
        self.drop(reset=self._chance.random() < 0.5)

    def _move(self) -> None:
        self.drop(reset=self._chance.random() < 0.5)
        self.loop.at(time.monotonic() + self._chance.uniform(0.0, 0.6 * self._grace_s), self.connect)

    def _fall_silent(self) -> None:
        self.beats = False

    def _turn(self) -> None:
        self._is_away = not self._is_away
        self.send(protocol.encode(protocol.update(status="away" if self._is_away else "online")))

    def _tell(self) -> None:
        meta = {} if self._chance.random() < 0.1 else self._some_meta()
        self.send(protocol.encode(protocol.update(meta=meta)))

    def _some_meta(self) -> dict[str, Any]:
        found: dict[str, Any] = {"app": f"4.{self._chance.randrange(VERSIONS)}", "dev": self.device}
        if text := self._chance.choice(STATUS_TEXTS):
            found["text"] = text
        return found


class Watcher(Client):
    """Somebody who watches, and writes down what comes.

    Args:
        uids: whom.

    Attributes:
        history: what has come so far, for the judge.
        refused: watches that were refused, by the code; they are asked again.
    """

    def __init__(self, loop: ClientLoop, uid: str, uids: Sequence[str]) -> None:
        super().__init__(loop, uid)
        self.history: list[Answered | Pushed | Unwatched | Lost] = []
        self.refused: Counter[int] = Counter()
        self._uids = uids
        self._asked: dict[int, tuple[float, Sequence[str], bool]] = {}
        self._ids: Iterator[int] = iter(range(100, 1 << 31))

    @property
    def is_answered(self) -> bool:
        """Whether it is logged in and waits for no answer."""
        return self.is_in and not self._asked

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        """Watch."""
        self._ask(self._uids, watch=True)

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """Write it down."""
        at_ms = self.loop.unix_ms(now)
        if kind == Kind.PRESENCE:
            self.history.append(Pushed(at_ms, payload["uid"], payload))
        elif id in self._asked:
            asked_ms, uids, watch = self._asked.pop(id)
            if kind == Kind.ERROR:
                self.refused[payload["code"]] += 1
                self._retry(now + payload.get("retry_after", RETRY_S), uids, watch=watch)
            elif watch:
                self.history.append(Answered(asked_ms, at_ms, uids, payload["presence"]))
            else:
                self.history.append(Unwatched(uids))
        else:
            raise AssertionError(f"not asked for: {kind} {id} {payload}")

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """All watches are gone."""
        self._asked.clear()
        self.history.append(Lost())

    def leave(self) -> None:
        """Drop the connection, and be back soon."""
        if self.is_in:
            now = time.monotonic()
            self.drop(reset=True)
            self.ended(None, now)
            self.loop.at(now + random.uniform(0.0, 1.0), self.connect)

    def look_away(self) -> None:
        """Watch some no more, and then again."""
        if self.is_answered:
            some = random.sample(self._uids, len(self._uids) // 2)
            self._ask(some, watch=False)
            self._ask(some, watch=True)

    def _ask(self, uids: Sequence[str], *, watch: bool) -> None:
        id = next(self._ids)
        self._asked[id] = (self.loop.unix_ms(time.monotonic()), uids, watch)
        self.send(protocol.encode((protocol.watch if watch else protocol.unwatch)(uids, id=id)))

    def _retry(self, moment: float, uids: Sequence[str], *, watch: bool) -> None:
        fd = self.fd

        def ask() -> None:
            if self.is_in and self.fd == fd:  # a new connection has asked for all
                self._ask(uids, watch=watch)

        self.loop.at(moment, ask)
