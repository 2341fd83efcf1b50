"""The wheel beside an application that has a `protocol.py` of its own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import presence.protocol, presence.client, presence.reader, protocol
assert presence.__file__.startswith(SITE), presence.__file__
assert protocol.OWNER == "the application"
assert presence.protocol.KEEPALIVE == bytes.fromhex("000000029103")
"""


def test_an_application_may_have_a_protocol_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    folders = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert folders == {"presence"}
    (site / "protocol.py").write_text('OWNER = "the application"\n')
    command = [sys.executable, "-c", f"SITE = {str(site)!r}{SCRIPT}"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)})
