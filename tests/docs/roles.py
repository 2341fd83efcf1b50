"""All work of each kind of program that uses Redis, as a Redis user with its permissions only."""

import re
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import trio

import presence
from presence.admin.history import EventHistory
from presence.config.followup_rules import Rule
from presence.core.changes import Op, SessionName
from presence.core.profiles import PLAIN, Profile
from presence.followups import FollowUps
from presence.followups.run_scheduler import FollowUpScheduler
from presence.followups.script_calls import script_keys
from presence.messaging.message_bus import Delivery, OutgoingMessage, RouteResult
from presence.ops.advise import Adviser
from presence.ops.ban import ban, unban
from presence.ops.explain import Explainer
from presence.ops.forget import Eraser
from presence.ops.kick import request_kick
from presence.ops.rebalance import Mover
from presence.outbox.overflow import SkippedChanges as Skipped
from presence.outbox.replies import NodeNotice, NodeNoticeKind, ReplyStatus
from presence.outbox.steps import Compare, Counter
from presence.reader import PresenceReader
from presence.rooms.projector import RoomProjector
from presence.rooms.rebuild import rebuild_rooms
from presence.rosters import PresenceRosters
from presence.sender import PresenceSender
from presence.store.answers import AnswerField, AnswerKeys
from presence.store.ban_table import BanTable
from presence.store.control_channel import ControlChannel
from presence.store.key_events import SETTING
from presence.store.keys import Keys
from presence.store.questions import Question
from presence.store.records import count_online
from presence.store.redis_client import Redis
from presence.store.redis_store import Deliveries, RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape
from presence.store.script_runner import Scripting
from presence.store.shard_clients import ShardClients
from presence.store.watch_reads import StoredStates
from presence.subscriber.events import Entry, Gap, Item
from presence.subscriber.follower import Follower
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.redis_connections import RedisConnections
from presence.subscriber.snapshot import Snapshot, SnapshotFollower
from presence.timers.expiry_timer import ExpiryTimer, NotificationsOff
from presence.timers.interface import Due, Event
from presence.timers.kinds import DelayQueue, RingTimer
from presence.timers.redis_wheel import RedisWheel
from presence.timers.shared_timer import Leasing, SharedTimer
from presence.watching.channel import Pong, Subscribed, Unsubscribed
from presence.watching.user_states import UserEvent as WatchedEntry
from presence.webhooks.shard_locks import ShardLocks
from tests.store.driving import NOW_MS, NOW_S, Hand, change, end, listen, login, probed
from tests.support.nodes_that_answer import ListeningNode, all_of
from tests.support.shard_channel import ShardChannel

KEYS = Keys()
PAGE = (Path(presence.__file__).parents[1] / "docs" / "redis.md").read_text(encoding="utf-8")
SHAPE = Shape(KEYS, maxlen=1000, seen_retention_ms=10**13)
ASKED = '{"type":"explain","uid":"ann","token":"0123456789abcdef0123456789abcdef"}'


@dataclass(frozen=True)
class Stage:
    """An empty Redis.

    Attributes:
        url: for the user whose permissions are tested.
        admin: a client with all permissions.
        hand: a node with all permissions and a lease.
    """

    url: str
    admin: Redis
    hand: Hand


