"""Servers and commands in any time zone and locale: the same times, and uids in any script."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.subscriber import Online, subscribe_sync
from tests.support.line import Line
from tests.support.waiting import wait_for

UID = "Zoë-李小龍"
CLOSE_S = 30.0


@pytest.mark.parametrize(
    ("zone", "locale"),
    [("Asia/Kathmandu", "C"), ("Pacific/Chatham", "POSIX"), ("America/St_Johns", "tr_TR.UTF-8")],
)
def test_times_are_utc_and_uids_are_not_mangled(
    zone: str, locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setenv("LC_ALL", locale)
    with PresenceServer() as server:
        line = Line(server.address, protocol.login(UID))
        command = [sys.executable, "-m", "presence", "status", UID, "--redis", server.redis_url]

        def state_on_record() -> dict[str, Any] | None:
            found = subprocess.run([*command, "--json"], capture_output=True, check=True)
            state: dict[str, Any] = json.loads(found.stdout)[UID]
            return state if state["status"] == "online" else None

        state = wait_for(state_on_record)  # a login reaches Redis a moment after its answer
        assert abs(state["since_ms"] / 1000 - time.time()) < CLOSE_S
        shown = subprocess.run(command, capture_output=True, check=True)
        assert UID in shown.stdout.decode()
        with subscribe_sync(server.redis_url, after="0") as events:
            event = next(each for each in iter(events.poll, None) if isinstance(each, Online))
        assert (event.uid, abs(event.at_ms / 1000 - time.time()) < CLOSE_S) == (UID, True)
        line.close()
    for entry in server.lines:
        moment = datetime.fromisoformat(entry["timestamp"])
        assert moment.utcoffset() == timedelta(0)
        assert abs((datetime.now(UTC) - moment).total_seconds()) < CLOSE_S
