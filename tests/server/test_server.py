"""A server in this process: settings reach the parts that use them."""

import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
import trio
from structlog.testing import capture_logs

from presence import protocol
from presence.admin.handlers import MESSAGES_PER_S
from presence.auth.token_authenticator import TOKEN_CHECK_SHARE
from presence.common.clock import Clock
from presence.common.runtime import TrioRuntime
from presence.config.removed import REMOVED
from presence.config.settings import Settings
from presence.core.flap_damping import MAX_GRACE_S, MAX_RETURNS_PER_MINUTE
from presence.outbox.batches import BATCH_ITEMS
from presence.outbox.replies import Opened, Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Batch, Item
from presence.protocol import Kind
from presence.server.node import (
    LOGIN_BURST_S,
    NAMED_BURST_S,
    OUTBOX_BYTES_PER_ITEM,
    OUTBOX_ITEMS_PER_CONNECTION,
    OUTBOX_MIN_ITEMS,
    PACKET_BURST_S,
    Node,
    Stores,
)
from presence.server.readiness import Readiness
from presence.server.server import BATCH_WINDOW_S, Server
from presence.server.stats_socket import ANSWER_BYTES
from presence.store.embedded import EmbeddedRedis
from presence.transports.limits import UNSENT_TIMEOUT_S
from presence.transports.tls import HANDSHAKES
from tests.support.waiting import until
from tests.support.worlds import FakeSockets
from tests.transports import certificates
from tests.transports.harness import Client

PATIENCE_S = 30.0
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FROM_TEST_NET = SIGNATURE + struct.pack("!BBH4s4sHH", 0x21, 0x11, 12, b"\xc0\0\2\7", b"\x7f\0\0\1", 5, 7400)


@asynccontextmanager
async def served(redis: EmbeddedRedis, **given: Any) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    """Run a server for the length of a ``with`` block."""
    server = Server(Settings(port=0, **given), redis.url, 100, Clock())
    async with trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            address = await nursery.start(server.serve)
            yield server, address
            await server.stop()


