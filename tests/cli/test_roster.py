"""``presence roster``, and the Python interface that it uses."""

import json
from typing import Any

import pytest

from presence.rosters import MAX_ROSTERS, PresenceRosters, RosterFull
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.cli.conftest import Command
from tests.store.driving import Hand, end, login

pytestmark = pytest.mark.usefixtures("clean_environment")


def shown(command: Command, *words: str) -> Any:
    result = command("roster", *words, "--json")
    assert result.status == 0, result.err
    return json.loads(result.out)


def test_a_roster_is_printed_and_changed(command: Command) -> None:
    assert command("roster", "ann") == (0, "ann has no roster\n", "")
    assert shown(command, "ann") == {"uid": "ann", "users": None}
    assert shown(command, "ann", "--put", "carl", "bob")["users"] == ["bob", "carl"]
    assert command("roster", "ann", "--remove", "carl", "--add", "dora") == (0, "bob\ndora\n", "")
    assert shown(command, "ann", "--put") == {"uid": "ann", "users": []}


@pytest.mark.parametrize(
    "words",
    [
        ("ann", "--put", "bob", "--add", "carl"),
        ("ann", "--put", "b{b"),
        ("a b",),
        ("ann", "--put", *(f"u{number}" for number in range(501))),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_nonsense_changes_nothing(command: Command, words: tuple[str, ...]) -> None:
    assert command("roster", *words).status == 2
    assert shown(command, "ann")["users"] is None


def test_a_full_roster_is_an_error(command: Command) -> None:
    shown(command, "ann", "--put", *(f"u{number}" for number in range(500)))
    result = command("roster", "ann", "--add", "bob")
    assert (result.status, "more than 500" in result.err) == (1, True)


def test_a_forgotten_user_has_no_roster_and_stays_in_those_of_others(
    command: Command, hand: Hand, client: Redis
) -> None:
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("bob", "s2"))
    for uid, other in (("ann", "bob"), ("bob", "ann")):
        shown(command, uid, "--put", other)
    assert command("forget", "ann").status == 0
    assert command("forget", "bob").status == 1, "bob is online"
    assert [shown(command, uid)["users"] for uid in ("ann", "bob")] == [None, ["ann"]]
    assert {*client.hkeys("presence:{0}:rosters")} == {b"bob", b" bytes"}


def test_a_backend_puts_many_rosters_in_one_call(redis_server: EmbeddedRedis) -> None:
    with PresenceRosters(redis_server.url, max_mb=1) as rosters:
        rosters.put_all({f"u{number}": ["ann"] for number in range(MAX_ROSTERS)})
        assert rosters.get(f"u{MAX_ROSTERS - 1}") == ["ann"]
        rosters.put_all({})
        large = [f"{number:0128}" for number in range(500)]
        with pytest.raises(RosterFull):
            rosters.put_all({"small": ["bob"], **{f"v{number}": large for number in range(20)}})
        assert rosters.get("small") == ["bob"]
        with pytest.raises(ValueError, match="at most 100 rosters"):
            rosters.put_all({f"u{number}": [] for number in range(MAX_ROSTERS + 1)})
        with pytest.raises(TypeError):
            rosters.put("ann", "bob")
