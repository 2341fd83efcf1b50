"""Connections over TLS: what they cost beside plain ones."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from loadtest import usage
from loadtest.outcome import CaseOutcome, failed_checks, print_progress
from presence import protocol
from presence.loadtest.client_loop import ClientLoop
from tests.system.security.credentials import unverified_context
from tests.system.security.stage import TIMEOUT_S, AttackedServer, Resident, attacked_server

BEAT_S = 1.0
SETTLE_S = 2.0
KEEPALIVE_WITH_ID = protocol.encode(protocol.keepalive(9))


def _log_in_clients(
    stage: AttackedServer, loop: ClientLoop, name: str, count: int, *, tls: bool
) -> list[Resident]:
    clients = [Resident(loop, f"{name}-{number}") for number in range(count)]
    for each in clients:
        each.sends_keepalives = False
        if tls:
            each.address, each.context = stage.tls_address, unverified_context()
    loop.log_in(clients, count / 100 + TIMEOUT_S, 500.0)
    return clients


def _count_unanswered(loop: ClientLoop, clients: Sequence[Resident]) -> int:
    """Return how many clients do not answer."""
    before = sum(each.answers for each in clients)
    for each in clients:
        each.send(KEEPALIVE_WITH_ID)
    loop.run(TIMEOUT_S, lambda: sum(each.answers for each in clients) == before + len(clients))
    return before + len(clients) - sum(each.answers for each in clients)


class TlsCost(NamedTuple):
    """What connections of one kind cost."""

    bytes_each: float  # resident memory of a connection
    keepalive_us: float  # CPU of a keepalive, less the idle share
    login_us: float  # CPU of an accept with its handshake, and a login
    lost: int  # connections that did not last


def measure(stage: AttackedServer, connections: int, seconds: float, *, tls: bool) -> TlsCost:
    pid, first = stage.pid, connections // 3
    with ClientLoop(stage.server.address, beat_s=BEAT_S) as loop:
        _log_in_clients(stage, loop, "warm", 20, tls=tls)
        idle = _core_share(loop, pid, SETTLE_S)  # those who behave, and all else that goes on
        spent, started = usage.cpu_seconds(pid), time.monotonic()
        clients = _log_in_clients(stage, loop, "first", first, tls=tls)
        before = usage.memory(pid).rss  # what the first of them have found is not found again
        clients += _log_in_clients(stage, loop, "more", connections - first, tls=tls)
        used = usage.cpu_seconds(pid) - spent - idle * (time.monotonic() - started)
        for each in clients:
            each.sends_keepalives = True
        loop.run(SETTLE_S)  # connections that only send keepalives cost less than new ones
        beat_us = (_core_share(loop, pid, seconds) - idle) * BEAT_S / connections * 1e6
        bytes_each = (usage.memory(pid).rss - before) / (connections - first)
        return TlsCost(bytes_each, beat_us, used / connections * 1e6, _count_unanswered(loop, clients))


def _core_share(loop: ClientLoop, pid: int, seconds: float) -> float:
    """Return the share of a core that a process takes meanwhile."""
    spent = usage.cpu_seconds(pid)
    loop.run(seconds)
    return (usage.cpu_seconds(pid) - spent) / seconds


def tls(connections: int, seconds: float) -> CaseOutcome:
    """Measure TLS connections, and plain ones, each on a fresh server."""
    costs: list[TlsCost] = []
    harm: list[str] = []
    for is_tls in (True, False):
        with attacked_server("--login-rate", "100000", tls=True) as stage:
            costs.append(measure(stage, connections, seconds, tls=is_tls))
            harm += stage.bystanders_hurt()
        print_progress(f"{'TLS' if is_tls else 'plain'}: {costs[-1]}")
    secured, plain = costs
    return judge_tls(secured, plain, harm)


def judge_tls(secured: TlsCost, plain: TlsCost, harm: list[str]) -> CaseOutcome:
    """Compare both; the only bound is that no connection is lost."""
    lost = secured.lost + plain.lost
    figures = ("bytes of memory a connection", "µs of a keepalive", "µs of an accept and login")
    figures_text = [f"{what} {secured[n]:,.1f}, plain {plain[n]:,.1f}" for n, what in enumerate(figures)]
    broken = harm + failed_checks((lost, f"{lost} connections were lost"))
    return CaseOutcome("tls", "connections over TLS", "; ".join(figures_text), broken)
