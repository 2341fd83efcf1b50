"""The fuzzer's corpus: a folder of inputs while it runs, one text file per target in the repository."""

from collections.abc import Iterable
from pathlib import Path


def inputs(corpora: Iterable[Path]) -> list[bytes]:
    """Return the inputs of some corpora, without duplicates, shortest first.

    Args:
        corpora: folders with one file per input, as the fuzzer writes them, or files written with `as_text`.
    """
    found: set[bytes] = set()
    for corpus in corpora:
        if corpus.is_dir():
            found.update(path.read_bytes() for path in corpus.iterdir() if path.is_file())
        else:
            found.update(map(bytes.fromhex, corpus.read_text().splitlines()))
    return sorted(found, key=lambda data: (len(data), data))


def as_text(corpus: Iterable[bytes]) -> str:
    """Return inputs as text: one line of hexadecimal digits per input."""
    return "".join(f"{data.hex()}\n" for data in corpus)
