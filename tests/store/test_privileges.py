"""The check of permissions at the start: each missing one is named, and nothing is executed."""

import contextlib
import re
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from presence.common.errors import StoreError
from presence.config.settings import Settings
from presence.store import privileges
from presence.store.keys import Keys
from presence.store.privileges import (
    EVENTS,
    EXCESSIVE,
    FOLLOWUPS,
    OTHERS_KEYS,
    ROOMS,
    SERVER,
    MissingRight,
    check_rights,
    check_server_rights,
)
from presence.store.redis_client import Redis
from tests.docs.roles import ask, permissions
from tests.store.servers import Server

KEYS = Keys()
SCRIPTS = Path(privileges.__file__).parent / "scripts"


def as_tried(url: str) -> str:
    return url.replace("://", "://tried:secret@")


def rights(*roles: str) -> list[str]:
    return [word for role in roles for word in permissions(role) if not word.startswith("reset")]


def make(admin: Redis, rules: list[str]) -> None:
    ask(admin, "ACL", "SETUSER", "tried", "reset", "resetchannels", *rules, ">secret")


def refusal(server: Server, rules: list[str], *, followups: bool = False) -> str:
    make(server.client, rules)
    with pytest.raises(MissingRight) as caught:
        check_rights(as_tried(server.url), KEYS, followups=followups)
    return str(caught.value)


def test_the_documented_permissions_are_those_that_are_checked() -> None:
    server = {word[1:] for word in permissions("server") if word[0] == "+"}
    turning = {word[1:] for word in permissions("followups") if word[0] == "+"}
    assert server == {*SERVER, *EVENTS, "multi", "exec"}
    assert turning - server == set(FOLLOWUPS)
    assert {word[1:] for word in permissions("rooms") if word[0] == "+"} - server == set(ROOMS)


SERVES = rights("server")
CHANNELS = (
    *("&presence:*line", "&presence:node:*", "&presence:rosters"),
    *("&presence:{*}:user:*", "&presence:{*}:changes"),
)
# The end of the command that fixes a user's rules; and for users that suffice, what is found.
MENDS = {
    "'&presence:*' '+pubsub|numpat' +xadd": [
        "resetchannels",
        *(rule for rule in SERVES if rule not in {"+xadd", "+pubsub|numpat", "&presence:*"}),
    ],
    "'~presence:*'": [rule if rule[0] != "~" else "~presence:{0}:*" for rule in SERVES],
}
FOUND: list[tuple[list[str], bool, tuple[list[str], str]]] = [
    (rights("server", "followups"), True, ([], "")),
    ([rule for rule in SERVES if rule[1:] not in EVENTS], False, ([], "ACL SETUSER tried +xread +xrevrange")),
    ([*SERVES, "+config|set", "~*"], False, (sorted(["CONFIG SET", OTHERS_KEYS]), "")),
    (["on", "+@all", "~*", "&*"], True, (sorted([*EXCESSIVE, OTHERS_KEYS]), "")),
]


@pytest.mark.parametrize(("rules", "followups", "found"), FOUND)
def test_missing_optional_and_excess_permissions_are_accepted(
    server: Server, rules: list[str], found: tuple[list[str], str], *, followups: bool
) -> None:
    server.client.set("others", "value")
    make(server.client, rules)
    assert check_rights(as_tried(server.url), KEYS, followups=followups) == found
    assert server.client.keys() == [b"others"], "nothing was executed"


def test_the_suggested_command_has_every_missing_rule(server: Server) -> None:
    for missing, rules in MENDS.items():
        assert refusal(server, rules).endswith(f"ACL SETUSER tried {missing}")
    assert refusal(server, SERVES, followups=True).endswith("tried +zscan")
    make(server.client, SERVES)
    with pytest.raises(MissingRight, match=r"tried \+zcard \+zscan"):
        check_rights(as_tried(server.url), KEYS, followups=False, rooms=True)
    with pytest.raises(StoreError, match="invalid username-password") as caught:
        check_rights(server.url.replace("://", "://tried:wrong@"), KEYS, followups=False)
    assert not isinstance(caught.value, MissingRight)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (Settings(), ""),
        (Settings(rooms="claimed"), "+zcard +zscan"),
        (Settings(rooms="open"), "+zcard +zscan"),
        (Settings(followups=()), "+zscan"),
    ],
)
def test_a_server_needs_what_its_settings_ask_for(server: Server, settings: Settings, missing: str) -> None:
    make(server.client, SERVES)
    if not missing:
        assert check_server_rights(as_tried(server.url), KEYS, settings) == ([], "")
        return
    with pytest.raises(MissingRight, match=f"tried {re.escape(missing)}$"):
        check_server_rights(as_tried(server.url), KEYS, settings)