def serve(stage: Stage) -> None:
    """Servers: batches, probes, pending logins, resyncs, fences, sweeps, leases, messages, watches.

    And answers to operators.
    """
    channel = ControlChannel(stage.url, KEYS)
    with closing(RedisStore(stage.url, SHAPE)) as store, closing(channel):
        store.check_meta([0])
        a, b = Hand(store, "a"), Hand(store, "b")
        a.open(floor="5-0")
        b.open(gap=Skipped(3, 1, 2, NOW_S))
        channel.subscribe("a")
        a.apply(login("ann", "s1"), login("bob", "s2"))
        listener = listen(stage.admin, KEYS.offline_channel)
        b.apply(login("ann", "s3"))
        (displaced,) = channel.next()
        assert isinstance(displaced, NodeNotice)
        assert displaced.kind is NodeNoticeKind.DISPLACED
        channel.subscribe("b")
        with closing(Deliveries(stage.url, SHAPE)) as post:
            assert post.deliver("a", [OutgoingMessage("ann", b"packet")], {}) == [RouteResult(1, ("",))]
        assert channel.next() == [Delivery("ann", ("",), b"packet")]
        stage.admin.publish(KEYS.control_channel("b"), ASKED)
        (question,) = channel.next()
        assert isinstance(question, Question)
        with closing(BanTable(stage.url, KEYS)) as bans:
            assert bans.read() is not None
            assert bans.read(b"") is None
        with closing(AnswerKeys(stage.url, KEYS)) as answers:
            answers.write([AnswerField(question.uid, question.token, "b", b"answer")])
        watch(stage, a)
        show(stage)
        a.apply(end("bob", "s2"))
        assert listener.get_message(timeout=1)
        listener.close()
        a.apply(login("bob", "s4"), change(Op.PENDING_LOGIN, "cy", "s5", code=1))
        complete = replace(a.batch([end("bob", "s4")], a.n + 1), complete=True)
        assert a.send(complete).status is ReplyStatus.OK
        assert probed(store, "a").inbox
        assert a.retire().status is ReplyStatus.OK
        counter = Counter("a", a.generation, a.n)
        compare = Compare(0, counter, a.replication_id, "0", 10, (SessionName("ann", "", "s9"),), (PLAIN,))
        assert a.send(compare).missing == (0,)
        assert a.fence("b").status is ReplyStatus.OK
        assert a.sweep("b").done
    with closing(RedisLeaseTable(stage.url, KEYS, 10.0)) as table:
        table.renew("a", 1, "{}", [])
        table.renew("b", 1, "{}", [])
        assert table.claim("b", "1", "1 a 1")
        rows = table.renew("a", 2, "{}", ["b"])
        assert rows is not None
        assert rows["b"].sweeper_n == 2
        assert table.claim("b", "1 a 2", "")


def show(stage: Stage) -> None:
    """Requests of the admin process: the number of users online, and the events of the live page."""
    with ShardClients(stage.url) as clients:
        assert count_online(clients, KEYS) == 2
    pages = EventHistory(stage.url, KEYS.prefix)
    with closing(pages):
        assert trio.run(pages.newest, 10)
        assert trio.run(pages.page, {0: "0-0"}).items
    with closing(Follower(RedisConnections(stage.url), KEYS.prefix, "0")) as follower:
        assert fetched(follower, 1)
        while follower.next():
            pass
        follower.fetch()  # nothing to read


def watch(stage: Stage, hand: Hand) -> None:
    """The work of servers for clients who watch and query users."""
    states = StoredStates(stage.url, KEYS)
    try:
        assert {uid: state.status for uid, state in states.read(["ann", "cy"]).items()} == {
            "ann": "unknown",
            "cy": "offline",
        }
    finally:
        states.close()
    trio.run(_watch_one, stage.url, hand)


async def _watch_one(url: str, hand: Hand) -> None:
    channel = ShardChannel(url, KEYS)
    await channel.open()
    channel.channel.update_subscriptions(["bob"], [])
    assert await channel.receive() == [Subscribed("bob")]
    seen = await channel.snapshot(["bob"])
    assert seen.states["bob"].status == "online"
    hand.apply(change(Op.UPDATE, "bob", "s2", profile=Profile("away")))
    (entry,) = await channel.receive()
    assert isinstance(entry, WatchedEntry)
    assert await channel.check() == entry.id
    assert (await channel.replay(seen.as_of, {"bob"})).entries == [entry]
    channel.channel.ping(1)
    assert await channel.receive() == [Pong(1)]
    channel.channel.update_subscriptions([], ["bob"])
    assert await channel.receive() == [Unsubscribed("bob")]
    channel.close()


def read(stage: Stage) -> None:
    """The work of `PresenceReader` and the commands `status`, `nodes`, `rooms list` and `rooms show`."""
    stage.hand.apply(login("ann", "s1"), login("bob", "s2"))
    stage.hand.apply(end("bob", "s2"))
    with PresenceReader(stage.url) as reader:
        assert [reader.state(uid)["status"] for uid in ("ann", "bob")] == ["online", "offline"]
        assert reader.state("bob")["last_seen_ms"]
        assert reader.count() == 1
        assert [uid for page in reader.pages() for uid in page.states] == ["ann"]
        assert [each.node for each in reader.nodes()] == ["seed"]
        assert reader.bans() == []
        look_at_rooms(stage, reader)


def look_at_rooms(stage: Stage, reader: PresenceReader) -> None:
    """Read rooms in each way: the largest, page by page, one of them, and its members."""
    stage.admin.hset(KEYS.room("lobby"), "ann", "1-0 -")
    stage.admin.zadd(KEYS.room_sizes(0), {"lobby": 1})
    assert reader.rooms(largest=2) == {"lobby": 1} == reader.room_page(None).rooms
    assert reader.room("lobby").count == 1
    assert list(reader.members("lobby").members) == ["ann"]


