"""All pages of the project: headings, links, fenced blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
SKIPPED = {"node_modules", ".venv", ".git"}
OF_THE_SITE = {"index.md", "api.md"}  # in the markup of Sphinx
FOR_OPERATORS = ("docs/operations.md", "docs/http-api.md", "docs/troubleshooting.md")
FOR_APPS = (
    "docs/apps.md",
    "docs/limits.md",
    "docs/messages.md",
    "docs/own-client.md",
    "docs/rooms.md",
    "docs/status-and-privacy.md",
)


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: its page, by path from the top.
        line: the number of its first line.
        language: from the fence.
        text: its content.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language})"


def pages() -> dict[str, str]:
    """Return the text of each page by its path from the top."""
    paths = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "protocol").rglob("*.md"),
        *(path for path in (ROOT / "docs").glob("*.md") if path.name not in OF_THE_SITE),
        *(ROOT / "benchmarks").rglob("*.md"),
        *(ROOT / "loadtest").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    return {
        str(path.relative_to(ROOT)): path.read_text("utf-8")
        for path in paths
        if not SKIPPED.intersection(path.relative_to(ROOT).parts)
    }


def blocks(page: str, text: str) -> Iterator[Block]:
    """Return the fenced blocks of a page in order."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(page, line, found["language"], found["text"])


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "", prose(text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, without `#`."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        count = sum(
            each == name or re.fullmatch(rf"{re.escape(name)}-\d+", each) is not None for each in found
        )
        found.add(f"{name}-{count}" if count else name)
    return found
