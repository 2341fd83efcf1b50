"""Debian's HAProxy with the configuration as it is copied, in front of a real server."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.config.settings import Settings
from presence.core.flap_damping import MAX_GRACE_S
from presence.protocol import Code, Kind
from presence.store.embedded import EmbeddedRedis, embedded_redis
from tests.admin.processes import ADMIN, url_of
from tests.deploy.units import DEPLOY
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.transports import certificates

pytestmark = pytest.mark.needs("haproxy")
FILE = DEPLOY / "haproxy" / "presence.cfg"
TEXT = FILE.read_text(encoding="utf-8")
TIMEOUT_S = 20.0
OUTAGE_S = float(os.environ.get("OUTAGE_S", "0"))  # of Redis, at least
CHECKS_S = 1.5  # two of them, and more
# What the proxy comes from, and what clients come from: addresses of this machine, all of them.
SOURCES = {"10.0.0.2": "127.0.0.2", "10.0.0.3": "127.0.0.3"}
FIRST, SECOND = "10.0.0.11", "10.0.0.12"


class Haproxy:
    """A running HAProxy, which listens at `address`."""

    def __init__(self, servers: Sequence[PresenceServer], folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = listener.getsockname()
            fd = listener.fileno()
            (folder / "haproxy.cfg").write_text(here(TEXT, servers, folder, fd))
            command = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
            self._log = folder / "haproxy.log"
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(command, pass_fds=[fd], stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def here(text: str, servers: Sequence[PresenceServer], folder: Path, fd: int) -> str:
    """Return the configuration for this machine: only the addresses change."""
    changes = {
        "bind :7443": f"bind fd@{fd}",
        "/run/haproxy/admin.sock": str(folder / "admin.sock"),
        "    user haproxy\n    group haproxy\n": "",
        "maxconn 200000": "maxconn 2000",  # files of this machine
        "inter 2s": "inter 200ms",  # patience of this test, and none of a check on a busy machine
        "timeout connect 5s": "timeout connect 5s\n    timeout check 10s",
        **SOURCES,
    }
    for server, address in zip(servers, (FIRST, SECOND), strict=False):
        check = f"check port {urlsplit(url_of(server)).port}"
        changes[f"{address}:7443"] = f"127.0.0.1:{server.address[1]} {check}"
    for before, after in {**changes, SECOND: "127.0.0.4"}.items():
        assert before in text or before == SECOND, before
        text = text.replace(before, after)
    return text


def readyz(server: PresenceServer) -> tuple[int, str]:
    """Return the server's answer to the proxy's health check."""
    try:
        with urllib.request.urlopen(f"{url_of(server)}readyz", timeout=TIMEOUT_S) as answered:
            return answered.status, json.load(answered)["status"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["status"]


def flags_behind_it(folder: Path) -> list[str]:
    """Return flags of a server behind the proxy, with a certificate in a folder."""
    cert, key = certificates.write(folder)
    trusted = ["--proxy-from", ",".join(SOURCES.values()), *ADMIN]
    return [*trusted, "--tls-only", "--tls-cert", str(cert), "--tls-key", str(key)]


@pytest.fixture
def server(redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[PresenceServer]:
    flags = ["--redis", redis_server.url, "--address-connections", "1"]
    with running_server(*flags, *flags_behind_it(tmp_path)) as server:
        yield server


@pytest.fixture
def proxy(server: PresenceServer, tmp_path: Path) -> Iterator[Haproxy]:
    wait_for(lambda: readyz(server)[0] == HTTPStatus.OK, TIMEOUT_S)  # or the proxy takes it out at first
    with contextlib.closing(Haproxy([server], tmp_path)) as proxy:
        wait_for(lambda: proxy.said.count("Server presence/b-2 is DOWN") == 1, TIMEOUT_S)
        yield proxy


def dial(proxy: Haproxy, source: str) -> ssl.SSLSocket:
    """Open a TLS connection through the proxy, whose certificate is the server's."""
    plain = socket.create_connection(proxy.address, TIMEOUT_S, source_address=(source, 0))
    return certificates.client_context().wrap_socket(plain, server_hostname=certificates.HOST)


