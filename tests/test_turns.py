"""Tests that run beside each other, and one that must be alone."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import turns

A_WHILE_S = 0.1
AT_MOST_S = 5.0


class Holder:
    """Whoever takes a turn, in a thread, until told to leave."""

    def __init__(self, alone: bool) -> None:
        self._entered, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(alone,))
        self._thread.start()

    def _hold(self, alone: bool) -> None:
        with turns.turn(alone=alone):
            self._entered.set()
            self._leave.wait()

    def gets_in(self) -> bool:
        return self._entered.wait(AT_MOST_S)

    def waits(self) -> bool:
        return not self._entered.wait(A_WHILE_S)

    def leave(self) -> None:
        self._leave.set()

    def join(self) -> None:
        self._thread.join()


Start = Callable[[bool], Holder]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a holder, alone or not; their locks are others than those of this run."""
    for name in ("GATE", "ROOM"):
        (tmp_path / name).touch()
        monkeypatch.setattr(turns, name, tmp_path / name)
    holders: list[Holder] = []

    def started(alone: bool) -> Holder:
        holders.append(Holder(alone))
        return holders[-1]

    yield started
    for holder in holders:
        holder.leave()
    for holder in holders:
        holder.join()


def test_those_who_need_not_be_alone_are_in_together(start: Start) -> None:
    assert start(False).gets_in()
    assert start(False).gets_in()


@pytest.mark.parametrize("alone", [False, True])
def test_who_must_be_alone_waits_for_whoever_is_in(start: Start, alone: bool) -> None:
    first = start(alone)
    assert first.gets_in()
    second = start(True)
    assert second.waits()
    first.leave()
    assert second.gets_in()


def test_nobody_comes_in_beside_who_is_alone(start: Start) -> None:
    first = start(True)
    assert first.gets_in()
    second = start(False)
    assert second.waits()
    first.leave()
    assert second.gets_in()


def test_who_comes_later_does_not_overtake_who_waits_to_be_alone(start: Start) -> None:
    first = start(False)
    assert first.gets_in()
    patient = start(True)
    assert patient.waits()
    later = start(False)
    assert later.waits()
    first.leave()
    assert patient.gets_in()
    assert later.waits()
    patient.leave()
    assert later.gets_in()