def test_only_a_server_with_the_http_interface_needs_events(server: Server) -> None:
    make(server.client, [rule for rule in SERVES if rule[1:] not in EVENTS])
    found = [check_server_rights(as_tried(server.url), KEYS, Settings(no_admin=no)) for no in (False, True)]
    assert [each.no_events for each in found] == ["ACL SETUSER tried +xread +xrevrange", ""]


@pytest.mark.parametrize("missing", [*CHANNELS, None])
def test_each_channel_needs_a_permission(server: Server, missing: str | None) -> None:
    others = [rule for rule in CHANNELS if rule != missing]
    rules = ["resetchannels", *(rule for rule in SERVES if rule[0] != "&"), *others]
    if missing is None:
        make(server.client, rules)
        assert check_rights(as_tried(server.url), KEYS, followups=False) == ([], "")
    else:
        assert refusal(server, rules).endswith("ACL SETUSER tried '&presence:*'")


@pytest.mark.parametrize("word", sorted({*SERVER, "multi", "exec"}))
def test_a_missing_command_is_named(server: Server, word: str) -> None:
    error = refusal(server, [rule for rule in rights("server") if rule != f"+{word}"])
    assert word in error


def test_without_transactions_nothing_is_checked(binary: str, folder: Path) -> None:
    # Like a proxy in front of Redis that does not support transactions.
    renamed = ("--rename-command", "MULTI", "")
    with contextlib.closing(Server(binary, folder, extra=renamed)) as server:
        with pytest.raises(StoreError, match="unknown command"):
            check_rights(server.url, KEYS, followups=True)
        assert server.client.keys() == []


def test_the_check_would_write_nothing_even_if_it_were_executed(server: Server) -> None:
    fill: dict[str, list[str]] = {
        "none": ["PING"],
        "hash": ["HSET", "KEY", "field", "value"],
        "stream": ["XADD", "KEY", "*", "field", "value"],
        "zset": ["ZADD", "KEY", "0", "member"],
        "string": ["SET", "KEY", "value"],
    }
    for kind, command in fill.items():
        server.client.flushall()
        ask(server.client, *command)
        before = server.client.dump("KEY")
        for word, asked in (SERVER | FOLLOWUPS | ROOMS | EVENTS).items():
            if word not in {"hsetnx", "sadd", "subscribe"}:
                with contextlib.suppress(ResponseError):
                    ask(server.client, *asked.split())
                assert server.client.dump("KEY") == before, f"{asked}: {kind}"


OPTIONS = {"COUNT", "LIMIT", "MAXLEN", "NUMPAT", "NUMSUB", "PXAT", "STREAM", "WITHSCORES", "WRONGTYPE"}
WRITES = {
    "hdel",
    "hset",
    "hsetnx",
    "pexpire",
    "sadd",
    "setrange",
    "srem",
    "xadd",
    "xdel",
    "xtrim",
    "zadd",
    "zrem",
    "zremrangebyscore",
}


def commands_of(*scripts: str) -> set[str]:
    """Return the commands that the scripts of some names contain, in lower case."""
    texts = [path.read_text() for each in scripts for path in SCRIPTS.glob(f"{each}.lua")]
    named = re.findall(r"'([A-Z]{3,})'", re.sub(r"--.*", "", "\n".join(texts)))
    return {each.lower() for each in set(named) - OPTIONS}


@pytest.mark.parametrize(
    ("scripts", "roles"),
    [
        (("*", "lib/*", "rooms/occupancy"), ["server"]),
        (("followups/*",), ["server", "followups"]),
        (("rooms/pr*", "rooms/re*"), ["rooms"]),
        (("timers/*",), ["timers", "expiry"]),
        (("wheel/*",), ["wheel"]),
    ],
)
def test_every_command_of_a_script_is_among_the_rights_of_its_user(
    scripts: tuple[str, ...], roles: list[str]
) -> None:
    assert commands_of(*scripts) <= {rule[1:].partition("|")[0] for rule in rights(*roles)}


def test_every_right_to_write_is_used_by_a_script() -> None:
    assert WRITES & {*SERVER} <= commands_of("*", "lib/*")


def test_a_server_with_rooms_hears_of_changed_rooms(server: Server) -> None:
    rules = [*(rule for rule in rights("server", "rooms") if rule != "&presence:*"), *CHANNELS]
    make(server.client, rules)
    assert check_rights(as_tried(server.url), KEYS, followups=False) == ([], "")
    with pytest.raises(MissingRight, match="'&presence:\\*'"):
        check_rights(as_tried(server.url), KEYS, followups=False, rooms=True)
    make(server.client, [*rules, f"&{KEYS.room_channel}"])
    assert check_rights(as_tried(server.url), KEYS, followups=False, rooms=True) == ([], "")
