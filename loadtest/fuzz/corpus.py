"""Inputs of the fuzzer: in a folder while it runs, and in the repository in one file for each target."""

from collections.abc import Iterable
from pathlib import Path


def inputs(corpora: Iterable[Path]) -> list[bytes]:
    """Return the inputs of some corpora, without doubles, the shortest first.

    Args:
        corpora: folders with a file for each input, as the fuzzer writes them; or files of `packed`.
    """
    found: set[bytes] = set()
    for corpus in corpora:
        if corpus.is_dir():
            found.update(path.read_bytes() for path in corpus.iterdir() if path.is_file())
        else:
            found.update(map(bytes.fromhex, corpus.read_text().splitlines()))
    return sorted(found, key=lambda data: (len(data), data))


def packed(corpus: Iterable[bytes]) -> str:
    """Return inputs as text, a line of hexadecimal digits for each."""
    return "".join(f"{data.hex()}\n" for data in corpus)
