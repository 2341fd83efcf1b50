"""The command before anything is loaded: SIGHUP does not end a server that has hardly begun."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from presence import cli
from presence.__main__ import main


@pytest.fixture
def hangups() -> Iterator[list[int]]:
    """Count what SIGHUP does where nobody has it ignored."""
    came: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _frame: came.append(number))
    yield came
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("command", "heard"), [("serve", 0), ("tail", 1)])
def test_a_hangup_that_comes_early_is_ignored_by_a_server_only(
    hangups: list[int], monkeypatch: pytest.MonkeyPatch, command: str, heard: int
) -> None:
    def early() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 7

    monkeypatch.setattr(cli, "main", early)
    monkeypatch.setattr(sys, "argv", ["presence", command])
    assert main() == 7
    assert len(hangups) == heard


def test_that_is_decided_before_anything_is_loaded() -> None:
    script = "import sys, presence.__main__; sys.exit('presence.cli' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
