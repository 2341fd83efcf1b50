"""Modules that a page runs have the named arguments."""

import json
import os
import re
import subprocess
import sys

from tests.docs.pages import ROOT, pages
from tests.docs.test_pages import MODULES

HELP = """
import contextlib, io, json, runpy, sys
help_texts = {}
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            help_texts[module] = output.getvalue() if not ended.code else ""
print(json.dumps(help_texts))
"""


def helped(modules: list[str]) -> dict[str, str]:
    """Return each module's output for --help; in one process, because they share most imports."""
    seed = {"PYTHONHASHSEED": "0"}  # the simulation re-executes itself with another
    command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", HELP, *modules]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, **seed}
    )
    help_texts: dict[str, str] = json.loads(run.stdout)
    return help_texts


def test_modules_on_the_page_on_reliability_have_the_named_arguments() -> None:
    text = "".join(pages()[f"docs/{page}.md"] for page in ("reliability", "faults", "rooms"))
    commands = [(name, words.split()) for name, words in MODULES.findall(text)]
    help_texts = helped(sorted({name for name, _ in commands}))
    assert len(help_texts) > 8
    unknown = [
        (name, word)
        for name, words in commands
        for word in words
        if not re.fullmatch(r"[\d.]+", word)
        and not re.search(rf"(?<![\w-]){word}(?![\w-])", help_texts[name])
    ]
    assert unknown == []
