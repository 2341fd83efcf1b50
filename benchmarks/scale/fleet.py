"""Load generators: processes with a loop of clients each, and the fleet that commands them."""

import contextlib
import gc
import itertools
import math
import multiprocessing
import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from multiprocessing.connection import Connection
from operator import add
from typing import Any

from benchmarks.scale.verdict import LastPacket
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient, LoopThread, backoff_s
from presence.loadtest.server_address import raise_file_limit, source_addresses
from presence.protocol import KEEPALIVE

SLOTS_PER_S = (
    3000  # of all generators, at the first interval: more cost wakes, fewer make bursts of keepalives
)
CONNECTIONS_PER_SOURCE = 4000  # address, of one generator
ORDER_TIMEOUT_S = 60.0  # a generator's thread never waits for long; one that was stopped never answers
END_TIMEOUT_S = 20.0


@dataclass
class FleetStatus:
    """The generators' counts since the start, some of them since the last phase."""

    # Clients that are logged in, and that are to be
    online: int = 0
    arriving: int = 0
    beating: int = 0  # generators with keepalives still to send
    keepalives: int = 0  # sent in this phase
    blocked: int = 0  # keepalives of this phase that the kernel did not take
    late_max_s: float = 0.0  # of the latest keepalive in this phase
    cpu_s: float = 0.0  # of the generators in this phase
    # Sessions and logins, by reason
    lost: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    # Of each slot's last keepalive, and of each login, in this phase; only where asked for
    late_s: list[float] = field(default_factory=list)
    login_s: list[float] = field(default_factory=list)

    @classmethod
    def combine(cls, parts: Sequence["FleetStatus"]) -> "FleetStatus":
        columns = {each.name: [getattr(part, each.name) for part in parts] for each in fields(cls)}
        found = {name: reduce(add, column) for name, column in columns.items()}
        return cls(**found | {"late_max_s": max(columns["late_max_s"])})


class _Steady(LoopClient):
    """Logs in, with retries, and sends keepalives; a lost session does not return by itself.

    Attributes:
        session: as the server named it.
        last_sent_at, previous_sent_at: right before its last packet was sent, and the one before.
        is_expected: whether it is to be logged in.
    """

    def __init__(self, generator: "OrderedLoop", uid: str, address: tuple[str, int]) -> None:
        super().__init__(generator, uid)
        self.address = address
        self.reconnects = self.is_expected = False
        self.session = ""
        self.last_sent_at = self.previous_sent_at = 0.0
        self._generator = generator
        self._attempts = 0

    def on_connected(self) -> None:
        self.session, self.last_sent_at = "", time.monotonic()
        self.previous_sent_at = self.last_sent_at
        super().on_connected()

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.session = payload.get("session", "-")  # a C floor sends none
        self._attempts = 0
        self._generator.status.login_s.append(now - self.last_sent_at)

    def send_keepalive(self) -> None:
        moment = time.monotonic()
        if self.try_send(KEEPALIVE):
            self.previous_sent_at, self.last_sent_at = self.last_sent_at, moment
        else:
            self._generator.status.blocked += 1

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        status, reason = self._generator.status, payload["reason"] if payload else "closed"
        if self.session:
            status.lost[reason] += 1
            self.is_expected = False
            return
        (status.refused if payload else status.failed)[reason] += 1
        wait_s = (payload or {}).get("retry_after") or self.reconnect_delay_s()
        self.loop.call_at(now + wait_s, self.connect)

    def reconnect_delay_s(self) -> float:
        self._attempts += 1
        return backoff_s(self._attempts)


