"""The timer based on key expiry: notifications, and the events that it finds without them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from presence.common.errors import StoreUnavailable
from presence.store.embedded import EmbeddedRedis
from presence.store.key_events import SETTING
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.script_runner import Call, Scripting
from presence.timers.expiry_timer import ExpiryTimer, NotificationsOff
from presence.timers.interface import Due, Event
from presence.timers.shared_timer import Leasing

BASE = Keys().timer("orders")
LONG_S = 60.0  # no test waits for a regular scan


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(extra=("--hz", "100"))  # expires keys ten times as often as by default
    yield server
    server.stop()


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(server.url) as client:
        client.flushall()
        client.config_set(SETTING, "")
        yield client


class Timers:
    """Timers that are closed at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made = ExitStack()
        self.close = self._made.close

    def __call__(self, url: str = "", base: str = BASE, **settings: Any) -> ExpiryTimer:
        scripting = self._made.enter_context(closing(Scripting(url or self.url)))
        timer = ExpiryTimer(scripting, base, **{"reconcile_s": LONG_S, **settings})
        return self._made.enter_context(closing(timer))


@pytest.fixture
def timers(server: EmbeddedRedis, client: Redis) -> Iterator[Timers]:
    timers = Timers(server.url)
    yield timers
    timers.close()


@pytest.fixture
def timer(timers: Timers) -> ExpiryTimer:
    """A timer that is subscribed and has scanned."""
    timer = timers()
    assert take(timer, 0.0) == []
    return timer


def take(timer: ExpiryTimer, seconds: float = 20.0, count: int = 1) -> list[Due]:
    """Handle due events until there are enough or the time is over."""
    deadline, found = time.monotonic() + seconds, list[Due]()
    while True:
        while some := timer.due():
            timer.done(some)
            found += some
        left_s = deadline - time.monotonic()
        if len(found) >= count or left_s <= 0:
            return found
        timer.wait(left_s)


def names(dues: list[Due]) -> list[str]:
    return sorted(due.id for due in dues)


def alarms(client: Redis) -> list[str]:
    keys: Any = client.keys(f"{BASE}:alarm:*")
    return sorted(key.decode().rpartition(":")[2] for key in keys)


def test_an_event_is_due_with_its_payload_when_its_key_has_expired(timer: ExpiryTimer, client: Redis) -> None:
    client.set("other", "", px=1)
    timer.schedule_many([Event("a", 0.05, b"not in the key"), Event("immediate", 0.0)])
    assert names(found := take(timer, count=2)) == ["a", "immediate"]
    assert [(due.payload, due.attempt) for due in found if due.id == "a"] == [(b"not in the key", 1)]
    assert (timer.heard, timer.scans) == (2, 1)  # the first scan, which found nothing
    left: Any = client.keys("*")
    assert [key for key in left if not client.pttl(key) > 0] == [f"{BASE}:counts".encode()]


def test_every_change_of_an_event_sets_its_key_again(timer: ExpiryTimer, client: Redis) -> None:
    timer.schedule_many([Event("a", 0.6), Event("b", 0.6), Event("c", 60.0), Event("d", 0.6)])
    timer.cancel("a")
    timer.reschedule("b", 60.0)
    timer.reschedule("c", 0.04)
    assert alarms(client) == ["b", "c", "d"]
    assert [due.id for due in take(timer, count=2)] == ["c", "d"]
    assert timer.heard == 2


def test_a_claimed_event_has_a_key_until_it_is_done(timers: Timers) -> None:
    """Retries, events given back, and expired leases are notified, without a scan."""
    dying, heir = (timers(leasing=Leasing(lease_s=0.1)) for _ in range(2))
    for each in (dying, heir):
        each.due()
    dying.schedule(Event("a", 0.0))
    assert dying.wait(3.0)
    (due,) = dying.due()
    assert dying.retry(due, 0.05)
    assert dying.wait(3.0)
    assert dying.give_back(dying.due()) == 1
    assert dying.wait(3.0)
    (lost,) = dying.due()
    assert lost.attempt == 3
    assert dying.scans == 1
    dying.close()
    assert [(due.id, due.attempt) for due in take(heir)] == [("a", 4)]
    assert heir.scans == 1


def test_no_event_is_early(timer: ExpiryTimer, client: Redis) -> None:
    def now_ms() -> float:
        clock: Any = client.time()
        return float(clock[0] * 1000 + clock[1] / 1000)

    due_ms = {}
    for n in range(20):
        due_ms[str(n)] = now_ms() + 5 * n
        timer.schedule(Event(str(n), 0.005 * n))
    seen = list[tuple[str, float]]()
    while len(seen) < 20 and timer.wait(3.0):
        dues = timer.due()
        seen += [(due.id, now_ms()) for due in dues]
    assert len(seen) == 20
    assert all(at >= due_ms[name] for name, at in seen)


