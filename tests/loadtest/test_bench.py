"""The benchmark's load says when it was the bottleneck itself."""

import dataclasses
from typing import Any

import pytest

from loadtest.bench.dialects import ANSWERED, UNANSWERED
from loadtest.bench.generator import Report

FINE = Report(wanted=1000, sent=1000, answers=1000, rate=1000.0, core_share=0.3, late_max_s=0.01)


@pytest.mark.parametrize(
    ("changed", "kind", "word"),
    [
        ({}, ANSWERED, ""),
        ({"answers": 0}, UNANSWERED, ""),  # nobody asked for any
        ({"answers": 980}, ANSWERED, "unanswered"),
        ({"core_share": 0.71}, ANSWERED, "of a core"),
        ({"late_max_s": 0.2}, ANSWERED, "late"),
        ({"rate": 980.0}, ANSWERED, "late"),
    ],
)
def test_a_generator_that_was_the_bottleneck_says_so(changed: dict[str, Any], kind: str, word: str) -> None:
    complaints = dataclasses.replace(FINE, **changed).complaints(kind)
    assert bool(complaints) is bool(word)
    assert all(word in each for each in complaints)