class OrderedLoop(ClientLoop):
    """A loop whose further methods are the commands of `Fleet`.

    Args:
        servers: their addresses; each client goes to a random one.
        name: prefix of the uids.
        connections: how many there are.
        sources: the addresses to connect from.
        slot_s: of the keepalives, seconds at the first interval.
    """

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        name: str,
        connections: int,
        sources: Sequence[str | None],
        slot_s: float,
    ) -> None:
        super().__init__(servers[0], slot_s=slot_s, sources=sources)
        self.status = FleetStatus()
        self.clients = [
            _Steady(self, f"{name}-{number}", random.choice(servers)) for number in range(connections)
        ]
        self._silent: list[_Steady] = []
        self._cpu_mark_s = time.process_time()

    def on_keepalives_sent(self, sent: int, late_s: float) -> None:
        self.status.keepalives += sent
        self.status.late_s.append(late_s)
        self.status.late_max_s = max(self.status.late_max_s, late_s)

    def log_in_all(self, per_second: float) -> None:
        """Let all clients without a connection log in, at that rate."""
        away = [client for client in self.clients if not client.is_expected]
        for client in away:
            client.is_expected = True
        self.connect_all(away, per_second)

    def fall_silent(self, last_beat_s: float = 0.0, share: float = 1.0) -> None:
        """Stop the keepalives of all clients or a share; with `last_beat_s` each sends one more in that time.

        From now on these clients read nothing, as without a network.
        """
        self._silent = self.clients[: round(share * len(self.clients))]
        self._set_reading(on=False)
        if share < 1:
            for client in self._silent:
                client.sends_keepalives = False
            return
        self.stop_keepalives()
        if last_beat_s:
            self.start_keepalives(last_beat_s, turns=1)

    def resume_reading(self) -> None:
        """Read what the server has sent, and close where it said goodbye."""
        self._set_reading(on=True)

    def _set_reading(self, *, on: bool) -> None:
        for client in self._silent:
            if client.fd != NO_CONNECTION:
                self.set_reading(client, on=on)

    def begin_phase(self) -> None:
        status = self.status
        status.late_s, status.login_s = [], []
        status.keepalives = status.blocked = 0
        status.late_max_s, self._cpu_mark_s = 0.0, time.process_time()

    def report_status(self, *, in_full: bool = False) -> FleetStatus:
        status = self.status
        status.online, status.beating = self.count_logged_in(), int(self.is_sending_keepalives)
        status.arriving = sum(client.is_expected and not client.is_logged_in for client in self.clients)
        status.cpu_s = time.process_time() - self._cpu_mark_s
        found = dict(vars(status))
        return FleetStatus(**found if in_full else found | {"late_s": [], "login_s": []})

    def last_packets(self) -> list[LastPacket]:
        """Return the last packets of each silent client that was ever logged in."""
        return [
            LastPacket(each.uid, each.session, each.last_sent_at, each.previous_sent_at)
            for each in self._silent
            if each.session
        ]


def _serve(pipe: Connection, *arguments: Any) -> None:
    """Run the clients and the commands, until the pipe ends: the process of a generator."""
    raise_file_limit()
    generator = OrderedLoop(*arguments)
    gc.disable()  # nothing here makes cycles, and a collection would make keepalives late
    with LoopThread(generator) as thread, contextlib.suppress(EOFError):
        while True:
            name, given = pipe.recv()
            pipe.send(thread.call(lambda: getattr(generator, name)(**given)))  # noqa: B023 - done by now


class Fleet:
    """All generators.

    Args:
        servers: hosts and ports; each connection goes to a random one.
        connections: of all generators together.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], connections: int, processes: int) -> None:
        self.size, self.connections = processes, connections
        # All are forked from one process that has loaded the modules, and share the memory of that.
        name, context = secrets.token_hex(3), multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        per_process = math.ceil(connections / processes / CONNECTIONS_PER_SOURCE)
        sources = source_addresses(servers[0][0], per_process * processes)
        self._processes, self._pipes = [], []
        for number in range(processes):
            share = connections * (number + 1) // processes - connections * number // processes
            pipe, theirs = context.Pipe()
            addresses = [*itertools.islice(sources, per_process)]
            slot_s = processes / SLOTS_PER_S
            arguments = (theirs, servers, f"{name}-{number}", share, addresses, slot_s)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(pipe)

    def call_all(self, order: str, **arguments: Any) -> list[Any]:
        """Run a command in all generators; return their answers.

        Raises:
            SystemExit: one of them has ended or does not answer.
        """
        for number in range(self.size):
            self._send(number, order, arguments)
        give_up_at = time.monotonic() + ORDER_TIMEOUT_S
        return [self._answer(number, order, give_up_at) for number in range(self.size)]

    def _send(self, number: int, order: str, arguments: Mapping[str, Any]) -> None:
        try:
            self._pipes[number].send((order, arguments))
        except OSError:
            raise SystemExit(self._gone(number, "ended", order)) from None

    def _answer(self, number: int, order: str, give_up_at: float) -> Any:
        try:
            if not self._pipes[number].poll(max(0.0, give_up_at - time.monotonic())):
                raise SystemExit(self._gone(number, "does not answer", order))
            return self._pipes[number].recv()
        except (EOFError, OSError):
            raise SystemExit(self._gone(number, "ended", order)) from None

    def _gone(self, number: int, what: str, order: str) -> str:
        process, share = self._processes[number], self.connections // self.size
        return (
            f"load generator {number + 1} of {self.size} (pid {process.pid}) {what} at the order {order}: "
            f"its {share:,} clients cannot be judged"
        )

    def status(self, *, in_full: bool = False) -> FleetStatus:
        return FleetStatus.combine(self.call_all("report_status", in_full=in_full))

    def last_packets(self) -> list[LastPacket]:
        return [truth for answer in self.call_all("last_packets") for truth in answer]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        give_up_at = time.monotonic() + END_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, give_up_at - time.monotonic()))
            process.kill()
