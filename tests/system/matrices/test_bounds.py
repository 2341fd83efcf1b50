"""Every bound of "What clients can make a server keep" in docs/security.md, with the worst input there is.

The page's table and `BOUNDS` have the same rows, so a bound without a measurement fails. Memory of the
process is measured by tracemalloc, of Redis by its own count, both over many entries in the form in which
they are kept. The worst text takes four bytes a character: Python does so for a whole text with one emoji.
"""

import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from loadtest.servers import LocalRedis
from presence import protocol
from presence.common import meta_json
from presence.common.faults import Faults
from presence.common.rate_limit import TABLE_SIZE, KeyedRateLimiter
from presence.common.runtime import TrioRuntime
from presence.core import visibility
from presence.core.authenticator import Granted, NamePatterns, RoomClaim
from presence.core.ban_list import Ban, BanList
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import ClientFeatures
from presence.core.service_requests import QueryRequest, RoomWatchRequest, WatchRequest
from presence.core.visibility import Visibility
from presence.followups.planned import FollowUps
from presence.followups.script_calls import MAX_PENDING_BYTES_PER_SHARD, MAX_PENDING_PER_SHARD
from presence.messaging.confirmations import MAX_WAITS, Confirmations
from presence.messaging.message_bus import Confirm, DeliveryReport, OutgoingMessage, ReplyAddress
from presence.messaging.message_queue import MAX_BYTES, MAX_ITEMS, MessageQueue, PendingMessage, QueueBounds
from presence.outbox.replies import ReplyStatus
from presence.protocol import Decoder
from presence.protocol.constants import (
    DEVICE_MAX_BYTES,
    PASS_MAX_BYTES,
    ROOM_MAX_BYTES,
    ROOMS_MAX,
    TOKEN_MAX_BYTES,
    UID_MAX_BYTES,
)
from presence.rooms.script_calls import ANY_POSITION, project_call, unpacked
from presence.server.answer_queue import MAX_QUEUED_ANSWERS
from presence.store.answers import AnswerKeys, report_field
from presence.store.ban_table import MAX_BANS, MAX_REASON_CHARS
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.script_runner import Scripting
from presence.watching import push_queue
from presence.watching.known_states import KnownStates
from presence.watching.packed_states import PackedStates
from presence.watching.pending_watches import MAX_PENDING_BYTES as MAX_PENDING_WATCH_BYTES
from presence.watching.pending_watches import (
    PendingWatch,
    PendingWatches,
    RequestTimeouts,
    bytes_of_watch,
)
from presence.watching.push_queue import PushQueue
from presence.watching.queries import Queries
from presence.watching.room_views import RoomOccupancy
from presence.watching.room_watch_service import MAX_PENDING_ROOMS, RoomSource, RoomWatchService
from presence.watching.rosters import FollowedRosters, NoRosters
from presence.watching.shard_view import ShardView
from presence.watching.user_states import ShardSnapshot, WatchedDevice, WatchedState
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from presence.watching.watch_service import OWN_WATCHES
from tests.docs.pages import pages
from tests.store.driving import Hand, end, login
from tests.support.worlds import World
from tests.watching.fakes import entry, session

KIB, MIB, MB, GB = 1024, 1024**2, 10**6, 10**9
ENTRIES: Final = 1000  # that a figure is measured with
EMOJI: Final = "\N{GRINNING FACE}"
UIDS_PER_REQUEST: Final = 100
SHARE: Final = 8  # of a bound that is filled in full only where it is small


def uid(number: int) -> str:
    """Return one of the uids that take the most memory."""
    digits = str(number)
    return EMOJI + "u" * (UID_MAX_BYTES - len(EMOJI.encode()) - len(digits)) + digits


def room(number: int) -> str:
    digits = str(number)
    return EMOJI + "r" * (ROOM_MAX_BYTES - len(EMOJI.encode()) - len(digits)) + digits


def device(number: int) -> str:
    digits = str(number)
    return EMOJI + "d" * (DEVICE_MAX_BYTES - len(EMOJI.encode()) - len(digits)) + digits


