"""Floods: of logins, of forged tokens, of packets, of watches, and of clients who come and go."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from loadtest import usage
from loadtest.outcome import CaseOutcome, failed_checks, percentile, print_progress, spread_ms
from loadtest.redis_contents import Data
from loadtest.servers import Setup, wait_for
from presence import protocol
from presence.config.settings import Settings
from presence.protocol import UIDS_MAX, Code, Kind, Packet
from presence.server.node_assembly import LOGIN_BURST_S
from presence.watching.watch_quota import USER_BYTES
from presence.watching.watch_service import OWN_WATCHES
from tests.support.preloaded import PreloadedServer
from tests.system.security.credentials import login, with_bad_signature
from tests.system.security.load import (
    GRANTED,
    LEAD_S,
    SOURCES,
    Flooded,
    Visit,
    ask,
    flood,
    processes,
    visits,
)
from tests.system.security.stage import AttackedServer, BlockingConnection, attacked_server

MIN_GOODPUT = 0.9
SETTLE_S = LOGIN_BURST_S + 1.0  # of each load until it counts: what the bucket had saved is spent
MAX_P99_S = 0.25  # no promise names a time; an answer that takes longer than this is no answer in time

# Ten times as many logins as a server grants

TOKENS = 1000  # that are sent again and again


class GrantedLoad(NamedTuple):
    """One load: logins per second that were due, those that counted, and their seconds."""

    offered: float
    ended: Sequence[Visit]
    seconds: float

    def count(self, code: int) -> int:
        return sum(each.code == code for each in self.ended)

    @property
    def goodput(self) -> float:
        """Granted logins per second."""
        return self.count(GRANTED) / self.seconds

    @property
    def refused_without_reason(self) -> int:
        """How many were neither granted nor told when to return."""
        busy = {Code.BUSY, Code.RATE_LIMITED}
        informed = sum(each.code in busy and each.retry_after > 0 for each in self.ended)
        return len(self.ended) - self.count(GRANTED) - informed

    def __str__(self) -> str:
        times = spread_ms([each.took_s for each in self.ended if each.code == GRANTED])
        return f"{self.offered:,.0f}/s: granted {self.goodput:,.0f}/s in {times}"


def offer(
    stage: AttackedServer, frames: Sequence[bytes] | str, per_second: float, seconds: float
) -> GrantedLoad:
    """Offer a server that many logins per second; those of the first `SETTLE_S` do not count."""
    count, begin = int(per_second * (SETTLE_S + seconds)), time.monotonic() + LEAD_S
    with processes(1) as pool:
        ended = pool.submit(visits, stage.server.address, frames, count, per_second, begin=begin).result()
    return GrantedLoad(per_second, [each for each in ended if each.due >= begin + SETTLE_S], seconds)


def flood_logins(capacity: int, seconds: float, *, tokens: bool = False) -> CaseOutcome:
    """Offer as many logins as are granted, twice and ten times as many: the rest must be told when to return.

    Args:
        capacity: logins per second that the server grants.
        seconds: of each load that count.
        tokens: whether logins have tokens.
    """
    flags = ["--login-rate", str(capacity), "--idle-timeout", "5"]
    flags += ["--uid-login-rate", "0"] if tokens else []
    with attacked_server(*flags, tokens=tokens) as stage:
        signed = [stage.issuer.login(f"user-{number}") for number in range(TOKENS)] if tokens else []
        loads = []
        for times in (1, 2, 10):
            loads.append(offer(stage, signed or f"flood{times}", times * capacity, seconds))
            print_progress(str(loads[-1]))
        return judge_flood("flood-tokens" if tokens else "flood", loads, stage.bystanders_hurt())


def judge_flood(name: str, loads: Sequence[GrantedLoad], harm: list[str]) -> CaseOutcome:
    """Compare the last and greatest load with the best of those before."""
    *less, last = loads
    peak = max(each.goodput for each in less)
    unread = sum(each.refused_without_reason for each in loads)
    broken = harm + failed_checks(
        (
            not last.goodput >= MIN_GOODPUT * peak,
            f"{last.goodput:.0f} logins a second were granted, {peak:.0f} with less load",
        ),
        (unread, f"{unread} refusals without a time to return"),
    )
    refused = len(last.ended) - last.count(GRANTED)
    return CaseOutcome(
        name, f"{refused:,} logins refused" if refused else "", "; ".join(map(str, loads)), broken
    )


# Forged tokens beside good ones

FORGERS = 64  # addresses
PREPARED = 2000


class Forged(NamedTuple):
    """Good logins, and the rate of forged ones beside them."""

    rate: float
    good: Sequence[Visit]
    bad: Sequence[Visit]

    @property
    def share(self) -> float:
        """The share of good logins that were granted."""
        return sum(each.code == GRANTED for each in self.good) / len(self.good)

    def __str__(self) -> str:
        return f"beside {self.rate:,.0f} a second {self.share:.1%} granted"


def flood_forged(honest: float, rates: Sequence[float], seconds: float) -> CaseOutcome:
    """Offer good logins, with more and more forged ones per second beside them.

    The forged ones come from many addresses, each with its own user and a wrong signature, so each costs a
    check. The good ones share one address with some of them, at a rate that the server can serve easily.
    """
    sources = [f"127.0.8.{number + 1}" for number in range(FORGERS)]
    loads = []
    with attacked_server("--uid-login-rate", "0", tokens=True) as stage, processes(2) as pool:
        issuer, address = stage.issuer, stage.server.address
        count = int(honest * (SETTLE_S + seconds))
        good = [issuer.login(f"honest-{number % PREPARED}") for number in range(count)]
        uids = [f"forged-{number}" for number in range(PREPARED)]
        bad = [login(uid, with_bad_signature(issuer.token(uid))) for uid in uids]
        for rate in rates:
            begin, forging = time.monotonic() + LEAD_S, int(rate * (SETTLE_S + seconds))
            visits_made = pool.submit(visits, address, good, count, honest, begin=begin, sources=sources[:1])
            forged = (
                pool.submit(visits, address, bad, forging, rate, begin=begin, sources=sources).result()
                if forging
                else []
            )
            counted = [each for each in visits_made.result() if each.due >= begin + SETTLE_S]
            loads.append(Forged(rate, counted, forged))
            print_progress(f"flood-forged: {loads[-1]}")
        return judge_forged(loads, stage.bystanders_hurt())


def judge_forged(loads: Sequence[Forged], harm: list[str]) -> CaseOutcome:
    """Compare the greatest flood with none."""
    alone, *_, worst = loads
    forged = [*chain(*(each.bad for each in loads))]
    accepted = sum(each.code == GRANTED for each in forged)
    broken = harm + failed_checks(
        (
            not worst.share >= MIN_GOODPUT * alone.share,
            f"{worst.share:.1%} of good logins were granted, {alone.share:.1%} without a flood",
        ),
        (accepted, f"{accepted} forged tokens were taken"),
    )
    injected = f"{len(forged):,} forged tokens" if forged else ""
    return CaseOutcome("flood-forged", injected, "; ".join(map(str, loads)), broken)


# One client that sends packets as fast as it can

PACKETS = {
    "keepalives": protocol.KEEPALIVE,
    "questions": protocol.encode(protocol.keepalive(7)),
    "unknown packets": protocol.encode(Packet(9, 7)),
    "queries": protocol.encode(protocol.query([f"user-{number}" for number in range(50)], id=7)),
}
ASKERS, ASK_EACH_S = 50, 0.1


class FloodFigures(NamedTuple):
    """One kind of flood: the flooder, and seconds to the answers of others."""

    flooded: Flooded
    answers: Sequence[float]

    def __str__(self) -> str:
        packets, cut_off, _ = self.flooded
        return f"{packets:,}, cut off {cut_off:,} times: others' answers {spread_ms(self.answers)}"


def flooders(seconds: float) -> CaseOutcome:
    """Flood a server with each kind of packet, while other clients ask for answers."""
    flags = ("--disconnect-grace", "0", "--login-rate", "25000", "--uid-login-rate", "0")
    found: dict[str, FloodFigures] = {}
    with attacked_server(*flags) as stage, processes(2) as pool:
        address = stage.server.address
        for kind, frame in PACKETS.items():
            begin = time.monotonic() + LEAD_S
            times = pool.submit(ask, address, f"asks-{kind[:3]}", ASKERS, ASK_EACH_S, begin, seconds)
            flooded = pool.submit(flood, address, frame, begin, seconds).result()
            found[kind] = FloodFigures(flooded, times.result())
            print_progress(f"{kind}: {found[kind]}")
        return judge_flooders(found, stage.bystanders_hurt())


def judge_flooders(found: Mapping[str, FloodFigures], harm: list[str]) -> CaseOutcome:
    """No client may wait for long, and flooders are disconnected with a reason."""
    broken = [*harm]
    for kind, (flooded, answers) in found.items():
        p99 = percentile(answers, 0.99)
        broken += failed_checks(
            (not p99 <= MAX_P99_S, f"{kind}: p99 of others' answers {p99 * 1000:.0f} ms"),
            (not flooded.cut_off, f"{kind}: the flooder was never cut off"),
            (flooded.otherwise, f"{kind}: {flooded.otherwise} flooders were cut off without a word"),
        )
    packets = sum(each.flooded.packets for each in found.values())
    informed = "; ".join(f"{kind}: {each}" for kind, each in found.items())
    return CaseOutcome("flooders", f"{packets:,} packets of one client" if packets else "", informed, broken)


# Clients who watch as many users as they can

FRAMES = 2
CLIENTS_PER_TURN = 10
LATER = 50
IDLE_S = 300.0
MAX_EXCESS = 1.1  # of the memory of watches, beside what is counted
FIXED_BYTES = 16 * 2**20  # packed states, and what is read once


def watchers(count: int, memory_mb: int = Settings().watch_memory) -> CaseOutcome:
    """Let clients watch as many users as the largest frames hold, each of them others.

    Meanwhile a bystander asks for an answer; afterwards other clients watch only a few users.

    Args:
        memory_mb: the server's `watch_memory`.
    """
    codes: Counter[str] = Counter()
    waits: list[float] = []
    few = protocol.encode(protocol.watch([f"friend-{number}" for number in range(OWN_WATCHES)], id=7))
    with attacked_server("--watch-memory", str(memory_mb)) as stage:
        greedy = [_logged_in(stage, f"greedy-{number}") for number in range(count)]
        bystander = _logged_in(stage, "bystander")
        time.sleep(2)
        rss, redis = usage.memory(stage.pid).rss, _redis_bytes(stage)
        for first in range(0, count, CLIENTS_PER_TURN):
            turn = range(first, min(first + CLIENTS_PER_TURN, count))
            for number in turn:
                greedy[number].send(b"".join(_watch_frames(number)))
            started = time.monotonic()
            bystander.ask(protocol.encode(protocol.keepalive(7)))
            waits.append(time.monotonic() - started)
            codes.update(_outcome_of(greedy[number].answer()) for number in turn for _ in range(FRAMES))
        kept = codes["granted"] * UIDS_MAX
        rss, redis = usage.memory(stage.pid).rss - rss, _redis_bytes(stage) - redis
        later = [_logged_in(stage, f"later-{number}") for number in range(LATER)]
        modest = sum(_outcome_of(each.ask(few)) == "granted" for each in later)
        harm = stage.bystanders_hurt()
        for connection in (*greedy, *later, bystander):
            connection.drop()
    limit_bytes = memory_mb * 1_000_000 + OWN_WATCHES * count * USER_BYTES
    unsaid = codes.total() - codes["granted"] - codes["busy, with a time to return"]
    broken = harm + failed_checks(
        (kept * USER_BYTES > limit_bytes, f"{kept:,} watches in {limit_bytes:,} bytes"),
        (rss > FIXED_BYTES + limit_bytes * MAX_EXCESS, f"{rss:,} bytes of memory of the worker"),
        (redis > FIXED_BYTES, f"{redis:,} bytes of memory of Redis"),
        (unsaid, f"{unsaid} were refused without being told why"),
        (max(waits) > MAX_P99_S, f"a bystander waited {max(waits):.3f} s for an answer"),
        (modest < LATER, f"{LATER - modest} of {LATER} could not watch their {OWN_WATCHES}"),
    )
    measured = (
        f"answers {dict(codes)}; {rss / max(1, kept):.0f} bytes of the worker and {redis / max(1, kept):.0f} "
        f"of Redis for each of {kept:,} watches; a bystander's answer after {spread_ms(waits)}"
    )
    asked = f"{count:,} clients who ask for {FRAMES * UIDS_MAX:,} watches each"
    return CaseOutcome("watchers", asked if codes else "", measured, broken)


def _logged_in(stage: AttackedServer, uid: str) -> BlockingConnection:
    connection = stage.connect()
    connection.ask(login(uid, idle_timeout=IDLE_S))
    return connection


def _watch_frames(number: int) -> Iterator[bytes]:
    for frame in range(FRAMES):
        uids = [f"nobody-{number}-{frame}-{n:03}".ljust(29, "x") for n in range(UIDS_MAX)]
        yield protocol.encode(protocol.watch(uids, id=frame))


def _outcome_of(packet: Packet) -> str:
    if packet.kind == Kind.OK:
        return "granted"
    reason = str(packet.payload.get("reason", packet.payload.get("code")))
    return f"{reason}, with a time to return" if packet.payload.get("retry_after") else reason


def _redis_bytes(stage: AttackedServer) -> int:
    return int(stage.data.client.info("memory")["used_memory"])


# A million connections that come, log in and close

MAX_GROWTH = 0.01
PORTION = 1000  # logins after which Redis is to be told of all, so that no backlog forms
POLL_INTERVAL_S = 0.01
REST_S = 20.0  # until all is told and closed
SETTLE_AFTER_CYCLES_S = 3.0
STATISTICS_S = 75.0  # the server logs its figures once a minute
FIGURES = "all statistics"
TABLES = ("connections", "sessions", "queued", "uid_logins_kept")  # always there, or nothing was looked at
SIZES = {
    *("sessions", "away", "known", "connections", "unsent_connections", "tls_connections"),
    *("handshakes_underway", "awaiting_proxy_headers", "queued", "held_bytes", "backlog"),
    *("waiting", "watchers", "watches", "users"),
}


class Rest(NamedTuple):
    """A server at rest: resident bytes and open descriptors."""

    rss: int
    descriptors: int

    def __str__(self) -> str:
        return f"{self.rss / 2**20:.2f} MiB, {self.descriptors} descriptors"


def cycles(count: int, per_second: float, *, warm_up: int = 10_000, looks: bool = True) -> CaseOutcome:
    """Let clients log in and leave, each with a user of its own: what does a server keep of them?

    Descriptors, memory and the sizes of all tables are compared at rest: after a warm-up of the same kind,
    and in the end. Logins wait until Redis has those before, because memory of a backlog is not returned to
    the system.

    Args:
        per_second: how many begin per second at most.
        warm_up: cycles before the base is taken.
        looks: whether to wait, up to a minute, for the server's log of its table sizes.
    """
    flags = (
        *("--log-level", "debug", "--disconnect-grace", "0", "--stream-maxlen", "20000"),
        *("--login-rate", "100000", "--accept-rate", "100000"),
    )
    codes: Counter[int] = Counter()
    with Data() as data, PreloadedServer("--redis", data.url, *flags) as server:
        events, pid = Setup().keys().events(0), server.process.pid

        def is_recorded() -> bool:
            added = data.client.xinfo_stream(events)["entries-added"] if data.client.exists(events) else 0
            return int(added) >= 2 * codes[GRANTED]

        def cycle(until: int) -> Rest:
            while codes.total() < until:
                name, portion = f"cycle{codes.total()}", min(PORTION, until - codes.total())
                codes.update(
                    each.code for each in visits(server.address, name, portion, per_second, resets=True)
                )
                wait_for(is_recorded, REST_S, poll_s=POLL_INTERVAL_S)
            time.sleep(SETTLE_AFTER_CYCLES_S)
            rest = Rest(usage.memory(pid).rss, len(os.listdir(f"/proc/{pid}/fd")))
            print_progress(f"cycles: after {codes.total():,} {rest}")
            return rest

        base, rest = cycle(warm_up), cycle(warm_up + count)
        kept: dict[str, int] | None = None
        if looks:
            logged = len(server.logged(FIGURES))
            wait_for(lambda: len(server.logged(FIGURES)) > logged, STATISTICS_S)
            kept = sizes(server.logged(FIGURES)[-1])
    return judge_cycles(base, rest, kept, codes)


def sizes(figures: Mapping[str, Any], path: str = "") -> dict[str, int]:
    """Return the present sizes among the server's statistics, by their path."""
    found: dict[str, int] = {}
    for name, value in figures.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            found |= sizes(value, here)
        elif isinstance(value, int) and (name in SIZES or name.endswith("_kept")):
            found[here] = value
    return found


def judge_cycles(base: Rest, rest: Rest, kept: Mapping[str, int] | None, codes: Counter[int]) -> CaseOutcome:
    """Compare the server at rest with the base; without `kept` the tables were not read."""
    missed = codes.total() - codes[GRANTED]
    grown = max(abs(now / then - 1) for now, then in zip(rest, base, strict=True))
    broken = failed_checks(
        (missed, f"{missed} logins were not granted: {dict(codes)}"),
        (grown > MAX_GROWTH, f"{grown:.2%} away from the base, {MAX_GROWTH:.0%} allowed"),
    )
    if kept is not None:
        named = {path.rpartition(".")[2] for path in kept}
        broken += [f"{size} {name} are left" for name, size in kept.items() if size]
        broken += [f"nobody says how many {name} are left" for name in TABLES if name not in named]
    measured = f"base {base}; then {rest}; tables looked at: {len(kept or ())}"
    done = f"{codes.total():,} logins and closes from {SOURCES} addresses"
    return CaseOutcome("cycles", done if codes else "", measured, broken)
