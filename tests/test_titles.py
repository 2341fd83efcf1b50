"""Secrets on a command line: they are covered, and the list of processes shows them no more."""

import subprocess
import sys
from pathlib import Path

import pytest

from presence import titles

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2VjcmV0"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--redis", "redis://u:s3cret@h/1"], ["--redis", "redis://u:***@h/1"]),
        (["--redis=redis://:s3cret@h"], ["--redis=redis://:***@h"]),
        (["--redis", "rediss://h?ssl_password=s3cret"], ["--redis", "rediss://h?ssl_password=***"]),
        (["client", "--token", "s3cret"], ["client", "--token", "***"]),
        (["client", "--token=s3cret", "ann"], ["client", "--token=***", "ann"]),
        (["client", "--token", "@/run/token"], ["client", "--token", "@/run/token"]),
        (["client", "--token=@/run/token"], ["client", "--token=@/run/token"]),
        (["token", "check", TOKEN], ["token", "check", "***"]),
        (["status", "ann"], ["status", "ann"]),
    ],
)
def test_secrets_are_covered_and_nothing_else(arguments: list[str], shown: list[str]) -> None:
    assert titles.covered(arguments) == shown


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is a warning")
def test_the_list_of_processes_shows_them_no_more() -> None:
    program = (
        "import os, sys; from presence import titles; assert titles.hide(sys.argv)\n"
        "print(open('/proc/self/cmdline').read().replace(chr(0), '|'), sys.argv[2], os.environ['AFTER'])"
    )
    words = ["serve", "redis://u:s3cret-and-long@h", "--token", "s3c", "--port", "7400"]
    run = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
        env={"AFTER": "as it was", "PYTHONPATH": str(Path.cwd())},
    )
    listed, _, rest = run.stdout.partition("| ")
    assert listed.endswith("|serve|redis://u:***@h            |--token|***|--port|7400")
    assert rest.split(maxsplit=1) == ["redis://u:s3cret-and-long@h", "as it was\n"]


def test_who_cannot_hide_them_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert not titles.hide(["serve", "redis://u:s3cret@h"])
    assert titles.hide(["serve", "redis://h"])
