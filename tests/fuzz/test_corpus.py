"""The fuzzer's corpus, replayed: each input that took a new path, or failed once, passes now."""

from collections.abc import Callable

import pytest

from tests.fuzz import codec, session
from tests.fuzz.__main__ import SEEDS, inputs

BYTES_MAX = 200_000


@pytest.mark.parametrize(("name", "run", "least"), [("codec", codec.run, 60), ("session", session.run, 60)])
def test_every_input_passes(name: str, run: Callable[[bytes], None], least: int) -> None:
    corpus = inputs([SEEDS / f"{name}.hex"])
    assert len(corpus) >= least
    for data in corpus:
        try:
            run(data)
        except Exception as error:
            error.add_note(f"{name}: {data.hex()}")
            raise
    print(f"{name}: {len(corpus)} inputs of {sum(map(len, corpus))} bytes, findings 0")


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in SEEDS.rglob("*") if path.is_file()) < BYTES_MAX
