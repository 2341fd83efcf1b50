"""Scripts of the store with a part of their text replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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


def before_shard_changes() -> SourceChange:
    """The scripts of 1.0.0rc1, which do not publish all changes of a shard: this part is what differs."""
    former = Path(__file__).parents[1] / "store" / "data" / "entries_before_shard_changes.lua"
    return SourceChange("lib/entries", script_runner._TEXTS["lib/entries"], former.read_text("utf-8"))


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
