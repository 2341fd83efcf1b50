"""A worker that follows a whole shard, beside servers whose scripts do not publish all changes of it."""

import random
from contextlib import closing, nullcontext

import pytest
import trio

from presence import protocol
from presence.core.profiles import Profile
from presence.outbox.replies import ReplyStatus
from presence.protocol import Kind
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.watching import server_watch, shard_placement
from presence.watching.user_states import EntryId, id_of
from tests.store.driving import Hand, end, events, login, update
from tests.support.script_texts import before_shard_changes, changed
from tests.support.waiting import until
from tests.watching.test_hostile import PATIENCE_S, ann, answer

KEYS = Keys()
UIDS = [f"user-{i}" for i in range(8)]
WRITES = 150


def write(hand: Hand, random: random.Random, sessions: dict[str, str], n: int) -> None:
    """Let a node change one user: of those that it has."""
    uid = random.choice(UIDS[::2] if hand.node == "new" else UIDS[1::2])
    if (session := sessions.get(uid)) is None:
        sessions[uid] = f"s{n}"
        hand.apply(login(uid, sessions[uid]))
    elif random.random() < 0.4:
        hand.apply(end(uid, sessions.pop(uid)))
    else:
        hand.apply(update(uid, session, profile=Profile(random.choice(("online", "away")), f'{{"n":{n}}}')))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
async def test_changes_by_former_servers_arrive_in_order_and_none_twice(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(shard_placement, "MAX_USER_CHANNELS", 1)
    monkeypatch.setattr(server_watch, "CHECK_INTERVAL_S", 0.3)
    choice = random.Random(7)
    last: dict[str, EntryId] = {}
    shown: dict[str, str] = {}
    async with ann(redis_server.url) as client:
        await client.send(protocol.watch(UIDS, id=2))
        assert (await answer(client, 2)).kind == Kind.OK
        with (
            closing(RedisStore(redis_server.url, Shape(KEYS, 10_000, 10**13))) as store,
            open_client(redis_server.url) as redis,
        ):
            hands = Hand(store, "new"), Hand(store, "former")
            for hand in hands:
                assert hand.open().status is ReplyStatus.OK
            sessions: dict[str, str] = {}
            assert redis.pubsub_numsub(KEYS.changes_channel(0)) == [(KEYS.changes_channel(0).encode(), 1)]
            async with trio.open_nursery() as nursery:

                async def receive() -> None:
                    while (packet := await client.receive()) is not None:
                        state = packet.payload
                        assert id_of(state["id"]) > last.get(state["uid"], (0, 0))
                        last[state["uid"]], shown[state["uid"]] = id_of(state["id"]), state["status"]

                nursery.start_soon(receive)
                for n in range(WRITES):
                    is_former = choice.random() < share
                    with changed(before_shard_changes()) if is_former else nullcontext():
                        write(hands[is_former], choice, sessions, n)
                    await trio.sleep(0.005)
                written = [each for each in events(redis) if each["uid"] in UIDS]
                ends = {each["uid"]: id_of(each["id"]) for each in written}
                await until(lambda: last == ends, seconds=PATIENCE_S)
                nursery.cancel_scope.cancel()
    assert shown == {
        each["uid"]: "offline" if each["type"] == "offline" else each.get("status", "online")
        for each in written
    }
