"""Messages of a backend: what it is told, and what users get; real servers, or nodes that only listen."""

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import msgpack
import pytest
import trio

from presence import protocol
from presence.common.errors import StoreError, StoreUnavailable
from presence.messaging.message_bus import (
    Confirm,
    ConfirmationReport,
    Confirmed,
    Delivery,
    DeliveryReport,
    OutgoingMessage,
    ReplyAddress,
    RouteResult,
)
from presence.protocol import FRAME_LIMIT_BYTES, Kind
from presence.sender import MAX_MESSAGES, Message, Outcome, PresenceSender
from presence.store import answers
from presence.store.answers import ANSWER_TTL_MS, AnswerKeys, read_reports, report_field
from presence.store.control_channel import ControlChannel, read_deliveries
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client
from presence.store.redis_store import Deliveries
from presence.store.script_arguments import Shape
from presence.store.shard_clients import ShardClients
from tests.messaging.desks import RouterHarness
from tests.messaging.test_live import KEYS, Pair, confirm_next, serving
from tests.support.nodes_that_answer import ListeningNode, all_of
from tests.support.waiting import until

TOKEN = "0123456789abcdef" * 2
NAME = "@shop"
PATIENCE_S = 10.0


@pytest.fixture
async def two_servers(redis_server: EmbeddedRedis) -> AsyncIterator[Pair]:
    async with serving(redis_server) as pair:
        yield pair


@pytest.fixture
async def sender(redis_server: EmbeddedRedis) -> AsyncIterator[PresenceSender]:
    with PresenceSender(redis_server.url, NAME, wait_s=PATIENCE_S) as sender:
        yield sender


async def sent(sender: PresenceSender, *messages: Message) -> list[Outcome]:
    return await trio.to_thread.run_sync(sender.send_all, messages)


def frame(body: Any) -> bytes:
    return protocol.encode(protocol.deliver(NAME, body, 5))


# With two servers


async def test_users_get_messages_on_all_devices_or_on_one_and_the_backend_learns_how_many(
    two_servers: Pair, sender: PresenceSender
) -> None:
    phone, pc = await two_servers.log_in(0, "ann", "phone"), await two_servers.log_in(1, "ann", "pc")
    plain = await two_servers.log_in(1, "bob")
    outcomes = await sent(
        sender,
        Message("ann", 1),
        Message("ann", 2, "pc"),
        Message("ann", 3, "tv"),
        Message("ann", 4, ""),
        Message("bob", 5, ""),
        Message("cy", 6),
        Message("ann", 7),
    )
    delivered = [Outcome("delivered", count) for count in (2, 1, 1, 2)]
    offline = Outcome("offline")
    assert outcomes == [*delivered[:2], offline, offline, delivered[2], offline, delivered[3]]
    for client, bodies in ((phone, [1, 7]), (pc, [1, 2, 7]), (plain, [5])):
        packets = await client.take(len(bodies))
        assert [(each.kind, each.payload["from"], each.payload["body"]) for each in packets] == [
            (Kind.DELIVER, NAME, body) for body in bodies
        ]


async def test_a_recipient_within_the_grace_is_disconnected_until_it_returns(
    two_servers: Pair, sender: PresenceSender
) -> None:
    phone = await two_servers.log_in(0, "ann", "phone")
    phone.close()
    server = two_servers.servers[0]
    await until(lambda: server.node.engine.registry.sessions_of("ann")[0].transport is None)
    (outcome,) = await sent(sender, Message("ann", 1))
    assert outcome.status == "disconnected"
    assert outcome.retry_after is not None
    assert 0 < outcome.retry_after <= server.settings.disconnect_grace + server.settings.tick
    pc = await two_servers.log_in(1, "ann", "pc")
    assert await sent(sender, Message("ann", 2)) == [Outcome("delivered", 1)]
    assert [each.payload["body"] for each in await pc.take(1)] == [2]


async def test_a_user_who_has_just_logged_in_is_found(two_servers: Pair, sender: PresenceSender) -> None:
    client = await two_servers.connect(0, "ann")
    assert await sent(sender, Message("ann", 1)) == [Outcome("delivered", 1)]
    assert (await client.take(1))[0].payload["body"] == 1


