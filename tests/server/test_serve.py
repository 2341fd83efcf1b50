"""`presence serve` for its users: start, stop, and obstacles."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close
from websockets.sync.client import connect

from presence import protocol
from presence.config.loader import FIELDS
from presence.protocol import Code, Kind
from presence.store.embedded import EmbeddedRedis, find_binary
from presence.store.redis_client import open_client
from tests.store.driving import write_former_data
from tests.store.servers import Server as Redis
from tests.support.events import of_type, read_events
from tests.support.phone import TIMEOUT_S
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for

FAST = ("--idle-timeout", "1", "--tick", "0.1", "--disconnect-grace", "0.3")


def failed_start(
    *flags: str, files: int = 0, environment: Mapping[str, str] | None = None
) -> tuple[int, str, float]:
    """Run a server that cannot start; return its status, its output, and the seconds that it took.

    Args:
        flags: of `presence serve`.
        files: the limit of open files; 0: that of this process.
        environment: additional variables that are no settings.
    """
    started = time.monotonic()
    operators = [] if "--admin" in flags else ["--no-admin"]
    serve = [sys.executable, "-m", "presence", "serve", *operators, "--port", "0", *flags]
    run = subprocess.run(
        ["bash", "-c", f'ulimit -n {files}; exec "$@"', "-", *serve] if files else serve,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        | {**(environment or {})},
    )
    return run.returncode, run.stderr, time.monotonic() - started


def test_all_invalid_settings_are_reported() -> None:
    bad = dict.fromkeys((spec.variable for spec in FIELDS.values()), "")
    status, output, _ = failed_start(environment=bad)
    assert status == 2
    assert [name for name in bad if name in output] == list(bad)


def test_too_low_open_file_limit_is_reported() -> None:
    status, output, _ = failed_start("--max-connections", "900", files=256)
    assert status == 2
    assert "max_connections: 900 does not fit" in output
    assert "256" in output


def test_other_number_of_shards_refuses_to_start(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--shards", "2"):
        pass
    status, output, _ = failed_start("--redis", redis_server.url, "--shards", "3")
    assert status == 1
    assert "shards" in output
    assert "2" in output
    assert "3" in output


@pytest.mark.parametrize(("key", "version"), [("presence:meta", "1"), ("presence:{1}:meta", "3")])
def test_data_of_another_version_refuses_to_start(
    redis_server: EmbeddedRedis, key: str, version: str
) -> None:
    with open_client(redis_server.url) as client:
        write_former_data(client)
        client.hset(key, "version", version)
        before = {each: client.dump(each) for each in client.scan_iter()}
        status, output, _ = failed_start("--redis", redis_server.url, "--shards", "2")
        assert status == 1
        assert f"{key} has data of version '{version}', this release knows version 2" in output
        assert "use the release that wrote it, or another prefix" in output
        assert {each: client.dump(each) for each in client.scan_iter()} == before


def test_port_in_use_is_reported(redis_server: EmbeddedRedis) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output, _ = failed_start("--redis", redis_server.url, "--port", str(port))
    assert status == 1
    assert str(port) in output


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_sends_goodbyes_and_no_offline_events(redis_server: EmbeddedRedis, signal_number: int) -> None:
    server = PreloadedServer("--redis", redis_server.url)
    with Swarm(server.address, beat_s=12) as swarm:
        swarm.log_in(f"user-{n}" for n in range(100))
        swarm.run(5, until=swarm.logged_in)
        server.process.send_signal(signal_number)
        swarm.run(5, until=lambda: all(client.is_closed for client in swarm.clients))
    assert server.process.wait(5) == 0
    server.stop()
    goodbyes = [client.received[-1] for client in swarm.clients]
    assert all(goodbye.kind == Kind.GOODBYE for goodbye in goodbyes)
    assert all(goodbye.payload["code"] == Code.SERVER_DRAIN for goodbye in goodbyes)
    assert all(goodbye.payload["reconnect"] for goodbye in goodbyes)
    assert len({goodbye.payload["retry_after"] for goodbye in goodbyes}) > 20, "spread"
    events = read_events(redis_server.url)
    assert len(of_type(events, "online")) == 100
    assert not of_type(events, "offline")
    assert server.report["left_in_outbox"] == 0


def test_second_signal_exits_immediately() -> None:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        redis = Redis(find_binary(), Path(folder))
        server = PreloadedServer("--redis", redis.url, "--drain-timeout", "30")
        try:
            redis.kill()
            with socket.create_connection(server.address) as client:
                client.sendall(protocol.encode(protocol.login("ann", id=1)))
                client.recv(4096)
                server.process.terminate()
                time.sleep(0.5)
                assert server.process.poll() is None
                started = time.monotonic()
                server.process.terminate()
                assert server.process.wait(5) == 1
                assert time.monotonic() - started < 1.5
        finally:
            server.stop()
            redis.close()


def test_websocket_on_every_worker_and_goodbyes_with_close_codes(redis_server: EmbeddedRedis) -> None:
    with PreloadedServer("--redis", redis_server.url, "--workers", "2", "--ws-port", "0") as server:
        wait_for(lambda: len(server.logged("serving websocket")) == 2)
        (port,) = {line["port"] for line in server.logged("serving websocket")}
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(f"ws://127.0.0.1:{port}/any/path")) for _ in range(8)]
            for number, client in enumerate(clients):
                client.send(json.dumps([1, 1, {"uid": f"user-{number}"}]))
                assert json.loads(client.recv(TIMEOUT_S))[0] == Kind.OK
            server.process.send_signal(signal.SIGTERM)
            for client in clients:
                assert json.loads(client.recv(TIMEOUT_S))[2]["code"] == Code.SERVER_DRAIN
                with pytest.raises(ConnectionClosed) as closed:
                    client.recv(TIMEOUT_S)
                assert closed.value.rcvd == Close(4400, "server_drain")
        assert server.process.wait(TIMEOUT_S) == 0
