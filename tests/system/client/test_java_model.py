"""The model of the client drives the machine of the Java client; faults planted in its source are noticed."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.client.test_client_model import FIRST_SEEDS, STEPS
from tests.client.world import World
from tests.support.built_once import built_once
from tests.system.client.java_machine import JavaProcess
from tests.system.protocol.java_package import built_client, run

pytestmark = pytest.mark.needs("javac")

SEEDS = 2  # with and without tokens
NIGHTLY_SEEDS = 34  # the same: 102,000 steps
PLANTED_SEEDS = 40  # at most, for each planted fault
DAY_S = 86_400

FAULTS = {  # by name: the class, and a text of its source with what stands in its place
    "a good token is taken for the refused one": (
        "LoginToken",
        "if (token.equals(refused)) {",
        "if (token.equals(refused) || (refusal != null && token.equals(persistentState.token()))) {",
    ),
    "a refused token is sent again": ("LoginToken", "if (token.equals(refused)) {", "if (token.isEmpty()) {"),
    "pauses only grow": ("OwnRequests", "backoff = new Backoff();\n            return", "return"),
    "messages overtake others": (
        "MessageLines",
        "line.held.put(id, retries);\n            return false;",
        "return true;",
    ),
    "no room is kept": ("PersistentState", '&& namesRooms && answer.containsKey("joined")', "&& false"),
    "rooms of an older server are kept": (
        "PersistentState",
        '&& namesRooms && answer.containsKey("joined")',
        "&& namesRooms",
    ),
    "rooms that were left are kept": ("PersistentState", 'wanted.removeAll(strings(update, "leave"));', ""),
    "who was listed is forgotten": (
        "WatchedUsers",
        "followsRoster = rosterWasGranted = true;",
        "followsRoster = rosterWasGranted = true;\n        listed.clear();",
    ),
    "a listed user is not named": (
        "WatchedUsers",
        "} else if (listed.remove(uid)) {\n                added.add(uid);",
        "} else if (listed.remove(uid)) {",
    ),
    "users join before the server has read an unwatch": (
        "WatchedUsers",
        "if (uids.contains(uid)) {",
        "if (uids.isEmpty()) {",
    ),
    "a request of before an unwatch brings the roster back": (
        "WatchedUsers",
        "rosterRequested.clear();\n        endRoster();",
        "endRoster();",
    ),
    "a request names who was listed since": (
        "WatchedUsers",
        "boolean isListed(String uid) {\n        return listed.contains(uid);",
        "boolean isListed(String uid) {\n        return false;",
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "java", built_client)


def test_whatever_happens_the_client_does_what_it_should(client: Path) -> None:
    with JavaProcess(client) as java:
        for seed in range(SEEDS):
            for fetches in (False, True):
                World(seed, fetches=fetches, new_machine=java.new_machine).run(STEPS)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_steps_find_nothing(client: Path) -> None:
    began, done = time.monotonic(), Counter[str]()
    first = int(time.time() // DAY_S) * NIGHTLY_SEEDS
    print(f"seeds from {first}")
    with JavaProcess(client) as java:
        for seed in range(first, first + NIGHTLY_SEEDS):
            for fetches in (False, True):
                world = World(seed, fetches=fetches, new_machine=java.new_machine)
                world.run(STEPS)
                done += world.done
    print(f"{done.total()} steps in {time.monotonic() - began:.0f} s")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(client: Path, name: str, tmp_path: Path) -> None:
    of_class, right, wrong = FAULTS[name]
    sources = client / "src" / "main" / "java"
    source = (sources / "presence" / "client" / f"{of_class}.java").read_text()
    assert right in source
    (tmp_path / f"{of_class}.java").write_text(source.replace(right, wrong))
    path = f"{client}/target/main:{client}/target/annotations"
    compiler = ("javac", "--release", "8", "-nowarn", "-implicit:none", "-cp", path, "-d", str(tmp_path))
    compiled = run(client, *compiler, str(tmp_path / f"{of_class}.java"))
    assert compiled.returncode == 0, compiled.stderr
    with JavaProcess(client, tmp_path) as java:
        for seed in dict.fromkeys([*FIRST_SEEDS, *range(PLANTED_SEEDS)]):
            try:
                World(seed, fetches=bool(seed % 2), new_machine=java.new_machine).run(STEPS)
            except AssertionError:
                return
    pytest.fail("it was not noticed")
