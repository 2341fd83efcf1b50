"""Input that no server has to take: bombs, packets behind a refusal, bad names, and a mistake of our own."""

import re
from contextlib import suppress

from loadtest import usage
from loadtest.outcome import CaseOutcome, failed_checks
from presence import protocol
from presence.protocol import Code, Kind
from tests.system.security import faulty
from tests.system.security.credentials import login
from tests.system.security.stage import AttackedServer, BlockingConnection, attacked_server

BOMB = b"\xff\xff\xff\xff"  # a frame of 4 GiB, so it says
MAX_BOMB_BYTES = 1024  # of the server's memory for each
WARM_UP = 500  # bombs that find what a server allocates once
GUEST_S = "120"  # a guest whose time is up could not be bombed with
BEHIND_BYTES = 20_000  # sent behind what is refused, twice; more than one read takes
MIN_READ_SHARE = 0.999
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
PORTION = 100  # of connections that are open together


def bombs(count: int) -> CaseOutcome:
    """Frames that claim 4 GiB, side by side: how much memory does each cost the server?

    Half of the connections are guests, half sessions. Each sends its four bytes, and none reads until all
    have. The rise of the server's peak memory meanwhile is divided by their number.
    """
    with attacked_server("--login-timeout", GUEST_S) as stage:
        _bomb(stage, min(count, WARM_UP))
        refused, grown = _bomb(stage, count)
        harm = stage.bystanders_hurt()
    each = max(0.0, grown / count)
    broken = harm + failed_checks(
        (refused < count, f"{count - refused} bombs were not refused as too large"),
        (each > MAX_BOMB_BYTES, f"{each:.0f} bytes of memory for each bomb, {MAX_BOMB_BYTES} allowed"),
    )
    measured = f"refused on four bytes {refused:,}; {each:.0f} bytes of memory a bomb"
    return CaseOutcome("bombs", f"{refused:,} frames that claim 4 GiB" if refused else "", measured, broken)


def _bomb(stage: AttackedServer, count: int) -> tuple[int, int]:
    """Return how many were refused as too large, and the growth of the server's peak memory in bytes."""
    connections = [stage.connect() for _ in range(count)]
    for number, connection in enumerate(connections[::2]):
        connection.send(login(f"bomber-{number}"))
    for connection in connections[::2]:
        connection.answer()
    before = usage.memory(stage.pid).rss
    usage.forget_peak(stage.pid)
    for connection in connections:
        connection.send(BOMB)
    refused = _count_refused(connections, Code.TOO_LARGE)
    return refused, usage.peak_bytes(stage.pid) - before


def _count_refused(connections: list[BlockingConnection], code: Code) -> int:
    """Return how many connections end with that code; close all."""
    refused = sum([connection.ends_with(code) for connection in connections])
    for connection in connections:
        connection.drop()
    return refused


def refusals(count: int) -> CaseOutcome:
    """A packet before the login, with more input behind it: the refusal must be readable."""
    read = 0
    with attacked_server() as stage:
        for _ in range(count):
            connection = stage.connect()
            with suppress(OSError):  # then what came before may still be read
                connection.send(protocol.KEEPALIVE + bytes(BEHIND_BYTES))
                connection.send(bytes(BEHIND_BYTES))
            read += _count_refused([connection], Code.NOT_LOGGED_IN)
        harm = stage.bystanders_hurt()
    broken = harm + failed_checks(
        (read < MIN_READ_SHARE * count, f"only {read} of {count} refusals were read")
    )
    return CaseOutcome("refusals", f"{count:,} refusals with input behind them", f"read {read:,}", broken)


def names(count: int) -> CaseOutcome:
    """Uids with control characters are refused."""
    controls = [chr(number) for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)]
    refused = 0
    with attacked_server() as stage:
        for number in range(count):
            uid = f"a{controls[number % len(controls)]}b".encode()
            body = bytes([0x93, Kind.LOGIN, 1, 0x81, 0xA3]) + b"uid" + bytes([0xA0 | len(uid)]) + uid
            connection = stage.connect()
            connection.send(len(body).to_bytes(protocol.HEADER_BYTES, "big") + body)
            refused += _count_refused([connection], Code.PROTOCOL_ERROR)
        harm = stage.bystanders_hurt()
        unprintable = sum(not event.uid.isprintable() for event in stage.events())
    broken = harm + failed_checks(
        (refused < count, f"{count - refused} were let in"),
        (unprintable, f"{unprintable} events with a control character in the uid"),
    )
    return CaseOutcome("names", f"{count:,} uids with control characters", f"refused {refused:,}", broken)


def mistakes(count: int) -> CaseOutcome:
    """Logins that raise an unexpected exception, whose text no log may show."""
    refused = 0
    console = ("--log-format", "console", "--log-level", "debug")  # each line stands as it was written
    with attacked_server(*console, program=("-m", "tests.system.security.faulty")) as stage:
        for first in range(0, count, PORTION):
            connections = [stage.connect() for _ in range(min(PORTION, count - first))]
            for number, connection in enumerate(connections, first):
                connection.send(login(f"victim-{number}", idle_timeout=faulty.WISH_S))
            refused += _count_refused(connections, Code.SERVER_ERROR)
        harm = stage.bystanders_hurt()
        stage.server.stop()
    lines = [str(line["event"]) for line in stage.server.lines]
    secrets = sum(faulty.SECRET in line for line in lines)
    controls = sum(CONTROLS.search(line) is not None for line in lines)
    broken = harm + failed_checks(
        (refused < count, f"{count - refused} clients were not told server_error"),
        (not any("a mistake" in line for line in lines), "the log says nothing of it"),
        (secrets or controls, f"{secrets} secrets and {controls} control characters in the log"),
    )
    measured = f"told server_error {refused:,}; {len(lines)} lines of log"
    return CaseOutcome("mistakes", f"{refused:,} handlers that raise" if refused else "", measured, broken)