def test_one_of_several_listeners_gets_an_event(timers: Timers) -> None:
    all_of_them = [timers() for _ in range(3)]
    for each in all_of_them:
        each.due()
    all_of_them[0].schedule_many(Event(str(n), 0.02) for n in range(60))
    found, deadline = list[Due](), time.monotonic() + 3
    while len(found) < 60 and time.monotonic() < deadline:
        found += [due for each in all_of_them for due in each.due(limit=7)]
    for each in all_of_them:
        found += take(each, 0.1)
    assert names(found) == sorted(map(str, range(60)))
    assert sum(each.void for each in all_of_them) > 0


def test_events_that_expired_while_disconnected_are_found(timer: ExpiryTimer, client: Redis) -> None:
    timer.schedule_many(Event(str(n), 0.5) for n in range(50))
    assert client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 1  # type: ignore[no-untyped-call]  # redis-py's
    while alarms(client):  # reading the keys expires them, without a listener
        pass
    assert len(take(timer, count=50)) == 50
    assert timer.found > 0
    assert timer.servers == 1


def test_notifications_beyond_the_queue_are_found(timers: Timers, client: Redis) -> None:
    timer = timers(heard_max=5)
    timer.due()
    timer.schedule_many(Event(str(n), 0.0) for n in range(50))
    deadline = time.monotonic() + 20
    while alarms(client) or (not timer.dropped and time.monotonic() < deadline):
        pass
    assert len(take(timer, count=50)) == 50
    assert timer.dropped > 0


def test_events_without_notifications_are_found_by_the_next_scan(timers: Timers, client: Redis) -> None:
    timer = timers(reconcile_s=0.05)
    timer.due()
    client.config_set(SETTING, "")  # as another program would
    timer.schedule(Event("a", 0.01))
    assert names(take(timer)) == ["a"]
    assert timer.heard == 0


@pytest.mark.parametrize("heard_max", [100, 0], ids=["notified", "missed"])
def test_an_event_that_could_not_be_claimed_is_found_by_the_next_call(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, heard_max: int
) -> None:
    def fail(_self: Scripting, _call: Call) -> Any:
        raise StoreUnavailable("by the test")

    timer = timers(heard_max=heard_max)
    timer.due()
    timer.schedule(Event("a", 0.0))
    assert timer.wait(3.0)
    with monkeypatch.context() as patch:
        patch.setattr(Scripting, "one", fail)
        with pytest.raises(StoreUnavailable):
            timer.due()
    assert names(timer.due()) == ["a"]


def test_events_that_become_due_during_scans_are_left_to_notifications(timers: Timers) -> None:
    timer = timers()
    timer.schedule_many(Event(f"old {n}", 0.0) for n in range(10))
    timer.schedule(Event("new", 60.0))
    time.sleep(0.002)
    assert len(timer.due(6)) == 6
    assert len(timer.due(6)) == 4
    timer.reschedule("new", 0.0)
    assert names(take(timer)) == ["new"]
    assert (timer.scans, timer.found) == (2, 10)


def test_other_notification_flags_are_kept(timers: Timers, client: Redis) -> None:
    client.config_set(SETTING, "Eg")
    timers().due()
    assert sorted(client.config_get(SETTING)[SETTING] or "") == sorted("EgKx")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("-config|set", f"CONFIG SET is refused .*add K and x to {SETTING}"),
        ("resetchannels", r"pattern __keyspace@0__:presence:timer:\{orders\}:alarm:\*"),
    ],
)
def test_missing_permissions_are_reported(
    timers: Timers, client: Redis, server: EmbeddedRedis, rule: str, complaint: str
) -> None:
    client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", rule)  # type: ignore[no-untyped-call]  # redis-py's
    timer = timers(server.url.replace("unix://", "unix://app:pw@"))
    with pytest.raises(NotificationsOff, match=complaint):
        timer.due()


def test_notifications_are_assumed_if_the_setting_cannot_be_read(
    timers: Timers, client: Redis, server: EmbeddedRedis
) -> None:
    client.config_set(SETTING, "KA")
    client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-config")  # type: ignore[no-untyped-call]  # redis-py's
    timer = timers(server.url.replace("unix://", "unix://app:pw@"))
    timer.due()
    timer.schedule(Event("a", 0.0))
    assert names(take(timer)) == ["a"]


def test_a_name_that_looks_like_a_pattern_is_taken_literally(timers: Timers) -> None:
    timer = timers(base=Keys().timer("a*[b]?"))
    timer.due()
    timer.schedule(Event("x", 0.0))
    assert names(take(timer)) == ["x"]
    assert timer.heard == 1