@pytest.mark.parametrize("kind", ["epoll", "stream"])
async def test_plain_tcp_and_tls_are_served_together_on_every_transport(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "stream":
        monkeypatch.setattr("presence.server.server.select", SimpleNamespace())
    cert, key = certificates.write(tmp_path)
    with capture_logs() as lines:
        async with served(redis_server, tls_port=0, tls_cert=cert, tls_key=key) as (server, address):
            (port,) = [line["port"] for line in lines if line["event"] == "serving TLS"]
            plain = await trio.open_tcp_stream(*address)
            secured = trio.SSLStream(
                await trio.open_tcp_stream("127.0.0.1", port),
                certificates.client_context(),
                server_hostname=certificates.HOST,
            )
            assert type(server._transport).__name__.lower().startswith(kind)
            for n, stream in enumerate((plain, secured)):
                assert (await Client(stream).login(f"user-{n}")).kind == Kind.OK
                await trio.aclose_forcefully(stream)


async def test_proxy_header_is_required_from_proxies_and_gives_the_client_address(
    redis_server: EmbeddedRedis,
) -> None:
    async with served(redis_server, proxy_from="127.0.0.0/8", address_connections=1) as (server, address):
        streams = [await trio.open_tcp_stream(*address) for _ in range(3)]
        for each in streams[:2]:
            await each.send_all(FROM_TEST_NET)
        kinds = [(await Client(each).login("ann")).kind for each in streams[:2]]
        assert kinds == [Kind.OK, Kind.ERROR], "one address, two connections"
        bare = Client(streams[2])
        await bare.send(protocol.login("ann"))
        assert await bare.receive() is None
        for each in streams:
            await each.aclose()
        report: dict[str, Any] = server.report()
        assert report["transport"]["proxied"] == 2
        assert report["transport"]["proxy_headers_refused"] == 1


async def test_sample_has_the_current_counters(redis_server: EmbeddedRedis) -> None:
    given = {"idle_timeout": 1.0, "min_idle_timeout": 0.5, "tick": 0.2, "lease": 2.0, "disconnect_grace": 0.3}
    async with served(redis_server, **given) as (server, address):

        def sample() -> dict[str, Any]:
            return server.sample()

        def noted(name: str) -> int:
            return sum(sample()["histograms"][name]["counts"])

        first = sample()
        assert (first["v"], first["readiness"], first["node"]) == (1, "ready", server.node.relay.node)
        assert first["relay"]["away_s"] == 0.0
        assert 0 < first["cluster"]["lease_left_s"] <= 2.0
        async with await trio.open_tcp_stream(*address) as stream:
            await Client(stream).login("ann")
            await until(lambda: noted("outbox_age") == 1)
            assert sample()["outbox_oldest_s"] == 0.0
            wheel = sample()["wheel"]
            assert sum(wheel["sizes"]) + wheel["later"] == 1
            assert (len(wheel["sizes"]), wheel["slot_s"]) == (13, 0.1)
            await until(lambda: min(noted("loop_lag"), noted("tick_lag")) >= 2)
            assert noted("redis_call") >= sample()["cluster"]["renewals"] > 0
            assert len(msgpack.packb(sample())) < ANSWER_BYTES


class Stub:
    """A Redis connection that this test never uses."""

    def close(self) -> None: ...


def node_of(settings: Settings, clock: Clock | None = None) -> tuple[Node, FakeSockets]:
    stub, sockets = cast(Any, Stub()), FakeSockets()
    node = Node(settings, 100, Stores(stub, stub, stub), clock or Clock(), TrioRuntime())
    sockets.engine = node.engine
    return node, sockets


def exchange(writer: ShardWriter) -> tuple[Item, ...]:
    """Send a shard's next batch to a Redis that accepts everything, and return it."""
    writer.prepare_step(1.0)
    while writer.is_planning:
        writer.prepare_step(1.0)
    step = writer.next_step(1.0)
    assert isinstance(step, Batch)
    opened = Opened((), {}) if step.opening else None
    writer.accept_reply(step, Reply(ReplyStatus.OK, "history", opened=opened))
    return step.items


def test_registration_includes_an_update_made_after_another_shard_began_its_resync() -> None:
    node, sockets = node_of(Settings(shards=2))
    uids = [f"u{n}" for n in range(3 * BATCH_ITEMS)]
    for uid in uids:
        sockets.feed(sockets.connect(), protocol.encode(protocol.login(uid)))
    first, second = node.relay.writers
    for writer in (first, second):
        while not writer.is_idle(math.inf):
            exchange(writer)
        writer.resync()
    exchange(first)
    assert len(exchange(first)) == BATCH_ITEMS, "found among the sessions of both"
    uid = next(uid for uid in uids if node.keys.shard(uid) == second.shard)
    sockets.feed(uids.index(uid), protocol.encode(protocol.update(meta={"mood": "busy"}, id=1)))
    exchange(second)
    shown = [item.change.profile.meta for item in exchange(second) if item.change.uid == uid]
    assert [json.loads(each) for each in shown if each] == [{"mood": "busy"}]


def test_bursts_and_the_rate_of_connections_follow_from_the_rates() -> None:
    now = 0.0
    admission = node_of(Settings(login_rate=3), Clock(lambda: now))[0].admission
    for now, accepted in ((0.0, 12), (1.0, 6)):  # noqa: B007 - the clock reads it
        answers = [admission.admit_connection(0) for _ in range(20)]
        assert answers.count(None) == accepted
    limiter = node_of(Settings(packet_rate=7))[0].engine.packet_rate
    assert limiter is not None
    assert limiter.count_packets("ann", 70, now) is None
    assert limiter.count_packets("ann", 1, now) is not None


@pytest.mark.parametrize(
    ("rates", "burst"),
    [
        ({"login_rate": 3}, 12),
        ({"address_login_rate": 2, "uid_login_rate": 0}, 200),
        ({"uid_login_rate": 3}, 300),
    ],
)
def test_the_burst_of_logins_follows_from_their_rate(rates: dict[str, Any], burst: int) -> None:
    admission = node_of(Settings(**rates), Clock(lambda: 0.0))[0].admission
    assert [admission.admit_login("192.0.2.1", "ann") for _ in range(500)].count(None) == burst


@pytest.mark.parametrize(("connections", "changes"), [(100, 100_000), (60_000, 120_000)])
def test_the_bound_of_the_outbox_follows_from_the_connections(connections: int, changes: int) -> None:
    stub = cast(Any, Stub())
    node = Node(Settings(), connections, Stores(stub, stub, stub), Clock(), TrioRuntime())
    bounds = node.outbox.statistics()
    assert (bounds.max_items, bounds.max_bytes) == (changes, 512 * changes)


def test_removed_settings_say_what_holds_now() -> None:
    changes, change_bytes = OUTBOX_ITEMS_PER_CONNECTION, OUTBOX_BYTES_PER_ITEM
    numbers = {
        "accept_rate": "twice as many",
        "accept_burst": f"{LOGIN_BURST_S:g} s",
        "login_burst": f"{LOGIN_BURST_S:g} s",
        "address_login_burst": f"{NAMED_BURST_S:g} s",
        "uid_login_burst": f"{NAMED_BURST_S:g} s",
        "packet_burst": f"{PACKET_BURST_S:g} s",
        "outbox_items": f"{changes} for each, at least {OUTBOX_MIN_ITEMS:,}",
        "outbox_bytes": f"{changes * change_bytes:,} for each, at least {OUTBOX_MIN_ITEMS * change_bytes:,}",
        "batch_window_ms": f"{BATCH_WINDOW_S * 1000:g} ms",
        "flap_returns": f"{MAX_RETURNS_PER_MINUTE} per minute",
        "max_grace": f"{MAX_GRACE_S:g} s",
        "unsent_timeout": f"{UNSENT_TIMEOUT_S:g} s",
        "tls_handshakes": f"{HANDSHAKES:,}",
        "token_check_share": f"{TOKEN_CHECK_SHARE:g}",
        "admin_message_rate": f"{MESSAGES_PER_S} per second",
    }
    assert numbers.keys() == REMOVED.keys()
    assert [name for name, number in numbers.items() if number not in REMOVED[name]] == []


def test_fenced_node_cannot_serve_until_it_has_a_new_id() -> None:
    node, _ = node_of(Settings())
    node.declared_readiness = Readiness.READY
    assert node.readiness() is Readiness.READY
    node.relay.mark_fenced(node.relay.node)
    assert node.readiness() is Readiness.FENCED