def wide(number: int) -> dict[str, str]:
    """Return a `meta` that takes the most memory: of the 256 bytes that a client may pack."""
    return {"m": f"{EMOJI}{number:010}" + "m" * 230}


@contextmanager
def grown() -> Iterator[Callable[[], int]]:
    """Measure the memory that is kept beyond what there was."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


# In the process


def a_session() -> float:
    return _session(loses=False)


def a_session_in_its_grace() -> float:
    return _session(loses=True)


def _session(*, loses: bool) -> float:
    world = World()
    world.append = lambda change: None  # type: ignore[method-assign] # the outbox has a row of its own
    with grown() as bytes_kept:
        for number in range(ENTRIES):
            said = {"meta": wide(number), "private": wide(number)}
            handle = world.login(uid(number), device=device(number), **said)
            world.sockets.sent[handle] = world.sockets.sent[0]
            if loses:
                world.sockets.close(handle)
        return bytes_kept() / ENTRIES


def an_incomplete_packet() -> float:
    with grown() as bytes_kept:
        decoder = Decoder(protocol.FRAME_LIMIT_BYTES)
        decoder.feed(protocol.FRAME_LIMIT_BYTES.to_bytes(4, "big"))
        for _ in range(protocol.FRAME_LIMIT_BYTES - 1):
            decoder.feed(b"x")
        return bytes_kept()


def watches() -> float:
    """Return the bytes of a watch: in both directions, and what is known of its user."""
    users = UserTable()
    watched, view = Watches(users), ShardView(KnownStates(0, users, PackedStates()), 40.0)
    watchers = [session(f"w{number}")[0] for number in range(ENTRIES // UIDS_PER_REQUEST)]
    view.connected()
    with grown() as bytes_kept:
        for number, watcher in enumerate(watchers):
            first = number * UIDS_PER_REQUEST
            uids = [uid(first + each) for each in range(UIDS_PER_REQUEST)]
            for name in uids:
                view.want(name)
            view.next_subscriptions(UIDS_PER_REQUEST)
            for name in uids:
                view.subscribed(name)
            view.begin_snapshot(uids)
            states = {
                name: WatchedState(
                    "away", 10**12 + each, 10**12 - each, f"{10**12}-{each}", meta_json.to_text(wide(each))
                )
                for each, name in enumerate(uids, first)
            }
            view.apply_snapshot(ShardSnapshot(states, (10**12, 0)), 1.0)
            watched.add(watcher, uids)
        return bytes_kept() / ENTRIES


def followed_rosters() -> float:
    """Return the bytes of a session that follows the roster of its user."""
    followed = FollowedRosters(NoRosters(), lambda *_: None, lambda _: None, TrioRuntime(), Faults())
    followers = [session(f"f{number}")[0] for number in range(ENTRIES)]
    with grown() as bytes_kept:
        for number, follower in enumerate(followers, 1000):
            followed.follow(follower, WatchRequest(number, [], roster=True), ())
        return bytes_kept() / ENTRIES


def watched_rooms() -> float:
    """Return the bytes of a session that watches as many rooms as without memory."""

    async def watch() -> float:
        async with _hall(allows=lambda watches, _: watches <= OWN_WATCHES) as rooms:
            watchers = [session(f"w{number}")[0] for number in range(ENTRIES // OWN_WATCHES)]
            with grown() as bytes_kept:
                for first, watcher in enumerate(watchers):
                    names = [room(first * OWN_WATCHES + each) for each in range(OWN_WATCHES)]
                    rooms.take(watcher, RoomWatchRequest(1, names))
                    await trio.sleep(1)
                assert rooms.statistics.watches == ENTRIES
                return bytes_kept() / len(watchers)

    return trio.run(watch, clock=MockClock(autojump_threshold=0))


def pending_room_requests() -> float:
    """Return the bytes of as many requests for a room each as may wait."""

    async def fill() -> float:
        async with _hall(allows=lambda _watches, _: True) as rooms:
            askers = [session(f"w{number}")[0] for number in range(MAX_PENDING_ROOMS // SHARE)]
            with grown() as bytes_kept:
                for number, asker in enumerate(askers):
                    rooms.take(asker, RoomWatchRequest(1, [room(number)]))
                return bytes_kept() * SHARE

    return trio.run(fill, clock=MockClock(autojump_threshold=0))


@asynccontextmanager
async def _hall(allows: Callable[[float, int], bool]) -> AsyncIterator[RoomWatchService]:
    """Give a worker's watched rooms, each of which has a member."""
    reads: Any = SimpleNamespace(read=lambda names, _: {name: RoomOccupancy(1) for name in names})
    rooms = RoomWatchService(
        RoomSource(reads, 0, "open", {}),
        allows,
        visibility=None,
        quiet=QuietSessions(),
        runtime=TrioRuntime(),
        faults=Faults(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.run)
        yield rooms
        nursery.cancel_scope.cancel()


def pending_watches() -> float:
    return max(_pending_watches(users) for users in (1, UIDS_PER_REQUEST))


def _pending_watches(users: int) -> float:
    waiting, number = PendingWatches(), 0
    size = bytes_of_watch([uid(number) for number in range(users)])

    async def fill() -> float:
        nonlocal number
        timeouts = RequestTimeouts[PendingWatch](5.0, waiting.remove, Faults(), "watch")
        watcher = session()[0]
        with grown() as bytes_kept:
            while waiting.bytes + size <= MAX_PENDING_WATCH_BYTES // SHARE:
                uids = [uid(number + each) for each in range(users)]
                watch = PendingWatch(watcher, 7 + number, uids, set(uids), size)
                waiting.add(watch)
                timeouts.add(watch)
                number += users
            return bytes_kept() * SHARE

    return trio.run(fill)


def pending_queries() -> float:
    return max(_pending_queries(users) for users in (1, UIDS_PER_REQUEST))


def _pending_queries(users: int) -> float:
    async def fill() -> float:
        states: Any = SimpleNamespace(shut_down=lambda: None)
        waiting, number = Queries(states, TrioRuntime(), Faults()), 0
        asker = session()[0]
        with grown() as bytes_kept:
            while not waiting.statistics.refused:
                waiting.take(asker, QueryRequest(7 + number, [uid(number + each) for each in range(users)]))
                number += users
            return bytes_kept()

    return trio.run(fill)


def queued_pushes() -> float:
    """Return the bytes of a full queue, and of as many packets as connections may wait for."""
    watches, watcher = Watches(UserTable()), session()[0]
    queue = PushQueue(watches, Faults(lambda _session: None), lambda _uid: None, QuietSessions())
    queue.with_devices.add(watcher)
    devices = tuple(WatchedDevice(device(number), "online", number, "", "") for number in range(4))
    with pytest.MonkeyPatch.context() as patch, grown() as bytes_kept:
        patch.setattr(push_queue, "MAX_QUEUED_BYTES", push_queue.MAX_QUEUED_BYTES // SHARE)
        for number in range(push_queue.MAX_QUEUED_CHANGES):
            change = entry(uid(number), number)
            watches.add(watcher, [change.uid])
            queue.push(change._replace(state=change.state._replace(devices=devices)))
            if queue.statistics().late:
                watches.remove(watcher)
                return bytes_kept() * SHARE + push_queue.MAX_DEFERRED_BYTES
    raise AssertionError("the bound in bytes was not reached")


def sights_of_tokens() -> float:
    """Return the bytes of one, with as many uids of two characters as a token holds in base64."""
    names = TOKEN_MAX_BYTES * 3 // 4 // len('"ab",')
    letters = [chr(number) for number in range(0x21, 0x7F)]
    nothing: Any = None
    seen = Visibility(nothing, lambda: 0.0)
    with grown() as bytes_kept:
        for number in range(ENTRIES):
            uids = frozenset("".join(pair) for pair in islice(product(letters, letters), names))
            seen.set_sight(session(f"w{number}")[0], NamePatterns(uids))
        return bytes_kept() / ENTRIES


def rooms_of_a_session() -> float:
    """Return the bytes of the rooms of a session, which shows nothing else."""

    def size(rooms: list[str]) -> float:
        world = World(rooms="open")
        world.append = lambda change: None  # type: ignore[method-assign] # the outbox has a row of its own
        with grown() as bytes_kept:
            for number in range(ENTRIES):
                handle = world.login(f"u{number}")
                world.sockets.feed(handle, protocol.encode(protocol.update(id=7, rooms=rooms)))
                world.sockets.sent[handle] = world.sockets.sent[0]
            return bytes_kept() / ENTRIES

    longest = [EMOJI + "r" * (ROOM_MAX_BYTES - len(EMOJI.encode()) - 2) + f"{n:02}" for n in range(ROOMS_MAX)]
    return size(longest) - size([])


def claims_on_rooms() -> float:
    """Return the bytes of one, with as many names of two characters as a token holds in base64."""
    names = TOKEN_MAX_BYTES * 3 // 4 // len('"ab",')
    letters = [chr(number) for number in range(0x21, 0x7F)]
    claims = {}
    with grown() as bytes_kept:
        for number in range(ENTRIES):
            rooms = frozenset("".join(pair) for pair in islice(product(letters, letters), names))
            claims[number] = RoomClaim("", NamePatterns(rooms))
        return bytes_kept() / ENTRIES


def passes() -> float:
    """Return the bytes of all passes, each with as many short uids as its text holds in base64."""
    names = PASS_MAX_BYTES * 3 // 4 // len('"ab",')
    letters = [chr(number) for number in range(0x21, 0x7F)]
    number = 0

    class Grants:
        def check_pass(self, _text: str, _uid: str, _now: float) -> Granted:
            return Granted(
                "ann", 1e6, NamePatterns(frozenset("".join(pair) for pair in islice(pairs(), names)))
            )

    def pairs() -> Iterator[tuple[str, str]]:
        return product(letters, letters)

    seen: Any = Visibility(Grants(), lambda: 0.0)  # type: ignore[arg-type] # only passes are asked for
    with grown() as bytes_kept:
        while not seen.passes_full:
            watcher = session(f"w{number}")[0]
            for _ in range(visibility.MAX_PASSES):
                seen.take_pass(watcher, f"{number:06}" + "x" * (PASS_MAX_BYTES - 6), 0.0)
                number += 1
        return bytes_kept()


def pending_messages() -> float:
    queue, number = MessageQueue(QueueBounds()), 0
    with grown() as bytes_kept:
        while True:
            sender = session(f"s{number}")[0]
            for _ in range(QueueBounds().sender_items):
                if not queue.has_room(sender):
                    assert queue.items == MAX_ITEMS or queue.bytes >= MAX_BYTES
                    return bytes_kept()
                frame = b"x" * (MAX_BYTES // MAX_ITEMS)
                queue.add(PendingMessage(sender, number, OutgoingMessage(uid(number), frame), float(number)))
                number += 1


def awaited_confirmations() -> float:
    """Return the bytes of messages from here and from elsewhere, each of which waits for a session."""
    confirmations, queue = Confirmations(Faults()), MessageQueue(QueueBounds())
    sender, recipient, node = session("ann")[0], session("bob")[0], "n" * 64
    recipient.features = ClientFeatures(confirms=True)
    kept: list[Any] = []
    with grown() as bytes_kept:
        for number in range(ENTRIES):
            address, to = ReplyAddress(f"{number:032x}", number), uid(number)
            confirm = Confirm(29.5, 2**53 - number, node + str(number))
            pending = PendingMessage(
                sender, number, OutgoingMessage(to, b"x" * 16_000, address), 1e6 + number
            )
            queue.add(pending)
            queue.sent(pending)
            confirmations.expect([recipient], number, 1e6, 29.5, partial(kept.append, pending))
            report = DeliveryReport(to, address, 64, 64, 59.9)
            done = partial(kept.append, (confirm, report))
            confirmations.expect([recipient], confirm.number, 1e6, 29.5, done)
        assert confirmations.statistics().waits == 2 * ENTRIES
        return bytes_kept() / (2 * ENTRIES) * MAX_WAITS


def rate_limits() -> float:
    """Return the bytes of one of the nine tables, each of whose buckets has refused."""
    table = KeyedRateLimiter[str](1.0, 1.0)
    with grown() as bytes_kept:
        for number in range(TABLE_SIZE):
            table.take(uid(number), 0.0, 1.0)
            table.take(uid(number), 0.0, 1.0)
        assert len(table) == TABLE_SIZE
        return bytes_kept()


def bans() -> float:
    reason = EMOJI + "r" * (MAX_REASON_CHARS - 1)
    with grown() as bytes_kept:
        kept = BanList(
            Ban(uid(number), device(number), 1000.5 + number, "".join([reason[:-6], f"{number:06}"]))
            for number in range(ENTRIES)
        )
        return bytes_kept() / len(kept) * MAX_BANS


def queued_reports() -> float:
    with grown() as bytes_kept:
        kept = [
            (float(number), DeliveryReport(uid(number), (f"node-{number}", number), 3, 2, 5.5 + number))  # type: ignore[arg-type]
            for number in range(ENTRIES)
        ]
        return bytes_kept() / len(kept) * MAX_QUEUED_ANSWERS


# In Redis


def seen_users() -> float:
    keys = Keys()
    with LocalRedis() as redis:
        store = RedisStore(redis.url, Shape(keys, maxlen=1_000_000, seen_retention_ms=10**13))
        hand = Hand(store, "node")
        assert hand.open().status is ReplyStatus.OK
        for number in range(ENTRIES):
            one = uid(number), f"node-{number}", device(number)
            hand.apply(login(*one), end(*one))
        store.close()
        assert redis.client.zcard(keys.seen(0)) == ENTRIES
        kept = (redis.client.memory_usage(key, samples=0) or 0 for key in (keys.seen(0), keys.left(0)))
        return float(sum(kept)) / ENTRIES


def subscriptions() -> float:
    """Return the bytes of a subscription to a user, on the connection of one worker."""
    with LocalRedis() as redis:
        subscriber, keys = redis.client.pubsub(), Keys()
        subscriber.subscribe("first")
        before = redis.client.info("memory")["used_memory"]
        for first in range(0, 10 * ENTRIES, ENTRIES):
            subscriber.subscribe(*(keys.user_channel(uid(first + each)) for each in range(ENTRIES)))
            for _ in range(ENTRIES):
                subscriber.parse_response()
        redis.client.ping()
        return float(redis.client.info("memory")["used_memory"] - before) / (10 * ENTRIES)


def reports() -> float:
    """Return the bytes of a message with a token of its own."""
    with LocalRedis() as redis:
        channel = AnswerKeys(redis.url, Keys())
        node = "n" * 64  # of a host and a worker
        before = redis.client.info("memory")["used_memory"]
        channel.write(
            report_field(
                DeliveryReport(uid(number), ReplyAddress(f"{number:032x}", 9_999), 64, 64, 59.9), node
            )
            for number in range(ENTRIES)
        )
        used = redis.client.info("memory")["used_memory"] - before
        assert redis.client.dbsize() == ENTRIES
        channel.close()
        return float(used) / ENTRIES


def rooms_in_redis() -> float:
    """Return the bytes of a room with one member, and of its place in the index."""
    return _used_by_rooms(room, uid)


def members_of_a_room() -> float:
    """Return the bytes of a member of one room."""
    return _used_by_rooms(lambda number: "lobby", uid)


def _used_by_rooms(room_of: Callable[[int], str], uid_of: Callable[[int], str]) -> float:
    """Return the bytes for each member, without the stream of rooms."""
    keys = Keys()
    with LocalRedis() as redis:
        scripting = Scripting(redis.url)
        for first in range(0, 10 * ENTRIES, ENTRIES):
            _join(scripting, keys, [(room_of(each), uid_of(each)) for each in range(first, first + ENTRIES)])
        scripting.close()
        kept = [*redis.client.scan_iter(f"{keys.room_prefix(0)}*", count=ENTRIES), keys.room_sizes(0)]
        return float(sum(redis.client.memory_usage(key, samples=0) for key in kept)) / (10 * ENTRIES)


def events_of_rooms() -> float:
    """Return the bytes of an entry, with `room_events = "all"`."""
    keys = Keys()
    with LocalRedis() as redis:
        scripting = Scripting(redis.url)
        _join(scripting, keys, [(room(number), uid(number)) for number in range(ENTRIES)])
        scripting.close()
        assert redis.client.xlen(keys.room_events(0)) == 2 * ENTRIES
        return float(redis.client.memory_usage(keys.room_events(0), samples=0)) / (2 * ENTRIES)


def _join(scripting: Scripting, keys: Keys, members: list[tuple[str, str]]) -> None:
    rooms: dict[bytes, list[bytes]] = {}
    for name, user in members:
        items = rooms.setdefault(name.encode(), [])
        items += [user.encode(), b"1795393627549-12 -", b"1795393627549", b"login"]
    groups = [each for name, items in rooms.items() for each in (name, len(items), *items)]
    call = project_call(
        keys, 0, 0, position=ANY_POSITION, to=ANY_POSITION, groups=groups, has_member_events=True
    )
    (answer,) = scripting.evaluate([call])
    assert unpacked(answer)[:2] == [b"ok", len(members)]


def followups() -> float:
    """Return the bytes of a full shard: of short follow-ups, or with the longest names and payloads."""
    from presence.config.followup_rules import MAX_NAME_CHARS, MAX_PAYLOAD_BYTES  # noqa: PLC0415 - only here

    long_ones = _followups(uid, "n" * MAX_NAME_CHARS, "p" * MAX_PAYLOAD_BYTES)
    short_ones = _followups("u{}".format, "n", "")
    middle_ones = _followups("user-{}".format, "reminder", "p" * 600)
    return max(long_ones, short_ones, middle_ones)


def _followups(uid_of: Callable[[int], str], name: str, payload: str) -> float:
    with LocalRedis() as redis:
        redis.client.hset(Keys().meta, mapping={"version": "4", "shards": "1"})
        planned = FollowUps(redis.url)
        for number in range(ENTRIES):
            planned.add(uid_of(number), after=1000.0, name=name, payload=payload)
        kept = sum(redis.client.memory_usage(key, samples=0) for key in redis.client.scan_iter()) / ENTRIES
        counted = int(redis.client.hget(Keys().followup_queue(0) + ":state", "bytes")) / ENTRIES
        planned.close()
        return float(kept) * min(MAX_PENDING_PER_SHARD, MAX_PENDING_BYTES_PER_SHARD / counted)


class Bound(NamedTuple):
    """A row of the page's table."""

    figure: str  # as the page has it
    limit_bytes: float
    measure: Callable[[], float] | None  # None: the tests of this part measure it, and `elsewhere` names them
    elsewhere: str = ""


OF_EVENTS: Final = "tests/system/matrices/test_bounds_of_events.py"

BOUNDS: Final = {
    "connections and their sessions": Bound(
        "3.6 KB with the longest names, `meta` and `private`", 3600, a_session
    ),
    "an incomplete packet": Bound("19 KB per connection", 19_000, an_incomplete_packet),
    "unread replies": Bound("64 KiB and 256 KiB", 320 * KIB, None, "tests/transports/test_requests.py"),
    "sessions in their grace, after a lost connection": Bound(
        "3.6 KB each with the longest names, `meta` and `private`", 3600, a_session_in_its_grace
    ),
    "watches": Bound("2.5 KB with the longest names and `meta`", 2500, watches),
    "rosters that clients follow": Bound("700 bytes per connection", 700, followed_rosters),
    "rosters in Redis": Bound("1,000 MB", 0, None, "tests/store/test_roster_table.py"),
    "rooms that clients watch": Bound("11 KB per connection", 11_000, watched_rooms),
    "requests about rooms that wait for Redis": Bound("40 MB", 40 * MB, pending_room_requests),
    "watch requests that wait for Redis": Bound("64 MB", 64 * MB, pending_watches),
    "queries that wait for Redis": Bound("32 MB", 32 * MB, pending_queries),
    "changes that wait for watchers": Bound("64 MB, and 900 bytes per watched user", 64 * MB, queued_pushes),
    'users that a token names, with `visibility = "claims"`': Bound(
        "15 KB each, with a hundred short uids", 15_000, sights_of_tokens
    ),
    "rooms of sessions, unless `rooms` is off": Bound(
        "4.4 KB each with the longest names", 4400, rooms_of_a_session
    ),
    "rooms that a token names, unless `rooms` is off": Bound(
        "15 KB each, with a hundred short names", 15_000, claims_on_rooms
    ),
    'passes, with `visibility = "claims"`': Bound("64 MB", 64 * MB, passes),
    "messages without an outcome": Bound("24 MB", 24 * MB, pending_messages),
    "messages that wait to be confirmed": Bound("16 MB", 16 * MB, awaited_confirmations),
    "changes that wait for Redis": Bound("52 MB", 0, None, OF_EVENTS),
    "rate limits of logins, requests, packets, fresh and bad tokens and passes": Bound(
        "30 MB", 30 * MB, rate_limits
    ),
    "bans": Bound("21 MB, with the longest names and reasons", 21 * MB, bans),
    "in Redis: users online": Bound("329 bytes each", 0, None, OF_EVENTS),
    "in Redis: when users were last seen": Bound("430 bytes with the longest names", 430, seen_users),
    "in Redis: events": Bound("1.7 KB", 0, None, OF_EVENTS),
    "in Redis: subscriptions to watched users": Bound("400 bytes with the longest names", 400, subscriptions),
    "in Redis: rooms, unless `rooms` is off": Bound(
        "650 bytes with one member and the longest names", 650, rooms_in_redis
    ),
    "in Redis: members of rooms, unless `rooms` is off": Bound(
        "220 bytes with the longest uids", 220, members_of_a_room
    ),
    "in Redis: events of rooms, unless `rooms` is off": Bound(
        "280 bytes with the longest names", 280, events_of_rooms
    ),
    "reports on messages of backends": Bound("8 MB", 8 * MB, queued_reports),
    "in Redis: reports on messages of backends": Bound("600 bytes", 600, reports),
    "in Redis: pending follow-ups": Bound("1 GB per shard", GB, followups),
}


def documented() -> dict[str, str]:
    """Return the last cell of each row of the page's table, by its first."""
    section = (
        pages()["docs/security.md"]
        .partition("## What clients can make a server keep")[2]
        .partition("\n## ")[0]
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    return {row[0].strip("| "): row[-1].strip("| ") for row in rows[2:]}


def test_each_documented_bound_has_a_row_here() -> None:
    assert documented().keys() == BOUNDS.keys()


@pytest.mark.parametrize("what", BOUNDS)
def test_the_page_has_the_figure_that_is_measured(what: str) -> None:
    assert BOUNDS[what].figure in documented()[what]


SLOW: Final = {rate_limits, pending_messages, followups, a_session, a_session_in_its_grace}
MEASURED: Final = [
    pytest.param(what, marks=[pytest.mark.nightly] if bound.measure in SLOW else [])
    for what, bound in BOUNDS.items()
    if bound.measure
]


@pytest.mark.parametrize("what", MEASURED)
def test_the_worst_input_stays_within_the_bound(what: str) -> None:
    bound = BOUNDS[what]
    assert bound.measure is not None
    measured = bound.measure()
    share = measured / bound.limit_bytes
    print(f"{what}: {measured:,.0f} bytes, documented {bound.limit_bytes:,.0f}: {share:.0%}")
    assert measured <= bound.limit_bytes


def test_a_bound_that_is_measured_elsewhere_names_a_file() -> None:
    root = Path(__file__).parents[3]
    assert all((root / bound.elsewhere).is_file() for bound in BOUNDS.values() if not bound.measure)
