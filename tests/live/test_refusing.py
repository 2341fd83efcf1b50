"""A server that is set up wrongly does not start, and names what is wrong."""

import os
import subprocess
import sys

from presence.config import SPECS

TIMEOUT_S = 30


def refused(environment: dict[str, str], files: int = 0) -> str:
    """Run a server that must refuse to start; return what it said."""
    serve = [sys.executable, "-m", "presence", "serve", "--port", "0"]
    limited = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "-", *serve] if files else serve
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
    run = subprocess.run(
        limited, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=clean | environment
    )
    assert run.returncode == 2, run.stderr
    return run.stderr


def test_every_setting_that_is_bad_is_named() -> None:
    bad = dict.fromkeys((spec.variable for spec in SPECS.values()), "")
    said = refused(bad)
    assert [name for name in bad if name in said] == list(bad)


def test_a_limit_on_files_that_is_too_low_is_named() -> None:
    said = refused({"PRESENCE_MAX_CONNECTIONS": "900"}, files=256)
    print(f"900 connections with 256 files: {said.splitlines()[-1]}")
    assert "max_connections: 900 do not fit" in said
    assert "256" in said
