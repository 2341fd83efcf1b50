"""The fields of events: those that scripts write are those of the page and of the subscriber's types."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from presence.core.event_facts import LoginFacts
from presence.core.profiles import Profile
from presence.outbox.overflow import SkippedChanges
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.subscriber.events import Entry, decode
from tests.store.driving import Event, Hand, end, events, login, update
from tests.store.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "event-stream.md"
FULL = Profile("dnd", '{"m":1}', '{"p":1}', LoginFacts("192.0.2.1", "phone"), rooms="hall lobby")
ANOTHER = {"meta": '{"m":2}', "private": '{"p":2}', "devices": "[]", "status": "busy"}  # else one more
# What the typed events leave out: a reader that needs it takes the raw entry.
UNTYPED = {
    *((kind, "v") for kind in ("online", "offline", "away", "update", "device", "rooms", "gap")),
    *((kind, "hide") for kind in ("online", "offline", "away", "update", "device", "rooms")),
    *((kind, "public") for kind in ("online", "offline", "update", "device")),
    *((kind, "devices") for kind in ("online", "away", "update")),
    *((kind, "status_ms") for kind in ("away", "device")),
    *((kind, "rooms") for kind in ("away", "update", "device")),
    ("gap", "node"),
}


@pytest.fixture
def entries(server: Server) -> Iterator[list[Event]]:
    """Entries of all types, which together have all fields."""
    shape = Shape(Keys(), maxlen=1_000_000, seen_retention_ms=10**13, device_events=True)
    with closing(RedisStore(server.url, shape)) as store:
        node = Hand(store, "a")
        node.open(gap=SkippedChanges(1, 2, 3, 4.0))
        node.apply(
            login("u", "s1", profile=FULL._replace(privacy="l")),
            login("u", "s2", "desk", profile=FULL),
            update("u", "s2", "desk", profile=FULL._replace(rooms="hall table")),
            update("u", "s1", profile=FULL._replace(status="away", rooms="table")),
            update("u", "s2", "desk", profile=FULL._replace(status="away")),
            update("u", "s2", "desk", profile=FULL._replace(status="invisible")),
            end("u", "s2", "desk"),
            update("u", "s1", profile=FULL._replace(status="invisible", rooms="attic")),
            update("u", "s1", profile=FULL._replace(status="invisible")),
            end("u", "s1", grace_ms=5000),
            login("u", "s3", profile=FULL._replace(status="invisible")),
            login("u", "s4", "desk", profile=FULL),
        )
        yield events(server.client)


def test_the_page_describes_the_fields_that_scripts_write(entries: list[Event]) -> None:
    table = (
        PAGE.read_text()
        .partition("An entry, as `redis-cli`")[2]
        .partition("| field | meaning |")[2]
        .partition("\n\n")[0]
    )
    described = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert described == {field for entry in entries for field in entry} - {"id"}


def test_the_types_of_the_subscriber_have_the_fields_that_scripts_write(entries: list[Event]) -> None:
    unread = set()
    for event in entries:
        fields = {name: text for name, text in event.items() if name != "id"}
        for name in fields.keys() - {"type"}:
            other = {**fields, name: ANOTHER.get(name, f"{fields[name]}1")}
            if name == "invisible":
                del other[name]
            if decode(Entry(0, event["id"], fields)) == decode(Entry(0, event["id"], other)):
                unread.add((event["type"], name))
    assert unread == UNTYPED
