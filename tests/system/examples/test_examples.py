"""Each example, started as its page says."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import httpx2
import psutil
import pytest
import uvicorn
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import ClientConnection, connect

from examples.chat_roster.__main__ import _to_browser, make_app
from examples.game_lobby.__main__ import Lobby
from examples.local_server import print_errors
from examples.matchmaker.__main__ import Matchmaker
from examples.push_sender.__main__ import make_receiver
from loadtest.servers import free_port
from presence.client import Dropped, Push, UserState, connect_blocking
from presence.protocol import Code
from presence.reader import PresenceReader
from presence.rooms import Gap, Occupied, Vacated
from presence.subscriber import Offline, Online, Snapshot
from presence.subscriber.snapshot import Period
from presence.webhooks import SIGNATURE_HEADER, sign
from tests.docs.pages import ROOT
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

DEADLINE_S = 30.0


def collect(printed: IO[str], lines: list[str]) -> None:
    for line in printed:
        lines.append(line.strip())  # noqa: PERF401 - others look at the list meanwhile


@contextmanager
def running(name: str, *words: str) -> Iterator[list[str]]:
    """Run an example; the list receives the lines that it prints."""
    lines: list[str] = []
    command = [sys.executable, "-m", f"examples.{name}", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=collect, args=(process.stdout, lines))
        reader.start()
        try:
            yield lines
        finally:
            process.terminate()
    reader.join()


def test_the_push_sender() -> None:
    with running("push_sender") as lines:
        wait_for(lambda: "push to ann, token token-of-ann: you have gone offline" in lines, DEADLINE_S)


def test_the_matchmaker() -> None:
    with running("matchmaker") as lines:
        wait_for(lambda: "ann receives {'won_against': 'bob'}" in lines, DEADLINE_S)
    assert {"ann plays against bob", "bob plays against ann"} & {*lines}
    assert "ann wins: bob stayed away" in lines


def test_the_game_lobby() -> None:
    with running("game_lobby") as lines:
        wait_for(lambda: "game:1 is closed: ann was the last" in lines, DEADLINE_S)
    assert {"ann is in ('game:1',)", "bob is in ('game:1',)", "game:2 is closed: eve was the last"} <= {
        *lines
    }
    (opened,) = [line for line in lines if line.startswith("game:1 is open")]
    assert opened in ("game:1 is open: ann is there", "game:1 is open: bob is there")
    assert "game:1 has 2 players" in lines[lines.index(opened) :]


def test_the_chat_roster() -> None:
    port = free_port()

    @contextmanager
    def tab(uid: str, *friends: str) -> Iterator[ClientConnection]:
        with connect(f"ws://127.0.0.1:{port}/ws/{uid}") as socket:
            socket.send(json.dumps({"watch": [*friends]}))
            yield socket

    def next_of(socket: ClientConnection) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(socket.recv(DEADLINE_S))
        return {name: value for name, value in found.items() if name != "last_seen_ms"}

    with running("chat_roster", "--port", str(port)) as lines:
        wait_for(lambda: bool(lines), DEADLINE_S)
        wait_for(lambda: b"<title>Chat roster" in page(port), DEADLINE_S)
        with tab("ann", "bob") as ann:
            assert next_of(ann) == {"uid": "bob", "status": "offline"}
            ann.send(json.dumps({"to": "bob", "text": "are you there?"}))
            assert next_of(ann) == {"undelivered": "bob", "text": "are you there?"}
            with tab("bob", "ann") as bob:
                assert next_of(ann) == {"uid": "bob", "status": "online"}
                assert next_of(bob) == {"uid": "ann", "status": "online"}
                ann.send(json.dumps({"to": "bob", "text": "hello"}))
                assert next_of(bob) == {"from": "ann", "text": "hello"}
                bob.send(json.dumps({"status": "away"}))
                assert next_of(ann) == {"uid": "bob", "status": "away"}
            assert next_of(ann) == {"uid": "bob", "status": "offline"}


@contextmanager
def gateway(address: tuple[str, int]) -> Iterator[int]:
    """Serve the chat roster of a presence server; the value is its port."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(make_app(*address), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, DEADLINE_S)
        yield port
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)


