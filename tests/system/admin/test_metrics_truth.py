"""What `/metrics` says after a scripted run of real clients against a real server, to the unit."""

import json
import os
import signal
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadtest.servers import PresenceServer
from presence import protocol
from presence.protocol import KEEPALIVE, Code, Kind
from presence.store.embedded import EmbeddedRedis, find_binary
from presence.transports.accept_rotation import PERIOD_S
from tests.admin.processes import ADMIN, get, url_of
from tests.admin.scrapes import Found, parsed, value
from tests.store.servers import Server as Redis
from tests.support.events import read_events
from tests.support.phone import TIMEOUT_S, Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

TOO_LONG = struct.pack("!I", protocol.FRAME_LIMIT_BYTES + 1)
NO_MAP = struct.pack("!I", 3) + b"\x93\x01\x01"
# The labels by which the script counts a metric; all else about it must be as the script says, too.
COUNTED = {
    **dict.fromkeys(("logins_total", "takeovers_total", "returns_in_grace_total"), ()),
    **dict.fromkeys(("outbox_dropped_total", "record_differences_total"), ()),
    "transitions_total": ("type", "reason"),
    **dict.fromkeys(("sessions_ended_total", "refusals_total"), ("reason",)),
    "packets_total": ("kind",),
    "messages_total": ("outcome",),
    **dict.fromkeys(("watch_requests_total", "queries_total"), ("result",)),
    "http_actions_total": ("verb", "outcome"),
}
USERS = ("beat-1", "beat-2", "beat-3", "two", "over", "back", "shown", "writer", "reader")  # who stay
GAUGES = {
    ("users_online", ""): len(USERS),
    ("sessions", "0"): len(USERS) + 1,  # the one of two devices
    ("connections", "0"): len(USERS) + 1,
    ("outbox_changes", "0"): 0,
    ("redis_connected", "0"): 1,
    ("redis_up", ""): 1,
}


def counted(seen: Found) -> Counter[tuple[str, ...]]:
    """Return the counters that the script raises and that are not 0, by their labels, summed over workers."""
    counts: Counter[tuple[str, ...]] = Counter()
    for (name, labels), number in seen.items():
        short, texts = name.removeprefix("presence_"), dict(labels)
        if short in COUNTED and number:
            counts[short, *(texts[label] for label in COUNTED[short])] += int(number)
    return counts


def gauges(seen: Found) -> dict[tuple[str, str], float | None]:
    return {
        (name, worker): value(seen, name, **({"worker": worker} if worker else {})) for name, worker in GAUGES
    }


class MetricWatch:
    """Scrapes a server repeatedly; `seen` has all scrapes, in order."""

    def __init__(self, server: PresenceServer) -> None:
        self.url = url_of(server)
        self.seen: list[Found] = []

    def look(self) -> Found:
        self.seen.append(parsed(get(self.url, "metrics")))
        return self.seen[-1]

    def until(self, holds: Callable[[Found], bool]) -> Found:
        """Poll until a condition holds; return what is there after a while otherwise."""
        end = time.monotonic() + TIMEOUT_S
        while not holds(seen := self.look()) and time.monotonic() < end:
            time.sleep(0.1)
        return seen


