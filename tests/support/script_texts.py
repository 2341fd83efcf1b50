"""Scripts of the store with a part of their text replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock

from presence.store import script_runner


@dataclass(frozen=True)
class SourceChange:
    """A part of a script's own text and its replacement; `lib` files are included by several scripts."""

    script: str
    old: str
    new: str


# A call works on the records of two or three plain users, and batches are cut into pieces.
LITTLE_ROOM: Final = SourceChange("lib/record_cache", "RECORD_BYTES = 1024 * 1024", "RECORD_BYTES = 600")


@contextmanager
def changed(*changes: SourceChange) -> Iterator[None]:
    """Replace parts of scripts, each of which must be there once."""
    texts = dict(script_runner._TEXTS)
    for each in changes:
        assert texts[each.script].count(each.old) == 1, f"{each.script}: {each.old!r} must be there once"
        texts[each.script] = texts[each.script].replace(each.old, each.new)
    try:
        with mock.patch.dict(script_runner._TEXTS, texts):
            _forget_texts()
            yield
    finally:
        _forget_texts()


def _forget_texts() -> None:
    """Make the scripts be assembled again."""
    script_runner.source.cache_clear()
    script_runner.digest.cache_clear()
