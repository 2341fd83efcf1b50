"""The corpus, replayed: each input that took a new path, or failed once, passes now."""

from tests.fuzz.__main__ import CORPUS, inputs
from tests.fuzz.codec import run

CORPUS_MAX_BYTES = 200_000
LEAST_INPUTS = 60


def test_every_input_passes() -> None:
    corpus = inputs([CORPUS])
    assert len(corpus) >= LEAST_INPUTS
    for data in corpus:
        try:
            run(data)
        except Exception as error:
            error.add_note(data.hex())
            raise


def test_the_corpus_stays_small() -> None:
    assert CORPUS.stat().st_size < CORPUS_MAX_BYTES
