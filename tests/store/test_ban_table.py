"""The table of bans in Redis: changes, versions, its bound, and damaged entries."""

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.store import ban_table as store_bans
from presence.store.ban_table import BanSnapshot, BanTable, StoredAddressBan, StoredBan, TooManyBans
from presence.store.control_channel import ControlChannel, ControlMessage
from presence.store.control_messages import BanNotice
from presence.store.keys import Keys
from tests.store.servers import Server

KEYS = Keys()


@pytest.fixture
def bans(server: Server) -> Iterator[BanTable]:
    with closing(BanTable(server.url, KEYS)) as bans:
        yield bans


def read(bans: BanTable) -> BanSnapshot:
    table = bans.read()
    assert table is not None
    return table


def names(bans: BanTable) -> set[tuple[str, str | None]]:
    return {(each.uid, each.device) for each in read(bans).bans}


def test_a_ban_is_kept_with_its_end_and_who_made_it(bans: BanTable) -> None:
    before_ms = read(bans).now_ms
    until_ms = bans.add(["ann"], "phone", 60.0, 'rude: "until_ms":1,', "an operator")
    table = read(bans)
    (ban,) = table.bans
    assert until_ms is not None
    assert before_ms + 60_000 <= until_ms <= table.now_ms + 60_000
    assert ban == StoredBan("ann", "phone", until_ms, until_ms - 60_000, 'rude: "until_ms":1,', "an operator")
    assert bans.add(["ann"], "phone", None, "", "another") is None, "it replaces the first"
    (ban,) = read(bans).bans
    assert (ban.until_ms, ban.by) == (None, "another")


def test_the_version_is_another_after_each_change_also_after_a_loss_of_data(
    bans: BanTable, server: Server
) -> None:
    versions = [read(bans).version]
    bans.add(["ann"], None, None, "", "")
    versions.append(read(bans).version)
    assert bans.read(versions[-1]) is None, "unchanged"
    bans.lift(["bob"], None)
    assert bans.read(versions[-1]) is None, "nothing was lifted"
    bans.lift(["ann"], None)
    versions.append(read(bans).version)
    server.client.flushall()
    versions.append(read(bans).version)
    bans.add(["ann"], None, None, "", "")
    versions.append(read(bans).version)
    assert versions[0] == versions[3] == b""
    assert len(set(versions)) == 4


def test_bans_of_one_device_or_all_are_lifted(bans: BanTable) -> None:
    for device in (None, "", "phone", "tv"):
        bans.add(["ann", "an", "ann*"], device, None, "", "")
    assert bans.lift(["ann"], "*") == [], "a device may be called so"
    assert bans.lift(["ann"], "") == [("ann", "")]
    assert bans.lift(["ann"], "") == []
    assert ("ann", None) in names(bans)
    assert sorted(bans.lift(["ann", "bob"], None), key=str) == [
        ("ann", "phone"),
        ("ann", "tv"),
        ("ann", None),
    ]
    assert {uid for uid, _ in names(bans)} == {"an", "ann*"}
    assert len(names(bans)) == 8


def test_a_ban_that_has_ended_is_not_read_and_the_next_lift_removes_it(
    bans: BanTable, server: Server
) -> None:
    bans.add(["ann"], None, 0.001, "", "")
    bans.add(["bob"], None, 60.0, "", "")
    server.client.hset(KEYS.bans, "cyd", '{"until_ms":1,"at_ms":0,"reason":"","by":""}')
    time.sleep(0.002)
    assert names(bans) == {("bob", None)}
    assert server.client.hexists(KEYS.bans, "cyd")
    assert bans.lift(["cyd"], None) == [], "it had ended"
    assert not server.client.hexists(KEYS.bans, "cyd")
    assert not server.client.hexists(KEYS.bans, "ann")


def test_bans_that_have_ended_do_not_pile_up(bans: BanTable, server: Server) -> None:
    most = 0
    for n in range(30):
        bans.add([f"u{n}-{m}" for m in range(20)], None, 0.001, "", "")
        time.sleep(0.002)
        most = max(most, server.client.hlen(KEYS.bans))
    assert most <= 121


