"""Two deployments in two databases of one Redis, which share its channels."""

from typing import Any

from presence.core.profiles import Profile
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand, end, login, update
from tests.store.servers import Server

OTHER = Keys(database=1)
PATIENCE_S = 5.0


def messages(server: Server, keys: Keys) -> set[str]:
    """Return the messages published while a user logs in, changes state, moves and ends."""
    url = f"{server.url}?db={keys.database}" if keys.database else server.url
    listener: Any = server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    listener.psubscribe("*")
    listener.subscribe(keys.watchers_channel(0), keys.user_channel("u"))
    store = RedisStore(url, Shape(keys, maxlen=1000, seen_retention_ms=10**13))
    try:
        a, b = Hand(store, "a"), Hand(store, "b")
        a.open()
        b.open()
        a.apply(login("u", "s1"), update("u", "s1", profile=Profile("away")))
        b.apply(login("u", "s2"))
        b.apply(end("u", "s2"))
    finally:
        store.close()
    server.client.publish("the last", "")
    found: set[str] = set()
    while "the last" not in found:
        message = listener.get_message(timeout=PATIENCE_S)
        if message is not None:  # None: a confirmation
            found.add(message["channel"].decode())
    listener.close()
    return found - {"the last"}


def names(keys: Keys) -> set[str]:
    return {keys.online_channel, keys.offline_channel, keys.control_channel("a"), keys.user_channel("u")}


def test_messages_of_one_database_are_not_received_in_another(server: Server) -> None:
    in_first, in_other = messages(server, Keys()), messages(server, OTHER)
    assert (in_first, in_other) == (names(Keys()), names(OTHER))
    assert not in_first & in_other
    assert all(name.startswith("presence:") for name in in_other)  # as the recommended permissions require
