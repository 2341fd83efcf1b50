"""Clients who watch as many users as they can, each of them others: what do server and Redis keep for it?

Each sends two full frames of uids that nobody else watches. One who behaves asks for an answer all the while;
afterwards others come who watch only a few.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

import protocol
from loadtest.hostile.stage import READ_BYTES, Stage, drop, in_words, login
from loadtest.nodes.outcome import Outcome, say
from loadtest.security.samples import Spread
from presence.settings import Settings
from presence.store.client import open_client
from presence.watching.service import OWN_WATCHES
from protocol import UIDS_MAX, Kind, Packet

FRAMES = 2
AT_ONCE = 10
LATER = 50
IDLE_S = 300.0
WORKER_BYTES_MAX = 700  # of a watch; security.md says so
REDIS_BYTES_MAX = 300
ONCE_BYTES = 16 * 2**20  # packed states, and what is read once
ANSWER_S_MAX = 0.25


class _Client:
    def __init__(self, stage: Stage, uid: str) -> None:
        self.sock = stage.connect()
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        self.ask(login(uid, idle_timeout=IDLE_S))

    def ask(self, frame: bytes) -> Packet:
        """Send a packet and return the next that comes."""
        self.sock.sendall(frame)
        return self.answer()

    def answer(self) -> Packet:
        while (packet := self._decoder.next()) is None:
            if not (data := self.sock.recv(READ_BYTES)):
                raise ConnectionResetError("the server closed the connection")
            self._decoder.feed(data)
        return packet


def watchers(stage: Stage, count: int, shared: int = Settings().max_shared_watches) -> Outcome:
    """Let so many watch as many users as one connection may by the protocol's largest frames.

    Args:
        stage: where.
        count: of clients.
        shared: the server's `max_shared_watches`.
    """
    greedy = [_Client(stage, f"greedy-{number}") for number in range(count)]
    bystander = _Client(stage, "bystander")
    time.sleep(2)
    rss, redis = stage.rss_bytes(), _redis_bytes(stage.url)
    codes: Counter[str] = Counter()
    waits: list[float] = []
    for first in range(0, count, AT_ONCE):
        turn = range(first, min(first + AT_ONCE, count))
        for number in turn:
            for frame in _frames(number):
                greedy[number].sock.sendall(frame)
        begun = time.monotonic()
        bystander.ask(protocol.encode(protocol.keepalive(7)))
        waits.append(time.monotonic() - begun)
        for number in turn:
            codes.update(_told(greedy[number].answer()) for _ in range(FRAMES))
        if first % 1000 == 0:
            say(f"watchers: {first:,} of {count:,} have asked")
    kept = codes["granted"] * UIDS_MAX
    rss, redis = stage.rss_bytes() - rss, _redis_bytes(stage.url) - redis
    later = [_Client(stage, f"later-{number}") for number in range(LATER)]
    few = [f"friend-{number}" for number in range(OWN_WATCHES)]
    modest = sum(_told(each.ask(protocol.encode(protocol.watch(few, id=7)))) == "granted" for each in later)
    hurt = stage.others_hurt()
    for each in (*greedy, *later, bystander):
        drop(each.sock)
    broken = [*hurt, *_broken(codes, kept, shared + OWN_WATCHES * count, rss, redis, waits)]
    if modest < LATER:
        broken.append(f"{LATER - modest} of {LATER} could not watch their {OWN_WATCHES}")
    measured = (
        f"{kept:,} watches granted; {rss / 2**20:.0f} MiB of the worker, {redis / 2**20:.0f} of Redis "
        f"({rss / max(1, kept):.0f} and {redis / max(1, kept):.0f} bytes each); answers {dict(codes)}; a "
        f"bystander's answer after {Spread.of(waits).ms()}; "
        f"{modest} of {LATER} who come later watch {OWN_WATCHES} each; {in_words(hurt)}"
    )
    asked = FRAMES * UIDS_MAX
    return Outcome(
        "watchers", f"{count:,} clients who ask for {asked:,} watches each" if codes else "", measured, broken
    )


def _broken(
    codes: Counter[str], kept: int, limit: int, rss: int, redis: int, waits: Sequence[float]
) -> Iterator[str]:
    if kept > limit:
        yield f"{kept:,} watches, {limit:,} allowed"
    for whose, grown, each in ("the worker", rss, WORKER_BYTES_MAX), ("Redis", redis, REDIS_BYTES_MAX):
        if grown > (allowed := ONCE_BYTES + limit * each):
            yield f"{grown:,} bytes of memory of {whose}, {allowed:,} allowed"
    if unsaid := codes.total() - codes["granted"] - codes["busy, with a time to return"]:
        yield f"{unsaid} were refused without being told why"
    if max(waits) > ANSWER_S_MAX:
        yield f"a bystander waited {max(waits):.3f} s for an answer"


def _frames(number: int) -> Iterator[bytes]:
    for frame in range(FRAMES):
        uids = [f"nobody-{number}-{frame}-{n:03}".ljust(29, "x") for n in range(UIDS_MAX)]
        yield protocol.encode(protocol.watch(uids, id=frame))


def _told(packet: Packet) -> str:
    if packet.kind == Kind.OK:
        return "granted"
    reason = packet.payload.get("reason", packet.payload.get("code"))
    return f"{reason}, with a time to return" if packet.payload.get("retry_after") else str(reason)


def _redis_bytes(url: str) -> int:
    with closing(open_client(url)) as client:
        return int(client.info("memory")["used_memory"])