def test_a_full_table_refuses_all_of_a_call_but_no_replacement(
    bans: BanTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_bans, "MAX_BANS", 3)
    bans.add(["ann", "bob"], None, 60.0, "", "")
    with pytest.raises(TooManyBans, match="there are 2 bans, and at most 3"):
        bans.add(["cyd", "dee"], None, 60.0, "", "")
    assert names(bans) == {("ann", None), ("bob", None)}
    bans.add(["ann", "cyd"], None, None, "", "")
    with pytest.raises(TooManyBans):
        bans.add(["dee"], None, None, "", "")
    bans.add(["bob"], None, 0.001, "", "")
    time.sleep(0.002)
    bans.add(["dee"], None, None, "", "")
    assert names(bans) == {("ann", None), ("cyd", None), ("dee", None)}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("ann", "no JSON"),
        ("ann", "[]"),
        ("ann", '{"until_ms":1' + 400 * "0" + ',"at_ms":1,"reason":"","by":""}'),
        ("ann", '{"until_ms":"x","at_ms":1,"reason":"","by":""}'),
        ("ann", '{"until_ms":null,"at_ms":1,"reason":7,"by":""}'),
        ("ann", '{"until_ms":null,"at_ms":1,"reason":""}'),
        (b"\xff", '{"until_ms":null,"at_ms":1,"reason":"","by":""}'),
        (" x", '{"until_ms":null,"at_ms":1,"reason":"","by":""}'),
        ("a b c", '{"until_ms":null,"at_ms":1,"reason":"","by":""}'),
    ],
)
def test_a_damaged_ban_counts_as_absent(
    bans: BanTable, server: Server, field: str | bytes, text: str
) -> None:
    bans.add(["bob"], None, None, "", "")
    server.client.hset(KEYS.bans, field, text)
    assert names(bans) == {("bob", None)}


def test_texts_of_others_are_bounded_and_have_no_control_characters(bans: BanTable, server: Server) -> None:
    text = json.dumps({"until_ms": None, "at_ms": 1, "reason": "\x1b" + 500 * "x", "by": "\n"})
    server.client.hset(KEYS.bans, "ann", text)
    (ban,) = read(bans).bans
    assert ban.reason.isprintable()
    assert ban.by.isprintable()
    assert len(ban.reason) < 220


def test_nodes_hear_of_a_change(bans: BanTable, server: Server) -> None:
    channel = ControlChannel(server.url, KEYS)
    with closing(channel):
        channel.subscribe("a")
        notices = [BanNotice("op", lifted, 2, ("ann", "bob")) for lifted in (False, True)]
        for each in notices:
            bans.notify(["a", "gone"], each)
        received = list[ControlMessage]()
        while len(received) < 2:
            received += channel.next()
        assert received == notices


# Addresses


def addresses(bans: BanTable) -> list[str]:
    return sorted(each.address for each in read(bans).addresses)


def test_a_ban_of_an_address_is_kept_with_its_end_and_who_made_it(bans: BanTable) -> None:
    until_ms = bans.add_addresses(["192.0.2.0/24"], 60.0, "spam", "an operator")
    assert until_ms is not None
    table = read(bans)
    assert table.addresses == (
        StoredAddressBan("192.0.2.0/24", until_ms, until_ms - 60_000, "spam", "an operator"),
    )
    assert table.bans == ()
    bans.add_addresses(["192.0.2.0/24"], None, "", "another")
    (ban,) = read(bans).addresses
    assert (ban.until_ms, ban.by) == (None, "another"), "it replaces the first"


def test_exactly_the_named_addresses_are_lifted_and_no_users(bans: BanTable) -> None:
    bans.add(["192.0.2.7"], None, None, "", "")  # a user of this name
    bans.add_addresses(["192.0.2.7", "192.0.2.0/24", "2001:db8::/64"], None, "", "")
    version = read(bans).version
    assert bans.lift_addresses(["192.0.2.0/24", "198.51.100.1"]) == ["192.0.2.0/24"]
    assert read(bans).version != version
    assert addresses(bans) == ["192.0.2.7", "2001:db8::/64"]
    bans.lift(["192.0.2.7"], None)
    assert addresses(bans) == ["192.0.2.7", "2001:db8::/64"]
    assert names(bans) == set()


def test_users_and_addresses_share_the_bound(bans: BanTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bans, "MAX_BANS", 3)
    bans.add(["ann", "bob"], None, None, "", "")
    bans.add_addresses(["192.0.2.7"], 0.001, "", "")
    time.sleep(0.002)
    bans.add_addresses(["192.0.2.8"], None, "", "")
    with pytest.raises(TooManyBans):
        bans.add_addresses(["192.0.2.9"], None, "", "")
    assert addresses(bans) == ["192.0.2.8"]


def test_a_ban_of_an_address_that_has_ended_is_not_read_and_the_next_lift_removes_it(
    bans: BanTable, server: Server
) -> None:
    bans.add_addresses(["192.0.2.7"], 0.001, "", "")
    time.sleep(0.002)
    assert addresses(bans) == []
    bans.lift(["nobody"], None)
    assert not server.client.hexists(KEYS.bans, " 192.0.2.7")


@pytest.mark.parametrize(
    "field", [" 192.0.2.7/32", " 192.0.2.7/24", "  192.0.2.7", " 192.0.2", " " + 60 * "1"]
)
def test_a_damaged_ban_of_an_address_counts_as_absent(bans: BanTable, server: Server, field: str) -> None:
    server.client.hset(KEYS.bans, field, '{"until_ms":null,"at_ms":1,"reason":"","by":""}')
    assert addresses(bans) == []
