"""The command itself, for a moment."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from loadtest.fuzz.__main__ import main


@pytest.mark.skipif(sys.platform != "linux", reason="atheris is for Linux")
@pytest.mark.parametrize(("target", "runs"), [("codec", 600), ("session", 120)])
def test_a_short_run_finds_nothing(
    target: str, runs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    assert (
        main([target, "--runs", str(runs), "--corpus", str(corpus), "--findings", str(tmp_path / "f")]) == 0
    )
    said = capsys.readouterr().out
    print(said)
    assert int(re.search(rf"^{target}: (\d+) runs", said, re.MULTILINE)[1]) >= runs  # type: ignore[index]
    assert "findings: 0\n" in said
    assert "branches" in said


def test_without_atheris_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["codec", "--runs", "1"]) == 2
    assert "atheris is missing" in capsys.readouterr().err
