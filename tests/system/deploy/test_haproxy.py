"""Debian's HAProxy with the configuration as it is copied, in front of a real server."""

import contextlib
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import protocol
from presence.embedded import EmbeddedRedis
from presence.settings import Settings
from protocol import Code, Kind
from tests.admin.processes import ADMIN, url_of
from tests.deploy.units import DEPLOY
from tests.live.server_process import ServerProcess, running_server, wait_for
from tests.transports import certificates

pytestmark = pytest.mark.needs("haproxy")
FILE = DEPLOY / "haproxy" / "presence.cfg"
TEXT = FILE.read_text(encoding="utf-8")
PATIENCE_S = 20.0
# What the proxy comes from, and what clients come from: addresses of this machine, all of them.
SOURCES = {"10.0.0.2": "127.0.0.2", "10.0.0.3": "127.0.0.3"}
SERVER, DEAD = "10.0.0.11", "10.0.0.12"


class Proxy:
    """A running HAProxy.

    Attributes:
        plain, secured: where it listens.
    """

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.plain, self.secured = (each.getsockname() for each in listeners)
        fds = [each.fileno() for each in listeners]
        (folder / "haproxy.cfg").write_text(here(TEXT, server, folder, fds))
        command = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
        self._log = folder / "haproxy.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, pass_fds=fds, stdout=log, stderr=log)
        for each in listeners:
            each.close()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def here(text: str, server: ServerProcess, folder: Path, fds: list[int]) -> str:
    """Return the configuration for this machine: other addresses, and nothing else."""
    (secured,) = [line["port"] for line in server.lines if line["event"] == "serving tls"]
    operators = urlsplit(url_of(server))
    changes = {
        f"{SERVER}:7400": f"127.0.0.1:{server.address[1]}",
        f"{SERVER}:7443": f"127.0.0.1:{secured}",
        DEAD: "127.0.0.4",
        "bind :7400": f"bind fd@{fds[0]}",
        "bind :7443": f"bind fd@{fds[1]}",
        "check port 7480": f"check port {operators.port}",
        "/run/haproxy/admin.sock": str(folder / "admin.sock"),
        "    user haproxy\n    group haproxy\n": "",
        "maxconn 200000": "maxconn 2000",  # files of this machine
        **SOURCES,
    }
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


@pytest.fixture
def server(redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[ServerProcess]:
    cert, key = certificates.write(tmp_path)
    flags = ["--redis", redis_server.url, *ADMIN, "--address-connections", "1"]
    flags += ["--proxy-from", ",".join(SOURCES.values()), "--tls-port", "0"]
    with running_server(*flags, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess, tmp_path: Path) -> Iterator[Proxy]:
    with contextlib.closing(Proxy(server, tmp_path)) as proxy:
        wait_for(lambda: proxy.said.count("Server presence-tls/b-2 is DOWN") == 1, PATIENCE_S)
        yield proxy


def dial(address: tuple[str, int], source: str) -> socket.socket:
    return socket.create_connection(address, PATIENCE_S, source_address=(source, 0))


def answer(sock: socket.socket, uid: str) -> protocol.Packet:
    """Log in, and return what the server says."""
    sock.sendall(protocol.encode(protocol.login(uid, id=1)))
    decoder = protocol.Decoder()
    while (found := decoder.next()) is None:
        data = sock.recv(4096)
        assert data, "closed without an answer"
        decoder.feed(data)
    return found


def test_the_file_is_sound_as_it_is(tmp_path: Path) -> None:
    # The user and the place of its socket are made by the package.
    file = tmp_path / "haproxy.cfg"
    file.write_text(re.sub(r"^ +(user|group) .*$", "", TEXT, flags=re.MULTILINE))
    run = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr


def test_the_proxy_is_more_patient_than_the_server() -> None:
    waits = re.findall(r"^ +timeout (?:client|server) (\d+)m$", TEXT, re.MULTILINE)
    settings = Settings()
    assert len(waits) == 2
    assert min(map(int, waits)) * 60 > settings.max_idle_timeout + settings.max_grace


def test_clients_log_in_through_it_and_the_server_sees_their_addresses(proxy: Proxy) -> None:
    with contextlib.ExitStack() as stack:

        def client(source: str, uid: str) -> protocol.Packet:
            return answer(stack.enter_context(dial(proxy.plain, source)), uid)

        assert client("127.0.0.5", "ann").kind == Kind.OK
        # One connection for each address: of the clients, for all come from the same proxy.
        assert client("127.0.0.5", "bob").payload["code"] == Code.RATE_LIMITED
        assert client("127.0.0.6", "cy").kind == Kind.OK


def test_tls_is_passed_through_with_the_clients_address(proxy: Proxy) -> None:
    context = certificates.client_context()
    with contextlib.ExitStack() as stack:

        def client(source: str) -> ssl.SSLSocket:
            plain = stack.enter_context(dial(proxy.secured, source))
            return stack.enter_context(context.wrap_socket(plain, server_hostname=certificates.HOST))

        assert answer(client("127.0.0.5"), "ann").kind == Kind.OK
        assert answer(client("127.0.0.6"), "bob").kind == Kind.OK
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):  # there is no key yet to say a word with
            client("127.0.0.5")


def test_whoever_is_down_gets_nobody_and_who_is_ready_is_not_down(proxy: Proxy) -> None:
    for n in range(8):
        with dial(proxy.plain, f"127.0.0.{10 + n}") as sock:
            assert answer(sock, f"user-{n}").kind == Kind.OK
    assert "/a-" not in "".join(line for line in proxy.said.splitlines() if "DOWN" in line)


def test_who_is_not_ready_any_more_gets_no_new_clients(proxy: Proxy, redis_server: EmbeddedRedis) -> None:
    with dial(proxy.plain, "127.0.0.5") as sock:
        assert answer(sock, "ann").kind == Kind.OK
        redis_server.process.kill()
        wait_for(lambda: "Server presence/a-1 is DOWN" in proxy.said, 60)
        sock.sendall(protocol.encode(protocol.keepalive(2)))
        assert sock.recv(4096), "who is connected stays"
