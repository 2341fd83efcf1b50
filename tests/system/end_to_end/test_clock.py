"""The wall clock of the server, or of its Redis, goes an hour forward and two back: no session ends."""

import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.store.embedded import find_binary
from tests.store.servers import Server as Redis
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.preloaded import PreloadedServer
from tests.support.swarm import Swarm

STEPS_S = (3600, -3600)  # from the true time; a process that is new begins at that
FLAGS = ("--idle-timeout", "1", "--tick", "0.25")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield Path(name)


@pytest.fixture
def faked(folder: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is set by the file `clock`; the other clocks are real."""
    (folder / "clock").write_text("+0")
    return {
        "LD_PRELOAD": str(next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.needs("faketime")
@pytest.mark.parametrize("whose", ["server", "redis"])
def test_a_step_of_the_wall_clock_ends_nobody(
    whose: str, folder: Path, faked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as environment:
        for name, value in faked.items() if whose == "redis" else ():
            environment.setenv(name, value)
        redis = Redis(find_binary(), folder)
    with monkeypatch.context() as environment:
        for name, value in faked.items() if whose == "server" else ():
            environment.setenv(name, value)
        server = PreloadedServer("--redis", redis.url, *FLAGS)
    shifts_s: list[float] = []

    def found() -> int:
        return len([uid for uid in of_type(read_events(redis.url), "offline") if uid.startswith("silent")])

    with Swarm(server.address, beat_s=0.4) as swarm:
        beating = swarm.log_in((f"beating-{n}" for n in range(100)), asks=True)
        for count, step_s in enumerate(STEPS_S, 1):
            (folder / "clock").write_text(f"{step_s:+d}")
            swarm.run(0.2)
            swarm.log_in((f"silent-{step_s}-{n}" for n in range(20)), beating=False)
            swarm.run(8.0, until=lambda count=count: found() == 20 * count)  # type: ignore[misc]  # bound now
            shows = wall_clock(server, swarm) if whose == "server" else float(redis.client.time()[0])
            shifts_s.append(shows - time.time())
        lost = [client.uid for client in beating if client.is_closed]
        events = read_events(redis.url)
    server.stop()
    redis.close()
    offline = of_type(events, "offline")
    assert shifts_s == pytest.approx(STEPS_S, abs=5), "a fault was injected"
    assert not lost
    assert len(offline) == 40
    assert not [uid for uid in offline if uid.startswith("beating")]
    assert_alternation(events)


def wall_clock(server: PresenceServer, swarm: Swarm) -> float:
    """Return the Unix seconds of the server's log, which it writes on this signal; clients go on."""
    before = len(server.lines)
    server.process.send_signal(signal.SIGUSR2)
    swarm.run(8.0, until=lambda: len(server.lines) > before)
    return datetime.fromisoformat(server.lines[before]["timestamp"]).timestamp()
