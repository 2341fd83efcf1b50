"""A scripted run of clients against a server that operators look at, and the figures that must come of it."""

import json
import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import protocol
from protocol import Code, Kind, Packet
from tests.admin.processes import found, get, url_of
from tests.admin.scrapes import Found, parsed, value
from tests.live.server_process import ServerProcess

PATIENCE_S = 60.0  # time-outs of 5 s, on a machine that does other things
TOO_LONG = struct.pack("!I", protocol.FRAME_LIMIT_BYTES + 1)
NO_MAP = struct.pack("!I", 3) + b"\x93\x01\x01"


class Watch:
    """Looks at the figures of a server again and again.

    Attributes:
        seen: all scrapes, in order.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._url = url_of(server)
        self.seen: list[Found] = []

    def look(self) -> Found:
        self.seen.append(parsed(get(self._url, "metrics")))
        return self.seen[-1]

    def until(self, holds: Callable[[Found], bool]) -> Found:
        """Look until something holds; after a while return what is there instead."""
        end = time.monotonic() + PATIENCE_S
        while not holds(seen := self.look()) and time.monotonic() < end:
            time.sleep(0.1)
        return seen

    def kick(self, uid: str) -> None:
        """Kick somebody who is on record."""
        found(lambda: json.loads(get(self._url, f"v1/presence/{uid}"))["status"] == "online")
        body = json.dumps({"uid": uid}).encode()
        request = urllib.request.Request(f"{self._url}v1/kick", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 200


class Phone:
    """One connection, logged in if it has a `uid`."""

    def __init__(self, address: tuple[str, int], uid: str = "", **login: Any) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        if uid:
            answer = self.ask(protocol.login(uid, id=1, **login))
            assert answer.kind == Kind.OK, answer

    def ask(self, packet: Packet) -> Packet:
        """Send a packet with an id; return what answers it."""
        self.send(protocol.encode(packet))
        while (answer := self.next()).id != packet.id:
            pass
        return answer

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> Packet:
        while (packet := self._decoder.next()) is None:
            data = self._socket.recv(65536)
            assert data, "closed"
            self._decoder.feed(data)
        return packet

    def end(self) -> None:
        """Read until the server closes."""
        while self._socket.recv(65536):
            pass
        self.close()

    def close(self) -> None:
        self._socket.close()


class Script:
    """Clients who do all that there is to be counted, and the figures that must come of it."""

    def __init__(self, server: ServerProcess, watch: Watch) -> None:
        self._address = server.address
        self._watch = watch
        self._open: list[Phone] = []
        self.counts: Counter[tuple[str, ...]] = Counter()

    def log_in(self, *uids: str, event: bool = True, **login: Any) -> list[Phone]:
        phones = [Phone(self._address, uid, **login) for uid in uids]
        self._open += phones
        self.counts["logins_total",] += len(uids)
        self._packets(len(uids))
        if event:
            self.counts["transitions_total", "online", "login"] += len(uids)
        return phones

    def keepalives(self) -> None:
        for phone in self.log_in("beat-1", "beat-2", "beat-3"):
            assert phone.ask(protocol.keepalive(7)).kind == Kind.OK
            phone.send(protocol.KEEPALIVE)
            phone.send(
                3 * protocol.KEEPALIVE + protocol.encode(protocol.keepalive(8)) + protocol.KEEPALIVE[:3]
            )
            assert phone.next().kind == Kind.OK
            phone.send(protocol.KEEPALIVE[3:] + protocol.encode(protocol.query([], id=9)))
            assert phone.next().kind == Kind.OK
            self.counts["packets_total", "keepalive"] += 7
            self.counts["queries_total", "taken"] += 1
            self.counts["queries_total", "answered"] += 1
            self._packets(1)

    def logouts(self) -> None:
        for phone in self.log_in("out-1", "out-2"):
            phone.ask(protocol.logout(id=2))
            self._ended("logout")
            self._packets(1)
        (phone,) = self.log_in("out-3")
        phone.ask(protocol.logout("background", id=2))
        self._ended("background")
        self._packets(1)

    def devices_take_over_and_return(self) -> None:
        self.log_in("two", device="phone")
        self.log_in("two", device="watch", event=False)
        (old,) = self.log_in("over")
        self.log_in("over", event=False)
        old.end()
        self.counts["takeovers_total",] += 1
        (lost,) = self.log_in("back")
        before = value(self._watch.look(), "connections", worker="0") or 0
        lost.close()
        self._watch.until(lambda found: value(found, "connections", worker="0") == before - 1)
        self.log_in("back", event=False)
        self.counts["returns_in_grace_total",] += 1

    def lost_and_silent(self) -> None:
        for phone in self.log_in("lost-1", "lost-2", idle_timeout=5):  # no grace is longer than that
            phone.close()
            self._ended("closed")
        self.log_in("silent-1", "silent-2", "silent-3", idle_timeout=5)
        for _ in range(3):
            self._ended("idle_timeout")

    def kicked(self) -> None:
        self.log_in("kicked")
        self._watch.kick("kicked")
        self._ended("kicked")
        self.counts["http_acts_total", "kick", "done"] += 1

    def shown(self) -> None:
        (phone,) = self.log_in("shown")
        for update in (
            protocol.update(id=2, status="away"),
            protocol.update(id=3, status="online"),
            protocol.update(id=4, meta={"mood": "good"}),
        ):
            assert phone.ask(update).kind == Kind.OK
        self._packets(3)
        for type, reason in (("away", "away"), ("away", "back"), ("update", "updated")):
            self.counts["transitions_total", type, reason] += 1

    def requests(self) -> None:
        writer, reader = self.log_in("writer", "reader")
        assert writer.ask(protocol.message("reader", "hello", id=2)).kind == Kind.OK
        assert writer.ask(protocol.message("nobody", "hello", id=3)).kind == Kind.ERROR
        assert reader.ask(protocol.watch(["writer"], id=4)).kind == Kind.OK
        assert reader.ask(protocol.query(["writer"], id=5)).kind == Kind.OK
        self._packets(4)
        self.counts["messages_total", "handed"] += 1
        self.counts["messages_total", "offline"] += 1
        self.counts["watch_requests_total", "taken"] += 1
        self.counts["queries_total", "taken"] += 1
        self.counts["queries_total", "answered"] += 1

    def refusals(self) -> None:
        no_login = protocol.encode(protocol.query(["ann"], id=1))
        nobody = protocol.encode(protocol.login(None, token="of nobody", id=1))
        for data, code, packets in (
            (NO_MAP, Code.PROTOCOL_ERROR, 0),
            (NO_MAP, Code.PROTOCOL_ERROR, 0),
            (TOO_LONG, Code.TOO_LARGE, 0),
            (no_login, Code.NOT_LOGGED_IN, 1),
            (nobody, Code.AUTH_FAILED, 1),
        ):
            phone = Phone(self._address)
            phone.send(data)
            assert phone.next().payload["code"] == code
            phone.end()
            self._packets(packets)
            self.counts["refusals_total", code.reason] += 1

    def _ended(self, reason: str) -> None:
        self.counts["transitions_total", "offline", reason] += 1
        self.counts["sessions_ended_total", reason] += 1

    def _packets(self, n: int) -> None:
        self.counts["packets_total", "other"] += n

    def close(self) -> None:
        for phone in self._open:
            phone.close()

    def run(self) -> None:
        self.devices_take_over_and_return()
        self.lost_and_silent()  # these take their time
        self.keepalives()
        self.logouts()
        self.kicked()
        self.shown()
        self.requests()
        self.refusals()


# The labels by which the script counts a metric; all else about it must be as the script says, too.
COUNTED = {
    "logins_total": (),
    "takeovers_total": (),
    "returns_in_grace_total": (),
    "outbox_dropped_total": (),
    "record_differences_total": (),
    "transitions_total": ("type", "reason"),
    "sessions_ended_total": ("reason",),
    "refusals_total": ("reason",),
    "packets_total": ("kind",),
    "messages_total": ("outcome",),
    "watch_requests_total": ("result",),
    "queries_total": ("result",),
    "http_acts_total": ("verb", "outcome"),
}


def counted(found: Found) -> Counter[tuple[str, ...]]:
    """Return what is not 0 of the metrics that the script counts, by their labels, of all workers."""
    counts: Counter[tuple[str, ...]] = Counter()
    for (name, labels), number in found.items():
        short, texts = name.removeprefix("presence_"), dict(labels)
        if short in COUNTED and number:
            counts[short, *(texts[label] for label in COUNTED[short])] += int(number)
    return counts


USERS = ("beat-1", "beat-2", "beat-3", "two", "over", "back", "shown", "writer", "reader")  # who stay
GAUGES = {
    ("users_online", ""): len(USERS),
    ("sessions", "0"): len(USERS) + 1,  # the one of two devices
    ("connections", "0"): len(USERS) + 1,
    ("outbox_changes", "0"): 0,
    ("redis_connected", "0"): 1,
    ("redis_up", ""): 1,
}


def gauges(found: Found) -> dict[tuple[str, str], float | None]:
    return {
        (name, worker): value(found, name, **({"worker": worker} if worker else {}))
        for name, worker in GAUGES
    }
