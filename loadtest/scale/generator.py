"""A load generator's process: one swarm, and orders for it on standard input.

``python -m loadtest.scale.generator SERVERS NAME CONNECTIONS FIRST_SOURCE``: the servers are JSON,
``[["127.0.0.1", 7400]]``; the last is the first of the source addresses, as a number from 0. An order is a
line of JSON, ``["beat", 12.0]``, and is answered with one line of JSON. The swarm goes on meanwhile; the
process ends when standard input does.
"""

import gc
import itertools
import json
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from loadtest.clients import Clients
from loadtest.connection import raise_file_limit, source_addresses
from loadtest.links import READ_BYTES
from loadtest.swarm import Swarm

SOURCES = 4  # addresses of one generator: 17,000 connections are 4,250 ports of each
STDIN = 0
WAIT_MAX_S = 1.0  # where nothing is due; epoll takes no infinite wait as a number


class Generator:
    """Obeys orders. The methods without an underscore are the orders; each returns its answer.

    Args:
        servers: their addresses; each connection goes to one of them at random.
        name: of the clients.
        connections: how many there are.
        first_source: which of the source addresses comes first.
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], name: str, connections: int, first_source: int
    ) -> None:
        address, *others = servers
        sources = source_addresses(address[0], first_source + SOURCES)
        mine = itertools.cycle(list(itertools.islice(sources, first_source, first_source + SOURCES)))
        self.swarm = Swarm(address, Clients(name, connections), sources=mine, others=others)
        self._cpu = time.process_time()
        self._beats = self._looked_at = 0
        self._late_max = 0.0

    def bring(self, per_second: float) -> int:
        """Let all who have no connection log in, at that rate; return how many they are."""
        away = self.swarm.clients.numbers(online=False)
        self.swarm.bring(away, time.monotonic(), per_second)
        return len(away)

    def beat(self, every_s: float) -> bool:
        """Beat at that interval from now on."""
        self.swarm.beat(every_s, time.monotonic())
        return True

    def last_beat(self, within_s: float) -> bool:
        """Send one more beat from each client within that time, then none; hear no more."""
        self.swarm.silence()
        self.swarm.hears = False
        self.swarm.beat(within_s, time.monotonic(), turns=1)
        return True

    def silence(self) -> bool:
        """Beat no more, and hear no more, as without a network."""
        self.swarm.silence()
        self.swarm.hears = False
        return True

    def hear(self) -> bool:
        """Read what the server has sent, and hang up where it says so."""
        self.swarm.hears = True
        return True

    def status(self) -> dict[str, Any]:
        """How it stands."""
        counts = self.swarm.counts
        self._late_max = max(self._late_max, max(counts.late[self._looked_at :], default=0.0))
        self._looked_at = len(counts.late)
        return {
            "online": self.swarm.clients.online.count(1),
            "arriving": self.swarm.arriving,
            "is_beating": self.swarm.is_beating,
            "beats": counts.beats - self._beats,
            "late_max_s": self._late_max,
            "lost": counts.lost,
            "refused": counts.refused,
            "failed": counts.failed,
            "stuck": counts.stuck,
        }

    def mark(self) -> bool:
        """Begin a phase: what `figures` tells is counted from here."""
        counts = self.swarm.counts
        del counts.late[:], counts.login_s[:]
        self._beats, self._cpu = counts.beats, time.process_time()
        self._late_max, self._looked_at = 0.0, 0
        return True

    def figures(self) -> dict[str, Any]:
        """What was since the last mark."""
        counts = self.swarm.counts
        return {
            **self.status(),
            "cpu_s": time.process_time() - self._cpu,
            "late_s": list(counts.late),
            "login_s": list(counts.login_s),
        }

    def facts(self) -> dict[str, Any]:
        """The columns, a row for each client."""
        clients = self.swarm.clients
        return {
            "uids": [clients.uid(number) for number in range(len(clients))],
            "sessions": clients.sessions,
            "begun": list(clients.begun),
            "before": list(clients.before),
        }


def run(generator: Generator) -> None:
    """Drive the swarm and obey, until standard input ends."""
    orders: dict[str, Callable[..., Any]] = {
        name: getattr(generator, name)
        for name in ("bring", "beat", "last_beat", "silence", "hear", "status", "mark", "figures", "facts")
    }
    poll = select.epoll()
    poll.register(generator.swarm.fileno())
    poll.register(STDIN, select.EPOLLIN)
    unread, due = b"", 0.0
    while True:
        poll.modify(generator.swarm.fileno(), select.EPOLLIN if generator.swarm.hears else 0)
        ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
        if any(fd == STDIN for fd, _ in ready):
            data = os.read(STDIN, READ_BYTES)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                name, *arguments = json.loads(line)
                print(json.dumps(orders[name](*arguments)), flush=True)
        due = generator.swarm.step(time.monotonic())
    generator.swarm.close()


def main() -> None:
    """Set up what the arguments say."""
    servers, name, connections, first_source = sys.argv[1:]
    raise_file_limit()
    generator = Generator(
        [(host, port) for host, port in json.loads(servers)], name, int(connections), int(first_source)
    )
    gc.disable()  # nothing here makes cycles, and a collection would make beats late
    run(generator)


if __name__ == "__main__":
    main()
