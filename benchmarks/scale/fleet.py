"""The clients of a load generator, and the fleet of generators."""

import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any

from benchmarks.loop_processes import LoopProcesses, shares_of, sources_of
from benchmarks.scale.verdict import LastPacket
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient, backoff_s
from presence.protocol import KEEPALIVE

SLOTS_PER_S = (
    3000  # of all generators, at the first interval: more cost wakes, fewer make bursts of keepalives
)


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


class Fleet(LoopProcesses):
    """All generators.

    Args:
        servers: hosts and ports; each connection goes to a random one.
        connections: of all generators together.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], connections: int, processes: int) -> None:
        self.connections = connections
        name, slot_s = secrets.token_hex(3), processes / SLOTS_PER_S
        shares = [len(each) for each in shares_of(connections, processes)]
        sources = sources_of(servers[0][0], shares)
        super().__init__(
            OrderedLoop,
            [
                (servers, f"{name}-{number}", share, sources[number], slot_s)
                for number, share in enumerate(shares)
            ],
        )

    def status(self, *, in_full: bool = False) -> FleetStatus:
        return FleetStatus.combine(self.call_all("report_status", in_full=in_full))

    def last_packets(self) -> list[LastPacket]:
        return [truth for answer in self.call_all("last_packets") for truth in answer]
