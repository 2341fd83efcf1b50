"""What is done when a worker cannot be started; the rest is tested on real processes."""

import errno
import os
import time

import pytest

from presence.logs import DirectWriter
from presence.places import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.processes import Processes


def processes() -> Processes:
    return Processes(2, lambda *_: 0, ready_line="ready", drain_timeout_s=1.0, writer=DirectWriter())


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(0, 0.0), (1, BACKOFF_FIRST_S), (3, 4 * BACKOFF_FIRST_S), (5000, BACKOFF_LIMIT_S)],
)
def test_pauses_double_up_to_a_bound(failures: int, pause_s: float) -> None:
    place = processes()._workers[0]
    place.failures = failures
    assert place.pause_s == pause_s


@pytest.mark.parametrize("what", ["os.fork", "socket.socketpair"])
def test_a_worker_that_cannot_be_started_is_put_off_and_the_others_go_on(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    watched = processes()
    watched._told_ready = True
    monkeypatch.setattr(what, no_memory)
    place = watched._workers[0]
    watched._start(place)
    assert place.pid == 0
    assert place.start_at > time.monotonic()
    assert not watched._stopping


def test_before_all_were_ready_that_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    starting = processes()
    monkeypatch.setattr("os.fork", no_memory)
    starting._start(starting._workers[0])
    assert starting._stopping
    assert starting._status == 1


def test_nobody_drains_for_a_successor_that_could_not_start() -> None:
    asked: list[int] = []

    def may_start() -> bool:
        asked.append(1)
        return False

    watched = Processes(
        2, lambda *_: 0, ready_line="", drain_timeout_s=1.0, writer=DirectWriter(), may_start=may_start
    )
    watched._told_ready = True
    for place in watched._workers:
        place.is_ready = True
    watched._renew_all()
    watched._renew_next()
    assert len(asked) == 1
    assert not any(place.is_renewed for place in watched._workers)
    assert not watched._to_renew
