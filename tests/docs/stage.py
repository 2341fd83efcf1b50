"""The environment of a page's snippets: a Redis, a server with a user who comes and goes, named files.

Documented addresses are replaced by real ones: `redis://localhost:6379`, ports 7400 and 7443, and
`http://127.0.0.1:7480` for operators. Programs that run forever are ended once they work; see `commands.py`.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from presence import protocol
from presence.reader import PresenceReader
from presence.store.embedded import embedded_redis
from tests.admin.processes import answers, url_of
from tests.docs import commands
from tests.docs.pages import ROOT
from tests.support.credentials import SECRET, token, write_keys
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.transports import certificates

QUICK = ("--idle-timeout", "1", "--tick", "0.1", "--disconnect-grace", "0")
REDIS, PORT, TLS_PORT, OPERATORS = "redis://localhost:6379", "7400", "7443", "http://127.0.0.1:7480"
ASKS_A_SERVER = (PORT, OPERATORS, "presence.followups")
VISITOR = "zoe"
PYTHON = (sys.executable, "-u", "-W", "error")
RULES = '[[followups]]\nname = "we-miss-you"\nafter = 0.1\npayload = "mail template 7"\n'  # not 1 h
HANDLER = "def send(due):\n    print(due.payload)\n"


class Stage:
    """The environment of one page's snippets.

    Attributes:
        folder: their working directory.
        environment: their environment variables.
    """

    def __init__(self, folder: Path, redis_url: str, places: dict[str, str]) -> None:
        self.folder = folder
        self._places = {REDIS: redis_url, **places}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        self.environment = {
            "WEBHOOK_SECRET": "a-secret-of-a-receiver",
            **kept,
            "PATH": os.pathsep.join([str(folder / "bin"), kept.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "PRESENCE_REDIS": redis_url,
        }

    def settle(self) -> None:
        """Wait until the users of earlier snippets are offline."""
        with PresenceReader(self._places[REDIS]) as reader:
            wait_for(lambda: not reader.page(size=100).states.keys() - {VISITOR})

    def real(self, text: str) -> str:
        """Return a snippet with the real addresses."""
        for documented, real in self._places.items():
            text = text.replace(documented, real)
        return text


@contextlib.contextmanager
def open_stage(folder: Path, text: str, *, is_live: bool = False) -> Iterator[Stage]:
    """Set up what a page needs; servers only if it names their ports, or `is_live`."""
    _write_files(folder)
    with contextlib.ExitStack() as cleanup:
        redis = cleanup.enter_context(embedded_redis())
        commands.install(folder / "bin", redis.url)
        places = {}
        if is_live or any(word in text for word in ASKS_A_SERVER):
            operators = ("--admin", "127.0.0.1:0") if OPERATORS in text else ("--no-admin",)
            rooms = ("--rooms", "open") if "rooms" in text else ()
            rules = ("--config", str(folder / "quick.toml")) if "due_sync" in text else ()
            flags = (*QUICK, *operators, *rooms, *rules)
            server = cleanup.enter_context(running_server("--redis", redis.url, *flags))
            cleanup.enter_context(_user_who_comes_and_goes(server.address))
            places[PORT] = str(server.address[1])
            if OPERATORS in text:
                wait_for(lambda: answers(url_of(server)))
                places[OPERATORS] = url_of(server).rstrip("/")
        if TLS_PORT in text:
            files = {"--tls-cert": "chain.pem", "--tls-key": "key.pem", "--token-keys": "keys.json"}
            paths = [word for flag, name in files.items() for word in (flag, str(folder / name))]
            secured = cleanup.enter_context(running_server("--redis", redis.url, "--tls-only", *paths))
            places[TLS_PORT] = str(secured.address[1])
        yield Stage(folder, redis.url, places)


def _write_files(folder: Path) -> None:
    """Write the files that a page's commands name."""
    (folder / "bin").mkdir(parents=True)
    (folder / "shop").mkdir()
    (folder / "shop" / "mails.py").write_text(HANDLER)
    (folder / "quick.toml").write_text(RULES)
    (folder / "users.acl").write_bytes((ROOT / "deploy" / "redis" / "users.acl").read_bytes())
    write_keys(folder / "keys.json", {"a": SECRET})
    write_keys(folder / "issuer.json", {"a": SECRET})
    (folder / "ann.token").write_text(token("ann") + "\n")
    certificates.authority().cert_pem.write_to_path(str(folder / "ca.pem"))
    cert, key = certificates.write(folder)
    cert.rename(folder / "chain.pem")
    key.rename(folder / "key.pem")


@contextlib.contextmanager
def _user_who_comes_and_goes(address: tuple[str, int]) -> Iterator[None]:
    """Let zoe come to a room and fall silent repeatedly, so that programs that wait for an event get one."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), contextlib.closing(Phone(address)) as silent:
                silent.socket.settimeout(5.0)
                silent.send(protocol.encode(protocol.login(VISITOR, rooms=["lobby"])))
                silent.read_to_end()
            over.wait(0.3)

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)