def test_mistakes_and_strange_messages_end_no_session_of_the_chat_roster() -> None:
    def next_of(socket: ClientConnection) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(socket.recv(DEADLINE_S))
        return found

    with (
        running_server() as presence,
        gateway(presence.address) as port,
        connect(f"ws://127.0.0.1:{port}/ws/ann") as ann,
        connect_blocking(*presence.address, uid="eve") as eve,
    ):
        ann.send(json.dumps({"watch": ["eve"]}))
        while next_of(ann).get("status") != "online":
            pass
        mistakes: tuple[Any, ...] = (
            {"to": "two words", "text": "hello"},
            {"status": "asleep"},
            {"watch": [1]},
            {"watch": [{}]},
            {"say": "hello"},
            ["watch"],
            {"watch": [f"user-{number}" for number in range(501)]},
        )
        for mistake in mistakes:
            ann.send(json.dumps(mistake))
            assert next_of(ann).keys() == {"error"}
        for strange in ("{", b"{}"):  # no JSON, no text
            ann.send(strange)
            assert next_of(ann).keys() == {"error"}
        for number in range(12):  # the server allows ten at once
            ann.send(json.dumps({"status": ("away", "busy")[number % 2]}))
        assert "rate_limited" in next_of(ann)["error"]
        for body in (b"\0", {"text": "hello"}, None, "hello"):
            eve.send_message("ann", body)
        while "error" in (push := next_of(ann)):
            pass
        assert push == {"from": "eve", "text": "hello"}


def test_a_name_that_the_server_refuses_is_told_to_the_page() -> None:
    with (
        running_server() as presence,
        gateway(presence.address) as port,
        connect(f"ws://127.0.0.1:{port}/ws/two%20words") as socket,
    ):
        assert json.loads(socket.recv(DEADLINE_S)).keys() == {"error"}
        with pytest.raises(ConnectionClosedOK):
            socket.recv(DEADLINE_S)


def test_a_page_is_told_that_its_session_has_ended() -> None:
    with (
        running_server() as presence,
        gateway(presence.address) as port,
        connect(f"ws://127.0.0.1:{port}/ws/ann") as socket,
    ):
        socket.send(json.dumps({"watch": ["ann"]}))
        while json.loads(socket.recv(DEADLINE_S))["status"] != "online":
            pass
        kick = [sys.executable, "-m", "presence", "kick", "ann", "--redis", presence.redis_url]
        subprocess.run(kick, check=True, timeout=DEADLINE_S)
        while "error" not in (push := json.loads(socket.recv(DEADLINE_S))):
            pass
        assert "kicked" in push["error"]
        with pytest.raises(ConnectionClosedOK):
            socket.recv(DEADLINE_S)


class SlowPage:
    """Both sides of the gateway: a client whose pushes were dropped, and the page."""

    def __init__(self, *pushes: Push) -> None:
        self.watched = {"bob": UserState("away")}
        self.sent: list[dict[str, Any]] = []
        self._pushes = pushes

    async def __aiter__(self) -> AsyncIterator[Push]:
        for push in self._pushes:
            yield push

    async def send_json(self, what: dict[str, Any]) -> None:
        self.sent.append(what)


async def test_a_page_that_was_too_slow_is_told_and_shows_the_newest_states() -> None:
    page = SlowPage(Dropped("presence", 3))
    both: Any = page
    await _to_browser(both, both)
    assert page.sent == [
        {"error": "3 lost, of the kind presence"},
        {"uid": "bob", "status": "away", "last_seen_ms": None},
    ]


