"""A question asked in a child: its answer, and no waiting for a child that hangs or dies."""

import os
import select
import signal
from pathlib import Path

import pytest

from presence import credential_files, forked, supervisor
from presence.settings import Settings
from tests.credentials import SECRET, write_keys

PATIENCE_S = 30.0


def hang() -> str:
    signal.pause()
    return "in vain"


def test_an_answer_is_handed_on_and_nobody_is_left() -> None:
    assert forked.ask(lambda: "") == ""
    child = forked.ask(lambda: f"{os.getpid()}")
    assert int(child) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_a_child_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "PATIENCE_S", 0.1)
    with pytest.raises(forked.NoAnswer):
        forked.ask(hang)


def test_a_child_that_dies_gives_no_answer() -> None:
    def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "in vain"

    with pytest.raises(forked.NoAnswer):
        forked.ask(die)


def test_a_child_holds_nothing_of_ours_open(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    kill, spared = os.kill, []
    monkeypatch.setattr(forked, "PATIENCE_S", 0.1)
    monkeypatch.setattr(
        os, "kill", lambda pid, _: spared.append(pid)
    )  # it lives on, as one in a disk's hands
    with pytest.raises(forked.NoAnswer):
        forked.ask(hang)
    os.close(writer)
    ended, _, _ = select.select([reader], [], [], PATIENCE_S)  # nobody else can write any more
    os.close(reader)
    kill(spared[0], signal.SIGKILL)
    os.waitpid(spared[0], 0)
    assert ended


def test_no_worker_is_renewed_while_its_files_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(token_keys=write_keys(tmp_path / "keys.json", {"a": SECRET}))
    assert supervisor._may_start(settings)
    (tmp_path / "keys.json").unlink()
    os.mkfifo(tmp_path / "keys.json")
    assert not supervisor._may_start(settings)
    monkeypatch.setattr(credential_files, "problems", lambda _: iter(signal.pause, 0))
    monkeypatch.setattr(forked, "PATIENCE_S", 0.1)
    assert not supervisor._may_start(settings)
