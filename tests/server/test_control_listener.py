"""The control channel between two real servers on one Redis, and what works without it."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import trio

from presence.common.clock import Clock
from presence.common.faults import Faults
from presence.common.loop_calls import let_others_run
from presence.common.runtime import TrioRuntime
from presence.config.settings import Settings
from presence.messaging.message_bus import Delivery
from presence.outbox.replies import NodeNotice, NodeNoticeKind
from presence.protocol import Code
from presence.server.control_listener import MAX_DELIVERIES_PER_TURN, ControlListener
from presence.server.node_assembly import Node
from presence.server.server import Server
from presence.store.control_channel import ChangedRooms, ChangedRosters, ControlMessage
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.questions import Question, QuestionKind
from presence.store.redis_client import Redis, open_client
from tests.support.waiting import until
from tests.transports.harness import Client

KEYS = Keys()
AT_ONCE_S = 1.0  # the inbox notifies after 2.5 s


class Pair:
    """Two servers, and the test's actions on them."""

    def __init__(self, redis_url: str, client: Redis) -> None:
        settings = Settings(port=0, redis=redis_url, idle_timeout=20)
        self.client = client
        self.servers = [Server(settings, redis_url, 10, Clock()) for _ in range(2)]
        self._clients: list[Client] = []

    def channel(self, number: int) -> str:
        return KEYS.control_channel(self.servers[number].node.relay.node)

    def is_subscribed(self, number: int) -> bool:
        """Whether a server has subscribed to the channel of its id."""
        answer: Any = self.client.pubsub_numsub(self.channel(number))
        return bool(answer[0][1])

    def record(self) -> dict[str, Any]:
        text: Any = self.client.hget(KEYS.online(0), "ann")
        return json.loads(text)["sessions"][""] if text else {}

    async def log_in(self, number: int) -> Client:
        """Log ann in on a server; return when Redis has the record."""
        server = self.servers[number]
        client = Client(await trio.open_tcp_stream(*self.addresses[number]))
        self._clients.append(client)
        await client.login("ann")
        await until(lambda: self.record().get("node") == server.node.relay.node)
        return client

    async def displace(self, first: Client) -> float:
        """Log in on the other server; return the seconds until the first device got goodbye 300.

        Ann's record is made to say that the login was long ago, so that the goodbye is final.
        """
        text: Any = self.client.hget(KEYS.online(0), "ann")
        record = json.loads(text)
        for name in ("login_ms", "arrived_ms"):
            record["sessions"][""][name] -= 60_000
        self.client.hset(KEYS.online(0), "ann", json.dumps(record, separators=(",", ":")))
        await self.log_in(1)
        started = time.monotonic()
        (goodbye,) = await first.rest()
        assert goodbye.payload["code"] == Code.REPLACED
        return time.monotonic() - started

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self.addresses = [await nursery.start(server.serve) for server in self.servers]
            yield
            for client in self._clients:
                await client.stream.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(redis_server: EmbeddedRedis) -> AsyncIterator[Pair]:
    with open_client(redis_server.url) as client:
        pair = Pair(redis_server.url, client)
        async with pair.serving():
            yield pair


async def test_a_login_elsewhere_ends_the_old_connection_after_the_channel_was_cut_and_renamed(
    redis_server: EmbeddedRedis,
) -> None:
    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0))
        first, node, old = await pair.log_in(0), pair.servers[0].node, pair.channel(0)
        pair.client.client_kill_filter(_type="pubsub")
        assert not pair.is_subscribed(0)
        await until(lambda: pair.is_subscribed(0))
        node.relay.mark_fenced(node.relay.node)
        await until(lambda: pair.channel(0) != old and pair.is_subscribed(0))
        await until(lambda: pair.record()["node"] == node.relay.node)
        answer: Any = pair.client.pubsub_numsub(old)
        assert answer[0][1] == 0, "it listens to its new channel only"
        assert await pair.displace(first) < AT_ONCE_S


async def test_the_channel_is_subscribed_anew_after_redis_has_gone_back(redis_server: EmbeddedRedis) -> None:
    def listener(pair: Pair) -> int:
        found: Any = pair.client.client_list(_type="pubsub")
        return max((int(each["id"]) for each in found), default=0)

    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0) and pair.is_subscribed(1))
        before = listener(pair)
        pair.client.flushall()
        await until(lambda: listener(pair) > before and pair.is_subscribed(0) and pair.is_subscribed(1))


