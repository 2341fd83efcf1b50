"""Thousands of clients in one thread: no task, no object and no timer for each of them.

Nothing here blocks. `Swarm.step` does what is due and says when it wants to be called next; until then the
caller waits for `Swarm.fileno` to become readable: with epoll, or under gevent with gevent's own waiting.

The schedule of beats is a ring of slots, one turn of which takes one beat interval. Client n beats in slot n
mod their number, so the ring needs no memory; and since only the length of a slot changes with the interval,
nobody ever waits longer for the next beat than the longer of two intervals. It is open-loop: each slot has
its moment, whatever the server does; a slot that comes late is done late, never left out, and its lateness
noted.
"""

import itertools
import math
import os
import random
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import protocol
from loadtest.clients import AWAY, Clients, Counts, Watcher
from loadtest.facts import Sent
from loadtest.links import ASKING_BEAT, Links, error_name, plain_login

SLOTS_MAX = 6000  # 2 ms each at a beat each 12 s; the fewer, the fewer wakes and the larger the bursts
STEP_S = 0.01  # a step that has more to do returns after about so long, and wants to be called again at once


class Swarm:
    """As many clients as `clients` has places, none of which is connected yet.

    Moments are monotonic seconds (`time.monotonic`), and `now` is the caller's.

    Args:
        address: the server's host (an IPv4 address) and port.
        clients: the columns to fill.
        sources: local addresses to connect from, in turn; None leaves it to the kernel.
        idle_timeout: that logins wish for, seconds.
        login: makes the frame of a login, its id `LOGIN_ID`, from the uid; None: with no more than the uid.
        asking: in every so manieth turn of the ring beats ask for answers; 0: they never do.
        returns: whether clients that were online and whose connection ended come back by themselves. A login
            that was refused, or a connection that did not come about, is always tried again, after the time
            that the server named.
        others: further servers; each connection goes to one of all, at random.
        watcher: is told what happens.
        epoll: what to wait with; gevent hides `select.epoll`, so under gevent bring the original.

    Attributes:
        clients, counts: what each did, and what happened so far.
        hears: whether `step` reads what the server sends. A client that does not hear does not hang up either
            when the server says goodbye: it is a phone that has lost its network.
    """

    def __init__(
        self,
        address: tuple[str, int],
        clients: Clients,
        *,
        sources: Iterator[str | None] | None = None,
        idle_timeout: float | None = None,
        login: Callable[[str], bytes] | None = None,
        asking: int = 0,
        returns: bool = False,
        others: Sequence[tuple[str, int]] = (),
        watcher: Watcher | None = None,
        epoll: "select.epoll | None" = None,
    ) -> None:
        self.clients = clients
        self.counts = Counts()
        self.hears = True
        self._watcher = watcher or Watcher()
        self._links = Links(
            [address, *others],
            clients,
            self.counts,
            self._watcher,
            sources=sources or itertools.repeat(None),
            login=login or partial(plain_login, idle_timeout=idle_timeout),
            returns=returns,
            epoll=epoll or select.epoll(),
        )
        self._asking = asking
        self._slots = max(1, min(SLOTS_MAX, len(clients)))
        self._slot = 0
        self._slot_s = 0.0
        self._slot_due = math.inf
        self._slots_left = math.inf

    def fileno(self) -> int:
        """Return a descriptor that is readable while something of the server's waits."""
        return self._links.epoll.fileno()

    @property
    def due(self) -> float:
        """The moment at which `step` has something to do even if nothing is readable; may be infinite."""
        return min(self._links.due, self._slot_due)

    @property
    def is_beating(self) -> bool:
        """Whether beats are still to come."""
        return self._slot_due < math.inf

    @property
    def arriving(self) -> int:
        """How many clients are to connect some time, or wait for the answer to their login."""
        return self._links.waiting + len(self._links) - self.clients.online.count(1)

    def bring(self, numbers: Iterable[int], now: float, per_second: float = math.inf) -> None:
        """Let clients that have no connection connect and log in, evenly at that rate."""
        for count, number in enumerate(numbers):
            self._links.bring(number, now + count / per_second)

    def beat(self, every_s: float, now: float, turns: float = math.inf) -> None:
        """Let all beat at that interval from now on; after so many turns of the ring, silence."""
        self._slot_s = every_s / self._slots
        self._slots_left = turns * self._slots
        self._slot_due = min(self._slot_due, now + self._slot_s)

    def silence(self) -> None:
        """Let nobody beat any more; connections stay open."""
        self._slot_due = math.inf

    def hush(self, numbers: Iterable[int]) -> None:
        """Let these fall silent with their connections open, until their next login."""
        for number in numbers:
            self.clients.beating[number] = AWAY

    def drop(
        self,
        numbers: Iterable[int],
        now: float,
        back_s: tuple[float, float] | None = None,
        *,
        reset: bool = True,
    ) -> None:
        """Let these lose their connection, by a reset or a FIN; each is back after a time between the two."""
        for number in numbers:
            if self.clients.fds[number] == AWAY:
                continue
            begun = time.monotonic()
            self._links.close(number, reset=reset)
            self.counts.left += 1
            self._watcher.left(number, Sent(begun, time.monotonic()))
            if back_s:
                self._links.bring(number, now + random.uniform(*back_s))

    def move(self, number: int, at: float) -> int:
        """Let a client leave its connection half open, and log in then; return the descriptor."""
        fd = self._links.abandon(number)
        self._links.bring(number, at)
        return fd

    def close(self) -> None:
        """Close all connections, with resets, and the descriptor."""
        self._links.close_all()

    def step(self, now: float) -> float:
        """Do what is due; return the moment at which to call again, if nothing is readable before."""
        until = now + STEP_S
        if self.hears:
            self._links.read_ready()
        while self._slot_due <= now and time.monotonic() < until:
            self._beat_slot()
        self._links.open_due(now, until)
        return self.due

    def _beat_slot(self) -> None:
        clients, due = self.clients, self._slot_due
        beating, begun, done, before = clients.beating, clients.begun, clients.done, clients.before
        turn, slot = divmod(self._slot, self._slots)
        frame = ASKING_BEAT if self._asking and turn % self._asking == 0 else protocol.KEEPALIVE
        numbers = range(slot, len(clients), self._slots)
        write, clock, size, sent, moment = os.write, time.monotonic, len(frame), 0, 0.0
        for number in numbers:
            fd = beating[number]
            if fd < 0:
                continue
            moment = clock()
            try:
                if write(fd, frame) != size:
                    self._links.lost(number, "stuck")  # after half a frame nothing whole can follow
                    continue
            except BlockingIOError:
                self.counts.stuck += 1
                continue
            except OSError as error:
                self._links.lost(number, error_name(error))
                continue
            before[number], begun[number], done[number] = begun[number], moment, clock()
            sent += 1
        if sent:
            self.counts.beats += sent
            self.counts.late.append(moment - due)  # of the slot's last beat, which is the latest
            self._watcher.beaten(numbers)
        self._slot += 1
        self._slots_left -= 1
        self._slot_due = due + self._slot_s if self._slots_left > 0 else math.inf
