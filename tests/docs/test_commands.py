"""Commands that pages name within their text are there, with the words that they are given."""

import contextlib
import io
import re
import shlex

import pytest

from presence.cli import argument_parser
from tests.docs.pages import pages, prose

PAGES = pages()
MENTIONED = ("are required", "expected one argument")  # of a command that is named and not shown whole


def named(text: str) -> list[str]:
    """Return the commands in a page's text, `a|b` as two of them."""
    found = []
    for words in re.findall(r"`presence ([a-z][^`]*)`", prose(text)):
        given = " ".join(words.split())
        choice = re.search(r"[\w|]*\|[\w|]*", given)
        options = choice[0].split("|") if choice else [""]
        found += [given.replace(choice[0], each) if choice else given for each in options]
    return found


def complaint(command: str) -> str | None:
    """Return what the command line says against some words, if anything."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            argument_parser(words := shlex.split(command)).parse_args(words)
    except SystemExit as stop:
        line = said.getvalue().splitlines()[-1]
        return None if stop.code in {0, None} or any(words in line for words in MENTIONED) else line
    return None


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if named(text)])
def test_every_command_in_the_text_is_one(page: str) -> None:
    told = {command: complaint(command) for command in named(PAGES[page])}
    assert {command: line for command, line in told.items() if line} == {}


@pytest.mark.parametrize("command", ["serv", "tail --typ offline", "config show|chek"])
def test_one_that_is_none_is_found(command: str) -> None:
    assert any(map(complaint, named(f"Say `presence {command}`.")))