def answer(sock: socket.socket, uid: str) -> protocol.Packet:
    """Log in, and return the server's answer."""
    return Phone(sock).ask(protocol.login(uid, id=1))


def test_the_file_is_sound_as_it_is(tmp_path: Path) -> None:
    # The user and the place of its socket are made by the package.
    file = tmp_path / "haproxy.cfg"
    file.write_text(re.sub(r"^ +(user|group) .*$", "", TEXT, flags=re.MULTILINE))
    run = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr


def test_the_proxy_is_more_patient_than_the_server() -> None:
    waits = re.findall(r"^ +timeout (?:client|server) (\d+)m$", TEXT, re.MULTILINE)
    assert len(waits) == 2
    assert min(map(int, waits)) * 60 > Settings().max_idle_timeout + MAX_GRACE_S


def test_clients_log_in_over_tls_and_the_server_sees_their_addresses(proxy: Haproxy) -> None:
    with dial(proxy, "127.0.0.5") as ann, dial(proxy, "127.0.0.6") as bob:
        assert answer(ann, "ann").kind == Kind.OK
        assert answer(bob, "bob").kind == Kind.OK
        # One connection for each address: of the clients, for all come from the same proxy.
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):  # there is no key yet to say a word with
            dial(proxy, "127.0.0.5")


def test_a_client_without_tls_is_refused(proxy: Haproxy) -> None:
    assert re.findall(r"^ +bind (\S+)", TEXT, re.MULTILINE) == [":7443"]
    with socket.create_connection(proxy.address, TIMEOUT_S, source_address=("127.0.0.7", 0)) as plain:
        refusal = answer(plain, "ann")
        assert (refusal.kind, refusal.payload["code"]) == (Kind.ERROR, Code.PROTOCOL_ERROR)


def test_whoever_is_down_gets_nobody_and_who_is_ready_is_not_down(proxy: Haproxy) -> None:
    for n in range(8):
        with dial(proxy, f"127.0.0.{10 + n}") as sock:
            assert answer(sock, f"user-{n}").kind == Kind.OK
    assert "/a-" not in "".join(line for line in proxy.said.splitlines() if "DOWN" in line)


def test_a_server_that_drains_gets_no_new_clients_and_keeps_those_it_has(
    proxy: Haproxy, server: PresenceServer
) -> None:
    with dial(proxy, "127.0.0.5") as sock:
        assert answer(sock, "ann").kind == Kind.OK
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "Server presence/a-1 is DOWN" in proxy.said, TIMEOUT_S)
        assert sock.recv(4096), "a goodbye"
    server.process.wait(TIMEOUT_S)  # a second signal would cut the drain short


def test_logins_go_on_through_it_while_redis_is_away(tmp_path: Path) -> None:
    flags = [*flags_behind_it(tmp_path), "--lease", "1"]
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(embedded_redis())
        servers = [stack.enter_context(running_server("--redis", redis.url, *flags)) for _ in range(2)]
        wait_for(lambda: all(readyz(each) == (200, "ready") for each in servers), TIMEOUT_S)
        proxy = stack.enter_context(contextlib.closing(Haproxy(servers, tmp_path)))
        stack.callback(redis.process.send_signal, signal.SIGCONT)
        redis.process.send_signal(signal.SIGSTOP)
        started, refused, granted, degraded_at = time.monotonic(), 0, 0, math.inf
        # From then on, for as long as checks that fail would take to turn both servers away.
        while (now := time.monotonic()) < started + OUTAGE_S or now < degraded_at + CHECKS_S:
            assert now < started + OUTAGE_S + TIMEOUT_S
            with dial(proxy, "127.0.0.5") as sock:
                try:
                    granted += answer(sock, f"user-{granted}").kind == Kind.OK
                except (AssertionError, OSError):
                    refused += 1
            if degraded_at == math.inf and all(readyz(each) == (200, "degraded") for each in servers):
                degraded_at = time.monotonic()
            time.sleep(0.05)
        print(f"{granted} logins granted, {refused} refused, degraded after {degraded_at - started:.1f} s")
        assert (refused, granted > 10) == (0, True)
        assert "Server presence/" not in proxy.said
