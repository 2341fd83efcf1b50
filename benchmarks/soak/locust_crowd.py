"""The crowd, for locust: the mixed scenario with rooms, watches, renewed tokens and statuses."""

import random
import time
from collections.abc import Mapping
from typing import Any

from locust import events

from benchmarks.soak import kinds
from loadtest.websocket_client import WebSocketClient
from presence import protocol
from presence.loadtest.device import LoadDevice
from presence.loadtest.hooks import LoadUser, register_hooks
from presence.loadtest.run import DeviceRun
from presence.protocol import Code, Kind

WATCHED = 5  # others, by each device
STATUSES = ("online", "away", "busy", "invisible")
LOBBY = "lobby"
MEETINGS = 5  # at a time,
MEETING_S = 10.0  # which all have other names after so long: what a name leaves behind would add up
ROSTER_REASONS = {Code.WATCHED, Code.WATCHED.reason, Code.REMOVED, Code.REMOVED.reason}


class SoakDevice(WebSocketClient, LoadDevice):
    """A device that, whenever it comes online, goes to rooms and watches rooms, others and its roster.

    It also renews its token and shows a status. Its kind is that of `benchmarks.soak.kinds`.
    """

    # While Redis restarts, a server cannot look up where a recipient is.
    expected_codes = (*LoadDevice.expected_codes, Code.SERVER_ERROR, Code.BUSY)

    def __init__(self, run: DeviceRun) -> None:
        super().__init__(run)
        number = int(self.uid.rpartition("-")[2])
        self._follows_roster = number % kinds.ROSTER_EVERY == 0
        self._takes_rows = number % kinds.BATCH_EVERY == 0
        self._is_quiet = number % kinds.QUIET_EVERY == 0
        self.over_websocket = number % kinds.WEBSOCKET_EVERY == 0
        if self.over_websocket:
            self.address = (run.loop.address[0], run.options.websocket_port)

    def login_keys(self) -> Mapping[str, Any]:
        return {
            "rooms": [LOBBY, meeting()],
            "batch": self._takes_rows or None,
            "quiet": self._is_quiet or None,
        }

    def on_online(self) -> None:
        if self.over_websocket:
            self._run.record_time(kinds.WEBSOCKET_LOGIN)
        others = random.sample(self.peers, min(WATCHED, len(self.peers)))
        self.request(kinds.WATCHED, protocol.watch(others))
        self.request("token renewed", protocol.update(token=self._token))
        self.request("status", protocol.update(status=random.choice(STATUSES), meta={"page": self.uid}))
        rooms = [meeting(), *([LOBBY] if random.random() < 0.5 else [])]
        self.request(kinds.ROOMS_CHANGED, protocol.update(rooms=rooms))
        self.request(kinds.ROOMS_WATCHED, protocol.watch(rooms=rooms))
        if self._follows_roster:
            self.request(kinds.ROSTER_WATCHED, protocol.watch(roster=True))

    def on_push(self, kind: int, payload: Mapping[str, Any]) -> None:
        if kind == Kind.DELIVER:
            return
        record = self._run.record_time
        reasons: set[object] = set()
        if kind == Kind.ROOMS:
            record(kinds.ROOM_PUSH)
        elif kind == Kind.CHANGES:
            record(kinds.BATCH_PUSH)
            reasons = {row[2] for row in payload["changes"] if len(row) > 2}
        else:
            record(kinds.STATE_PUSH)
            reasons = {payload["reason"]}
        if kind in {Kind.PRESENCE, Kind.CHANGES} and (kind == Kind.CHANGES) is not self._takes_rows:
            self._run.report_exchange("push", None, failure="not in the form that the login asked for")
        if reasons & ROSTER_REASONS:
            record(kinds.ROSTER_PUSH)
        if self._is_quiet:
            record(kinds.QUIET_PUSH)
        if self.over_websocket:
            record(kinds.WEBSOCKET_PUSH)


def meeting() -> str:
    """Return one of the rooms of this moment."""
    return f"meeting-{time.time() // MEETING_S:.0f}-{random.randrange(MEETINGS)}"


class SoakUser(LoadUser):
    """500 devices."""

    connections = 500
    device_class = SoakDevice


def _add_options(parser: Any, **_: Any) -> None:
    parser.add_argument("--websocket-port", type=int, default=0, help="of the server")


hooks: Any = events  # locust's are untyped
hooks.init_command_line_parser.add_listener(_add_options)
register_hooks()
