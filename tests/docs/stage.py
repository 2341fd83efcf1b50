"""Where the snippets of a page run: a Redis, a server on which somebody comes and goes, files that they name.

Documented addresses stand for the real ones: `redis://localhost:6379`, ports 7400 and 7443, and for operators
`http://127.0.0.1:7480`. What runs for ever is ended once it has shown that it works; see `commands.py`.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import protocol
from presence.embedded import embedded_redis
from tests.credentials import SECRET, token, write_keys
from tests.docs import commands
from tests.docs.pages import ROOT
from tests.live.server_process import ServerProcess, running_server
from tests.transports import certificates

QUICK = ("--idle-timeout", "1", "--tick", "0.1", "--disconnect-grace", "0")
REDIS, PORT, TLS_PORT, OPERATORS = "redis://localhost:6379", "7400", "7443", "http://127.0.0.1:7480"
ASKS_A_SERVER = (PORT, OPERATORS, "presence.followups")
PATIENCE_S = 20.0
PYTHON = (sys.executable, "-u", "-W", "error")
HANDLER = "def send(due):\n    print(due.payload)\n"


class Stage:
    """Where the snippets of one page run.

    Attributes:
        folder: the working directory of all of them.
        environment: of all of them.
    """

    def __init__(self, folder: Path, redis_url: str, places: dict[str, str]) -> None:
        self.folder = folder
        self._places = {REDIS: redis_url, **places}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        self.environment = {
            **kept,
            "PATH": os.pathsep.join([str(folder / "bin"), kept.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "PRESENCE_REDIS": redis_url,
        }

    def real(self, text: str) -> str:
        """Return a snippet with the addresses that hold here."""
        for documented, real in self._places.items():
            text = text.replace(documented, real)
        return text


@contextlib.contextmanager
def open_stage(folder: Path, text: str, *, is_live: bool = False) -> Iterator[Stage]:
    """Set up what a page needs; its servers only if it names their ports, or if something is to happen."""
    _write_files(folder)
    with contextlib.ExitStack() as cleanup:
        redis = cleanup.enter_context(embedded_redis())
        commands.install(folder / "bin", redis.url)
        places = {}
        if is_live or any(word in text for word in ASKS_A_SERVER):
            operators = ("--admin", "127.0.0.1:0") if OPERATORS in text else ("--no-admin",)
            server = cleanup.enter_context(running_server("--redis", redis.url, *QUICK, *operators))
            cleanup.enter_context(_somebody(server.address))
            places[PORT] = str(server.address[1])
            if OPERATORS in text:
                places[OPERATORS] = _operators_url(server)
        if TLS_PORT in text:
            flags = (
                "--tls-only",
                "--tls-cert",
                str(folder / "chain.pem"),
                "--tls-key",
                str(folder / "key.pem"),
            )
            keys = ("--token-keys", str(folder / "keys.json"), "--no-admin")
            secured = cleanup.enter_context(running_server("--redis", redis.url, *flags, *keys))
            places[TLS_PORT] = str(secured.address[1])
        yield Stage(folder, redis.url, places)


def _write_files(folder: Path) -> None:
    """Write the files that commands on the pages name, as their reader would have them."""
    (folder / "bin").mkdir(parents=True)
    (folder / "shop").mkdir()
    (folder / "shop" / "mails.py").write_text(HANDLER)
    (folder / "users.acl").write_bytes((ROOT / "deploy" / "redis" / "users.acl").read_bytes())
    write_keys(folder / "keys.json", {"a": SECRET})
    (folder / "ann.token").write_text(token("ann") + "\n")
    certificates.authority().cert_pem.write_to_path(str(folder / "ca.pem"))
    cert, key = certificates.write(folder)
    cert.rename(folder / "chain.pem")
    key.rename(folder / "key.pem")


def _operators_url(server: ServerProcess) -> str:
    """Return where operators are served, which is told before the server is ready."""
    urls = [line["url"] for line in server.lines if str(line.get("url", "")).startswith("http://")]
    assert urls, server.lines
    url = str(urls[0]).rstrip("/")
    _wait(lambda: _listens(url), url)
    return url


def _listens(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1.0) as asking:
            asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b" 200 " in asking.recv(1024)
    except OSError:
        return False


def _wait(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


@contextlib.contextmanager
def _somebody(address: tuple[str, int]) -> Iterator[None]:
    """Let zoe log in and fall silent, again and again: who waits for an event gets one."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address, 5.0) as silent:
                silent.sendall(protocol.encode(protocol.login("zoe")))
                silent.settimeout(5.0)
                while silent.recv(4096) and not over.is_set():
                    pass
            over.wait(0.3)

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)
