"""Many real clients in one thread, with the exact time of each packet that they sent.

Open loop: a keepalive is sent when it is due, whatever the server does. The clients' own send times are the
truth that the server's events are compared with.
"""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from presence import protocol
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.protocol import Kind, Packet
from presence.transports.accept_rotation import PERIOD_S

CONNECT_TIMEOUT_S = 10.0
LOGIN_GROUPS = 10  # 0.8 of a period each: eight periods
POLL_INTERVAL_S = 0.25  # at what is waited for


class SwarmClient(LoopClient):
    """One connection and what it received; it sends keepalives about every `beat_s`, if that is finite."""

    closes_on_goodbye = False

    def __init__(self, loop: ClientLoop, uid: str, beat_s: float, *, asks: bool) -> None:
        super().__init__(loop, uid)
        self.sends_keepalives = self.reconnects = False  # its keepalives have a schedule of their own
        self.sent_at = 0.0  # Unix seconds, taken right before the last frame was sent
        self.silent_at: float | None = None  # monotonic: from then on it sends no keepalives
        self.received: list[Packet] = []
        self.is_closed = False  # by the server
        self.round_trips: list[float] = []  # seconds from each keepalive that asks to its answer
        self.unanswered: dict[int, float] = {}  # those without one, by id
        self._keepalive_s, self._wants_answers = beat_s, asks
        self._last_id = 1

    def on_connected(self) -> None:
        super().on_connected()
        if self._keepalive_s < math.inf:
            self.loop.call_at(
                time.monotonic() + random.uniform(0, self._keepalive_s), self._send_due_keepalive
            )

    def send(self, frame: bytes) -> None:
        self.sent_at = time.time()
        super().send(frame)

    def _send_due_keepalive(self) -> None:
        now = time.monotonic()
        if self.is_closed or (self.silent_at is not None and now >= self.silent_at):
            return
        if self._wants_answers:
            self._last_id += 1
            self.unanswered[self._last_id] = now
            self.send(protocol.encode(protocol.keepalive(self._last_id)))
        else:
            self.send(protocol.KEEPALIVE)
        self.loop.call_at(now + self._keepalive_s * random.uniform(0.9, 1.1), self._send_due_keepalive)

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.received.append(Packet(Kind.OK, 1, payload))

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.received.append(Packet(Kind(kind), id, payload))
        if kind == Kind.OK and id in self.unanswered:
            self.round_trips.append(now - self.unanswered.pop(id))

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.is_closed = True
        if payload is not None:
            self.received.append(Packet(Kind.GOODBYE if self.received else Kind.ERROR, None, payload))


class Swarm:
    """Clients that log in and send keepalives each `beat_s` seconds, plus or minus a tenth."""

    def __init__(self, address: tuple[str, int], *, beat_s: float) -> None:
        self.clients: list[SwarmClient] = []
        self._keepalive_s = beat_s
        self._loop = ClientLoop(address, sources=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.__exit__(*exc_info)

    def log_in(self, uids: Iterable[str], *, beating: bool = True, asks: bool = False) -> list[SwarmClient]:
        """Connect and send a login for each uid; the first keepalive follows within the interval."""
        beat_s = self._keepalive_s if beating else math.inf
        new = [SwarmClient(self._loop, uid, beat_s, asks=asks) for uid in uids]
        self.clients += new
        self._loop.connect_all(new, math.inf)
        assert self._loop.run(CONNECT_TIMEOUT_S, lambda: all(client.sent_at for client in new))
        return new

    def log_in_everywhere(self, uids: Iterable[str], *, beating: bool = True) -> None:
        """Log in over two rounds of the accept rotation of four workers, so that each gets some."""
        waiting = [*uids]
        for group in range(LOGIN_GROUPS):
            self.log_in(waiting[group::LOGIN_GROUPS], beating=beating)
            self.run(0.8 * PERIOD_S)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Run the clients for a while, or until a condition holds (checked after each wake-up)."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._loop.run(min(POLL_INTERVAL_S, left), until):
            pass

    def logged_in(self) -> bool:
        """Whether every client's login was answered with ok."""
        return all(client.received and client.received[0].kind == Kind.OK for client in self.clients)
