"""Every shipped command without threads, descriptors, memory or disk.

A command either does its work, or ends by itself with a status other than 0 and one line that says why. It
never ends by a signal, with a traceback, or not at all.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from loadtest.servers import LocalRedis
from presence.cli.main import COMMANDS
from presence.client import connect_blocking
from tests.support.preloaded import PreloadedServer

LONGEST_S: Final = 25.0  # of a command that ends by itself, on a busy machine
RUNS_S: Final = 4.0  # of a command that runs until it is interrupted
MAX_REASON_LINES: Final = 3  # the line that says why, beside the log's
# Those that run until they are interrupted.
LASTING: Final = {"serve", "demo", "tail", "client", "followups run", "followups handler"}
# For want of memory a library may take an import that fails for an absent module, and fail when it is used.
LIBRARY: Final = "site-packages"
ABSENT_MODULE: Final = "AttributeError: 'NoneType' object has no attribute"
SMALL: Final = 5  # cells of the full tier

WORDS: Final = {
    "serve": ("serve", "--port", "0", "--no-admin", "--redis", "REDIS"),
    "serve embedded": ("serve", "--port", "0", "--no-admin"),
    "serve admin": ("serve", "--port", "0", "--admin", "127.0.0.1:0", "--redis", "REDIS"),
    "serve workers": ("serve", "--port", "0", "--workers", "2", "--no-admin", "--redis", "REDIS"),
    "demo": ("demo", "--seconds", "25", "--clients", "5", "--no-admin"),
    "tail": ("tail", "--redis", "REDIS"),
    "status": ("status", "ann", "--redis", "REDIS"),
    "status list": ("status", "--list", "--redis", "REDIS"),
    "client": ("client", "bob", "--host", "HOST", "--port", "PORT"),
    "kick": ("kick", "nobody", "--redis", "REDIS"),
    "ban": ("ban", "eve", "--for", "60s", "--redis", "REDIS"),
    "unban": ("unban", "eve", "--redis", "REDIS"),
    "bans": ("bans", "--redis", "REDIS"),
    "forget": ("forget", "gone", "--redis", "REDIS"),
    "nodes": ("nodes", "--redis", "REDIS"),
    "explain": ("explain", "ann", "--redis", "REDIS"),
    "doctor": ("doctor", "--redis", "REDIS", "--port", "0", "--no-admin"),
    "config": ("config", "show"),
    "token keygen": ("token", "keygen", "--append-to", "FOLDER/issuer.json", "--public", "FOLDER/keys.json"),
    "token admin": ("token", "admin", "--role", "read", "--name", "ann"),
    "followups list": ("followups", "list", "--redis", "REDIS"),
    "followups run": ("followups", "run", "--redis", "REDIS"),
    "followups handler": ("followups", "run", "--handler", "builtins:print", "--redis", "REDIS"),
    "webhooks": (
        *("webhooks", "run", "--url", "http://127.0.0.1:1/"),
        *("--secret-file", "FOLDER/secret", "--redis", "REDIS"),
    ),
    "webhooks metrics": (
        *("webhooks", "run", "--url", "http://localhost:1/", "--metrics", "127.0.0.1:0"),
        *("--secret-file", "FOLDER/secret", "--redis", "REDIS"),
    ),
    "timers": ("timers", "list", "--kind", "ring", "--name", "rings", "--redis", "REDIS"),
    "top": ("top", "--once", "--url", "URL"),
    "plan": ("plan", "1000"),
    "advise": ("advise", "--redis", "REDIS"),
    "roster": ("roster", "ann", "--redis", "REDIS"),
    "rooms": ("rooms", "list", "--redis", "REDIS"),
    "rooms run": ("rooms", "run", "--redis", "REDIS"),
    "rebalance": ("rebalance", "--redis", "REDIS"),
}
"""What is run of each command; the words in capitals are replaced."""

SCARCITIES: Final = (
    *(("threads", amount) for amount in (0, 1, 2, 4)),
    *(("descriptors", amount) for amount in (0, 1, 2, 3, 5, 8, 12)),
    *(("memory", amount) for amount in (0, 2, 8, 24, 64)),
    ("disk", 0),  # standard output is on a full disk
)


class Cell(NamedTuple):
    """One command, and what it lacks."""

    command: str
    scarcity: str
    amount: int

    @property
    def lasts(self) -> bool:
        return self.command in LASTING or self.command.startswith(("serve ", "webhooks"))


CELLS: Final = [Cell(command, *scarce) for command in WORDS for scarce in SCARCITIES]


@dataclass(frozen=True)
class Ended:
    """How a command ended; a negative status is a signal's."""

    status: int
    stdout: str
    stderr: str
    was_interrupted: bool
    took_s: float

    def faults(self, cell: Cell) -> list[str]:
        reasons = [line for line in self.stderr.splitlines() if not line.startswith(("{", "ready "))]
        failed = self.status > 0 and not self.was_interrupted
        has_traceback = "Traceback" in self.stderr
        last_frame = self.stderr.rpartition('File "')[2]
        if cell.scarcity == "memory" and LIBRARY in last_frame and ABSENT_MODULE in last_frame:
            has_traceback, failed = False, False
        found = {
            "ended by a signal": self.status < 0
            and not (self.was_interrupted and self.status == -signal.SIGINT),
            "a traceback": has_traceback,
            "no reason": failed and not (self.stdout + self.stderr).strip(),
            "many lines": failed and len(reasons) > MAX_REASON_LINES,
            "did not end when interrupted": self.took_s > LONGEST_S,
        }
        return [fault for fault, is_so in found.items() if is_so]


