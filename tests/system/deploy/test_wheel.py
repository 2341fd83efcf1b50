"""The wheel: beside an application that has a `protocol.py` of its own, and with the load test."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from tests.support.server_process import running_server

ROOT = Path(__file__).parents[3]
SCRIPT = """
import presence.protocol, presence.client, presence.reader, protocol
assert presence.__file__.startswith(SITE), presence.__file__
assert protocol.OWNER == "the application"
assert presence.protocol.KEEPALIVE == bytes.fromhex("000000029103")
"""


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_an_application_may_have_a_protocol_of_its_own(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    folders = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert folders == {"presence"}
    (site / "protocol.py").write_text('OWNER = "the application"\n')
    command = [sys.executable, "-c", f"SITE = {str(site)!r}{SCRIPT}"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)})


def test_the_wheel_runs_a_load_test(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", f"{wheel}[loadtest]"]
    subprocess.run(install, check=True, capture_output=True)
    load = ("--headless", "--users", "20", "--spawn-rate", "20", "--run-time", "4s", "--no-events")
    with running_server("--data-dir", str(tmp_path / "data")) as server:
        command = [python, "-m", "presence.loadtest", *load, "--host", server.host]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "keepalive" in run.stdout + run.stderr
