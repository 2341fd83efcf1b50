"""The client in TypeScript, and its example device as a process of its own."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.waiting import PATIENCE_S, wait_for

PROTOCOL = Path(__file__).parents[3] / "protocol"
SOURCE = PROTOCOL / "clients" / "node"
BUILD_TIMEOUT_S = 180.0
NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")

Line = dict[str, Any]


def readme_example() -> str:
    """Return the program in the client's README."""
    readme = (SOURCE / "README.md").read_text("utf-8")
    found = re.search(r"<!-- example -->\n```ts\n(.+?)```", readme, re.DOTALL)
    assert found
    return found.group(1)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, with nothing of its user's: an empty home, no settings of npm."""
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith("npm_")}
    environment |= {"HOME": str(home), "NO_COLOR": "1"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )


def built_client(root: Path) -> Path:
    """Build the client below `root`; return its folder there."""
    folder = root / "protocol" / "clients" / "node"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    for name in ("SPEC.md", "vectors.json"):
        shutil.copy(PROTOCOL / name, root / "protocol" / name)
    (folder / "examples" / "readme.ts").write_text(readme_example())
    fetched = run(folder, "npm", "ci", "--no-audit", "--no-fund")
    if fetched.returncode and any(word in fetched.stderr for word in NO_NETWORK):
        if os.environ.get("TESTS_SKIP_NOTHING"):
            pytest.fail(f"npm cannot fetch the compiler: {fetched.stderr}")
        pytest.skip("npm cannot fetch the compiler: no network")
    assert fetched.returncode == 0, fetched.stderr
    compiled = run(folder, "npm", "run", "build")
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return folder


class Device:
    """The example device: commands in, events and answers out.

    Attributes:
        process: the process; tests kill it.
        lines: what it has printed so far.
    """

    def __init__(
        self, client: Path, address: tuple[str, int], uid: str, *more: str, **environment: str
    ) -> None:
        host, port = address
        self.process = subprocess.Popen(
            ["node", str(client / "dist" / "examples" / "device.js"), host, str(port), uid, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.lines: list[Line] = []
        self._taken = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()

    def ask(self, verb: str, *arguments: object) -> Any:
        """Carry out a command; return its answer or its error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self._wait(lambda line: line.get("verb") == verb, take=False)
        self.lines.remove(line)
        return line["answer"] if "answer" in line else line["error"]

    def sees(self, *uids: str) -> None:
        """Wait until these are online for others too: a login is answered before Redis knows of it."""
        wait_for(lambda: all(each["status"] == "online" for each in self.ask("query", uids).values()))

    def told(self, event: str, **parts: object) -> Line:
        """Wait for an event behind the last that was waited for; `parts`: what it or its state must hold."""

        def fits(line: Line) -> bool:
            state = line.get("state") or {}
            return line.get("event") == event and all(
                line.get(name, state.get(name)) == value for name, value in parts.items()
            )

        return self._wait(fits, take=True)

    def _wait(self, fits: Callable[[Line], bool], *, take: bool) -> Line:
        give_up = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                for index in range(self._taken, len(self.lines)):
                    if fits(self.lines[index]):
                        if take:
                            self._taken = index + 1
                        return self.lines[index]
                assert self._news.wait(give_up - time.monotonic()), self.lines

    def close(self) -> int:
        """Let it log out; return its exit status."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it as a crash would."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:
            pass
        self._reader.join(PATIENCE_S)
