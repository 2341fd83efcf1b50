"""Clients that take rows on a real server, over TCP and over WebSocket with JSON: they are told the same."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from random import Random
from typing import Any, TypeAlias

import pytest
from websockets.sync.client import ClientConnection, connect

from loadtest.servers import PresenceServer
from presence import protocol
from presence.client.pushes import user_state
from presence.common import meta_json
from presence.protocol import Kind, Packet, from_row
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

FLAGS = "--workers", "2", "--device-events", "--disconnect-grace", "0", "--ws-port", "0"
USERS = [f"user-{number}" for number in range(20)]
CHANGES = 200
Told: TypeAlias = tuple[str, Any, str]
"""A user, the state, and the reason of a change; "" in an answer."""


@pytest.fixture(scope="module")
def server() -> Iterator[PresenceServer]:
    with PreloadedServer(*FLAGS) as server:
        yield server


class JsonLine:
    """A connection over WebSocket with JSON, as `Line`."""

    def __init__(self, socket: ClientConnection, login: Packet) -> None:
        self._socket = socket
        self.answer = self.ask(login)

    def ask(self, packet: Packet) -> Packet:
        payload = meta_json.to_plain(packet.payload)
        self._socket.send(json.dumps([packet.kind, 1, payload]))
        return self.read(5.0)

    def read(self, timeout_s: float) -> Packet:
        return Packet(*meta_json.from_plain(json.loads(self._socket.recv(timeout_s))))

    def gather(self, wait_s: float) -> list[Packet]:
        packets = []
        try:
            while True:
                packets.append(self.read(wait_s))
        except TimeoutError:
            return packets


class Watcher:
    """A client that watches all users, and what it is told."""

    def __init__(self, line: Line | JsonLine, *, takes_rows: bool, detail: bool) -> None:
        self.line = line
        answer = line.ask(protocol.watch([*USERS, "never"], detail=detail or None)).payload
        assert ("states" in answer, "presence" in answer) == (takes_rows, not takes_rows)
        states = dict(map(from_row, answer["states"])) if takes_rows else answer["presence"]
        self.told: list[Told] = [(uid, user_state(state), "") for uid, state in sorted(states.items())]
        self._kind = Kind.CHANGES if takes_rows else Kind.PRESENCE

    def read(self) -> None:
        for kind, _, payload in self.line.gather(0.3):
            assert kind == self._kind
            if kind == Kind.PRESENCE:
                self.told.append((payload["uid"], user_state(payload), payload["reason"]))
            else:
                rows = map(from_row, payload["changes"])
                self.told += [(uid, user_state(state), state["reason"]) for uid, state in rows]

    def by_user(self) -> dict[str, list[Told]]:
        """Return what it was told; users of several shards come in any order."""
        return {uid: [each for each in self.told if each[0] == uid] for uid in [*USERS, "never"]}


def test_watchers_with_rows_are_told_the_same_over_each_transport(server: PresenceServer) -> None:
    wait_for(lambda: len(server.logged("serving websocket")) == 2)
    web = f"ws://127.0.0.1:{server.logged('serving websocket')[0]['port']}/"
    watchers: list[Watcher] = []
    random = Random(7)
    with ExitStack() as stack:

        def line_of(login: Packet) -> Line:
            return stack.enter_context(closing(Line(server.address, login)))

        online = {uid: line_of(protocol.login(uid)) for uid in USERS[::2]}
        asking = line_of(protocol.login("asking"))
        wait_for(lambda: all(asking.status(uid)["status"] == "online" for uid in online))
        for number in range(8):
            detail, takes_rows, is_web = number >= 4, number % 4 >= 2, number % 2 == 1
            login = protocol.login(f"watcher-{number}", batch=takes_rows)
            line = JsonLine(stack.enter_context(connect(web)), login) if is_web else line_of(login)
            watchers.append(Watcher(line, takes_rows=takes_rows, detail=detail))
        for number in range(CHANGES):
            uid = random.choice(USERS)
            if uid not in online:
                meta = {"raw": b"\0\xff", "n": number}
                online[uid] = line_of(protocol.login(uid, device=f"d{number}", meta=meta, device_class="web"))
            elif random.random() < 0.5:
                status = random.choice(["away", "busy", "online", "dnd", "invisible"])
                online[uid].ask(protocol.update(status=status, meta={"text": f"at {number}"}))
            else:
                online.pop(uid).ask(protocol.logout())

        def are_equal() -> bool:
            for each in watchers:
                each.read()
            return all(
                each.by_user() == group[0].by_user()
                for group in (watchers[:4], watchers[4:])
                for each in group[1:]
            )

        wait_for(lambda: are_equal() and len(watchers[0].told) > CHANGES // 2)
        queried = watchers[2].line.ask(protocol.query(["never", USERS[0]])).payload
        assert queried["states"][0] == "never"
