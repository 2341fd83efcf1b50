"""The tutorial works as it stands there: its commands in order, while a client stays connected."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from loadtest.servers import free_port
from tests.docs.pages import ROOT, blocks
from tests.support.waiting import wait_for

PAGE = "docs/first-deployment.md"
OPERATORS = "127.0.0.1:7480"
STAYS = ("presence serve", "presence client", "presence tail")
"""What a reader leaves running, each in a shell of its own."""


class Reader:
    """A reader's directory and shells; the server has other ports than on the page."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self._folder, self._cleanup = folder, cleanup
        self.operators = f"127.0.0.1:{free_port()}"
        for name in ("bin", "tmp"):
            (folder / name).mkdir()
        command = folder / "bin" / "presence"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -u -m presence "$@"\n')
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        self._environment = {
            **kept,
            "PATH": os.pathsep.join([str(folder / "bin"), kept["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder / "tmp"),
            "PRESENCE_PORT": str(free_port()),
            "PRESENCE_ADMIN": self.operators,
        }

    def run(self, text: str) -> str:
        """Run a block to its end; return what it prints."""
        return self.run_apart(text)[0]

    def run_apart(self, text: str) -> tuple[str, str]:
        """Run a block to its end; return what it prints, and what on standard error."""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text.replace(OPERATORS, self.operators)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout, ran.stderr

    def leave_running(self, command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command; return its process and the file of what it prints."""
        printed = self._folder / f"{command.split()[1]}.printed"
        with printed.open("wb") as output:
            program = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._cleanup.enter_context(program)
        self._cleanup.callback(program.kill)
        return program, printed


def has_printed(file: Path, sign: str) -> bool:
    return sign in file.read_text()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as cleanup:
        yield Reader(tmp_path, cleanup)


@pytest.mark.needs("curl")
@pytest.mark.needs("openssl")
def test_a_client_stays_online_while_workers_are_killed_and_replaced(reader: Reader, tmp_path: Path) -> None:
    programs, printed = {}, {}
    said = ""
    for block in blocks(PAGE, (ROOT / PAGE).read_text("utf-8")):
        if block.language == "toml":
            (tmp_path / "presence.toml").write_text(block.text)
            continue
        for line in re.split(r"(?<!\\)\n", block.text.strip()):
            if not line.startswith(STAYS):
                said += reader.run(line)
                continue
            name = line.split()[1]
            programs[name], printed[name] = reader.leave_running(line)
            if name != "tail":
                sign = {"serve": "ready 127.0.0.1:", "client": "online: "}[name]
                wait_for(partial(has_printed, printed[name], sign))
    assert "ann  online" in said
    assert '"status":"ready"' in said

    def sessions() -> dict[int, int]:
        rows = [line.split() for line in reader.run("presence nodes").splitlines()[1:]]
        return {int(row[2].partition("@")[0]): int(row[3]) for row in rows if row[5] == "ready,"}

    def events() -> list[str]:
        return [
            line for line in printed["tail"].read_text().splitlines() if not line.startswith("presence: ")
        ]

    def workers_with_a_session() -> list[int]:
        return [process for process, count in sessions().items() if count]

    (hers,) = wait_for(workers_with_a_session)  # a worker reports its sessions when it renews its lease
    os.kill(hers, signal.SIGKILL)
    wait_for(lambda: printed["client"].read_text().count("online again") == 1)
    wait_for(lambda: len(sessions().keys() - {hers}) == 2)
    old = sessions().keys()
    told = reader.run_apart("presence nodes")[1]
    assert re.search(rf"using the server at .* \(process {programs['serve'].pid}\)", told)
    programs["serve"].send_signal(signal.SIGUSR2)
    wait_for(lambda: printed["client"].read_text().count("online again") == 2)
    wait_for(lambda: len(sessions()) == 2 and not sessions().keys() & old)
    assert events() == []
    client = programs["client"]
    client.communicate(b"/quit\n", timeout=20)
    wait_for(events)
    assert [line.split()[2:5] for line in events()] == [["offline", "logout", "ann"]]
    programs["serve"].send_signal(signal.SIGINT)
    assert programs["serve"].wait(20) == 0
