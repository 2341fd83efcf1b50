"""`presence serve --workers N`: one port, several processes, and what happens when one of them ends."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trustme

from presence.outbox.relay import GATHER_S
from presence.protocol import Code, Kind
from presence.reader import PresenceReader
from presence.store.embedded import EmbeddedRedis
from tests.server.test_serve import FAST, failed_start
from tests.support.credentials import write_keys
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for

LOG_IMPORTS = """
import os, sys

def log(event, arguments):
    if event == "import":
        os.write(file, f"{{os.getpid()}} {{arguments[0]}}\\n".encode())

file = os.open({0!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(log)
"""


def test_workers_share_a_port_and_sixteen_shards(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--workers", "3", "--shards", "16", *FAST) as server:
        with Swarm(server.address, beat_s=0.4) as swarm:
            swarm.log_in_everywhere((f"user-{n}" for n in range(150)), beating=False)
            swarm.run(5, until=lambda: all(client.is_closed for client in swarm.clients))
            swarm.run(0.2)
    stopped = {line["worker"]: line for line in server.logged("stopped")}
    assert sorted(stopped) == [1, 2, 3]
    logins = [line["core"]["logins"] for line in stopped.values()]
    assert sum(logins) == 150
    assert min(logins) > 10, "each worker has its period of new connections"
    events = read_events(redis_server.url, shards=16)
    assert len({event["shard"] for event in events}) == 16
    assert len(of_type(events, "online")) == len(of_type(events, "offline")) == 150
    assert len({event["node"] for event in events}) == 3
    assert_alternation(events)


def test_a_device_that_logs_in_at_another_worker_takes_its_session_along(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--workers", "4", "--idle-timeout", "8")
    with running_server(*flags) as server:
        with Swarm(server.address, beat_s=1) as swarm:
            swarm.run(2.5)  # until each worker has asked Redis for its clock
            for _ in range(8):
                swarm.log_in(["ann"])
                swarm.run(GATHER_S + 0.1)  # else a later login may reach Redis before an earlier one
            swarm.run(6, until=lambda: sum(not client.is_closed for client in swarm.clients) == 1)
            (left,) = [client for client in swarm.clients if not client.is_closed]
            assert left is swarm.clients[-1]
            others = [client.received[-1] for client in swarm.clients[:-1]]
    assert all(goodbye.kind == Kind.GOODBYE for goodbye in others)
    codes = [goodbye.payload["code"] for goodbye in others]
    assert codes.count(Code.REPLACED) > len(codes) / 2, "a call that takes so long leaves the order unsure"
    events = read_events(redis_server.url)
    assert [event["type"] for event in events] == ["online"]


@pytest.mark.parametrize("how", ["supervisor told", "every process told", "supervisor killed"])
def test_a_stop_drains_all_workers(redis_server: EmbeddedRedis, how: str) -> None:
    server = PreloadedServer("--redis", redis_server.url, "--workers", "3")
    with Swarm(server.address, beat_s=12) as swarm:
        swarm.log_in(f"user-{n}" for n in range(60))
        swarm.run(5, until=swarm.logged_in)
        for pid in server.workers().values() if how == "every process told" else ():
            os.kill(pid, signal.SIGTERM)
        server.process.send_signal(signal.SIGKILL if how == "supervisor killed" else signal.SIGTERM)
        swarm.run(5, until=lambda: all(client.is_closed for client in swarm.clients))
    assert server.process.wait(5) == (-signal.SIGKILL if how == "supervisor killed" else 0)
    server.stop()
    goodbyes = [client.received[-1] for client in swarm.clients]
    assert all(goodbye.payload.get("code") == Code.SERVER_DRAIN for goodbye in goodbyes)
    assert len(server.logged("stopped")) == 3
    assert len(of_type(read_events(redis_server.url), "online")) == 60


def test_a_killed_worker_is_replaced_after_a_pause_that_doubles(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2") as server:
        with Swarm(server.address, beat_s=12) as swarm:
            swarm.log_in_everywhere(f"user-{n}" for n in range(40))
            swarm.run(5, until=swarm.logged_in)
            for kill in range(3):
                os.kill(server.workers()[1], signal.SIGKILL)
                wait_for(lambda kill=kill: len(server.logged("serving")) >= 3 + kill)  # type: ignore[misc] # bound now
            swarm.run(0.2)
            lost = [client.uid for client in swarm.clients if client.is_closed]
            assert 0 < len(lost) < 40
            back = swarm.log_in(lost)
            swarm.run(5, until=lambda: all(client.received for client in back))
            assert all(client.received[0].kind == Kind.OK for client in back)
    replaced = server.logged("worker exited, restarting")
    assert [line["status"] for line in replaced] == [-signal.SIGKILL] * 3
    assert [line["pause_s"] for line in replaced] == [0.5, 1.0, 2.0]
    events = read_events(redis_server.url)
    assert len(events) == 40, "those who came back were never told as offline"


def test_a_worker_that_is_told_to_drain_is_replaced(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2") as server:
        first = server.workers()[1]
        os.kill(first, signal.SIGTERM)
        wait_for(lambda: len(server.logged("serving")) >= 3)
        assert server.workers()[1] != first
    assert len(server.logged("stopped")) == 3


def test_workers_that_cannot_start_end_with_their_status(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--workers", "2")
    status, output, seconds = failed_start(*flags, "--max-connections", "9999999")
    assert status == 2
    assert seconds < 10
    assert "ready" not in output.split()
    assert "max_connections: 9999999 does not fit" in output
    with running_server(*flags) as server:
        port = str(server.address[1])
        status, output, _ = failed_start(*flags, "--port", port)
    assert status == 1
    assert port in output


def test_workers_are_renewed_one_after_the_other(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--workers", "3", "--drain-timeout", "3", "--idle-timeout", "8")
    with running_server(*flags) as server:
        before = set(server.workers().values())
        with Swarm(server.address, beat_s=1) as swarm:
            swarm.log_in(f"user-{n}" for n in range(60))
            server.process.send_signal(signal.SIGUSR2)
            swarm.run(15, until=lambda: bool(server.logged("rolling restart finished")))
            swarm.run(0.2)
        assert server.logged("rolling restart finished")
        assert not before & set(server.workers().values())
        drained = server.logged("worker drained and replaced")
        assert sorted(line["worker"] for line in drained) == [1, 2, 3]
        told = [line for line in server.lines if line["event"] in {"stopping", "serving"}]
        order = [line["event"] for line in sorted(told, key=lambda line: line["timestamp"])]
        assert order == ["serving"] * 3 + ["serving", "stopping"] * 3, "there is always one to go to"
    goodbyes = [client.received[-1] for client in swarm.clients if client.is_closed]
    assert {goodbye.payload["code"] for goodbye in goodbyes} == {Code.SERVER_DRAIN}
    assert len(goodbyes) == 60


def test_a_worker_that_is_replaced_imports_nothing_anew(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be those of another version by then."""
    imports, cert = tmp_path / "imports", tmp_path / "cert.pem"
    (tmp_path / "sitecustomize.py").write_text(LOG_IMPORTS.format(str(imports)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
    keys = write_keys(tmp_path / "keys.json", {"k": b"a secret of thirty-two bytes, or so"})
    flags = ("--token-keys", str(keys), "--tls-cert", str(cert), "--tls-port", "0", "--workers", "2")
    with running_server("--redis", redis_server.url, *flags) as server:
        wait_for(lambda: len(server.logged("serving")) == 2)  # a killed worker writes none of its last lines
        os.kill(server.workers()[1], signal.SIGKILL)
        wait_for(lambda: len(server.logged("serving")) == 3)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: bool(server.logged("files reloaded")))
        with Swarm(server.address, beat_s=1) as swarm:
            swarm.log_in(f"user-{n}" for n in range(8))  # without a token
            swarm.run(5, until=lambda: all(client.received for client in swarm.clients))
        workers = {line["pid"] for line in server.logged("worker started")}
    found = [line.split() for line in imports.read_text().splitlines()]
    names = {name for pid, name in found if int(pid) in workers}
    assert {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names} == set()


def test_a_renewal_is_no_death(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, "--workers", "2", "--idle-timeout", "6", "--lease", "2")
    with running_server(*flags) as server:
        with Swarm(server.address, beat_s=0.5) as swarm:
            swarm.log_in(f"user-{n}" for n in range(40))
            swarm.run(5, until=swarm.logged_in)
            server.process.send_signal(signal.SIGUSR2)
            swarm.run(8, until=lambda: all(client.is_closed for client in swarm.clients))
            swarm.log_in(f"user-{n}" for n in range(30))
            wait_for(lambda: bool(server.logged("rolling restart finished")))
            with PresenceReader(redis_server.url) as reader:
                assert sorted(node.status for node in reader.nodes()) == ["alive"] * 2 + ["left"] * 2
            swarm.run(20, until=lambda: len(server.logged("sweep of departed node finished")) == 2)
    swept = server.logged("sweep of departed node finished")
    assert sum(line["users_offline"] for line in swept) == 10
    assert sum(line["returned"] for line in swept) == 30
    worrying = {line["event"] for line in server.lines if line.get("level") in {"warning", "error"}}
    assert worrying <= {"Redis user has excess permissions"}


def test_one_server_alone_survives_the_order_to_renew(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url) as server:
        server.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: any(line["event"] == "rolling restart ignored" for line in server.lines))
