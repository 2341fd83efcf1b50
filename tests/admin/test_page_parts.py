"""The live page's scripts, without a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import presence.admin

PAGE = Path(presence.admin.__file__).parent / "page"
SCRIPTS = sorted(path.name for path in PAGE.glob("*.js"))
CHECKS = Path(__file__).parent / "page" / "parts.mjs"


@pytest.mark.needs("node")
def test_page_modules_without_a_browser(tmp_path: Path) -> None:
    for path in (*(PAGE / name for name in SCRIPTS), CHECKS):
        shutil.copy(path, tmp_path)
    # so that node takes them for modules
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    for words in (*(("--check", name) for name in SCRIPTS), ("--test", CHECKS.name)):
        run = subprocess.run(["node", *words], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert run.returncode == 0, run.stdout + run.stderr


def test_nothing_is_inline_or_from_elsewhere() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", html)
    for reference in re.findall(r'\s(?:src|href)="([^"]*)"', html):
        assert not re.match(r"[a-z]+:|/", reference), "relative, so that it works below any path"
        if reference.startswith("static/"):
            assert (PAGE / reference.removeprefix("static/")).is_file(), reference


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_markup(name: str) -> None:
    text = (PAGE / name).read_text()
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert danger not in text
    assert 'setAttribute("style"' not in text, "the content policy forbids it"


def test_each_id_that_a_script_looks_up_is_in_the_page() -> None:
    html = (PAGE / "index.html").read_text()
    ids = set(re.findall(r'\sid="([^"]+)"', html))
    for name in SCRIPTS:
        wanted = set(re.findall(r'(?:byId|getElementById)\("([^"]+)"\)', (PAGE / name).read_text()))
        assert wanted <= ids, name
