"""A backend sends to users of real workers, one of which is stopped; on a cluster, and behind Sentinels."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import pytest

from loadtest.redis_sentinel import SentinelSetup
from presence import protocol
from presence.common.errors import StoreError, StoreUnavailable
from presence.protocol import Kind
from presence.reader import PresenceReader
from presence.sender import Message, Outcome, PresenceSender
from presence.store.embedded import EmbeddedRedis
from tests.support.phone import Phone
from tests.support.redis_cluster import Cluster
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

FLAGS = ("--idle-timeout", "60", "--disconnect-grace", "30")
WAIT_S = 1.0
BOUND_S = WAIT_S + 1.0  # for a call on a machine that does other things; a stopped worker adds the wait
MAX_TRIES = 40


class Devices:
    """Devices of users of a server, and on which node each is."""

    def __init__(self, address: tuple[str, int], reader: PresenceReader) -> None:
        self._address, self._reader = address, reader
        self._phones: list[Phone] = []

    def log_in(self, uid: str, device: str) -> Phone:
        """Return the connection of a device when Redis has its session."""
        phone = Phone(self._address)
        self._phones.append(phone)
        assert phone.ask(protocol.login(uid, id=1, device=device)).kind == Kind.OK
        wait_for(lambda: device in self.nodes(uid))
        return phone

    def nodes(self, uid: str) -> dict[str, str]:
        return {each["device"]: each["node"] for each in self._reader.state(uid)["sessions"]}

    def log_in_elsewhere(self, uid: str, device: str, node: str) -> Phone:
        """Log a device in at another node than this one: the kernel gives connections to each in turn."""
        for number in count():
            phone = self.log_in(uid, device)
            if self.nodes(uid)[device] != node:
                return phone
            phone.ask(protocol.logout(id=2))
            wait_for(lambda: device not in self.nodes(uid))
            assert number < MAX_TRIES
        raise AssertionError

    def close(self) -> None:
        for phone in self._phones:
            phone.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bodies(phone: Phone, number: int) -> list[Any]:
    """Return the bodies of so many messages; any later answer shows that there are no more."""
    packets = [phone.next() for _ in range(number)]
    assert {each.kind for each in packets} == {Kind.DELIVER}
    return [each.payload["body"] for each in packets]


def test_messages_reach_the_devices_of_a_user_at_two_workers_at_most_once(
    redis_server: EmbeddedRedis, stack: ExitStack
) -> None:
    server = stack.enter_context(running_server("--redis", redis_server.url, "--workers", "2", *FLAGS))
    reader = stack.enter_context(PresenceReader(redis_server.url))
    sender = stack.enter_context(PresenceSender(redis_server.url, "@shop", wait_s=WAIT_S))
    devices = stack.enter_context(closing(Devices(server.address, reader)))
    phone = devices.log_in("ann", "phone")
    first = devices.nodes("ann")["phone"]
    pc = devices.log_in_elsewhere("ann", "pc", first)
    messages = [Message("ann", 1), Message("ann", 2, "pc"), Message("bob", 3), Message("ann", 4, "tv")]
    outcomes = [Outcome("delivered", 2), Outcome("delivered", 1), Outcome("offline"), Outcome("offline")]
    assert sender.send_all(messages) == outcomes

    pids = {each.node: each.pid for each in reader.nodes()}
    stopped = pids[devices.nodes("ann")["pc"]]
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert sender.send("ann", 5, device="pc") == Outcome("unknown", 0, 1)
        assert sender.send("ann", 6) == Outcome("delivered", 1, 1)
        assert sender.send("ann", 7, device="phone") == Outcome("delivered", 1), "no wait for other workers"
        assert time.monotonic() - begun < 3 * BOUND_S
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert bodies(pc, 4) == [1, 2, 5, 6], "what was unknown arrived after all, and once"
    assert bodies(phone, 3) == [1, 6, 7]
    assert pc.send_keepalive() == phone.send_keepalive() == protocol.ok(2), "nothing came twice"

    phone.close()
    wait_for(lambda: sender.send("ann", 8, device="phone").status == "disconnected")
    outcome = sender.send("ann", 9, device="phone")
    assert (outcome.status, outcome.delivered) == ("disconnected", 0)
    assert 0 < (outcome.retry_after or 0) <= 31
    assert sender.send("ann", 10) == Outcome("delivered", 1)
    assert bodies(pc, 1) == [10]


def test_messages_go_by_way_of_all_shards_of_a_cluster(redis_cluster: Cluster, stack: ExitStack) -> None:
    server = stack.enter_context(running_server("--redis", redis_cluster.url, *FLAGS))
    reader = stack.enter_context(PresenceReader(redis_cluster.url))
    devices = stack.enter_context(closing(Devices(server.address, reader)))
    uids = [f"user-{number}" for number in range(8)]
    phones = [devices.log_in(uid, "phone") for uid in uids]
    assert len({reader.keys().shard(uid) for uid in uids}) > 3
    with PresenceSender(redis_cluster.url, "@shop") as sender:
        messages = [Message(uid, uid) for uid in [*uids, "nobody"]]
        outcomes = [Outcome("delivered", 1)] * len(uids) + [Outcome("offline")]
        assert sender.send_all(messages) == outcomes
        key = reader.keys().online(reader.keys().shard(uids[0]))
        source = redis_cluster.primary_of(key)
        redis_cluster.move(key, next(each for each in redis_cluster.members if each is not source)).run()
        wait_for(lambda: sender.send(uids[0], "moved").status == "delivered")
    assert [bodies(phone, 1) for phone in phones] == [[uid] for uid in uids]


def test_messages_are_sent_after_a_failover(stack: ExitStack) -> None:
    setup = stack.enter_context(SentinelSetup())
    server = stack.enter_context(running_server("--redis", setup.url, *FLAGS))
    reader = stack.enter_context(PresenceReader(setup.url))
    sender = stack.enter_context(PresenceSender(setup.url, "@shop"))
    devices = stack.enter_context(closing(Devices(server.address, reader)))
    phone = devices.log_in("ann", "phone")
    assert sender.send("ann", 1) == Outcome("delivered", 1)
    setup.primary.kill()

    def delivers() -> bool:
        try:
            return sender.send("ann", 2).status == "delivered"
        except (StoreUnavailable, StoreError):
            return False

    wait_for(delivers, 30)
    assert bodies(phone, 2) == [1, 2]