class FakeNode:
    """The parts of a node that `ControlListener` uses."""

    def __init__(self) -> None:
        self.renamed = TrioRuntime().wake_event()
        self.redis_changed = TrioRuntime().wake_event()
        self.redis_changed.set()
        self.relay = SimpleNamespace(node="n1")
        self.notices: list[NodeNotice] = []
        self.faults = Faults()

    def apply_notices(self, some: Iterable[NodeNotice]) -> None:
        self.notices += some


class FakeChannel:
    """A channel that returns the test's messages, one batch per call."""

    def __init__(self, *batches: Sequence[ControlMessage]) -> None:
        self._batches = [*batches]
        self.is_subscribed = False

    def subscribe(self, node: str) -> None:
        self.is_subscribed = True

    def next(self) -> list[ControlMessage]:
        while not self._batches:
            let_others_run()
        return [*self._batches.pop(0)]

    def close(self) -> None:
        self.is_subscribed = False


KICK = NodeNotice(NodeNoticeKind.KICKED, "ann", "", "s1")
LETTER = Delivery("ann", ("",), b"packet")
QUESTION = Question(QuestionKind.EXPLAIN, "ann", "0" * 32)


async def test_messages_are_dispatched_by_kind_in_slices_and_errors_are_contained() -> None:
    class Confused(FakeChannel):
        times = 1

        def next(self) -> list[ControlMessage]:
            if self.times:
                self.times -= 1
                raise LookupError("a mistake")
            return super().next()

    node, delivered, asked = FakeNode(), list[int](), list[Question]()

    def deliver(some: Sequence[Delivery]) -> None:
        delivered.append(len(some))
        if len(delivered) == 1:
            raise LookupError("a mistake")

    rosters: list[Sequence[str] | None] = []
    rooms: list[Sequence[str] | None] = []
    batch: list[ControlMessage] = [
        LETTER,
        QUESTION,
        KICK,
        ChangedRosters(("ann",)),
        ChangedRooms(("lobby",)),
        *[LETTER] * MAX_DELIVERIES_PER_TURN,
    ]
    channel = Confused([LETTER], batch)
    control = ControlListener(
        cast("Node", node),
        channel,
        deliver,
        asked.extend,
        on_rosters=rosters.append,
        on_rooms=rooms.append,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        await until(lambda: len(delivered) == 3)
        control.stop()  # while it collects more of them
    assert (node.notices, asked, delivered) == ([KICK], [QUESTION], [1, MAX_DELIVERIES_PER_TURN, 1])
    assert rosters == [None, None, ("ann",)], "after each subscription all may have changed"
    assert rooms == [None, None, ("lobby",)]
    assert node.faults.counts == {"control channel": 1, "delivery": 1}
    assert not channel.is_subscribed, "a stopped listener is unsubscribed"


KICKED = {"type": "kicked", "uid": "u", "device": "", "session": "s", "by": "", "return_allowed": False}


HOSTILE = [
    b'{"a":' + b"[" * 200_000,
    b"[" * 200_000,
    b"{" + b'"a":{' * 50_000,
    *(json.dumps(KICKED | {name: []}).encode() for name in KICKED),
    *(json.dumps(KICKED | {name: {"a": 1}}).encode() for name in KICKED),
    json.dumps(KICKED | {"uid": 1e999}).encode(),
    json.dumps(KICKED | {"uid": "\ud800"}).encode(),
    json.dumps({"type": "explain", "uid": [], "token": []}).encode(),
    json.dumps({"type": "forgotten", "by": [], "users": 1, "uids": []}).encode(),
    json.dumps({"type": "forgotten", "by": "x", "users": {}, "uids": [{}]}).encode(),
    b"\x81\x01\x02",
    b"\x91" * 5_000,
    b"\x93\xa1u\x91\xa0\xc0",
    b"",
    b"no json",
]


async def test_no_control_message_ends_a_server(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0))
        await pair.log_in(0)
        for message in HOSTILE:
            assert pair.client.publish(pair.channel(0), message) == 1
        kick = KICKED | {"uid": "ann", "session": pair.record()["session"]}
        pair.client.publish(pair.channel(0), json.dumps(kick))  # received after them
        engine = pair.servers[0].node.engine
        await until(lambda: not engine.registry.has_user("ann"))
        assert (engine.statistics().ended, pair.servers[0].node.faults.counts) == ({"kicked": 1}, {})