class Script:
    """Clients that cause everything that is counted, and the counts that must follow."""

    def __init__(self, server: PresenceServer, watch: MetricWatch) -> None:
        self._address = server.address
        self._watch = watch
        self._open: list[Phone] = []
        self.counts: Counter[tuple[str, ...]] = Counter()

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        self.counts[f"{name}_total", *labels] += by

    def log_in(self, *uids: str, event: bool = True, **login: Any) -> list[Phone]:
        phones = [Phone(self._address) for _ in uids]
        for phone, uid in zip(phones, uids, strict=True):
            assert phone.ask(protocol.login(uid, id=1, **login)).kind == Kind.OK
        self._open += phones
        self.count("logins", by=len(uids))
        self.count("packets", "other", by=len(uids))
        if event:
            self.count("transitions", "online", "login", by=len(uids))
        return phones

    def ask(self, phone: Phone, packet: protocol.Packet, kind: Kind = Kind.OK) -> None:
        """Send a packet that is counted, and whose answer is of this kind."""
        assert phone.ask(packet).kind == kind
        self.count("packets", "other")

    def ended(self, reason: str, by: int = 1) -> None:
        self.count("transitions", "offline", reason, by=by)
        self.count("sessions_ended", reason, by=by)

    def devices_take_over_and_return(self) -> None:
        self.log_in("two", device="phone")
        self.log_in("two", device="watch", event=False)
        (old,) = self.log_in("over")
        self.log_in("over", event=False)
        old.read_to_end()
        self.count("takeovers")
        (lost,) = self.log_in("back")
        self._connections_are(4)
        lost.close()
        self._connections_are(3)
        self.log_in("back", event=False)
        self.count("returns_in_grace")

    def _connections_are(self, number: int) -> None:
        def holds(seen: Found) -> bool:
            return value(seen, "connections", worker="0") == number

        assert holds(self._watch.until(holds))

    def lost_and_silent(self) -> None:
        for phone in self.log_in("lost-1", "lost-2", idle_timeout=5):  # no grace is longer than that
            phone.close()
        self.ended("closed", by=2)
        self.log_in("silent-1", "silent-2", "silent-3", idle_timeout=5)
        self.ended("idle_timeout", by=3)

    def keepalives(self) -> None:
        for phone in self.log_in("beat-1", "beat-2", "beat-3"):
            assert phone.ask(protocol.keepalive(7)).kind == Kind.OK
            phone.send(KEEPALIVE)
            phone.send(3 * KEEPALIVE + protocol.encode(protocol.keepalive(8)) + KEEPALIVE[:3])
            assert phone.next().kind == Kind.OK
            phone.send(KEEPALIVE[3:])
            self.ask(phone, protocol.query([], id=9))
            self.count("packets", "keepalive", by=7)
            self.count("queries", "accepted")
            self.count("queries", "answered")

    def logouts(self) -> None:
        reasons = ("logout", "logout", "background")
        for phone, reason in zip(self.log_in("out-1", "out-2", "out-3"), reasons, strict=True):
            self.ask(phone, protocol.logout(None if reason == "logout" else reason, id=2))
            self.ended(reason)

    def kicked(self) -> None:
        self.log_in("kicked")
        wait_for(lambda: json.loads(get(self._watch.url, "v1/presence/kicked"))["status"] == "online")
        body = json.dumps({"uid": "kicked"}).encode()
        request = urllib.request.Request(
            f"{self._watch.url}v1/kick", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
        self.ended("kicked")
        self.count("http_actions", "kick", "done")

    def shown(self) -> None:
        (phone,) = self.log_in("shown")
        self.ask(phone, protocol.update(id=2, status="away"))
        self.ask(phone, protocol.update(id=3, status="online"))
        self.ask(phone, protocol.update(id=4, meta={"mood": "good"}))
        for type, reason in (("away", "away"), ("away", "back"), ("update", "updated")):
            self.count("transitions", type, reason)

    def requests(self) -> None:
        writer, reader = self.log_in("writer", "reader")
        self.ask(writer, protocol.message("reader", "hello", id=2))
        self.ask(writer, protocol.message("nobody", "hello", id=3), Kind.ERROR)
        self.ask(reader, protocol.watch(["writer"], id=4))
        self.ask(reader, protocol.query(["writer"], id=5))
        for name, label in (
            *(("messages", "delivered"), ("messages", "offline"), ("watch_requests", "accepted")),
            *(("queries", "accepted"), ("queries", "answered")),
        ):
            self.count(name, label)

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
            phone.read_to_end()
            self.count("packets", "other", by=packets)
            self.count("refusals", code.reason)

    def close(self) -> None:
        for phone in self._open:
            phone.close()


def test_figures_are_those_of_the_script_to_the_unit(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--idle-timeout", "120", "--disconnect-grace", "30")
    with running_server(*flags, *ADMIN) as server:
        watch = MetricWatch(server)
        with closing(Script(server, watch)) as script:
            script.devices_take_over_and_return()
            script.lost_and_silent()  # these take their time
            script.keepalives()
            script.logouts()
            script.kicked()
            script.shown()
            script.requests()
            script.refusals()
            seen = watch.until(lambda seen: counted(seen) == script.counts and gauges(seen) == GAUGES)
        written = Counter((event["type"], event["reason"]) for event in read_events(redis_server.url))
    assert counted(seen) == script.counts
    assert gauges(seen) == GAUGES
    assert {key[1:]: n for key, n in counted(seen).items() if key[0] == "transitions_total"} == written
    # Each idle end has its delay, and sessions are in the slots of the wheel.
    assert value(seen, "detection_delay_seconds_count", worker="0") == 3
    assert 0 <= (value(seen, "detection_delay_seconds_sum", worker="0") or -1) < 3 * TIMEOUT_S
    slots = [value(seen, f"wheel_{name}_sessions", worker="0") or 0 for name in ("largest_slot", "later")]
    assert 0 < sum(slots) <= (value(seen, "sessions", worker="0") or 0)


def rises(before: Found, after: Found, worker: str) -> bool:
    """Whether no counter of a worker is lower in a later scrape."""
    return all(
        after[key] >= number
        for key, number in before.items()
        if key[0].endswith("_total") and ("worker", worker) in key[1] and key in after
    )


def test_a_worker_that_hangs_is_told_and_one_that_is_replaced_begins_at_zero(
    redis_server: EmbeddedRedis,
) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        watch = MetricWatch(server)
        with closing(Script(server, watch)) as script:
            for n in range(24):  # longer than the turns in which workers get new connections
                script.log_in(f"user-{n}")
                time.sleep(PERIOD_S / 4)
            before = watch.until(lambda seen: counted(seen) == script.counts)
            assert counted(before) == script.counts
            assert all(value(before, "logins_total", worker=worker) for worker in "12")
            started = value(before, "process_start_time_seconds", worker="1") or 0

            os.kill(server.workers()[1], signal.SIGSTOP)
            try:
                hung = watch.until(lambda seen: value(seen, "worker_up", worker="1") == 0)
            finally:
                os.kill(server.workers()[1], signal.SIGCONT)
            after = watch.until(lambda seen: counted(seen) == script.counts)
            assert [value(hung, "worker_up", worker=worker) for worker in "12"] == [0, 1]
            assert value(hung, "sessions", worker="2") == value(before, "sessions", worker="2")
            assert counted(after) == script.counts, "it goes on where it was"

            os.kill(server.workers()[1], signal.SIGKILL)
            last = watch.until(
                lambda seen: (value(seen, "process_start_time_seconds", worker="1") or 0) > started
            )
            assert value(last, "worker_up", worker="1") == 1
    for earlier, later in pairwise(watch.seen):
        assert rises(earlier, later, "2")
        same = value(earlier, "process_start_time_seconds", worker="1")
        assert rises(earlier, later, "1") or value(later, "process_start_time_seconds", worker="1") != same
    assert value(last, "logins_total", worker="1") == 0
    assert value(last, "transitions_total", worker="1", type="online", reason="login") == 0
    assert value(last, "logins_total", worker="2") == value(before, "logins_total", worker="2")
    gone = [value(seen, "worker_up", worker="1") == 0 for seen in watch.seen]
    assert gone == [value(seen, "sessions", worker="1") is None for seen in watch.seen]


def test_what_redis_did_not_hear_is_in_the_outbox_and_is_counted_once_it_has(tmp_path: Path) -> None:
    def is_quiet(seen: Found) -> bool:
        return value(seen, "outbox_changes", worker="0") == 0 and value(seen, "users_online") == 5

    redis = Redis(find_binary(), tmp_path, keep=True)
    try:
        with running_server("--redis", redis.url, "--idle-timeout", "120", *ADMIN) as server:
            watch = MetricWatch(server)
            with closing(Script(server, watch)) as script:
                script.log_in("before-1", "before-2")
                before = watch.until(lambda seen: counted(seen) == script.counts)
                redis.kill()
                script.log_in("during-1", "during-2", "during-3")
                away = watch.until(
                    lambda seen: value(seen, "redis_up") == value(seen, "redis_connected", worker="0") == 0
                )
                redis.start()
                after = watch.until(lambda seen: counted(seen) == script.counts and is_quiet(seen))
    finally:
        redis.close()
    online = {"type": "online", "reason": "login", "worker": "0"}
    assert [value(each, "transitions_total", **online) for each in (before, away, after)] == [2, 2, 5]
    assert [value(each, "outbox_changes", worker="0") for each in (before, away, after)] == [0, 3, 0]
    assert [value(each, "users_online") for each in (away, after)] == [None, 5]
    assert counted(after) == script.counts