@dataclass(frozen=True)
class Stage:
    """What the commands work on."""

    redis_url: str
    admin_url: str
    host: str
    port: int
    folder: Path

    def run(self, cell: Cell) -> Ended:
        replaced = {"REDIS": self.redis_url, "URL": self.admin_url, "HOST": self.host, "PORT": str(self.port)}
        words = [replaced.get(word, word.replace("FOLDER", str(self.folder))) for word in WORDS[cell.command]]
        kind, amount = ("nothing", 0) if cell.scarcity == "disk" else (cell.scarcity, cell.amount)
        command = [sys.executable, "-m", "tests.support.starved", kind, str(amount), *words]
        begun = time.monotonic()
        env = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        env["TMPDIR"] = str(self.folder)
        is_full = cell.scarcity == "disk"
        with (
            Path("/dev/full").open("w") as full,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=full if is_full else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            ) as process,
        ):
            was_interrupted = False
            try:
                stdout, stderr = process.communicate(timeout=RUNS_S if cell.lasts else LONGEST_S)
            except subprocess.TimeoutExpired:
                was_interrupted = True
                process.send_signal(signal.SIGINT)
                try:
                    stdout, stderr = process.communicate(timeout=LONGEST_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    stdout, stderr = process.communicate()
        return Ended(process.returncode, stdout or "", stderr, was_interrupted, time.monotonic() - begun)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with LocalRedis() as redis, PreloadedServer("--redis", redis.url, "--admin", "127.0.0.1:0") as server:
        host, port = server.address
        url = server.logged("admin HTTP server starting")[-1]["url"]
        with connect_blocking(host, port, uid="ann"):
            folder = tmp_path_factory.mktemp("scarce")
            (folder / "secret").write_text("0" * 64)
            (folder / "secret").chmod(0o600)
            yield Stage(redis.url, url, host, port, folder)


def try_cells(stage: Stage, cells: list[Cell]) -> dict[Cell, list[str]]:
    """Run the cells, print a line each, and return the faults of those that did not hold."""
    broken, begun = {}, time.monotonic()
    for cell in cells:
        ended = stage.run(cell)
        faults = ended.faults(cell)
        if faults:
            broken[cell] = [*faults, ended.stderr[-700:]]
        outcome = "went on" if ended.was_interrupted or not ended.status else f"status {ended.status}"
        verdict = "; ".join(faults) or "held"
        print(f"{cell.command:<16} {cell.scarcity} {cell.amount}: {outcome}, {verdict}", flush=True)
    print(f"{len(cells)} cells, {len(cells) - len(broken)} held, {time.monotonic() - begun:.0f} s")
    return broken


def test_every_command_is_in_the_matrix() -> None:
    assert {words[0] for words in WORDS.values()} == set(COMMANDS)


def test_some_commands_say_what_they_lack(stage: Stage) -> None:
    assert try_cells(stage, random.Random(42).sample(CELLS, SMALL)) == {}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_command_says_what_it_lacks(stage: Stage) -> None:
    assert try_cells(stage, CELLS) == {}
