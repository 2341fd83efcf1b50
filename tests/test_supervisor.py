"""What the supervisor does when it cannot start a worker; the rest is tested on real processes."""

import errno
import os
import time

import pytest

from presence.logs import DirectWriter
from presence.settings import Settings
from presence.supervisor import BACKOFF_FIRST_S, BACKOFF_LIMIT_S, Supervisor


def supervisor() -> Supervisor:
    return Supervisor(Settings(workers=2), "redis://h", DirectWriter())


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(0, 0.0), (1, BACKOFF_FIRST_S), (3, 4 * BACKOFF_FIRST_S), (5000, BACKOFF_LIMIT_S)],
)
def test_pauses_double_up_to_a_bound(failures: int, pause_s: float) -> None:
    place = supervisor()._workers[0]
    place.failures = failures
    assert place.pause_s == pause_s


@pytest.mark.parametrize("what", ["os.fork", "socket.socketpair"])
def test_a_worker_that_cannot_be_started_is_put_off_and_the_others_go_on(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    watched = supervisor()
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

    starting = supervisor()
    monkeypatch.setattr("os.fork", no_memory)
    starting._start(starting._workers[0])
    assert starting._stopping
    assert starting._status == 1
