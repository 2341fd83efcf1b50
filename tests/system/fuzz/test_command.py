"""The command itself, run briefly."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz.__main__ import CORPUS, inputs, main

linux = pytest.mark.skipif(sys.platform != "linux", reason="atheris is for Linux")
FAULT = """
import sys
import tests.fuzz.__main__ as command
from tests.fuzz import codec
codec.run = lambda data: 1 / (data[:1] != b"f")
sys.exit(command.main())
"""


def run(*words: str, program: Sequence[str] = ("-m", "tests.fuzz")) -> tuple[int, str]:
    """Return the exit status and the output."""
    command = [sys.executable, *program, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


@linux
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    status, output = run("--runs", "600", "--findings", str(tmp_path))
    assert status == 0, output
    assert "Done 600 runs" in output
    assert not [*tmp_path.iterdir()]


@linux
def test_an_input_that_fails_is_kept_and_fails_the_command(tmp_path: Path) -> None:
    status, output = run("--runs", "100000", "--findings", str(tmp_path), program=("-c", FAULT))
    assert status == 1
    assert "ZeroDivisionError" in output
    assert [path.read_bytes()[:1] for path in tmp_path.glob("crash-*")] == [b"f"]


@linux
def test_the_fewest_inputs_with_the_same_coverage_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept.hex"
    assert run("--keep", str(kept), "--findings", str(tmp_path / "f"))[0] == 0
    assert 50 < len(inputs([kept])) < len(inputs([CORPUS]))


def test_without_atheris_the_command_reports_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--runs", "1"]) == 2
    assert "atheris is missing" in capsys.readouterr().err
