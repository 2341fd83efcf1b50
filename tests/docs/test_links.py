"""Every link of every page leads somewhere, to files and headings that are there; every table is one."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, pages, prose

PAGES = pages()
OUTSIDE = re.compile(r"https?://|mailto:")
PATHS = re.compile(r"`((?:presence|protocol|tests|loadtest|deploy)/[\w./-]*)`")
MODULES = re.compile(r"`python -m ([\w.]+)")


def broken(page: str, text: str) -> list[str]:
    """Return the links of a page that lead nowhere."""
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


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert broken(page, PAGES[page]) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_is_there(page: str) -> None:
    named = set(PATHS.findall(prose(PAGES[page])))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_module_that_is_to_be_run_is_there(page: str) -> None:
    named = {
        name
        for name in MODULES.findall(PAGES[page])
        if name.split(".")[0] in {"presence", "loadtest", "tests"}
    }
    places = [ROOT.joinpath(*name.split(".")) for name in named]
    assert [place for place in places if not (place.with_suffix(".py").is_file() or place.is_dir())] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_table_has_a_head(page: str) -> None:
    lines = prose(PAGES[page]).splitlines()
    begins = [
        n for n, line in enumerate(lines) if line.startswith("|") and not (n and lines[n - 1].startswith("|"))
    ]
    assert [lines[n] for n in begins if not lines[n + 1].startswith("| ---")] == []


def test_the_readme_names_every_page() -> None:
    named = {str(Path(link.partition("#")[0])) for link in links(PAGES["README.md"])}
    assert sorted(set(PAGES) - named - {"README.md"}) == []


@pytest.mark.parametrize("link", ["nowhere.md", "presence/docs/timers.md#no-such-heading", "#nor-this-one"])
def test_a_broken_link_is_found(link: str) -> None:
    text = f"{PAGES['README.md']}\n[here]({link})\n"
    assert broken("README.md", text) == [link]
