"""Faults of Redis under three nodes: two of them, played short."""

import pytest

from loadtest.redis_faults.__main__ import main


def test_nothing_false_is_told_when_redis_is_full_or_a_cluster_loses_a_primary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = "--idle-timeout 1.5 --lease 1.5 --tick 0.5 --users 100 --seconds 2 --jobs 2"
    assert main(["memory", "primary", *short.split()]) == 0, capsys.readouterr()
