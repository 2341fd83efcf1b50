"""Messages through Redis: recipients found by the script, what nodes receive, and interrupted calls."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from presence import protocol
from presence.common.errors import StoreError, StoreInterrupted, StoreUnavailable
from presence.core.profiles import Profile
from presence.messaging.message_bus import Delivery, OutgoingMessage, RouteResult
from presence.outbox.replies import NodeNotice, NodeNoticeKind
from presence.store.control_channel import (
    MAX_MESSAGES_PER_READ,
    ControlChannel,
    ControlMessage,
    read_deliveries,
)
from presence.store.keys import Keys
from presence.store.redis_store import Deliveries, RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand, end, login
from tests.store.servers import Server
from tests.support.proxy import Proxy
from tests.support.script_texts import changed, little_room

KEYS = Keys()
PATIENCE_S = 10.0
SHAPE = Shape(KEYS, maxlen=1000, seen_retention_ms=10**13)
KICK = json.dumps(
    {"type": "kicked", "uid": "bob", "device": "", "session": "s", "by": "", "return_allowed": False, "n": 1}
)


@pytest.fixture
def post(server: Server) -> Iterator[Deliveries]:
    with closing(Deliveries(server.url, SHAPE)) as post:
        yield post


@pytest.fixture
def hands(store: RedisStore) -> dict[str, Hand]:
    hands = {name: Hand(store, name) for name in "abcdf"}
    for hand in hands.values():
        hand.open()
    return hands


@pytest.fixture
def channels(server: Server) -> Iterator[dict[str, ControlChannel]]:
    """The channels of b, c and f; other nodes do not listen."""
    found = {}
    for name in "bcf":
        found[name] = ControlChannel(server.url, KEYS)
        found[name].subscribe(name)
    yield found
    for channel in found.values():
        channel.close()


def message(to: str, body: Any = "hello") -> OutgoingMessage:
    return OutgoingMessage(to, protocol.encode(protocol.deliver("ann", body, 5)))


def receive(channel: ControlChannel) -> list[ControlMessage]:
    """Return what arrives on a channel; fail after a time limit."""
    limit = threading.Timer(PATIENCE_S, channel.close)
    limit.start()
    try:
        return channel.next()
    finally:
        limit.cancel()


def calls_of_scripts(client: Any) -> int:
    return sum(each["calls"] for name, each in client.info("commandstats").items() if "_eval" in name)


def delivered(channel: ControlChannel) -> list[Delivery]:
    """Return the deliveries that arrive on a channel."""
    return [each for each in receive(channel) if isinstance(each, Delivery)]


def bodies(channel: ControlChannel, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += [protocol.decode(each.frame[4:]).payload["body"] for each in delivered(channel)]
    return found


Hands = dict[str, Hand]
Channels = dict[str, ControlChannel]


Case = tuple[list[tuple[str, str, float]], dict[str, int], tuple[int, str], str]

# Sessions of bob: node, device, age. The sender a's own devices, and for how many ms. The number of
# deliveries, and the devices elsewhere; what nodes received. `d` does not listen; `f` is fenced.
FOUND: dict[str, Case] = {
    "a user without a record is not found": ([], {}, (0, ""), ""),
    "the node that the record names": ([("b", "phone", 0)], {}, (1, "phone"), "b:phone"),
    "each node gets the deliveries of its devices": (
        [("b", "pc", 0), ("b", "phone", 0), ("c", "tv", 0)],
        {},
        (3, "pc phone tv"),
        "b:pc,phone c:tv",
    ),
    "the caller delivers to its own devices": (
        [("a", "pc", 0), ("b", "phone", 0)],
        {},
        (1, "phone"),
        "b:phone",
    ),
    "a local login later than that on record": ([("b", "pc", 5)], {"pc": 1000}, (0, ""), ""),
    "a local login that is earlier": ([("b", "pc", 5)], {"pc": 9000}, (1, "pc"), "b:pc"),
    "a local login on another device": ([("b", "pc", 5)], {"phone": 1000}, (1, "pc"), "b:pc"),
    "a node that does not listen gets nothing": ([("d", "pc", 0)], {}, (0, "pc"), ""),
    "a fenced node gets nothing": ([("f", "pc", 0)], {}, (0, ""), ""),
}


def test_who_left_invisible_and_whose_login_is_on_its_way_gets_no_message(
    post: Deliveries, hands: Hands
) -> None:
    hands["b"].apply(login("bob", "s1", profile=Profile(privacy="i")), end("bob", "s1"))
    hands["b"].apply(login("cyd", "s2"), end("cyd", "s2"))
    answers = post.deliver("a", [message("bob"), message("cyd")], {"bob": {"": 5}, "cyd": {"": 5}})
    assert answers == [RouteResult(0, is_hidden=True), RouteResult(0)]


@pytest.mark.parametrize("name", FOUND)
def test_recipients_of_a_message(post: Deliveries, hands: Hands, channels: Channels, name: str) -> None:
    sessions, here, (handed, elsewhere), received = FOUND[name]
    for number, (node, device, age_s) in enumerate(sessions):
        hands[node].apply(login("bob", f"s{number}", device, age_s=age_s))
    hands["c"].fence("f")
    sent = message("bob", {"t": [1, None, b"\x00\xff", "ü"]})
    (found,) = post.deliver("a", [sent], {"bob": here})
    assert isinstance(found, RouteResult)
    assert (found.handed, " ".join(sorted(found.elsewhere))) == (handed, elsewhere)
    for node, devices in (each.split(":") for each in received.split()):
        ((uid, their, frame, *_),) = delivered(channels[node])
        assert (uid, ",".join(sorted(their)), frame) == ("bob", devices, sent.frame)


@pytest.mark.parametrize("refused", ["b", "c", "bc"])
def test_a_message_of_which_it_is_said_that_it_was_not_sent_was_not(
    server: Server, hands: Hands, channels: Channels, refused: str
) -> None:
    hands["b"].apply(login("bob", "s1", "phone"))
    hands["c"].apply(login("bob", "s2", "tv"), login("bob", "s3", "pc"))
    rights = ["resetchannels", *(f"&{KEYS.control_channel(node)}" for node in "bc" if node not in refused)]
    client: Any = server.client
    client.execute_command("ACL", "SETUSER", "sender", "on", "nopass", "allkeys", "+@all", *rights)
    with closing(Deliveries(server.url.replace("//", "//sender:any@", 1), SHAPE)) as post:
        (answer,) = post.deliver("a", [message("bob")], {})
    for node in "bc":
        server.client.publish(KEYS.control_channel(node), KICK)
    received = {node: len([e for e in receive(channels[node]) if isinstance(e, Delivery)]) for node in "bc"}
    assert received == {node: int(node not in refused) for node in "bc"}
    if refused == "bc":
        assert isinstance(answer, StoreError)
    else:
        assert isinstance(answer, RouteResult)
        assert (answer.handed, sorted(answer.elsewhere)) == (
            2 if refused == "b" else 1,
            ["pc", "phone", "tv"],
        )


def test_a_channel_is_read_in_bounded_batches(
    post: Deliveries, hands: Hands, channels: Channels, server: Server
) -> None:
    hands["b"].apply(login("bob", "s1"), login("dee", "s2"))
    hands["c"].apply(login("cy", "s3"))
    messages = [message(to, n) for n, to in enumerate(["bob", "cy", "dee", "bob", "absent"])]
    assert post.deliver("a", messages, {}) == [RouteResult(1, ("",))] * 4 + [RouteResult(0)]
    for _ in range(MAX_MESSAGES_PER_READ):
        server.client.publish(KEYS.control_channel("b"), KICK)
    counts, notices = list[int](), list[ControlMessage]()
    while len(notices) < 3 + MAX_MESSAGES_PER_READ:
        before = len(notices)
        notices += receive(channels["b"])
        counts.append(len(notices) - before)
    assert max(counts) <= MAX_MESSAGES_PER_READ + 2, "three deliveries were one message"
    assert len(counts) < MAX_MESSAGES_PER_READ
    assert [each.uid for each in notices if isinstance(each, Delivery)] == ["bob", "dee", "bob"]
    assert notices[3:] == [NodeNotice(NodeNoticeKind.KICKED, "bob", "", "s")] * MAX_MESSAGES_PER_READ


def test_messages_read_before_a_connection_broke_are_returned_first(
    server: Server, channels: Channels
) -> None:
    server.client.publish(KEYS.control_channel("b"), KICK)
    server.client.client_kill_filter(_type="pubsub")
    assert receive(channels["b"]) == [NodeNotice(NodeNoticeKind.KICKED, "bob", "", "s")]
    with pytest.raises(StoreUnavailable):
        receive(channels["b"])


BARE = [b"", b"\x91", b"\xc1", b"\x01"]
WRONG = [b"\x93\xa1a\xa1b\xa1c\xc0", b"\x93\x01\x02\x03", b"\x93\xa1a\x90\x05", b"\x93\xa1a\x90\x90"]


@pytest.mark.parametrize("packed", [*BARE, *WRONG])
def test_invalid_deliveries_are_ignored(packed: bytes) -> None:
    assert read_deliveries(packed) == []


def test_a_full_call_is_delivered_completely(post: Deliveries, hands: Hands, channels: Channels) -> None:
    hands["b"].apply(*(login(f"u{n}", f"s{n}") for n in range(100)))
    messages = [message(f"u{n % 100}", "x" * 2000) for n in range(512)]
    assert post.deliver("a", messages, {}) == [RouteResult(1, ("",))] * 512
    assert [each.frame for each in delivered(channels["b"])] == [each.frame for each in messages]


def test_recipients_with_large_records_take_several_calls_and_get_all_in_order(
    post: Deliveries, hands: Hands, channels: Channels, server: Server
) -> None:
    hands["b"].apply(*(login(f"u{n}", f"s{n}") for n in range(10)))
    to = [*(f"u{n}" for n in range(10)), "absent", *(f"u{n}" for n in range(10))]
    with changed(little_room()):
        post.deliver("a", [message("absent")], {})
        before = calls_of_scripts(server.client)
        answers = post.deliver("a", [message(each, n) for n, each in enumerate(to)], {})
        assert 3 <= calls_of_scripts(server.client) - before <= 10, "600 bytes of records each"
    assert answers == [RouteResult(0) if each == "absent" else RouteResult(1, ("",)) for each in to]
    received: dict[str, list[Any]] = {each: [] for each in to if each != "absent"}
    while sum(map(len, received.values())) < 20:
        for each in delivered(channels["b"]):
            received[each.uid].append(protocol.decode(each.frame[4:]).payload["body"])
    assert received == {f"u{n}": [n, n + 11] for n in range(10)}


def test_the_outcome_of_a_message_is_reported_and_it_arrives_once(
    hands: Hands, channels: Channels, server: Server, folder: Path
) -> None:
    hands["b"].apply(login("bob", "s1"))
    with Proxy(str(folder / "redis.sock")) as proxy, closing(Deliveries(proxy.url, SHAPE)) as post:
        assert post.deliver("a", [message("bob", "before")], {}) == [RouteResult(1, ("",))]
        proxy.drop_reply(1)
        (answer,) = post.deliver("a", [message("bob", "lost")], {})
        assert isinstance(answer, StoreInterrupted)
        assert post.deliver("a", [message("bob", "after")], {}) == [RouteResult(1, ("",))]
        assert bodies(channels["b"], 3) == ["before", "lost", "after"]
    with closing(Deliveries(server.url, SHAPE)) as post:
        server.client.hset(KEYS.online(0), "bob", "no record")
        assert post.deliver("a", [message("bob")], {}) == [RouteResult(0)]
        server.client.delete(KEYS.online(0))
        server.client.set(KEYS.online(0), "foreign")
        assert [type(each) for each in post.deliver("a", [message("bob")], {})] == [StoreError]
        server.kill()
        assert [type(each) for each in post.deliver("a", [message("bob")], {})] == [StoreUnavailable], (
            "not sent"
        )
        server.start()
        assert post.deliver("a", [message("bob")], {}) == [RouteResult(0)]
