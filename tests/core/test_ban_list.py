"""Logins and sessions of users and devices that are banned."""

import math

import pytest

from presence import protocol
from presence.common.networks import network_of
from presence.core.authenticator import Refusal
from presence.core.ban_list import (
    MAX_RETRY_AFTER_S,
    NO_REASON,
    NO_REASON_FOR_ADDRESS,
    AddressBan,
    Ban,
    BanList,
)
from presence.protocol import Code, Kind
from tests.support.worlds import World, ended

REFUSED = (Kind.ERROR, None, Code.BANNED)


def ban(world: World, device: str | None = None, for_s: float = math.inf, reason: str = "") -> Ban:
    made = Ban("ada", device, world.now + for_s, reason)
    policy = world.engine.login_policy
    policy.bans = BanList([*policy.bans.all, made])
    return made


def test_a_banned_user_is_refused_until_the_ban_ends() -> None:
    world = World()
    ban(world, for_s=90.5, reason="rude")
    phone = world.login(device="phone")
    (answer,) = world.sockets.answers(phone)
    assert answer.payload == {"code": 305, "reason": "banned", "message": "rude", "retry_after": 91}
    assert world.is_disconnected(phone)
    assert not world.changes
    assert world.received(world.login("bob"))[0][0] == Kind.OK
    assert world.engine.statistics().refused == {"banned": 1}
    assert world.engine.statistics().bans == 1
    world.now += 90.4
    assert world.received(world.login()) == [REFUSED]
    world.now += 0.2
    assert world.received(world.login())[0][0] == Kind.OK


@pytest.mark.parametrize("device", ["phone", ""])
def test_a_ban_of_a_device_leaves_the_others(device: str) -> None:
    world = World()
    ban(world, device)
    logins = {"": world.login(), "phone": world.login(device="phone")}
    refused = [name for name, handle in logins.items() if world.received(handle) == [REFUSED]]
    assert refused == [device]


def test_a_ban_without_an_end_has_no_time_to_retry() -> None:
    world = World()
    ban(world)
    (answer,) = world.sockets.answers(world.login())
    assert answer.payload == {"code": 305, "reason": "banned", "message": NO_REASON}


@pytest.mark.parametrize("longer", [None, "phone"])
def test_of_two_bans_the_one_that_ends_later_counts(longer: str | None) -> None:
    bans = BanList(Ban("ada", each, 20.0 if each == longer else 10.0, "") for each in (None, "phone"))
    found = bans.find("ada", "phone", 5.0)
    assert found is not None
    assert found.ends_at == 20.0
    assert len(bans) == 2
    assert bans.find("ada", "phone", 20.0) is None


def test_a_client_is_told_to_wait_for_a_day_at_most_and_a_second_at_least() -> None:
    assert Ban("ada", None, 30 * 86_400.0, "").refusal(0.0).retry_after == MAX_RETRY_AFTER_S
    assert Ban("ada", None, 5.0, "").refusal(5.0).retry_after == 1


def test_a_ban_ends_sessions_with_a_goodbye() -> None:
    world = World()
    phone, tv, other = world.login(device="phone"), world.login(device="tv"), world.login("bob")
    for handle in (phone, tv, other):
        world.received(handle)
    terminator = world.engine.terminator
    assert len(terminator.ban(ban(world, "phone", 60.0, "rude"))) == 1
    (goodbye,) = world.sockets.answers(phone)
    assert goodbye.payload == {
        "code": 305,
        "reason": "banned",
        "reconnect": True,
        "retry_after": 60,
        "message": "rude",
    }
    assert [world.is_disconnected(each) for each in (phone, tv, other)] == [True, False, False]
    assert world.history()[-1] == ended(Code.BANNED, device="phone")
    world.sockets.close(tv)  # in its grace
    assert len(terminator.ban(ban(world))) == 1
    assert world.history()[-1] == ended(Code.BANNED, device="tv")
    assert terminator.ban(Ban("ada", None, math.inf, "")) == []
    assert terminator.ban(Ban("bob", None, world.now, "")) == [], "it has ended"
    assert not world.is_disconnected(other)


def test_a_goodbye_for_good_forbids_to_return() -> None:
    decoder = protocol.Decoder()
    decoder.feed(Ban("ada", None, math.inf, "rude").goodbye(0.0))
    packet = decoder.next()
    assert packet is not None
    assert packet.payload == {"code": 305, "reason": "banned", "reconnect": False, "message": "rude"}


def address_ban(network: str, ends_at: float = math.inf, reason: str = "") -> AddressBan:
    return AddressBan(network_of(network), ends_at, reason)


def test_of_several_bans_of_an_address_the_one_that_ends_last_counts() -> None:
    bans = BanList(addresses=[address_ban("192.0.2.0/24", 20.0), address_ban("192.0.2.7", 10.0)])
    assert len(bans) == 2
    assert bans.find_address("192.0.2.7", 5.0) == address_ban("192.0.2.0/24", 20.0)
    assert bans.find_address("192.0.2.7", 20.0) is None, "both have ended"
    assert bans.find_address("192.0.3.7", 5.0) is None


def test_a_client_of_a_banned_address_is_told_the_reason_and_when_to_return() -> None:
    now = 100.0
    refusal = address_ban("192.0.2.0/24", now + 90.5, "spam").refusal(now)
    assert refusal == Refusal(Code.BANNED, "spam", 91)
    assert address_ban("192.0.2.0/24").refusal(now) == Refusal(Code.BANNED, NO_REASON_FOR_ADDRESS)
