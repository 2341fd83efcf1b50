"""Scripts of the store with a part of their text replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from presence.store import script_runner


@dataclass(frozen=True)
class SourceChange:
    """A part of a script's own text and its replacement; `lib` files are included by several scripts."""

    script: str
    old: str
    new: str


def little_room(record_bytes: int = 600) -> SourceChange:
    """Bound the records of a call, so that batches are cut into pieces; a plain record has some 200 bytes."""
    return SourceChange("lib/record_cache", "RECORD_BYTES = 1024 * 1024", f"RECORD_BYTES = {record_bytes}")


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
