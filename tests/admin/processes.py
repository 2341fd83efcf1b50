"""The admin processes of a test's server, and requests to them."""

import contextlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from loadtest.servers import PresenceServer
from tests.support.waiting import WAIT_TIMEOUT_S, wait_for

ADMIN = ("--admin", "127.0.0.1:0")
STARTED = {
    "service manager": ["supervisor", "webhooks run", "followups run", "rooms run"],
    "supervisor": ["worker", "admin process", "embedded Redis"],
}
"""Which process starts which; with one worker the worker is its own supervisor."""


def url_of(server: PresenceServer) -> str:
    """Return the URL of the admin server."""
    url: str = wait_for(lambda: server.logged("admin HTTP server starting"))[0]["url"]
    return url


def sampled(url: str) -> dict[int, int]:
    """Return the process of each worker that answers, as the live view has it a moment later."""
    with urllib.request.urlopen(f"{url}v1/live", timeout=WAIT_TIMEOUT_S) as stream:
        for line in stream:
            if line.startswith(b'data: {"at_ms"'):
                workers = json.loads(line.removeprefix(b"data: "))["workers"]
                return {each["worker"]: each["pid"] for each in workers if each["answering"]}
    return {}


def get(url: str, path: str = "healthz", timeout_s: float = WAIT_TIMEOUT_S) -> str:
    """Return the body of the response."""
    with urllib.request.urlopen(f"{url}{path}", timeout=timeout_s) as response:
        text: str = response.read().decode()
    return text


def answers(url: str) -> bool:
    """Whether an HTTP server answers there within a second, with any status."""
    try:
        get(url, timeout_s=1.0)
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


def children(pid: int) -> list[int]:
    try:
        return [each.pid for each in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def command(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:  # or a zombie
        return []


def admin_of(server: PresenceServer, not_this: int = 0) -> int:
    """Return the admin process of a server, once it is another one than `not_this`."""

    def find() -> int | None:
        others = (each for each in children(server.process.pid) if each != not_this)
        return next((each for each in others if command(each)[-1:] == ["presence.admin"]), None)

    return wait_for(find)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if it was not reaped."""
    return not command(pid)


def sockets(pid: int) -> set[str]:
    """Return the sockets among the descriptors of a process."""
    targets = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            targets.add(str(each.readlink()))
    return {each for each in targets if each.startswith("socket:")}


def logged(server: PresenceServer, event: str) -> list[dict[str, Any]]:
    return [line for line in list(server.lines) if line["event"] == event]
