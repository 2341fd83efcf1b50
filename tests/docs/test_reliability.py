"""The page on reliability names what is there: tests, commands with their words, settings, files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import presence
from presence.config import SPECS
from protocol import Code

ROOT = Path(presence.__file__).parent.parent
FOLDER = Path(presence.__file__).parent / "docs"
PAGE = (FOLDER / "reliability.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`]+)`", PAGE)
COMMANDS = sorted({quoted for quoted in QUOTED if quoted.startswith("python -m ")})
TESTS = sorted({quoted for quoted in QUOTED if quoted.startswith("tests/")})
FIELDS = {"code", "gap", "since_id", "at_ms"}  # of an event, and the word of the page itself


HELP = """
import contextlib, io, json, runpy, sys
told = {}
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            told[module] = said.getvalue() if not ended.code else ""
print(json.dumps(told))
"""


def helped(modules: list[str]) -> dict[str, str]:
    """Return what each module prints that is run with --help; one process, as all load much the same."""
    seed = {"PYTHONHASHSEED": "0"}  # the simulation begins anew with another
    command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", HELP, *modules]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, **seed}
    )
    told: dict[str, str] = json.loads(run.stdout)
    return told


def test_each_command_knows_the_words_that_it_is_given() -> None:
    modules = sorted({command.split()[2] for command in COMMANDS})
    assert len(modules) > 8
    told = helped(modules)
    unknown = [
        (command, word)
        for command in COMMANDS
        for word in command.split()[3:]
        if not re.fullmatch(r"[\d.]+", word)
        and not re.search(rf"(?<![\w-]){word}(?![\w-])", told[command.split()[2]])
    ]
    assert unknown == []


def test_every_test_that_is_named_exists() -> None:
    assert len(TESTS) > 20
    assert [test for test in TESTS if not (ROOT / test).is_file()] == []


def test_every_setting_that_is_named_exists() -> None:
    names = {quoted for quoted in QUOTED if re.fullmatch(r"[a-z_]+", quoted)}
    assert names & {*SPECS} >= {"idle_timeout", "lease", "tick", "disconnect_grace"}
    assert names - {*SPECS} - {code.reason for code in Code} - FIELDS == set()


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []
