"""The channel of all changes of a shard: one message a call, in a chain that shows what is missing."""

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from presence.common.errors import StoreError
from presence.core.profiles import Profile
from presence.outbox.overflow import SkippedChanges
from presence.outbox.replies import ReplyStatus
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.watching.channel import Pong, ShardChanges, ShardJoined
from presence.watching.user_states import NO_ENTRY, EntryId, UserEvent, id_text, read_change, read_entry
from tests.store.driving import Hand, end, events, login, play, rows, update
from tests.store.servers import Server
from tests.store.test_rules import NODES, RULES
from tests.support.script_texts import before_shard_changes, changed
from tests.support.shard_channel import ShardChannel

KEYS = Keys()


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


class Ear:
    """A watch of a whole shard that only listens.

    Attributes:
        heard: the last entry that it knows of.
        changes: of users, as received.
    """

    def __init__(self, server: Server) -> None:
        self.channel = ShardChannel(server.url, KEYS)
        self.heard: EntryId = NO_ENTRY
        self.changes: list[UserEvent] = []

    async def open(self) -> None:
        await self.channel.open(whole=True)
        assert await self.channel.hear(1) == [ShardJoined(0)]
        self.heard = await self.channel.check()

    async def hear(self, count: int) -> bool:
        """Receive this many messages, and no more; return whether they show that entries were missed."""
        has_missed = False
        self.channel.channel.ping(count)
        *messages, pong = await self.channel.hear(count + 1)
        assert pong == Pong(count)
        for each in messages:
            assert isinstance(each, ShardChanges)
            assert each.last > each.previous
            has_missed |= each.previous > self.heard
            self.heard = each.last
            changes = [read_change(*change) for change in each.changes]
            self.changes += [change for change in changes if change is not None]
            assert None not in changes
        return has_missed


def written(server: Server) -> list[UserEvent]:
    """Return the events of users in the stream."""
    found = (read_entry(each["id"], each) for each in events(server.client))
    return [each for each in found if each is not None]


@pytest.fixture
async def ear(server: Server) -> AsyncIterator[Ear]:
    ear = Ear(server)
    await ear.open()
    yield ear
    ear.channel.close()


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(RULES))
async def test_the_messages_of_all_rules_have_what_the_stream_has(
    server: Server, ear: Ear, rule: str, steps: str, outcome: str
) -> None:
    messages, length = 0, 0
    with closing(RedisStore(server.url, Shape(KEYS, 1000, 10**13, device_events=True))) as store:
        hands = {name: Hand(store, name) for name in NODES}
        for hand in hands.values():
            hand.open()
        for step in steps.split("; "):
            play(hands, step)
            before, length = length, len(events(server.client))
            messages += length > before
    assert not await ear.hear(messages)
    assert ear.changes == written(server)


async def test_watches_of_single_users_are_told_beside(server: Server, ear: Ear, a: Hand) -> None:
    other = ShardChannel(server.url, KEYS)
    await other.open()
    await other.subscribe("bob")
    a.apply(login("ann", "s1"), login("bob", "s2", profile=Profile("away", '{"m":2}')), end("ann", "s1"))
    await ear.hear(1)
    assert [each.uid for each in ear.changes] == ["ann", "bob", "ann"]
    assert await other.hear(1) == [ear.changes[1]]
    other.close()


async def test_gaps_and_raised_floors_are_part_of_the_chain(server: Server, ear: Ear, a: Hand) -> None:
    floor = "99999999999999-7"
    a.open(2, floor=floor)
    await ear.hear(1)
    assert id_text(ear.heard) == floor
    a.open(3, floor=floor, gap=SkippedChanges(3, 1, 2, 0.0))
    await ear.hear(1)
    assert id_text(ear.heard) == events(server.client)[-1]["id"]
    a.apply(login("ann", "s1"))
    assert not await ear.hear(1)
    assert ear.changes == written(server)


async def test_calls_without_entries_publish_nothing(server: Server, ear: Ear, a: Hand) -> None:
    a.apply(login("ann", "s1"))
    batch = a.batch([login("bob", "s2")], a.n + 1)
    assert a.send(batch) == a.send(batch)
    assert a.apply(login("cy", "s3")).status is ReplyStatus.OK, "of another batch, by its number"
    a.apply(update("ann", "s1"))
    assert a.open(2).status is ReplyStatus.OK
    a.n += 5
    assert a.apply(login("dee", "s4")).status is not ReplyStatus.OK
    await ear.hear(2)
    assert [each.uid for each in ear.changes] == ["ann", "bob"]


async def test_the_chain_shows_entries_of_a_call_that_was_cut_short(
    server: Server, ear: Ear, a: Hand
) -> None:
    server.client.set(KEYS.sessions(0, "a"), "of another type")  # written after the entry
    batch = a.batch([login("ann", "s1")], a.n + 1)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        a.send(batch)
    server.client.delete(KEYS.sessions(0, "a"))
    assert a.send(batch).status is ReplyStatus.OK
    await ear.hear(0)
    (missed,) = written(server)
    a.n += 1
    a.apply(login("bob", "s2"))
    before = ear.heard
    assert await ear.hear(1)
    assert ear.changes == written(server)[1:]
    assert before < missed.id < ear.heard


async def test_the_chain_shows_entries_of_the_scripts_of_a_former_release(
    server: Server, ear: Ear, a: Hand, b: Hand
) -> None:
    a.apply(login("ann", "s1"))
    await ear.hear(1)
    with changed(before_shard_changes()):
        b.apply(login("bob", "s2"), login("cy", "s3"))
    await ear.hear(0)
    a.apply(end("ann", "s1"))
    assert await ear.hear(1)
    assert [each.uid for each in ear.changes] == ["ann", "ann"]
    a.apply(login("dee", "s4"))
    assert not await ear.hear(1)


RIGHTS = {
    "no reading backwards": "-xrevrange",
    "no such channel": "resetchannels &presence:*line &presence:node:* &presence:{0}:user:*",
}


@pytest.mark.parametrize("name", RIGHTS)
async def test_transitions_need_no_permission_for_the_messages(
    server: Server, ear: Ear, a: Hand, name: str
) -> None:
    server.client.execute_command(  # type: ignore[no-untyped-call]  # redis-py's
        "ACL", "SETUSER", "narrow", "on", ">secret", "+@all", "~*", "&*", *RIGHTS[name].split()
    )
    url = server.url.replace("://", "://narrow:secret@")
    a.apply(login("ann", "s1"))
    with closing(RedisStore(url, Shape(KEYS, 1000, 10**13))) as store:
        narrow = Hand(store, "n")
        narrow.open()
        assert narrow.apply(login("bob", "s2")).status is ReplyStatus.OK
    a.apply(end("ann", "s1"))
    is_silent = name == "no such channel"
    assert await ear.hear(2 if is_silent else 3) is is_silent
    assert [each.uid for each in written(server)] == ["ann", "bob", "ann"]
