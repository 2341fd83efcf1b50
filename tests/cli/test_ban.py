"""``presence ban``, ``unban``, ``bans`` and ``kick --ban``, and where else a ban is named."""

import json
from typing import Any

import pytest

from presence.store import ban_table as store_bans
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from tests.cli.conftest import Command, Result
from tests.store.driving import Hand, login

pytestmark = pytest.mark.usefixtures("clean_environment")


def as_json(result: Result) -> Any:
    assert result.status == 0, result.err
    return json.loads(result.out)


def test_a_ban_is_listed_and_lifted(command: Command) -> None:
    banned = command("ban", "ann", "bob", "--for", "1h", "--reason", "rude")
    assert banned.status == 0
    assert [line.partition("  banned until ")[0] for line in banned.out.splitlines()] == ["ann", "bob"]
    assert banned.out.count("; offline\n") == 2
    assert command("ban", "ann", "--device", "").out == "ann  banned for ever; offline\n"
    (for_ever, *timed) = as_json(command("bans", "--json"))["bans"]
    assert (for_ever["uid"], for_ever["device"], for_ever["until_ms"]) == ("ann", "", None)
    assert for_ever["by"].endswith(" (presence ban)")
    assert [(each["uid"], each["device"], each["reason"]) for each in timed] == [
        ("ann", None, "rude"),
        ("bob", None, "rude"),
    ]
    assert all(each["until_ms"] - each["at_ms"] == 3_600_000 for each in timed)
    listed = command("bans").out.splitlines()
    assert listed[0].startswith("ann  banned for ever, default device, by ")
    assert listed[1].endswith(": rude")
    assert command("unban", "ann", "bob", "cyd").out == (
        "ann  2 bans lifted\nbob  1 ban lifted\ncyd  was not banned\n"
    )
    assert as_json(command("unban", "ann", "--json")) == {"ann": []}
    assert as_json(command("bans", "--json")) == {"bans": [], "addresses": []}


def test_a_ban_of_an_address_is_listed_and_lifted(command: Command) -> None:
    networks = ("--address", "192.0.2.0/24", "--address", "::ffff:198.51.100.1")
    banned = command("ban", *networks, "--for", "1h", "--reason", "spam")
    assert banned.status == 0
    assert [line.partition("  banned until ")[0].rstrip() for line in banned.out.splitlines()] == [
        "192.0.2.0/24",
        "198.51.100.1",
    ]
    assert as_json(command("ban", "--address", "10.0.0.0/8", "--json")) == {"10.0.0.0/8": {"until_ms": None}}
    listed = as_json(command("bans", "--json"))
    assert [(each["address"], each["reason"]) for each in listed["addresses"]] == [
        ("10.0.0.0/8", ""),
        ("192.0.2.0/24", "spam"),
        ("198.51.100.1", "spam"),
    ]
    assert listed["bans"] == []
    lines = command("bans").out.splitlines()
    assert lines[0].startswith("10.0.0.0/8  banned for ever, by ")
    assert lines[1].endswith(": spam")
    assert command("unban", *networks).out == ("192.0.2.0/24  1 ban lifted\n198.51.100.1  1 ban lifted\n")
    assert as_json(command("unban", *networks[:2], "--json")) == {"192.0.2.0/24": False}


def test_loopback_and_the_whole_internet_are_banned_with_force(command: Command) -> None:
    networks = ("--address", "127.0.0.1", "--address", "0.0.0.0/0")
    assert command("ban", *networks, "--force").status == 0
    assert as_json(command("unban", *networks, "--json")) == {"127.0.0.1": True, "0.0.0.0/0": True}


def test_a_session_whose_node_does_not_answer_is_left(command: Command, hand: Hand) -> None:
    hand.apply(login("ann", "s1", "phone"), login("ann", "s2"))
    result = command("ban", "ann", "--device", "phone", "--wait", "0.05")
    assert result.status == 1
    assert result.out == "ann  banned for ever; 0 of 1 session ended\n"
    assert "ann (phone): n1 did not end it within 0.05 s" in result.err


