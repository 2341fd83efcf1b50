"""A server in this process: settings reach the parts that use them."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import trio
from structlog.testing import capture_logs

from presence import protocol
from presence.admin.handlers import MESSAGES_PER_S
from presence.auth.token_authenticator import TOKEN_CHECK_SHARE
from presence.common.clock import Clock
from presence.config.removed import REMOVED
from presence.config.settings import Settings
from presence.core.flap_damping import MAX_GRACE_S, MAX_RETURNS_PER_MINUTE
from presence.protocol import Kind
from presence.server.node_assembly import (
    LOGIN_BURST_S,
    NAMED_BURST_S,
    OUTBOX_BYTES_PER_ITEM,
    OUTBOX_ITEMS_PER_CONNECTION,
    OUTBOX_MIN_ITEMS,
    PACKET_BURST_S,
)
from presence.server.server import BATCH_WINDOW_S, Server
from presence.server.stats_socket import ANSWER_BYTES
from presence.store.embedded import EmbeddedRedis
from presence.transports.limits import UNSENT_TIMEOUT_S
from presence.transports.tls import HANDSHAKES
from presence.watching import shard_watch
from tests.support.waiting import until
from tests.support.websocket_client import WebSocketStream
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


async def test_servers_of_one_redis_share_the_pace_of_rereads(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_watch, "ALL_REREAD_PER_PACE", 600)
    async with served(redis_server, lease=2.0) as (first, _):
        paces = first._watching._shards._paces
        assert paces.reread.most == 500
        async with served(redis_server, lease=2.0):
            await until(lambda: paces.reread.most == 300)
        await until(lambda: paces.reread.most == 500)


@pytest.mark.parametrize("kind", ["epoll", "stream"])
async def test_plain_tcp_tls_and_websocket_are_served_together_on_every_transport(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "stream":
        monkeypatch.setattr("presence.server.server.select", SimpleNamespace())
    cert, key = certificates.write(tmp_path)
    with capture_logs() as lines:
        async with served(redis_server, tls_port=0, tls_cert=cert, tls_key=key, ws_port=0) as (
            server,
            address,
        ):
            (port,) = [line["port"] for line in lines if line["event"] == "serving TLS"]
            (ws_port,) = [line["port"] for line in lines if line["event"] == "serving websocket"]
            plain = await trio.open_tcp_stream(*address)
            secured = trio.SSLStream(
                await trio.open_tcp_stream("127.0.0.1", port),
                certificates.client_context(),
                server_hostname=certificates.HOST,
            )
            websocket = WebSocketStream(
                trio.SSLStream(
                    await trio.open_tcp_stream("127.0.0.1", ws_port),
                    certificates.client_context(),
                    server_hostname=certificates.HOST,
                )
            )
            assert (await websocket.shake()).status_code == 101
            assert type(server._transport).__name__.lower().startswith(kind)
            for n, stream in enumerate((plain, secured, websocket)):
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
        "max_shared_watches": "watch_memory",
        "admin_message_rate": f"{MESSAGES_PER_S} per second",
    }
    assert numbers.keys() == REMOVED.keys()
    assert [name for name, number in numbers.items() if number not in REMOVED[name]] == []
