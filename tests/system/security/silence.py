"""Clients that are silent, or almost too late: no login, and keepalives right at the time-out."""

import random
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from loadtest.outcome import CaseOutcome, failed_checks, percentile, spread_ms
from loadtest.stream_events import StreamEvent
from presence import protocol
from presence.loadtest.client_loop import NO_CONNECTION, ClientLoop, LoopClient
from presence.protocol import Code, Kind
from tests.system.security.credentials import login, unverified_context
from tests.system.security.load import GRANTED, LEAD_S, Visit, processes, visits
from tests.system.security.stage import attacked_server

LOGIN_TIMEOUT_S = 5.0
LATE_S = 0.5  # a time-out may be so late
MAX_P99_S = 0.25  # of a login beside the strangers

# Strangers who say nothing, or a byte a second


def silent(count: int, over_tls: int, per_second: float, logins: float) -> CaseOutcome:
    """Let silent clients connect and wait, while users log in.

    Args:
        count: of clients that say nothing, or send a login at a byte per second.
        over_tls: of those on the TLS port: silent, half a hello, a byte per second, a hello and no more.
        per_second: how many connect per second.
        logins: per second, of users.
    """
    hello = _hello()
    frames = (b"", [bytes([each]) for each in login("u" * 100)])
    frames_tls = (b"", hello[: len(hello) // 2], [bytes([each]) for each in hello], hello)
    flags = ("--workers", "2", "--login-timeout", f"{LOGIN_TIMEOUT_S:g}")
    with attacked_server(*flags, tls=True) as stage, processes(3) as pool:
        address, begin = stage.server.address, time.monotonic() + LEAD_S
        seconds, users = LOGIN_TIMEOUT_S + 2 * LATE_S, int((count / per_second + LOGIN_TIMEOUT_S) * logins)
        stays = partial(visits, per_second=per_second, seconds=seconds, begin=begin, hangs_up=False)
        honest = pool.submit(visits, address, "honest", users, logins, begin=begin)
        strangers = pool.submit(stays, address, frames, count)
        secured = pool.submit(stays, stage.tls_address, frames_tls, over_tls).result()
        return judge_silent(strangers.result(), secured, honest.result(), stage.bystanders_hurt())


def _hello() -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = unverified_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def judge_silent(
    strangers: Sequence[Visit], secured: Sequence[Visit], honest: Sequence[Visit], harm: list[str]
) -> CaseOutcome:
    """Judge the stays; TLS clients get no code."""
    lived = [each.took_s for each in (*strangers, *secured)]
    alive = sum(time_s > LOGIN_TIMEOUT_S + LATE_S for time_s in lived)
    early = sum(time_s < LOGIN_TIMEOUT_S for time_s in lived)
    unnamed = sum(each.code != Code.LOGIN_TIMEOUT for each in strangers)
    refused = sum(each.code != GRANTED for each in honest)
    times = [each.took_s for each in honest]
    p99 = percentile(times, 0.99)
    broken = harm + failed_checks(
        (alive, f"{alive} of {len(lived)} were open at {LOGIN_TIMEOUT_S + LATE_S:g} s"),
        (early, f"{early} were closed too early"),
        (unnamed, f"{unnamed} were not told why"),
        (refused, f"{refused} logins of users were not granted"),
        (not p99 <= MAX_P99_S, f"p99 of logins {p99 * 1000:.0f} ms"),
    )
    slow = sum(each.sent > 1 for each in strangers)
    injected = f"{len(lived):,} strangers, {slow:,} of them at a byte a second, {len(secured):,} over TLS"
    measured = f"closed after {min(lived):.3f} to {max(lived):.3f} s; logins beside them {spread_ms(times)}"
    return CaseOutcome("silent", injected if slow and secured else "", measured, broken)


# Beats in the very moment in which their sender's time is up

T_S, TICK_S = 1.0, 0.25
AROUND_S = (-0.02, 0.05)  # a keepalive comes so long before T to so long after T and a tick
SETTLE_S = 1.0  # until the last answers are read, and Redis has what was decided
MIN_RACES_SHARE = 0.05  # of the keepalives that have to win, and to lose
BEAT = protocol.encode(protocol.keepalive(2))


class AnsweredKeepalive(NamedTuple):
    """The last answered keepalive of a session: uid, and Unix ms before it was sent."""

    uid: str
    at_ms: float


@dataclass
class Race:
    """Keepalives that came in time, and too late; the last answered one by session."""

    won: int = 0
    lost: int = 0
    last_answered: dict[str, AnsweredKeepalive] = field(default_factory=dict)


class _Racer(LoopClient):
    """Sends a keepalive at about its deadline, and reconnects at its next turn."""

    def __init__(self, loop: ClientLoop, uid: str, until: float, race: Race) -> None:
        super().__init__(loop, uid)
        self.reconnects = False
        self._until, self._race = until, race
        self._session, self._sent_ms = "", 0.0

    def send_and_schedule(self) -> None:
        if time.monotonic() > self._until:
            return
        if self.fd == NO_CONNECTION:
            self.connect()
        else:
            self._sent_ms = time.time() * 1000
            self.send(BEAT)
        due = time.monotonic() + T_S + random.uniform(AROUND_S[0], TICK_S + AROUND_S[1])
        self.loop.call_at(due, self.send_and_schedule)

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self._session = payload["session"]

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.OK:
            self._race.won += 1
            self._race.last_answered[self._session] = AnsweredKeepalive(self.uid, self._sent_ms)

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self._race.lost += 1


def races(count: int, seconds: float) -> CaseOutcome:
    """Keepalives at the deadline of their sender: each wins, or a clean new period begins."""
    race = Race()
    flags = ("--idle-timeout", f"{T_S:g}", "--tick", f"{TICK_S:g}")
    with attacked_server(*flags) as stage, ClientLoop(stage.server.address) as loop:
        for number in range(count):
            _Racer(loop, f"racer-{number}", time.monotonic() + seconds, race).send_and_schedule()
        loop.run(seconds + SETTLE_S)
        events, harm = stage.events(), stage.bystanders_hurt()
    wrong, doubled = wrong_events(events, race.last_answered)
    broken = harm + failed_checks(
        (wrong, f"{len(wrong)} were told offline, and the next beat was answered: {wrong[:3]}"),
        (doubled, f"{doubled} events like the one before"),
    )
    keepalives = race.won + race.lost
    raced = min(race.won, race.lost) >= MIN_RACES_SHARE * keepalives > 0
    measured = f"{race.won:,} beats won, {race.lost:,} came too late; offline as last event {len(wrong)}"
    return CaseOutcome(
        "races", f"{keepalives:,} beats about T after the last" if raced else "", measured, broken
    )


def wrong_events(
    events: Iterable[StreamEvent], answered: Mapping[str, AnsweredKeepalive]
) -> tuple[list[str], int]:
    """Compare the stream with what clients know.

    Returns:
        Users whose last event before an answered keepalive is offline, and how many events do not alternate.
    """
    by_uid: dict[str, list[StreamEvent]] = {}
    for event in events:
        by_uid.setdefault(event.uid, []).append(event)
    wrong = [
        uid
        for uid, at_ms in answered.values()
        if [event.type for event in by_uid.get(uid, ()) if event.at_ms < at_ms][-1:] != ["online"]
    ]
    doubled = sum(
        event.type == before.type
        for user_events in by_uid.values()
        for before, event in pairwise(user_events)
    )
    return wrong, doubled
