"""``presence rooms``: printing rooms and members, a rebuild, and running the projector."""

import json
import signal
import subprocess
import sys
import threading

import pytest

from presence.cli.main import main
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.cli.conftest import Command
from tests.rooms.keys_by_hand import HandMadeRooms
from tests.rooms.world import World
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("clean_environment")
DEADLINE_S = 20.0


@pytest.fixture
def rooms(client: Redis) -> HandMadeRooms:
    return HandMadeRooms(client)


def test_rooms_are_listed_with_their_numbers_of_members(command: Command, rooms: HandMadeRooms) -> None:
    assert command("rooms", "list") == (0, "", "")
    for size in range(1, 12):
        rooms.fill(f"r{size}", {f"u{n}": "-" for n in range(size)})
    assert command("rooms", "list", "--largest", "2") == (0, "       11  r11\n       10  r10\n", "")
    lines = command("rooms", "list", "--json").out.splitlines()
    assert {row["name"]: row["count"] for row in map(json.loads, lines)} == {
        f"r{size}": size for size in range(1, 12)
    }


def test_a_room_is_shown_with_its_members_if_asked_for(command: Command, rooms: HandMadeRooms) -> None:
    rooms.fill("lobby", {"ann": "a", "eve": "i"})
    (line,) = command("rooms", "show", "lobby").out.splitlines()
    assert line == "lobby  2 members, 1 invisible  occupied since 2023-11-14 22:13:20.000 UTC"
    lines = command("rooms", "show", "lobby", "--members").out.splitlines()
    assert sorted(lines[1:]) == ["  ann  away", "  eve  invisible"]
    shown = json.loads(command("rooms", "show", "lobby", "--members", "--json").out)
    assert (shown["count"], shown["public"], shown["members"]["ann"]["status"]) == (2, 1, "away")
    assert "members" not in json.loads(command("rooms", "show", "lobby", "--json").out)
    assert command("rooms", "show", "empty").out == "empty  0 members, 0 invisible\n"
    rooms.fill("quiet", {"ann": "-"})
    assert command("rooms", "show", "quiet").out.startswith("quiet  1 member, 0 invisible  ")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "a b"], "is not a valid name of a room"),
        (["list", "--largest", "0"], "is not a whole number from 1 to 1000"),
        (["rebuild", "--wait", "0"], "'0' is not a time above 0"),
        (["delete"], "invalid choice"),
    ],
)
def test_invalid_arguments_are_a_usage_error(command: Command, words: list[str], complaint: str) -> None:
    result = command("rooms", *words)
    assert result.status == 2
    assert complaint in result.err


@pytest.mark.parametrize("shards", [1, 4])
def test_a_rebuild_corrects_rooms_and_says_so(
    command: Command, client: Redis, redis_server: EmbeddedRedis, shards: int
) -> None:
    client.hset("presence:meta", mapping={"version": 2, "shards": shards})
    world = World(client, redis_server.url, shards)
    stop = threading.Event()
    projector = world.projector()
    world.put("ann", "lobby", "game")
    world.put("bob", "lobby")
    world.run(projector)
    rebuilds = projector.counters.rebuilds
    assert world.members("lobby") == {"ann": "-", "bob": "-"}
    world.put("cyd", "lobby", has_event=False)
    client.hset(world.keys.room("game"), "nobody", "1-1 -")

    def project_when_told() -> None:
        """Run once the wish is there."""
        while not stop.is_set():
            is_told = projector.counters.rebuilds > rebuilds
            if is_told or client.hexists(world.keys.rooms_state(shards - 1), "rebuild"):
                world.now += 0.05
                projector.run_once()
            stop.wait(0.005)

    thread = threading.Thread(target=project_when_told)
    thread.start()
    try:
        result = command("rooms", "rebuild", "--wait", str(DEADLINE_S), "--json")
        assert result.status == 0, result
        done = json.loads(result.out.splitlines()[-1])  # the projector here logs
        assert (done["users"], done["corrected"]) == (3, 1)
        # The comparison that runs all the time may be the first to see it.
        assert done["removed"] + projector.counters.differences == 1
        assert world.members("lobby") == {"ann": "-", "bob": "-", "cyd": "-"}
        assert world.members("game") == {"ann": "-"}
        assert "rooms rebuilt: 3 users, 0 members corrected, " in command("rooms", "rebuild").out
    finally:
        stop.set()
        thread.join()
        projector.close()


def test_a_rebuild_that_no_projector_makes_is_a_failure(command: Command, rooms: HandMadeRooms) -> None:
    status, out, err = command("rooms", "rebuild", "--wait", "0.2")
    assert (status, out) == (1, "")
    assert err.startswith("presence: rooms: not rebuilt within 0.2 s")
    assert rooms.client.hexists(rooms.keys.rooms_state(0), "rebuild")


def test_run_keeps_rooms_until_a_signal_comes(client: Redis, redis_server: EmbeddedRedis) -> None:
    client.hset("presence:meta", mapping={"version": 2, "shards": 4})
    world = World(client, redis_server.url, 4)
    words = ["rooms", "run", "--redis", redis_server.url, "--room-events", "all"]
    process = subprocess.Popen(
        [sys.executable, "-m", "presence", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "presence: rooms: running\n"
        world.put("ann", "lobby")
        assert wait_for(lambda: world.entries("lobby") == ["occupied ann 1", "joined ann 1"], DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert process.communicate()[0] == ""
    finally:
        process.kill()
        process.communicate()


def test_run_with_a_wrong_url_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rooms", "run", "--redis", "redis://127.0.0.1:1"]) == 1
    assert "cannot reach Redis" in capsys.readouterr().err
