"""`presence serve` with data to keep, with a Redis that is not there, and with one that goes."""

import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.store.embedded import find_binary
from tests.server.test_serve import FAST, failed_start
from tests.store.servers import Server as Redis
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm


def test_the_embedded_redis_keeps_its_data_in_data_dir() -> None:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        for uid in ("ann", "bob"):
            with running_server("--data-dir", folder, *FAST) as server:
                with Swarm(server.address, beat_s=1) as swarm:
                    swarm.log_in([uid], beating=False)
                    swarm.run(5, until=lambda swarm=swarm: swarm.clients[0].is_closed)  # type: ignore[misc]
                    swarm.run(0.2)
                url = next(line["url"] for line in server.lines if line["event"] == "embedded Redis started")
                told = [(event["uid"], event["type"]) for event in read_events(url)]
    assert told == [("ann", "online"), ("ann", "offline"), ("bob", "online"), ("bob", "offline")]


def test_a_redis_that_is_not_there_is_named_without_its_password() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://:hunter2@127.0.0.1:{nobody.getsockname()[1]}"
        status, output, seconds = failed_start("--redis", url)
    assert status == 1
    assert seconds < 20
    assert "127.0.0.1" in output
    assert "hunter2" not in output


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_stop_with_redis_away_ends_in_time_and_counts_what_stays(how: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        redis = Redis(find_binary(), Path(folder))
        server = PresenceServer("--redis", redis.url, "--drain-timeout", "3")
        try:
            if how == "killed":
                redis.kill()
            else:
                redis.process.send_signal(signal.SIGSTOP)
            with Swarm(server.address, beat_s=12) as swarm:
                swarm.log_in(f"user-{n}" for n in range(100))
                swarm.run(5, until=swarm.logged_in)
                assert swarm.logged_in(), "logins never wait for Redis"
                started = time.monotonic()
                server.process.terminate()
                swarm.run(5, until=lambda: all(client.is_closed for client in swarm.clients))
            status = server.process.wait(10)
            seconds = time.monotonic() - started
        finally:
            server.stop()
            redis.close()
    assert status == 0
    assert seconds <= 3.5
    assert server.report["left_in_outbox"] == 100
