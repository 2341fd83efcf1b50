"""The site is built without a warning: each link leads somewhere, each docstring is read as meant."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@pytest.mark.nightly
def test_the_site_has_all_pages_and_the_python_interface(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "docs", ".", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert {"docs/index.html", "docs/apps.html", "protocol/SPEC.html", "README.html", "search.html"} <= pages
    text = (tmp_path / "docs" / "api.html").read_text()
    for name in (
        "client.connect",
        "subscriber.subscribe",
        "reader.PresenceReader",
        "sender.PresenceSender",
    ):
        assert f'id="presence.{name}"' in text
