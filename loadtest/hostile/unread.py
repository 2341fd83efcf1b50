"""Clients that ask and never read: what waits for them is bounded."""

import socket
import time
from collections import Counter

import protocol
from loadtest.hostile.stage import Stage, login
from loadtest.nodes.outcome import Outcome
from loadtest.nodes.serving import wait_for
from protocol import Code, Packet

SEGMENT_BYTES = 536  # small segments make small buffers in both kernels
RECEIVE_BYTES = 4096
UNSENT_BYTES = 65_536  # the setting's default
UNSENT_SHARE_MAX = 1.5  # buffers grow by an eighth ahead, and the allocator keeps holes between them
ARENAS_BYTES = 6 << 20  # that the allocator takes ahead, however few ask
ASKED = b"".join(protocol.encode(Packet(9, number)) for number in range(20))  # each is answered as unknown
TURNS_MAX = 10_000
TURN_S = 0.01  # in which the server answers what all have asked in a turn
TOLD_S = 5.0  # until the end of the last is in the stream


def unread(stage: Stage, count: int) -> Outcome:
    """All ask on side by side until they are cut off."""
    clients = [_deaf(stage, f"deaf-{number}") for number in range(count)]
    before = stage.rss_bytes()
    stage.forget_peak()
    asking = clients
    for _ in range(TURNS_MAX):
        asking = [client for client in asking if _ask(client)]
        if not asking:
            break
        time.sleep(TURN_S)
    share = (stage.peak_bytes() - before - ARENAS_BYTES) / (count * UNSENT_BYTES)

    def ends() -> Counter[int]:
        told = (event for event in stage.events() if event.uid.startswith("deaf-"))
        return Counter(event.code for event in told if event.type == "offline")

    wait_for(lambda: ends().total() >= count, TOLD_S)
    cut = ends()[Code.SLOW_CONSUMER]
    broken = stage.others_hurt()
    for client in clients:
        client.close()
    if cut < count or asking:
        broken.append(f"{cut} of {count} were cut off as slow, {len(asking)} ask on; ends {dict(ends())}")
    if share > UNSENT_SHARE_MAX:
        broken.append(f"memory grew by {share:.2f} of what may wait unsent")
    measured = f"cut off {cut:,}; memory at its peak {share:.2f} of {UNSENT_BYTES // 1024} KiB each"
    return Outcome("unread", f"{count:,} clients that ask and never read" if cut else "", measured, broken)


def _deaf(stage: Stage, uid: str) -> socket.socket:
    client = stage.connect(max_segment_bytes=SEGMENT_BYTES, receive_bytes=RECEIVE_BYTES)
    client.sendall(login(uid))
    client.recv(RECEIVE_BYTES)
    return client


def _ask(client: socket.socket) -> bool:
    """Ask so many things at once; return whether the connection is still there."""
    try:
        client.sendall(ASKED)
    except OSError:
        return False
    return True
