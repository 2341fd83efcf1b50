"""Beats that arrive in the very moment in which their sender's time is up."""

import heapq
import random
import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import protocol
from loadtest.events import Event
from loadtest.hostile.stage import READ_BYTES, Stage, drop, login, staged
from loadtest.nodes.outcome import Outcome
from protocol import Kind

T = 1.0
TICK = 0.25
FLAGS = ("--idle-timeout", str(T), "--tick", str(TICK))
AROUND_S = (-0.02, 0.05)  # a beat comes so long before T to so long after T and a tick
SETTLE_S = 1.0  # until the last answers are read, and Redis has what was decided
RACES_SHARE_MIN = 0.05  # of the beats that have to win, and to lose
LOGIN_ID, BEAT_ID = 1, 2


@dataclass(eq=False)
class Racer:
    """A client.

    Attributes:
        sock: its connection; None: the server has ended it.
        session: the session that the server has named.
        beat_ms: Unix ms, right before its last beat was sent.
    """

    uid: str
    sock: socket.socket | None = None
    decoder: protocol.Decoder = field(default_factory=protocol.Decoder)
    session: str = ""
    beat_ms: float = 0.0


class Answered(NamedTuple):
    """The last beat of a session that was answered: whose, and Unix ms before it was sent."""

    uid: str
    at_ms: float


class Race:
    """Clients whose next beat is due about when they are ended.

    Attributes:
        won, lost: beats that came in time, and too late.
        answered: by session.
    """

    def __init__(self, stage: Stage, count: int) -> None:
        self._stage = stage
        self._random = random.Random(5)
        self._poll = select.epoll()
        self._by_fd: dict[int, Racer] = {}
        self._due: list[tuple[float, int, Racer]] = []
        self._turn = self.won = self.lost = 0
        self.answered: dict[str, Answered] = {}
        self._racers = [Racer(f"racer-{number}") for number in range(count)]
        for racer in self._racers:
            self._enter(racer)

    def _enter(self, racer: Racer) -> None:
        racer.sock = self._stage.connect()
        racer.sock.sendall(login(racer.uid))
        racer.decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        self._poll.register(racer.sock.fileno(), select.EPOLLIN)
        self._by_fd[racer.sock.fileno()] = racer
        self._schedule(racer)

    def _schedule(self, racer: Racer) -> None:
        self._turn += 1
        early, late = AROUND_S
        due = time.monotonic() + T + self._random.uniform(early, TICK + late)
        heapq.heappush(self._due, (due, self._turn, racer))

    def run(self, seconds: float) -> None:
        """Let them race; then read what is left to read."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            while self._due[0][0] <= now:
                self._act(heapq.heappop(self._due)[2])
            self._hear(min(until, self._due[0][0]) - now)
        until += SETTLE_S
        while (left := until - time.monotonic()) > 0:
            self._hear(left)

    def _act(self, racer: Racer) -> None:
        if racer.sock is None:
            self._enter(racer)
            return
        racer.beat_ms = time.time() * 1000
        with suppress(OSError):
            racer.sock.sendall(protocol.encode(protocol.keepalive(BEAT_ID)))
        self._schedule(racer)

    def _hear(self, seconds: float) -> None:
        for fd, _ in self._poll.poll(max(0.0, seconds)):
            racer = self._by_fd[fd]
            assert racer.sock is not None
            data = b""
            with suppress(OSError):
                data = racer.sock.recv(READ_BYTES)
            if not data:
                self._poll.unregister(fd)
                drop(racer.sock)
                racer.sock = None  # it is back at its next turn
                self.lost += 1
                continue
            racer.decoder.feed(data)
            while (packet := racer.decoder.next()) is not None:
                if packet.kind == Kind.OK and packet.id == LOGIN_ID:
                    racer.session = packet.payload["session"]
                elif packet.kind == Kind.OK:
                    self.won += 1
                    self.answered[racer.session] = Answered(racer.uid, racer.beat_ms)

    def close(self) -> None:
        """Close what is open."""
        for racer in self._racers:
            if racer.sock is not None:
                drop(racer.sock)
        self._poll.close()


def told_wrongly(events: Iterable[Event], answered: Mapping[str, Answered]) -> tuple[list[str], int]:
    """Hold the stream against what clients know.

    Returns:
        Who was online when a beat was answered, though the last event before that beat says offline; and how
        many events do not alternate.
    """
    by_uid: dict[str, list[Event]] = {}
    for event in events:
        by_uid.setdefault(event.uid, []).append(event)
    wrong = [
        uid
        for uid, at_ms in answered.values()
        if [event.type for event in by_uid.get(uid, ()) if event.at_ms < at_ms][-1:] != ["online"]
    ]
    doubled = sum(event.type == before.type for told in by_uid.values() for before, event in pairwise(told))
    return wrong, doubled


def races(count: int, seconds: float) -> Outcome:
    """Beats about T after the one before: each is answered and nobody told of, or it comes after an end."""
    with staged(*FLAGS) as stage, closing(Race(stage, count)) as race:
        race.run(seconds)
        wrong, doubled = told_wrongly(stage.events(), race.answered)
        broken = [f"{uid} was told offline, and its next beat was answered" for uid in wrong]
        broken += stage.others_hurt()
    if doubled:
        broken.append(f"{doubled} events like the one before")
    beats = race.won + race.lost
    raced = min(race.won, race.lost) >= RACES_SHARE_MIN * beats > 0
    measured = (
        f"{race.won:,} beats won, {race.lost:,} came too late; online with offline as last event: "
        f"{len(wrong)} of {len(race.answered):,}; events that do not alternate: {doubled}"
    )
    return Outcome("races", f"{beats:,} beats about T after the last" if raced else "", measured, broken)