def test_a_kick_may_ban(command: Command, hand: Hand) -> None:
    hand.apply(login("ann", "s1"))
    result = command("kick", "ann", "--ban", "10m", "--wait", "0")
    assert "this is no ban" not in result.err
    (ban,) = as_json(command("bans", "--json"))["bans"]
    assert (ban["uid"], ban["until_ms"] - ban["at_ms"]) == ("ann", 600_000)
    assert ban["by"].endswith(" (presence kick)")


def test_status_and_explain_name_a_ban(command: Command, hand: Hand) -> None:
    hand.apply(login("bob", "s1"))
    command("ban", "ann", "--reason", "rude")
    lines = command("status", "ann", "bob").out.splitlines()
    assert lines[1].startswith("     banned for ever, all devices, by ")
    assert lines[1].endswith(": rude")
    assert lines[2].startswith("bob  online")
    states = as_json(command("status", "ann", "bob", "--json"))
    assert [each["reason"] for each in states["ann"]["bans"]] == ["rude"]
    assert "bans" not in states["bob"]
    assert "  note: the user is banned for ever, by " in command("explain", "ann").out
    command("ban", "ann", "--device", "tv", "--for", "2d")
    assert any(note.startswith("device tv is banned until ") for note in _notes(command, "ann"))
    assert not any("banned" in note for note in _notes(command, "bob"))


def _notes(command: Command, uid: str) -> list[str]:
    notes: list[str] = as_json(command("explain", uid, "--json"))["notes"]
    return notes


def test_a_full_table_is_an_error(command: Command, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bans, "MAX_BANS", 1)
    result = command("ban", "ann", "bob")
    assert result.status == 1
    assert "there are 0 bans, and at most 1 fit: lift some first" in result.err
    assert not client.exists(Keys().bans)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("ban", "a b"), "'a b' is not a valid uid"),
        (("ban", "ann", "--device", "a b"), "'a b' is not a valid device"),
        (("ban", *(f"u{n}" for n in range(501))), "at most 500 users"),
        (("unban", "{ann}"), "'{ann}' is not a valid uid"),
        (("kick", "a b", "--ban", "1h"), "'a b' is not a valid uid"),
        (("ban", "ann", "--for", "1w"), "'1w' is not a duration"),
        (("ban", "ann", "--for", "0s"), "'0s' is not a duration"),
        (("ban", "ann", "--for", "3651d"), "'3651d' is not a duration"),
        (("ban", "ann", "--reason", 201 * "x"), "of at most 200 characters"),
        (("ban",), "name either users, or networks with --address"),
        (("unban",), "name either users, or networks with --address"),
        (("ban", "ann", "--address", "192.0.2.7"), "name either users, or networks with --address"),
        (("ban", "--address", "192.0.2.7", "--device", ""), "name either users, or networks with --address"),
        (("ban", "--address", "ann"), "'ann' is not an address or a network"),
        (("ban", "--address", "192.0.2.7/24"), "'192.0.2.7/24' is not an address or a network"),
        (("ban", "--address", "2001:db8::5"), "ban 2001:db8::/64"),
        (("ban", "--address", "0.0.0.0/0"), "so large a network is banned only with --force"),
        (("ban", "--address", "10.0.0.0/7"), "so large a network is banned only with --force"),
        (("ban", "--address", "2000::/15"), "so large a network is banned only with --force"),
        (("ban", "--address", "127.0.0.1"), "a proxy on this machine may have it: banned only with --force"),
        (("ban", "--address", "::ffff:127.0.0.1"), "banned only with --force"),
        (("ban", "--address", "::/64"), "banned only with --force"),
        (("unban", "--address", "2001:db8::5"), "ban 2001:db8::/64"),
    ],
)
def test_what_no_ban_can_be_is_refused(
    command: Command, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    try:
        result = command(*words)
        status, text = result.status, result.err
    except SystemExit as exit_:
        status, text = exit_.code, capsys.readouterr().err  # type: ignore[assignment]  # always a number
    assert status == 2
    assert complaint in text
