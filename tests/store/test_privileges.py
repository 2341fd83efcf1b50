"""A server looks at its rights before it starts: each that is missing is named, and nothing is done."""

import contextlib
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from presence.store.batches import StoreError
from presence.store.client import Redis
from presence.store.keys import Keys
from presence.store.privileges import EVENTS, FOLLOWUPS, OTHERS_KEYS, SERVER, TOO_MUCH, MissingRight, look
from tests.docs.roles import ask, permissions
from tests.store.servers import Server

KEYS = Keys()


def as_tried(url: str) -> str:
    return url.replace("://", "://tried:secret@")


def rights(*roles: str) -> list[str]:
    return [word for role in roles for word in permissions(role) if word != "reset"]


def make(admin: Redis, rules: list[str]) -> None:
    ask(admin, "ACL", "SETUSER", "tried", "reset", *rules, ">secret")


def refusal(server: Server, rules: list[str], *, followups: bool = False) -> str:
    make(server.client, rules)
    with pytest.raises(MissingRight) as caught:
        look(as_tried(server.url), KEYS, followups=followups)
    return str(caught.value)


def test_the_page_gives_what_is_looked_at_and_nothing_else() -> None:
    server = {word[1:] for word in permissions("server") if word[0] == "+"}
    turning = {word[1:] for word in permissions("followups") if word[0] == "+"}
    assert server == {*SERVER, *EVENTS, "multi", "exec"}
    assert turning - server == set(FOLLOWUPS)


def test_a_user_with_the_rights_of_the_page_lacks_none_and_has_none_too_many(server: Server) -> None:
    make(server.client, rights("server", "followups"))
    assert look(as_tried(server.url), KEYS, followups=True) == ([], "")
    assert server.client.keys() == [], "nothing was done"


@pytest.mark.parametrize("word", sorted({*SERVER, "multi", "exec"}))
def test_a_word_that_is_missing_is_named(server: Server, word: str) -> None:
    said = refusal(server, [rule for rule in rights("server") if rule != f"+{word}"])
    assert word in said


def test_every_missing_rule_is_in_the_command_that_mends_it(server: Server) -> None:
    gone = {"+xadd", "+pubsub|numpat", "&presence:*"}
    said = refusal(server, ["resetchannels", *(rule for rule in rights("server") if rule not in gone)])
    assert said.endswith("ACL SETUSER tried '&presence:*' '+pubsub|numpat' +xadd")


def test_keys_that_may_not_be_written_are_named(server: Server) -> None:
    said = refusal(server, [rule if rule[0] != "~" else "~presence:{0}:*" for rule in rights("server")])
    assert said.endswith("ACL SETUSER tried '~presence:*'")


def test_who_turns_the_wheel_of_followups_needs_more(server: Server) -> None:
    assert refusal(server, rights("server"), followups=True).endswith("tried +hincrby +zscan")


def test_a_user_who_may_do_everything_may_do_too_much(server: Server) -> None:
    server.client.set("others", "value")
    assert look(server.url, KEYS, followups=True).too_much == sorted([*TOO_MUCH, OTHERS_KEYS])
    assert server.client.keys() == [b"others"]


def test_a_right_too_many_is_told(server: Server) -> None:
    make(server.client, [*rights("server"), "+config|set", "~*"])
    assert look(as_tried(server.url), KEYS, followups=False).too_much == sorted(["CONFIG SET", OTHERS_KEYS])


def test_a_user_who_may_not_read_events_may_serve_and_the_command_for_it_is_given(server: Server) -> None:
    make(server.client, [rule for rule in rights("server") if rule[1:] not in EVENTS])
    found = look(as_tried(server.url), KEYS, followups=False)
    assert found == ([], "ACL SETUSER tried +xread +xrevrange")


def test_where_no_transaction_can_be_opened_nothing_is_asked(binary: str, folder: Path) -> None:
    # As a proxy in front of Redis does that knows no transactions.
    renamed = ("--rename-command", "MULTI", "")
    with contextlib.closing(Server(binary, folder, extra=renamed)) as server:
        with pytest.raises(StoreError, match="unknown command"):
            look(server.url, KEYS, followups=True)
        assert server.client.keys() == []


def test_what_is_asked_would_write_nothing_even_if_it_were_executed(server: Server) -> None:
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
        for word, asked in (SERVER | FOLLOWUPS | EVENTS).items():
            if word not in {"hsetnx", "sadd", "subscribe"}:
                with contextlib.suppress(ResponseError):
                    ask(server.client, *asked.split())
                assert server.client.dump("KEY") == before, f"{asked}: {kind}"


def test_a_wrong_password_is_no_missing_right(server: Server) -> None:
    make(server.client, rights("server"))
    with pytest.raises(StoreError, match="invalid username-password") as caught:
        look(server.url.replace("://", "://tried:wrong@"), KEYS, followups=False)
    assert not isinstance(caught.value, MissingRight)