def send(stage: Stage) -> None:
    """The work of `PresenceSender`."""
    stage.hand.apply(login("ann", "s1"))
    with ListeningNode(stage.hand.store.url, "seed", all_of), PresenceSender(stage.url, "@shop") as sender:
        assert [sender.send(uid, "hello").status for uid in ("ann", "bob")] == ["delivered", "offline"]


def keep_rosters(stage: Stage) -> None:
    """The work of `PresenceRosters`."""
    with PresenceRosters(stage.url) as rosters:
        assert rosters.put("ann", ["bob", "eve"]) == 2
        assert rosters.remove("ann", ["eve"]) == 1
        assert rosters.get("ann") == ["bob"]


def follow(stage: Stage) -> None:
    """The work of subscribers without a group: a snapshot, live events, and the reason of gaps."""
    stage.hand.apply(login("ann", "s1"))
    snapshots = SnapshotFollower(RedisConnections(stage.url), KEYS.prefix)
    with closing(snapshots):
        snapshots.fetch()
        snapshot = snapshots.next()
        assert isinstance(snapshot, Snapshot)
        assert list(snapshot.online) == ["ann"]
    follower = Follower(RedisConnections(stage.url), KEYS.prefix, "0")
    with closing(follower):
        (entry,) = fetched(follower, 1)
        follower.fetch()  # nothing to read
        stage.admin.xdel(KEYS.events(0), entry.id)
        time.sleep(0.002)  # see `follow_up`
        stage.hand.apply(end("ann", "s1"))
        gap, offline = fetched(follower, 2)
        assert isinstance(gap, Gap)
        assert isinstance(offline, Entry)


def share(stage: Stage) -> None:
    """The work of subscribers with a group: reading, acknowledging, claiming and giving up."""
    link, options = (
        RedisConnections(stage.url),
        ConsumerOptions("g", "c1", max_deliveries=2, claim_idle_s=0.001, prefetch=10),
    )
    with closing(GroupConsumer(link, KEYS.prefix, options, "0")) as consumer:
        consumer.fetch()  # creates the group, and reads nothing
        stage.hand.apply(login("ann", "s1"), login("bob", "s2"))
        for each in fetched(consumer, 2):
            assert consumer.hand_out()
            consumer.nak((each.shard, each.id), 0, "cannot handle this")
        (again,) = fetched(consumer, 1)  # the other one, which was claimed as well, is ahead
        assert consumer.hand_out()
        consumer.give_up((again.shard, again.id), "cannot handle this")
        consumer.fetch()
        consumer.stop(keeps_handed_out=False)
    assert stage.admin.xlen(KEYS.dead(0)) == 1
    with closing(GroupConsumer(RedisConnections(stage.url), KEYS.prefix, options, "0")) as consumer:
        (rest,) = fetched(consumer, 1)
        assert consumer.hand_out()
        consumer.ack((rest.shard, rest.id))
        consumer.stop(keeps_handed_out=False)
    assert pending(stage) == 0
    assert not stage.admin.keys(KEYS.consumer(0, "g", "*"))


def pending(stage: Stage) -> int:
    answer: Any = stage.admin.xpending(KEYS.events(0), "g")
    count: int = answer["pending"]
    return count


def operate(stage: Stage) -> None:
    """The work of the commands of operators."""
    stage.hand.apply(login("ann", "s1"), login("bob", "s2"))
    stage.hand.apply(end("bob", "s2"))
    stage.admin.xgroup_create(KEYS.events(0), "g", "0")
    stage.admin.xreadgroup("g", "c", {KEYS.events(0): ">"})
    listener = listen(stage.admin, KEYS.control_channel("seed"))
    with (
        PresenceReader(stage.url) as reader,
        closing(Scripting(stage.url)) as scripting,
        Eraser(stage.url, reader.keys()) as eraser,
    ):
        assert [target.session for target in request_kick(scripting, reader.keys(), ["ann"])] == ["s1"]
        assert listener.get_message(timeout=1)
        listener.close()
        assert reader.state("ann")["status"] == "online"
        assert [each.node for each in reader.nodes()] == ["seed"]
        assert ban(stage.url, reader, ["cyd"], by="op", wait_s=0).until_ms is None
        assert unban(stage.url, reader, ["cyd"], by="op") == {"cyd": [None]}
        look_at_rooms(stage, reader)
        with ShardClients(stage.url) as clients:
            assert rebuild_rooms(clients, reader.keys(), 0) is None, "no projector runs"
        with Explainer(stage.url, wait_s=0.01) as explainer:
            explanations = [explainer.explain(uid) for uid in ("ann", "bob")]
            assert [each["redis"] for each in explanations] == [None, None]
            assert [each["event"]["type"] for each in explanations] == ["online", "offline"]
        with Mover(stage.url) as mover:
            assert not mover.plan().is_needed
            assert mover.stop_others() == set()
        with Adviser(stage.url) as adviser:
            assert adviser.advise(60)["entries"] == 3
        plan(stage.admin, "bob")
        forgotten = eraser.forget(["ann", "bob"])
        assert (forgotten.online, forgotten.last_seen, forgotten.events) == (["ann"], 1, 2)
        assert forgotten.followups == 1
    assert pending(stage) == 1


