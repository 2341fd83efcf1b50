"""Names on pages exist: files, headings, modules, commands with arguments, tests, settings, codes."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from presence.cli.main import argument_parser
from presence.config.loader import FIELDS
from presence.protocol import Code
from tests.docs.pages import FOR_APPS, ROOT, anchors, links, pages, prose

PAGES = pages()
MAX_WORDS = 3_500
"""Of a page: some fifteen minutes of reading. A longer one has more than one purpose; split it."""
OUTSIDE = re.compile(r"https?://|mailto:")
PATHS = re.compile(r"`((?:presence|protocol|tests|benchmarks|loadtest|deploy)/[\w./-]*)`")
MODULES = re.compile(r"`python\s-m\s((?:presence|benchmarks|loadtest|tests)[\w.]*)([^`]*)`")
INCOMPLETE = ("are required", "expected one argument")  # of a command that is named without its arguments


def broken_links(page: str, text: str) -> list[str]:
    found = []
    for link in links(text):
        if OUTSIDE.match(link):
            continue
        target, _, anchor = link.partition("#")
        path = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        if not path.exists():
            found.append(link)
        elif anchor:
            name = str(path.relative_to(ROOT))
            there = text if name == page else PAGES.get(name, "")
            if anchor not in anchors(there):
                found.append(link)
    return found


def commands_in(text: str) -> list[str]:
    """Return the commands in a page's text, `a|b` as two of them."""
    found = []
    for words in re.findall(r"`presence ([a-z][^`]*)`", prose(text)):
        given = " ".join(words.split())
        choice = re.search(r"[\w|]*\|[\w|]*", given)
        options = choice[0].split("|") if choice else [""]
        found += [given.replace(choice[0], each) if choice else given for each in options]
    return found


def complaint(command: str) -> str | None:
    """Return the command line's error about some arguments, or None."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            argument_parser(words := shlex.split(command)).parse_args(words)
    except SystemExit as stop:
        line = output.getvalue().splitlines()[-1]
        return None if stop.code in {0, None} or any(words in line for words in INCOMPLETE) else line
    return None


@pytest.mark.parametrize("page", PAGES)
def test_links_paths_and_commands_of_a_page_are_valid(page: str) -> None:
    text = PAGES[page]
    assert broken_links(page, text) == []
    assert [path for path in PATHS.findall(prose(text)) if not (ROOT / path).exists()] == []
    complaints = {command: complaint(command) for command in commands_in(text)}
    assert {command: line for command, line in complaints.items() if line} == {}


@pytest.mark.parametrize("link", ["nowhere.md", "docs/timers.md#no-such-heading", "#nor-this-one"])
def test_a_broken_link_is_found(link: str) -> None:
    text = f"{PAGES['README.md']}\n[here]({link})\n"
    assert broken_links("README.md", text) == [link]


@pytest.mark.parametrize("command", ["serv", "tail --typ offline", "config show|chek"])
def test_a_wrong_command_is_found(command: str) -> None:
    assert any(map(complaint, commands_in(f"Say `presence {command}`.")))


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_a_page_is_not_too_long(page: str) -> None:
    assert len((ROOT / "docs" / page).read_text("utf-8").split()) <= MAX_WORDS


def test_the_readme_names_every_page() -> None:
    named = {str(Path(link.partition("#")[0])) for link in links(PAGES["README.md"])}
    assert sorted(set(PAGES) - named - {"README.md"}) == []


def test_every_module_that_is_run_exists() -> None:
    named = {name for text in PAGES.values() for name, _ in MODULES.findall(text)}
    places = [ROOT.joinpath(*name.split(".")) for name in named]
    assert len(places) > 8
    assert [place for place in places if not (place.with_suffix(".py").is_file() or place.is_dir())] == []


def test_codes_have_their_names() -> None:
    text = "".join(PAGES[page] for page in (*FOR_APPS, "docs/subscribers.md"))
    named = [(int(code), name) for name, code in re.findall(r"`([a-z]\w+)` \((\d{3})\)", text)]
    refusals = PAGES["docs/troubleshooting.md"].partition("\n## Refusals\n")[2].partition("\n## ")[0]
    named += [(int(code), name) for code, name in re.findall(r"(\d{3}) `(\w+)`", refusals)]
    assert len(named) > 15
    assert [(code, name) for code, name in named if Code(code).reason != name] == []


def test_settings_on_the_pages_for_apps_and_reliability_exist_with_their_defaults() -> None:
    page = "".join(PAGES[page] for page in FOR_APPS)
    cells = [row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and row.count("|") == 4]
    named = [each for cell in cells for each in re.findall(r"`(\w+)` (\d+|oldest)\b", cell)]
    assert len(named) >= 6
    assert [(name, str(FIELDS[name].default).removesuffix(".0")) for name, _ in named] == named
    promises = PAGES["docs/rooms.md"].partition("\n## What rooms promise\n")[2]
    quoted = re.findall(r"`([a-z_]+)`", PAGES["docs/reliability.md"] + PAGES["docs/faults.md"] + promises)
    fields = {"code", "gap", "since_id", "at_ms", "comparison"}  # of events, and a word of the page itself
    assert {*quoted} - {*FIELDS} - {code.reason for code in Code} - fields == set()
