"""What the comparison of two trees would notice, and that a tree is the one that was named."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from loadtest.channel.plain import BEFORE, HERE, NOW, Pair, Plan, Side, contender, judge, read_pairs

PLAN = Plan(Path("old"), connections=100, pairs=3)
OLD = Side(rss_bytes=400.0, pss_bytes=300.0, cpu_us=10.0, asking_cpu_us=20.0, complaints=[])


def pairs(*now: Side) -> list[Pair]:
    return [{NOW: side, BEFORE: OLD} for side in now]


def test_as_cheap_as_before_is_kept() -> None:
    report = judge(PLAN, pairs(OLD, replace(OLD, cpu_us=10.2), replace(OLD, cpu_us=9.8)))
    assert report.broken == []
    assert "10.0 before, 10.0 now: +0.0%" in report.rows["µs of CPU a keepalive"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rss_bytes", "bytes of RSS a connection"),
        ("pss_bytes", "bytes of PSS a connection"),
        ("cpu_us", "µs of CPU a keepalive"),
        ("asking_cpu_us", "µs of CPU a keepalive that asks"),
    ],
)
def test_each_measure_that_became_dearer_is_named(name: str, words: str) -> None:
    dearer = replace(OLD, **{name: getattr(OLD, name) * 1.04})
    assert judge(PLAN, pairs(dearer, dearer, OLD)).broken == [f"{words}: +4.0%"]


def test_one_bad_pair_of_three_is_noise() -> None:
    assert judge(PLAN, pairs(replace(OLD, cpu_us=20.0), OLD, OLD)).broken == []


def test_a_figure_that_is_not_valid_is_none() -> None:
    report = judge(PLAN, pairs(OLD, replace(OLD, complaints=["the generator was late"])))
    assert report.broken == ["pair 2, now: not valid: the generator was late"]


def test_pairs_of_runs_before_are_taken_up(tmp_path: Path) -> None:
    first = pairs(OLD, replace(OLD, cpu_us=11.0))
    file = tmp_path / "plain.json"
    file.write_text(judge(PLAN, first).as_json())
    assert read_pairs([file]) == first
    assert json.loads(file.read_text())["pairs"][0][NOW] == asdict(OLD)


def test_a_tree_without_a_server_is_refused(tmp_path: Path) -> None:
    (tmp_path / "protocol").symlink_to(HERE / "protocol")
    with pytest.raises(SystemExit, match="no tree of its own"):
        contender(BEFORE, tmp_path)


def test_this_tree_is_one() -> None:
    assert contender(NOW, HERE).says == str(HERE)