@pytest.mark.parametrize(
    "name",
    [
        "push_sender",  # it has a child more than the others
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("chat_roster", "matchmaker", "game_lobby")
        ),
    ],
)
def test_an_example_ends_with_its_server(name: str) -> None:
    words = ["--port", str(free_port())] if name == "chat_roster" else []
    command = [sys.executable, "-m", f"examples.{name}", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline(), "it has begun"
            children = psutil.Process(process.pid).children()
            (server,) = (each for each in children if "serve" in each.cmdline())
            server.kill()
            assert process.wait(DEADLINE_S) == 1
        finally:
            process.kill()
        assert "the presence server has ended" in process.stderr.read()


def test_a_log_of_any_length_is_read() -> None:
    script = "import sys; sys.stderr.write('{}' + 200_000 * 'x\\n')"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        print_errors(process.stderr)
        assert process.wait(DEADLINE_S) == 0


async def test_the_push_sender_skips_users_without_a_push_token(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        {"type": "offline", "reason": "closed", "shard": 0, "id": f"1-{number}", "uid": uid} | more
        for number, (uid, more) in enumerate(
            (
                ("bob", {}),
                ("eve", {"private": {"theme": "dark"}}),
                ("ann", {"private": {"push": "token-of-ann"}}),
            )
        )
    ]
    body = json.dumps({"events": events}).encode()
    header = {SIGNATURE_HEADER: sign(body, [b"secret"], int(time.time()))}
    transport = httpx2.ASGITransport(app=make_receiver(b"secret"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://push.test") as http:
        for _ in range(2):
            assert (await http.post("/events", content=body, headers=header)).status_code == 204
    assert capsys.readouterr().out == "push to ann, token token-of-ann: you have gone offline\n"


def came(uid: str, code: Code = Code.LOGIN, *, id: str = "1-0") -> Online:
    return Online(0, id, uid, "", "session", "node", code, code.reason, 0, 0, 0)


def left(uid: str) -> Offline:
    code = Code.LOGOUT
    return Offline(0, "2-0", uid, "", "session", "node", code, code.reason, 0, 0, 0, "1-0")


class _Rooms:
    """A reader that knows these rooms."""

    def __init__(self, **rooms: int) -> None:
        self._rooms = {name.replace("_", ":"): count for name, count in rooms.items()}

    def rooms(self, *, largest: int) -> dict[str, int]:
        return self._rooms


def _room_event(kind: type[Occupied] | type[Vacated], room: str) -> Occupied | Vacated:
    return kind(0, "1-0", room, "ann", int(kind is Occupied), 0, 0, "login", "1-0")


def test_a_game_is_open_while_its_room_has_players_however_often_an_event_comes() -> None:
    lobby, reader = Lobby(), cast(PresenceReader, _Rooms())
    for kind, room, games in (
        (Vacated, "game:1", set[str]()),  # of before
        (Occupied, "hall", set()),
        (Occupied, "game:1", {"game:1"}),
        (Occupied, "game:1", {"game:1"}),
        (Occupied, "game:2", {"game:1", "game:2"}),
        (Vacated, "game:1", {"game:2"}),
        (Vacated, "game:1", {"game:2"}),
    ):
        lobby.handle_event(_room_event(kind, room), reader)
        assert lobby.games == games


def test_after_lost_events_the_games_are_those_whose_rooms_have_players() -> None:
    lobby = Lobby()
    lobby.handle_event(_room_event(Occupied, "game:1"), cast(PresenceReader, _Rooms()))
    lobby.handle_event(Gap(0, "1-0", "trimmed"), cast(PresenceReader, _Rooms(game_2=3, hall=9)))
    assert lobby.games == {"game:2"}


class Players:
    """The matchmaker without a server; `sent` has the messages to players since the last `end_game`."""

    def __init__(self, *events: object) -> None:
        self._matchmaker = Matchmaker()
        self.sent: list[tuple[str, dict[str, str]]] = []
        self.handle(*events)

    def handle(self, *events: object) -> None:
        for event in events:
            self._matchmaker.handle_event(event, self._send)

    def end_game(self, uid: str, offline_id: str = "2-0") -> None:
        self.sent.clear()
        self._matchmaker.end_game(uid, offline_id, self._send)

    def _send(self, to: str, body: dict[str, str]) -> None:
        self.sent.append((to, body))


def test_who_comes_online_twice_plays_once_and_not_against_themselves() -> None:
    players = Players(came("ann"), came("ann", Code.RETURNED))
    assert players.sent == []
    players.handle(came("bob"), came("bob", Code.RETURNED), came("ann", Code.RETURNED))
    assert players.sent == [("ann", {"opponent": "bob"}), ("bob", {"opponent": "ann"})]


def test_the_winner_plays_against_the_next() -> None:
    players = Players(came("ann"), came("bob"), came("eve"), left("bob"))
    players.end_game("bob")
    assert players.sent == [
        ("ann", {"won_against": "bob"}),
        ("ann", {"opponent": "eve"}),
        ("eve", {"opponent": "ann"}),
    ]


def test_nobody_wins_if_both_players_leave() -> None:
    players = Players(came("ann"), came("bob"), left("ann"), left("bob"))
    for uid in ("ann", "bob"):
        players.end_game(uid)
        assert players.sent == []
    players.handle(came("eve"))
    assert players.sent == []
    players.handle(came("ann"))
    assert [uid for uid, _ in players.sent] == ["eve", "ann"]


def test_a_follow_up_that_comes_again_ends_no_later_game() -> None:
    players = Players(came("ann"), came("bob"), left("bob"))
    players.end_game("bob")
    players.handle(came("bob", id="3-0"))
    players.end_game("bob", "2-0")
    assert players.sent == []
    players.end_game("bob", "4-0")  # of an event that is still to come
    assert ("ann", {"won_against": "bob"}) in players.sent


def test_after_a_gap_those_who_are_not_there_have_lost() -> None:
    players = Players(came("ann"), came("bob"))
    players.handle(Snapshot({"ann": Period(0, "1-0")}, {}))
    assert players.sent[-1] == ("ann", {"won_against": "bob"})


def test_a_snapshot_replaces_what_the_matchmaker_knew() -> None:
    players = Players(came("ann"), Snapshot({uid: Period(0, "1-0") for uid in ("bob", "eve")}, {}))
    assert [uid for uid, _ in players.sent] == ["bob", "eve"]


def page(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1) as answer:
            found: bytes = answer.read()
    except OSError:
        return b""
    return found
