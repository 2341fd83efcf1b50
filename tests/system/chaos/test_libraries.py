"""What clients with the libraries see, beside what Redis has; and clients that err."""

from functools import partial
from typing import Any

import pytest

from loadtest.servers import Setup
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.support.built_once import built_once
from tests.support.preloaded import PreloadedServer
from tests.system.chaos.crowd import Address
from tests.system.chaos.libraries import (
    ITSELF,
    LANGUAGES,
    Libraries,
    Pair,
    Sight,
    differences,
    stored_states,
    unseen,
)

CLIENTS = 4
WAIT_S = 10.0
SETUP = Setup(idle_timeout=5.0)  # so that a quiet client sends a keepalive within the wait
BUILT = {"typescript": "node"}  # the name by which other tests share the built client

RECORDS: dict[str, dict[str, Any]] = {
    "ann": {"status": "busy", "rooms": ["lobby"]},
    "bob": {"status": "online", "invisible": True, "rooms": ["lobby"]},
}
STORED = stored_states(RECORDS, {"lobby": {"ann": "b", "bob": "i"}})
SESSIONS = {"ann": "s1"}
TRUE = {
    Pair("ann", ITSELF): Sight("s1"),
    Pair("ann", "ann"): Sight("busy"),
    Pair("ann", "bob"): Sight("offline"),
    Pair("ann", "eve"): Sight("offline"),
    Pair("ann", "lobby"): Sight(1),
    Pair("ann", "empty"): Sight(0),
}
UNTRUE = {
    Pair("ann", ITSELF): ("s0", None),
    Pair("ann", "ann"): ("online", "offline", "unknown"),
    Pair("ann", "bob"): ("online", "invisible"),
    Pair("ann", "eve"): ("online", "unknown"),
    Pair("ann", "lobby"): (0, 2, None),
    Pair("ann", "empty"): (1, None),
}


def test_a_client_that_sees_what_redis_has_differs_in_nothing() -> None:
    assert differences(TRUE, STORED, SESSIONS) == {}


def test_each_thing_that_is_seen_otherwise_differs() -> None:
    for pair, values in UNTRUE.items():
        for value in values:
            assert differences({**TRUE, pair: Sight(value)}, STORED, SESSIONS).keys() == {pair}, (pair, value)


def test_a_client_without_a_session_on_record_is_found() -> None:
    assert differences({Pair("eve", ITSELF): Sight(None)}, STORED, SESSIONS).keys() == {Pair("eve", ITSELF)}


@pytest.mark.parametrize(
    "language",
    [
        pytest.param(name, marks=[pytest.mark.needs(each) for each in LANGUAGES[name].needs])
        for name in LANGUAGES
    ],
)
def test_clients_of_each_language_see_each_other_and_their_rooms(
    language: str, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    built = built_once(tmp_path_factory, BUILT.get(language, language), LANGUAGES[language].built_client)
    commands = {language: LANGUAGES[language].command(built)}
    flags = ("--redis", redis_server.url, "--rooms", "open", *SETUP.flags)
    with PreloadedServer(*flags) as server, open_client(redis_server.url) as connection:
        addresses = [Address(server.address, 0, False, False)]
        libraries = Libraries(commands, addresses, CLIENTS, {"nobody"}, ["lobby", "hall"])
        try:
            libraries.log_in()
            assert libraries.await_connected(WAIT_S) == []
            compare = partial(unseen, lambda _key: connection, SETUP.keys())
            assert libraries.await_agreement(compare, WAIT_S) == []
            assert libraries.compared == CLIENTS * (1 + 1 + (CLIENTS - 1) + 2)
            assert libraries.stop() == []
        finally:
            libraries.close()