def act_in_time(stage: Stage) -> None:
    """The work of programs that share a `DelayQueue` or a `RingTimer`."""
    with closing(Scripting(stage.url)) as scripting:
        use(DelayQueue(scripting, KEYS.timer("acl"), Leasing(attempts_max=1), events_max=2))
        ring = RingTimer(scripting, KEYS.timer("acl ring"), tick_s=0.001)
        assert ring.schedule(Event("a", 0.0))
        assert ring.done(taken(ring, 1)) == 1
        recover(scripting, DelayQueue(scripting, KEYS.timer("acl 2")), "acl 2")


def listen_for_expiry(stage: Stage) -> None:
    """The work of programs that share an `ExpiryTimer`."""
    stage.admin.config_set(SETTING, "")
    leasing = Leasing(attempts_max=1)
    with closing(Scripting(stage.url)) as scripting:
        timer = ExpiryTimer(scripting, KEYS.timer("orders"), leasing, events_max=2, reconcile_s=0.01)
        with closing(timer):
            try:
                timer.due()
            except NotificationsOff as error:
                raise AssertionError(str(error)) from error
            found: Any = stage.admin.config_get(SETTING)
            assert found[SETTING], "it enables notifications"
            use(timer)
            recover(scripting, timer, "orders")


def recover(scripting: Scripting, timer: SharedTimer, name: str) -> None:
    """Hand out an event although the index was lost."""
    assert timer.schedule(Event("c", 0.0))
    due = f"{KEYS.timer(name)}:due"
    scripting.commands(due, [("DEL", due)])
    assert timer.done(taken(timer, 1)) == 1


def touch(stage: Stage) -> None:
    """The work of front ends that share a `RedisWheel`."""
    with closing(RedisWheel(stage.url, "acl", idle_timeout_s=0.01, tick_s=0.005, shards=1)) as wheel:
        assert wheel.touch_many(["ann", "bob"]) == ["ann", "bob"]
        assert not wheel.touch("ann")
        assert wheel.forget("ann")
        assert wheel.count() == 1
        assert wheel.last_seen(["bob"])
        while not wheel.due():
            pass


def use(timer: SharedTimer) -> None:
    """Use every call of a timer of at most two events and one attempt."""
    assert timer.schedule_many([Event("a", 0.0), Event("b", 9.0)]) == 2
    assert not timer.schedule(Event("a", 0.0))
    assert timer.reschedule("b", 0.0)
    a, b = taken(timer, 2)
    assert timer.extend([a, b]) == 2
    assert timer.done([a]) == 1
    assert timer.retry(b)
    assert timer.requeue([letter.id for letter in timer.dead()]) == 1
    assert timer.give_back(taken(timer, 1)) == 1
    assert timer.cancel("b")
    assert timer.state().counts["done"] == 1


def taken(timer: SharedTimer, count: int) -> list[Due]:
    """Take that many events."""
    dues: list[Due] = []
    while len(dues) < count:
        dues += timer.due()
    return dues


def plan(admin: Redis, uid: str) -> None:
    """Write a pending follow-up, as the scripts do."""
    work, due, *_, of, _state, _events, _online, _seen, _followups = script_keys(KEYS, 0)
    item = [NOW_MS, 0, "", uid, "mail", 0, "0-0", "", 0, "", 0, 0]
    admin.hset(work, "x", msgpack.packb(item))
    admin.zadd(due, {"x": NOW_MS})
    admin.hset(of, uid, msgpack.packb(["x"]))


