"""What the answer to a confirmed message says of real apps: alive, frozen, cut off, behind a proxy.

The apps are processes: one with the client library, which confirms, and one that only reads. Two workers, so
that messages and confirmations cross between them. Needs root, for a network that can be cut, and HAProxy.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from loadtest.servers import PresenceServer
from presence.client import Receipt, connect_blocking
from presence.sender import PresenceSender
from presence.store.embedded import EmbeddedRedis, embedded_redis
from tests.support.server_process import running_server
from tests.system.half_open import Namespace, missing_requirement, own_host

pytestmark = pytest.mark.needs("haproxy")

Kind = Literal["library", "plain"]
PROGRAMS: dict[Kind, str] = {
    "library": """
from presence.client import connect_blocking
with connect_blocking(host, port, uid=uid) as client:
    print("ready", flush=True)
    for message in client.messages():
        pass
""",
    "plain": """
import socket
from presence import protocol
with socket.create_connection((host, port)) as sock:
    sock.sendall(protocol.encode(protocol.login(uid)))
    sock.recv(4096)
    print("ready", flush=True)
    while sock.recv(4096):
        pass
""",
}
BEGIN = "import sys\nhost, port, uid = sys.argv[1], int(sys.argv[2]), sys.argv[3]"
ENOUGH_S = 20.0  # for what is confirmed
SHORT_S = 1.0  # for what is not
RECORD_S = 0.5  # until Redis has a login
PROXY = """
global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen presence
    bind fd@{fd}
    server one {host}:{port}
"""

BY_APP, BY_KERNEL, UNCONFIRMED = Receipt(1, 1, 1, 0), Receipt(1, 1, 0, 0), Receipt(1, 0, 0, 1)
# The table of docs/messages.md
CASES: list[tuple[str, Kind, Receipt]] = [
    ("alive", "library", BY_APP),
    ("alive", "plain", BY_KERNEL),
    ("cut off", "library", UNCONFIRMED),
    ("cut off", "plain", UNCONFIRMED),
    ("frozen", "library", UNCONFIRMED),
    ("frozen", "plain", BY_KERNEL),
    ("alive behind a proxy", "library", BY_APP),
    ("alive behind a proxy", "plain", BY_KERNEL),
    ("frozen behind a proxy", "library", UNCONFIRMED),
    ("frozen behind a proxy", "plain", BY_KERNEL),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def network() -> Iterator[Namespace]:
    if missing := missing_requirement():
        if os.environ.get("TESTS_SKIP_NOTHING"):
            pytest.fail(f"{missing} is not to be had")
        pytest.skip(f"{missing} is not to be had")
    with Namespace(own_host()) as network:
        yield network


@pytest.fixture
def server(redis: EmbeddedRedis, network: Namespace) -> Iterator[PresenceServer]:
    with running_server(
        "--redis", redis.url, "--host", network.host, "--insecure", "--workers", "2"
    ) as server:
        yield server


@contextmanager
def proxied(server: PresenceServer, folder: Path) -> Iterator[tuple[str, int]]:
    """Run HAProxy in front of a server; yields its address."""
    host, port = server.address
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file, address = folder / "haproxy.cfg", listener.getsockname()
        file.write_text(PROXY.format(fd=listener.fileno(), host=host, port=port))
        command = ["haproxy", "-db", "-f", str(file)]
        proxy = subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL)
    try:
        yield address
    finally:
        proxy.kill()
        proxy.wait()


@contextmanager
def app(
    kind: Kind, address: tuple[str, int], uid: str, network: Namespace | None
) -> Iterator[subprocess.Popen[str]]:
    """Run an app that is logged in; in a network of its own, or here."""
    program = [sys.executable, "-c", f"{BEGIN}{PROGRAMS[kind]}", address[0], str(address[1]), uid]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    with network.call(start) if network is not None else start() as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(RECORD_S)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("state", "kind", "expected"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_the_answer_says_what_is_documented(
    redis: EmbeddedRedis,
    server: PresenceServer,
    network: Namespace,
    tmp_path: Path,
    state: str,
    kind: Kind,
    expected: Receipt,
) -> None:
    with ExitStack() as stack:
        address = server.address
        if "proxy" in state:
            address = stack.enter_context(proxied(server, tmp_path))
        inside = network if state == "cut off" else None
        process = stack.enter_context(app(kind, address, "bob", inside))
        if state == "cut off":
            network.cut()
        elif state.startswith("frozen"):
            process.send_signal(signal.SIGSTOP)
        confirm = SHORT_S if expected == UNCONFIRMED else ENOUGH_S
        backend = stack.enter_context(PresenceSender(redis.url, "@shop"))
        outcome = backend.send("bob", "by a backend", confirm=confirm)
        assert outcome.status == "delivered"
        assert Receipt(outcome.delivered, outcome.confirmed, outcome.by_app, outcome.unconfirmed) == expected  # type: ignore[arg-type]
        for number in range(4):  # on either worker
            client = stack.enter_context(connect_blocking(*server.address, uid=f"ann{number}"))
            begun = time.monotonic()
            assert client.send_confirmed("bob", "by a user", confirm=confirm) == expected
            took_s = time.monotonic() - begun
            assert (took_s >= SHORT_S) == (expected == UNCONFIRMED)
        print(f"{state}, {kind}: {expected}, last answer after {took_s:.3f} s")
