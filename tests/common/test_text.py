"""Text for people: names that are not the same are not shown the same."""

import json
import shutil
import subprocess
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

import pytest

import presence.admin
from presence.common.text import named, printable
from tests.support.odd_inputs import NAMES

TEXT_JS = Path(presence.admin.__file__).parent / "page" / "text.js"
ASK_JS = """
import { escapeInvisible, unescapeName } from "./text.js";
import { readFileSync } from "node:fs";
const texts = JSON.parse(readFileSync(0, "utf8"));
const shown = texts.map(escapeInvisible);
process.stdout.write(JSON.stringify([shown, shown.map(unescapeName)]));
"""


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_is_shown_without_hidden_characters_and_can_be_typed_as_shown(name: str) -> None:
    shown = printable(name)
    assert shown.isprintable()
    assert unicodedata.is_normalized("NFC", shown)
    assert named(shown) == name


@pytest.mark.parametrize(
    "unseen", ["\u3164", "\u115f", "\u2800", "\u034f", "\u17b5", "\u180b", "\ufe0f", "\U000e0100", "\u200b"]
)
def test_a_character_without_a_mark_is_shown_by_its_code(unseen: str) -> None:
    assert printable(f"ann{unseen}") == f"ann\\u{{{ord(unseen):x}}}"


def test_texts_with_the_same_look_are_shown_differently() -> None:
    assert printable("Ren\u00e9e") == "Ren\u00e9e"
    assert printable("Rene\u0301e") == "Rene\\u{301}e"
    assert printable("\u1112\u1161") != printable("\ud558")
    assert printable("\u212b") != printable("\u00c5")


def test_no_two_names_are_shown_alike() -> None:
    by_look: defaultdict[str, set[str]] = defaultdict(set)
    for name in NAMES.values():
        by_look[unicodedata.normalize("NFC", printable(name))].add(name)
    assert [names for names in by_look.values() if len(names) > 1] == []


def test_what_no_name_contains_stays() -> None:
    assert named("\\u{110000} \\u{} \\u3164 \\u{3164") == "\\u{110000} \\u{} \\u3164 \\u{3164"
    assert printable("plain \\ text") == "plain \\ text"


@pytest.mark.needs("node")
def test_the_page_shows_every_character_as_python_does(tmp_path: Path) -> None:
    shutil.copy(TEXT_JS, tmp_path)
    (tmp_path / "package.json").write_text('{"type":"module"}')
    (tmp_path / "ask.js").write_text(ASK_JS)
    # Unassigned ones may be assigned in the other's edition of Unicode.
    single = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) != "Cn"]
    texts = [*NAMES.values(), *single, *("e\u0301" + c for c in single[:30_000])]
    run = subprocess.run(
        ["node", "ask.js"], input=json.dumps(texts), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    shown, again = json.loads(run.stdout)
    wrong = [
        (text, printable(text), page)
        for text, page in zip(texts, shown, strict=True)
        if page != printable(text)
    ]
    assert wrong == []
    assert again[: len(NAMES)] == [*NAMES.values()]