def follow_up(stage: Stage) -> None:
    """The work of the scheduler: planning, cancelling, delivering, and finding users of missing events.

    And that of `FollowUps`.
    """
    with (
        closing(FollowUpScheduler(stage.url, rules=[Rule("mail", 0)], shards=1)) as scheduler,
        FollowUps(stage.url) as followups,
    ):

        def run() -> None:
            scheduler._due.clear()
            scheduler.run_once()
            if scheduler.failure:
                raise scheduler.failure

        run()
        stage.hand.apply(login("ann", "s1"), login("bob", "s2"), login("cy", "s3"))
        stage.hand.apply(end("ann", "s1"), end("bob", "s2"))
        run()
        stage.hand.apply(login("bob", "s4"))
        run()
        give_up = time.monotonic() + 5
        while not stage.admin.xlen(KEYS.followups(0)) and time.monotonic() < give_up:
            run()  # it is due a moment later
        assert stage.admin.xlen(KEYS.followups(0)) == 1
        stage.hand.apply(end("cy", "s3"))
        stage.admin.xtrim(KEYS.events(0), maxlen=0, approximate=False)
        time.sleep(0.002)  # an entry of the same millisecond would be refused once: `read_top` in events.lua
        stage.hand.apply(login("dee", "s5"))
        run()
        run()
        assert scheduler.counters.gaps == 1
        added = followups.add("ann", after=60, name="x")
        assert [each.name for each in followups.of("ann")] == ["x"]
        assert followups.earliest()
        assert sum(map(len, followups.pages()))
        assert followups.cancel(added.id)


def project(stage: Stage) -> None:
    """The work of the projector of rooms: members come and go, a gap, and the comparison."""
    record = (
        '{"id":"1-0","since_ms":1,"sessions":{"d":{"session":"s","node":"n","login_ms":1,"rooms":"lobby"}}}'
    )
    event = {"type": "online", "uid": "zoe", "at_ms": "1", "reason": "login", "rooms": "lobby"}
    now = [0.0]
    projector = RoomProjector(stage.url, shards=1, clock=lambda: now[0])
    with closing(projector):

        def run() -> None:
            for _ in range(100):
                now[0] += 0.1
                projector.run_once()
                if projector.failure:
                    raise projector.failure

        run()
        stage.admin.hset(KEYS.shard_meta(0), "rooms", "1")
        stage.admin.hset(KEYS.online(0), "zoe", record)
        ask(stage.admin, "XADD", KEYS.events(0), "*", *(word for pair in event.items() for word in pair))
        run()
        assert stage.admin.hexists(KEYS.room("lobby"), "zoe")
        stage.admin.hdel(KEYS.online(0), "zoe")
        stage.admin.xtrim(KEYS.events(0), maxlen=0, approximate=False)
        run()
        assert not stage.admin.exists(KEYS.room("lobby"))
        assert projector.counters.rebuilds == 1


def fetched(source: Follower | GroupConsumer, count: int) -> list[Item]:
    """Take that many items."""
    items: list[Item] = []
    while len(items) < count:
        if (item := source.next()) is None:
            source.fetch()
        else:
            items.append(item)
    return items


def send_webhooks(stage: Stage) -> None:
    """The work of runners of webhooks: that of a group's consumers, and the locks of shards."""
    share(stage)
    locks = ShardLocks(stage.url, KEYS.prefix, "g", "a runner", lock_s=10.0)
    with closing(locks):
        assert locks.renew() == {0}
        assert locks.renew() == set(locks.held)
        locks.leave()
    assert not stage.admin.exists(KEYS.webhook_lock(0, "g"))


ROLES: dict[str, Callable[[Stage], None]] = {
    "server": serve,
    "reader": read,
    "sender": send,
    "rosters": keep_rosters,
    "subscriber": follow,
    "worker": share,
    "followups": follow_up,
    "rooms": project,
    "webhooks": send_webhooks,
    "operator": operate,
    "timers": act_in_time,
    "expiry": listen_for_expiry,
    "wheel": touch,
}


def permissions(role: str, block: str | None = None) -> list[str]:
    """Return what the page gives a role, in the block of its name or in another."""
    found = re.search(rf"<!-- acl {block or role} -->\n```sh\n(.+?)```", PAGE, re.DOTALL)
    assert found, role
    lines = map(shlex.split, found[1].replace("\\\n", "").splitlines())
    (words,) = [line[4:] for line in lines if line[3] == f"presence-{role}"]
    return words


def ask(admin: Redis, *words: str) -> Any:
    return admin.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's