async def test_the_backend_learns_which_sessions_have_confirmed(
    two_servers: Pair, sender: PresenceSender
) -> None:
    phone = await two_servers.log_in(0, "ann", "phone", confirms=True)
    await two_servers.log_in(1, "ann", "pc")
    await two_servers.log_in(1, "ann", "frozen", confirms=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(confirm_next, phone)
        outcomes = await sent(sender, Message("ann", 1, confirm=1), Message("ann", 2, "pc", PATIENCE_S))
    assert outcomes == [
        Outcome("delivered", 3, confirmed=2, by_app=1, unconfirmed=1),
        Outcome("delivered", 1, confirmed=1, by_app=0, unconfirmed=0),
    ]


# With nodes that only listen


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def client(shared_redis: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(shared_redis.url) as client:
        client.flushall()
        yield client


def put_online(client: Redis, uid: str, **nodes: str) -> None:
    """Write a record of sessions, by device; the value is the node."""
    times = dict.fromkeys(("login_ms", "arrived_ms", "idle_timeout_ms"), 1)
    sessions = {
        device: {"session": "s", "node": node, "generation": 1, **times} for device, node in nodes.items()
    }
    client.hset(KEYS.online(0), uid, json.dumps({"id": "1-0", "since_ms": 1, "sessions": sessions}))


def nothing(_: Delivery) -> None:
    return None


# What the nodes a and b say of ann's devices there, the outcome, and how often they get the message.
OUTCOMES: dict[str, tuple[Any, Any, Outcome, int]] = {
    "all is reported": (all_of, all_of, Outcome("delivered", 3), 1),
    "one node is silent": (all_of, nothing, Outcome("delivered", 2, 1), 1),
    "all nodes are silent": (nothing, nothing, Outcome("unknown", 0, 3), 1),
    "one has none, the other is silent": (lambda _: (0, 0.0), nothing, Outcome("unknown", 0, 1), 1),
    "the sessions are gone": (lambda _: (0, 0.0), lambda _: (0, 0.0), Outcome("offline"), 2),
    "one may return": (lambda _: (0, 3.5), lambda _: (0, 0.0), Outcome("disconnected", retry_after=3.5), 2),
    "one is there, one may return": (
        lambda _: (1, 0.0),
        lambda _: (0, 2.0),
        Outcome("delivered", 1),
        1,
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcome_follows_from_the_reports_and_only_what_nobody_got_is_sent_again(
    shared_redis: EmbeddedRedis, client: Redis, name: str
) -> None:
    said_by_a, said_by_b, expected, times = OUTCOMES[name]
    put_online(client, "ann", phone="a", pc="a", tv="b")
    url, wait_s = shared_redis.url, 0.2 if nothing in (said_by_a, said_by_b) else PATIENCE_S
    with ListeningNode(url, "a", said_by_a) as a, ListeningNode(url, "b", said_by_b) as b:
        with PresenceSender(url, NAME, wait_s=wait_s) as sender:
            assert sender.send("ann", "hello") == expected
    assert (a.received, b.received) == (["hello"] * times, ["hello"] * times)


# What the nodes a and b say of confirmations, the outcome, and whether the sender waits for more.
CONFIRMED: dict[str, tuple[Any, Any, Outcome, bool]] = {
    "all have confirmed": (
        lambda _: (2, 0.0, Confirmed(2, 1)),
        lambda _: (1, 0.0, Confirmed(1, 1)),
        Outcome("delivered", 3, confirmed=3, by_app=2, unconfirmed=0),
        False,
    ),
    "one node is older": (
        lambda _: (2, 0.0, Confirmed(1, 0)),
        all_of,
        Outcome("delivered", 3, confirmed=1, by_app=0, unconfirmed=2),
        True,
    ),
    "one node is silent": (
        lambda _: (2, 0.0, Confirmed(2, 2)),
        nothing,
        Outcome("delivered", 2, 1, confirmed=2, by_app=2, unconfirmed=0),
        False,
    ),
    "none has a session": (lambda _: (0, 0.0), lambda _: (0, 0.0), Outcome("offline"), False),
}


@pytest.mark.parametrize("name", CONFIRMED)
def test_confirmations_are_waited_for_until_every_node_has_reported(
    shared_redis: EmbeddedRedis, client: Redis, name: str
) -> None:
    said_by_a, said_by_b, expected, waits = CONFIRMED[name]
    put_online(client, "ann", phone="a", pc="a", tv="b")
    url, confirm_s, begun = shared_redis.url, 1.0 if waits else PATIENCE_S, time.monotonic()
    with ListeningNode(url, "a", said_by_a), ListeningNode(url, "b", said_by_b):
        with PresenceSender(url, NAME, wait_s=0.2 if nothing in (said_by_a, said_by_b) else 1.0) as sender:
            assert sender.send("ann", "hello", confirm=confirm_s) == expected
    assert (time.monotonic() - begun >= confirm_s) == waits


def test_a_report_that_has_expired_meanwhile_still_counts(shared_redis: EmbeddedRedis, client: Redis) -> None:
    put_online(client, "ann", phone="a", tv="b")
    url = shared_redis.url

    def report_late(delivery: Delivery) -> tuple[int, float, Confirmed]:
        assert delivery.reply_to is not None
        time.sleep(0.3)
        assert client.delete(KEYS.answers(0, delivery.reply_to.token)) == 1
        return 1, 0.0, Confirmed(1, 1)

    with ListeningNode(url, "a", lambda _: (1, 0.0, Confirmed(1, 0))), ListeningNode(url, "b", report_late):
        with PresenceSender(url, NAME, wait_s=PATIENCE_S) as sender:
            outcome = sender.send("ann", "hello", confirm=1)
    assert outcome == Outcome("delivered", 2, confirmed=2, by_app=1, unconfirmed=0)


def test_a_node_that_does_not_listen_is_busy_and_a_fenced_one_is_none(
    shared_redis: EmbeddedRedis, client: Redis
) -> None:
    put_online(client, "ann", phone="a")
    with PresenceSender(shared_redis.url, NAME) as sender:
        assert sender.send("ann", 1) == Outcome("busy")
        client.hset(KEYS.node(0, "a"), "fence", 1)
        assert sender.send("ann", 1) == Outcome("offline")


def test_without_redis_nothing_was_sent_and_an_interrupted_message_is_unknown(
    shared_redis: EmbeddedRedis, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PresenceSender("redis://127.0.0.1:1", NAME) as sender, pytest.raises(StoreUnavailable):
        sender.send("ann", 1)
    with PresenceSender(shared_redis.url, NAME) as sender:
        client.set(KEYS.online(0), "foreign")
        with pytest.raises(StoreError):
            sender.send("ann", 1)
        client.delete(KEYS.online(0))
        put_online(client, "ann", phone="a")
        with ListeningNode(shared_redis.url, "a", all_of) as a:
            monkeypatch.setattr(answers, "_read_report", lambda _: None)
            monkeypatch.setattr(sender, "_wait_s", 0.1)
            assert sender.send("ann", 1) == Outcome("unknown", 0, 1)
            sender.close()
            with pytest.raises(StoreUnavailable):
                sender.send("ann", 2)
    assert a.received == [1]


def test_a_call_may_be_made_from_any_thread(shared_redis: EmbeddedRedis, client: Redis) -> None:
    put_online(client, "ann", phone="a")
    outcomes: list[Outcome] = []
    with ListeningNode(shared_redis.url, "a", all_of) as a:
        with PresenceSender(shared_redis.url, NAME, wait_s=PATIENCE_S) as sender:
            calls = [
                threading.Thread(target=lambda n=n: outcomes.append(sender.send("ann", n))) for n in range(8)
            ]
            for call in calls:
                call.start()
            for call in calls:
                call.join()
    assert outcomes == [Outcome("delivered", 1)] * 8
    assert sorted(a.received) == list(range(8))


# Bad input


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 0


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message("a b", 1), "white space"),
        (Message("", 1), "empty"),
        (Message("\ud800", 1), "surrogates"),
        (Message("ann", 1, "x" * 65), "device is longer than 64"),
        (Message("ann", 1, 0), "device must be a string"),  # type: ignore[arg-type]
        (Message("ann", 1, confirm=0), "confirm must be a number above 0, of at most 30"),
        (Message("ann", 1, confirm=30.5), "confirm must be a number above 0, of at most 30"),
        (Message("ann", 1, confirm=float("nan")), "confirm must be a number|finite|NaN"),
        (Message("ann", 1, confirm="5"), "confirm must be a number"),  # type: ignore[arg-type]
        (Message("ann", float("nan")), "finite|NaN"),
        (Message("ann", 2**64), "out of range|too big|overflow"),
        (Message("ann", {1: 2}), "key"),
        (Message("ann", object()), "cannot be packed"),
        (Message("ann", deep(13)), "nested|deep"),
        (Message("ann", "x" * FRAME_LIMIT_BYTES), f"over the limit of {FRAME_LIMIT_BYTES}"),
    ],
)
def test_an_invalid_message_is_refused_before_anything_is_sent(message: Message, complaint: str) -> None:
    with PresenceSender("redis://127.0.0.1:1", NAME) as sender, pytest.raises(ValueError, match=complaint):
        sender.send_all([Message("bob", 1), message])


def test_invalid_names_and_too_many_messages_are_refused() -> None:
    for name in ("", "the shop", "x" * 129, None):
        with pytest.raises(ValueError, match="the sender's name"):
            PresenceSender("redis://127.0.0.1:1", name)  # type: ignore[arg-type]
    with PresenceSender("redis://127.0.0.1:1", NAME) as sender:
        assert sender.send_all([]) == []
        with pytest.raises(ValueError, match="at most 100"):
            sender.send_all([Message("ann", 1)] * (MAX_MESSAGES + 1))
        with pytest.raises(ValueError, match="the sender's name"):
            sender.send_all([], name="{")


# The parts of the nodes


@pytest.mark.parametrize(
    "address",
    [
        *([], [TOKEN.encode()], [TOKEN.encode(), -1], [TOKEN.encode(), 10_000], [TOKEN.encode(), b"1"]),
        *([b"x" * 32, 1], [TOKEN.encode() + b"\n", 1], [TOKEN.upper().encode(), 1], [7, 1], [[], 1]),
    ],
)
def test_a_delivery_with_a_bad_address_is_ignored(address: list[Any]) -> None:
    def packed(*parts: Any) -> bytes:
        raw: bytes = msgpack.packb(["ann", ["tv"], [frame(1), *parts]], use_bin_type=False)
        return raw

    assert read_deliveries(packed(TOKEN.encode(), 7, b"tv")) == [
        Delivery("ann", ("tv",), frame(1), ReplyAddress(TOKEN, 7))
    ]
    assert read_deliveries(packed(*address)) == []


@pytest.mark.parametrize(
    ("parts", "confirm"),
    [
        ([False, 2500, 2**53 - 1, b"n1"], Confirm(2.5, 2**53 - 1, "n1")),
        ([b"tv", 30_000, 0, b""], Confirm(30.0, 0)),
        *(([False, *bad], None) for bad in ([0, 1, b""], [30_001, 1, b""], [1.5, 1, b""], [True, 1, b""])),
        *(
            ([False, *bad], None)
            for bad in ([5, 1.0, b""], [5, 1], [5, 1, 7], [5, 1, b"\xff"], [5, 1, b"", 1])
        ),
    ],
)
def test_what_a_delivery_says_of_confirmations_is_checked(parts: list[Any], confirm: Confirm | None) -> None:
    raw = msgpack.packb(["ann", ["tv"], [frame(1), TOKEN.encode(), 7, *parts]], use_bin_type=False)
    assert read_deliveries(raw) == [Delivery("ann", ("tv",), frame(1), ReplyAddress(TOKEN, 7), confirm)]


def test_a_node_reports_to_another_over_its_control_channel(shared_redis: EmbeddedRedis) -> None:
    channel = ControlChannel(shared_redis.url, KEYS)
    address = ReplyAddress(TOKEN, 0)
    with closing(channel), closing(AnswerKeys(shared_redis.url, KEYS)) as answer_keys:
        channel.subscribe("n1")
        report = DeliveryReport("ann", address, 3, 2, 0.0, Confirmed(2, 1), "n1")
        answer_keys.write([report_field(report, "n2")])
        assert channel.next() == [ConfirmationReport(TOKEN, 3, Confirmed(2, 1))]


REPORT = {"type": "confirmed", "token": TOKEN, "devices": 3, "sessions": 2, "by_app": 1}


@pytest.mark.parametrize(
    "change",
    [{"type": "x"}, {"token": 7}, {"devices": 1}, {"sessions": -1}, {"by_app": "1"}, {"by_app": True}],
)
def test_an_invalid_report_of_a_node_is_ignored(change: dict[str, Any]) -> None:
    assert answers.read_confirmation_report(REPORT) is not None
    assert answers.read_confirmation_report(REPORT | change) is None


def test_messages_with_and_without_an_address_share_a_call(
    shared_redis: EmbeddedRedis, client: Redis
) -> None:
    put_online(client, "ann", phone="a", pc="a")
    channel = ControlChannel(shared_redis.url, KEYS)
    shape = Shape(KEYS, maxlen=1, seen_retention_ms=1)
    with closing(Deliveries(shared_redis.url, shape)) as post, closing(channel):
        channel.subscribe("a")
        address, confirm = ReplyAddress(TOKEN, 3), Confirm(2.5, 2**53 - 1, "n1")
        some = [OutgoingMessage("ann", frame(1)), OutgoingMessage("ann", frame(2), address, "pc", confirm)]
        last = OutgoingMessage("ann", frame(3), address, confirm=confirm)
        first, second = post.deliver("", [*some, last], {})[:2]
        assert (first, second) == (RouteResult(2, first.elsewhere), RouteResult(1, ("pc",)))  # type: ignore[union-attr]
        received = channel.next()
    deliveries = [each for each in received if isinstance(each, Delivery)]
    assert [(sorted(each.devices), *each[2:]) for each in deliveries] == [
        (["pc", "phone"], frame(1), None, None),
        (["pc"], frame(2), address, confirm),
        (["pc", "phone"], frame(3), address, confirm),
    ]


def test_reports_are_kept_for_seconds_and_invalid_ones_are_left_out(
    shared_redis: EmbeddedRedis, client: Redis
) -> None:
    first, second = (DeliveryReport("ann", ReplyAddress(TOKEN, n), 2, n, 0.5) for n in (1, 2))
    ours = [report_field(each, "a") for each in (first, second._replace(confirmed=Confirmed(1, 0)))]
    with closing(AnswerKeys(shared_redis.url, KEYS)) as channel:
        channel.write([*ours, report_field(DeliveryReport("bob", ReplyAddress(TOKEN, 1), 1, 0, 0.0), "b")])
        (key,) = client.keys("*")
        left_ms: Any = client.pttl(key)
        assert 0 < left_ms <= ANSWER_TTL_MS
        bad: dict[Any, Any] = {"x a": b"", "1 c": b"\xc1", "1 d": b"\x93\x01\x02\x00", "1 e": b"\x90"}
        invalid: list[list[Any]] = [[1], [2, 0], [1, 2], [1, -1], [1, "1"], [1, 1, 1]]
        for number, counts in enumerate(invalid):
            bad[f"1 f{number}"] = msgpack.packb([1, 1, 0.0, *counts])
        client.hset(key, mapping=bad)
        with ShardClients(shared_redis.url) as clients:
            assert read_reports(clients, KEYS, TOKEN, [0]) == {
                1: {"a": (2, 1, 0.5, None), "b": (1, 0, 0.0, None)},
                2: {"a": (2, 2, 0.5, Confirmed(1, 0))},
            }
        client.delete(key)
        client.set(key, "in the way")
        with pytest.raises(StoreError):
            channel.write(ours)


async def test_the_router_reports_what_it_delivered_and_how_long_the_others_may_return() -> None:
    harness = RouterHarness()
    reported = harness.reports
    harness.log_in("ann", "pc")
    phone = harness.log_in("ann", "phone")
    harness.disconnect(phone)
    deliver, address = partial(Delivery, "ann", frame=frame(1)), ReplyAddress(TOKEN, 1)
    both, gone = ("pc", "phone"), ("tv",)
    for devices in (both, ("phone",), gone):
        harness.router.deliver([deliver(devices, reply_to=address), deliver(devices)])
    assert [(each.devices, each.delivered, each.grace_s > 0) for each in reported] == [
        (2, 1, False),
        (1, 0, True),
        (1, 0, False),
    ]
    assert harness.bodies("ann", "pc") == [1, 1]
