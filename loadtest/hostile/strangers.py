"""What strangers do: bombs, bad packets with more behind them, silence, one byte a second, bad names."""

import select
import socket
import time

import protocol
from loadtest.hostile.stage import Stage, drop, ends_with, login
from loadtest.nodes.outcome import Outcome
from protocol import Code, Kind

BOMB = b"\xff\xff\xff\xff"  # a frame of 4 GiB, so it says
BOMB_BYTES_MAX = 1024  # of the server's memory for each
WAVE = 1000  # bombs whose connections are open at once
WARM_UP = 50  # bombs that find what a server allocates once
BEHIND_BYTES = 20_000  # sent behind what is refused, twice; more than one read takes
READ_SHARE_MIN = 0.999
LATE_S = 0.5  # a time-out may be so late
BYTE_EVERY_S = 1.0


def bombs(stage: Stage, count: int) -> Outcome:
    """Frames that claim 4 GiB, half of them after a login; their connections stay open for a while."""
    _bomb([stage.connect() for _ in range(WARM_UP)])
    before = stage.rss_bytes()
    stage.forget_peak()
    refused = 0
    for first in range(0, count, WAVE):
        refused += _bomb([stage.connect() for _ in range(min(WAVE, count - first))])
    each = (stage.peak_bytes() - before) / count
    broken = stage.others_hurt()
    if refused < count:
        broken.append(f"{count - refused} bombs were not refused as too large")
    if each > BOMB_BYTES_MAX:
        broken.append(f"{each:.0f} bytes of memory for each bomb")
    measured = (
        f"refused on four bytes {refused:,}; peak of memory {max(0, each):.0f} bytes a bomb; others lost 0"
    )
    return Outcome("bombs", f"{count:,} frames that claim 4 GiB", measured, broken)


def _bomb(clients: list[socket.socket]) -> int:
    """Send a bomb on each, every second one behind a login; return how many were refused as too large."""
    for number, client in enumerate(clients):
        client.sendall(login(f"bomber-{number}") + BOMB if number % 2 else BOMB)
    refused = sum([ends_with(client, Code.TOO_LARGE) for client in clients])
    for client in clients:
        drop(client)
    return refused


def refusals(stage: Stage, count: int) -> Outcome:
    """A packet before the login, and more input behind it: the refusal has to be read all the same."""
    read = 0
    for _ in range(count):
        client = stage.connect()
        try:
            client.sendall(protocol.KEEPALIVE + bytes(BEHIND_BYTES))
            client.sendall(bytes(BEHIND_BYTES))
        except OSError:
            pass  # then what came before may still be read
        read += ends_with(client, Code.NOT_LOGGED_IN)
        drop(client)
    broken = stage.others_hurt()
    if read < READ_SHARE_MIN * count:
        broken.append(f"only {read} of {count} refusals were read")
    measured = f"read {read:,} of {count:,} ({read / max(1, count):.3%})"
    return Outcome("refusals", f"{count:,} refusals with input behind them", measured, broken)


def slow_logins(stage: Stage, count: int) -> Outcome:
    """Half say nothing, half send their login a byte a second: all are closed at the login time-out."""
    waits: list[float] = []
    named = 0
    opened = {}
    for _ in range(count):
        client = stage.connect()
        opened[client.fileno()] = (client, time.monotonic())
    poll = select.poll()
    for fd in opened:
        poll.register(fd, select.POLLIN)
    frame, sent, next_byte = login("u" * 100), 0, time.monotonic()
    give_up = time.monotonic() + stage.login_timeout + 2 * LATE_S
    while opened and (now := time.monotonic()) < give_up:
        if now >= next_byte:
            for client, _ in list(opened.values())[::2]:
                client.sendall(frame[sent : sent + 1])
            sent, next_byte = sent + 1, next_byte + BYTE_EVERY_S
        for fd, _ in poll.poll(20):
            waits.append(time.monotonic() - opened[fd][1])
            poll.unregister(fd)
            client, _ = opened.pop(fd)
            named += ends_with(client, Code.LOGIN_TIMEOUT)
            drop(client)
    alive = len(opened) + sum(wait > stage.login_timeout + LATE_S for wait in waits)
    broken = stage.others_hurt()
    if alive:
        broken.append(f"{alive} were open at {stage.login_timeout + LATE_S:g} s")
    if early := sum(wait < stage.login_timeout for wait in waits):
        broken.append(f"{early} were closed too early")
    if named < len(waits):
        broken.append(f"{len(waits) - named} were not told why")
    measured = (
        f"closed after {min(waits, default=0):.3f} to {max(waits, default=0):.3f} s, time-out "
        f"{stage.login_timeout:g} s; open at {stage.login_timeout + LATE_S:g} s: {alive}"
    )
    injected = f"{count - count // 2:,} that send a byte a second, {count // 2:,} that are silent"
    return Outcome("slow-logins", injected, measured, broken)


def names(stage: Stage, count: int) -> Outcome:
    """Uids with control characters in them are refused, each by name."""
    controls = [chr(number) for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)]
    refused = 0
    for number in range(count):
        uid = f"a{controls[number % len(controls)]}b".encode()
        body = bytes([0x93, Kind.LOGIN, 1, 0x81, 0xA3]) + b"uid" + bytes([0xA0 | len(uid)]) + uid
        client = stage.connect()
        client.sendall(len(body).to_bytes(protocol.HEADER_BYTES, "big") + body)
        refused += ends_with(client, Code.PROTOCOL_ERROR)
        drop(client)
    broken = stage.others_hurt()
    told = sum(not event.uid.isprintable() for event in stage.events())
    if refused < count:
        broken.append(f"{count - refused} were let in")
    if told:
        broken.append(f"{told} events with a control character in the uid")
    measured = f"refused by name {refused:,} of {count:,}; events of them {told}"
    return Outcome("names", f"{count:,} uids with control characters", measured, broken)
