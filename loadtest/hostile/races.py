"""Beats that arrive in the very moment in which their sender's time is up."""

import heapq
import random
import select
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import protocol
from loadtest.hostile.stage import READ_BYTES, Stage, drop, login, staged
from loadtest.nodes.outcome import Outcome
from presence.store.client import open_client
from presence.store.keys import Keys
from protocol import Kind

T = 1.0
TICK = 0.25
AROUND_S = (-0.02, 0.05)  # a beat comes so long before T to so long after T and a tick
SETTLE_S = 1.0  # shorter than T
RACES_SHARE_MIN = 0.05  # of the beats that have to win, and to lose


@dataclass(eq=False)
class Racer:
    """A client, and how its beats fared."""

    uid: str
    sock: socket.socket | None = None
    decoder: protocol.Decoder = field(default_factory=protocol.Decoder)


class Race:
    """Clients whose next beat is due about when they are ended.

    Attributes:
        won, lost: beats that came in time, and too late.
    """

    def __init__(self, stage: Stage, count: int) -> None:
        self._stage = stage
        self._random = random.Random(5)
        self._poll = select.epoll()
        self._by_fd: dict[int, Racer] = {}
        self._due: list[tuple[float, int, Racer]] = []
        self.racers = [Racer(f"racer-{number}") for number in range(count)]
        self.won = self.lost = self._turn = 0
        for racer in self.racers:
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
        """Let them race."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            while self._due and self._due[0][0] <= now:
                racer = heapq.heappop(self._due)[2]
                if racer.sock is None:
                    self._enter(racer)
                    continue
                with suppress(OSError):
                    racer.sock.sendall(protocol.encode(protocol.keepalive(2)))
                self._schedule(racer)
            self._hear(min(until, self._due[0][0]) - now)

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
                self.won += packet.kind == Kind.OK and packet.id == 2

    def come_to_rest(self) -> set[str]:
        """Let all be logged in, and beat once more; return their uids."""
        for racer in self.racers:
            if racer.sock is not None:
                self._poll.unregister(racer.sock.fileno())
                drop(racer.sock)
            self._enter(racer)
        until = time.monotonic() + SETTLE_S / 2
        while (left := until - time.monotonic()) > 0:
            self._hear(left)
        return {racer.uid for racer in self.racers if racer.sock is not None}

    def close(self) -> None:
        """Close what is open."""
        for racer in self.racers:
            if racer.sock is not None:
                drop(racer.sock)
        self._poll.close()


def races(count: int, seconds: float) -> Outcome:
    """Beats about T after the one before; in the end whoever is logged in must be online for all to see."""
    flags = ("--idle-timeout", str(T), "--tick", str(TICK), "--disconnect-grace", "0.3")
    with staged(*flags) as stage, closing(Race(stage, count)) as race:
        race.run(seconds)
        online = race.come_to_rest()
        time.sleep(SETTLE_S / 4)
        last: dict[str, str] = {}
        doubled = 0
        for event in stage.events():
            doubled += last.get(event.uid) == event.type
            last[event.uid] = event.type
        with closing(open_client(stage.url)) as client:
            stands: Any = client.hkeys(Keys("presence", 1).online(0))
            records = {uid.decode() for uid in stands}
        wrong = [uid for uid in online if last.get(uid) != "online" or uid not in records]
    beats = race.won + race.lost
    broken = [f"{uid} is logged in, its last event is {last.get(uid)}" for uid in wrong]
    if doubled:
        broken.append(f"{doubled} events like the one before")
    if len(online) < count:
        broken.append(f"{count - len(online)} could not log in at the end")
    raced = min(race.won, race.lost) >= RACES_SHARE_MIN * beats > 0
    measured = (
        f"{race.won:,} beats won, {race.lost:,} came too late; online with offline as last event: "
        f"{len(wrong)}; events that do not alternate: {doubled}"
    )
    return Outcome("races", f"{beats:,} beats about T after the last" if raced else "", measured, broken)
