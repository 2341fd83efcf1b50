"""The page on timers: its snippets run, and what it names is there."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import presence
from presence.cli import argument_parser
from presence.embedded import EmbeddedRedis

FOLDER = Path(presence.__file__).parent / "docs"
PAGE = (FOLDER / "timers.md").read_text(encoding="utf-8")
AT_HOME = "redis://localhost:6379"
SAID = {
    "service": ["first"],
    "queue": ["mail to ann"],
    "ring": ["reminded 1000"],
    "expiry": ["lapsed order-7 2 tickets"],
    "wheel": ["came online: True", "went offline: ann"],
}


def snippets() -> dict[str, str]:
    return dict(re.findall(r"<!-- run (\w+) -->\n```python\n(.+?)```", PAGE, re.DOTALL))


def test_each_snippet_does_what_it_shows(redis_server: EmbeddedRedis) -> None:
    # One process for all: most of the time of each would be that of loading the same modules.
    program = "".join(f"print('# {name}')\n{code}\n" for name, code in snippets().items()).replace(
        AT_HOME, redis_server.url
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    said = [part.strip().splitlines() for part in run.stdout.split("# ")[1:]]
    assert {lines[0]: lines[1:] for lines in said} == SAID


@pytest.mark.parametrize("line", re.findall(r"^presence timers .+$", PAGE, re.MULTILINE))
def test_each_command_is_one(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert argument_parser(words[1:]).parse_args(words[1:]).command == "timers"


def test_each_flag_that_is_named_is_one_with_the_default_that_is_named() -> None:
    commands = ["timers", "run", "--kind", "queue", "--name", "n", "--handler", "m:f"]
    given = vars(argument_parser(commands).parse_args(commands))
    defaults = {name: given[name] for name in ("concurrency", "batch", "attempts")}
    seconds = {name: given[f"{name}_s"] for name in ("lease", "timeout", "backoff")}
    named = dict(re.findall(r"`--(\w+)` \(?(\d+)", PAGE))
    assert {name: float(number) for name, number in named.items()} == {**defaults, **seconds}


def test_every_module_that_is_named_exists() -> None:
    modules = sorted(set(re.findall(r"`python\s-m\s([\w.]+)", PAGE)))
    assert len(modules) == 4
    assert [name for name in modules if find_spec(name) is None] == []


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []
