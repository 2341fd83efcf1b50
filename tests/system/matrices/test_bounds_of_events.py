"""The bounds of docs/security.md on changes and events, each with the largest input that clients may send.

The outbox is measured by tracemalloc, Redis by its own count and its process by its processor time.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from loadtest.servers import LocalRedis
from presence.core.changes import Change, Op
from presence.core.event_facts import LoginFacts
from presence.core.profiles import Profile
from presence.outbox.batches import BATCH_ITEMS
from presence.outbox.queue import Outbox
from presence.outbox.replies import ReplyStatus
from presence.protocol.constants import (
    CLASS_MAX_BYTES,
    DEVICE_MAX_BYTES,
    META_TEXT_MAX_BYTES,
    UID_MAX_BYTES,
)
from presence.server.node_assembly import OUTBOX_BYTES_PER_ITEM, OUTBOX_MIN_ITEMS
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.watching.user_states import DEVICES_META_MAX_BYTES
from tests.docs.pages import pages
from tests.store.driving import NOW_MS, Hand, end, login, update

ADDRESS: Final = "2001:0db8:85a3:0000:0000:8a2e:0370:7334"
SESSION: Final = "0123456789abcdef"
MAX_SESSIONS: Final = 64  # the largest value of the setting
NODE: Final = "n" * 40
# With more of them no device is shown with its `meta`.
MAX_SHOWN: Final = DEVICES_META_MAX_BYTES // META_TEXT_MAX_BYTES


def padded(number: int, length: int) -> str:
    """Return a name that grows most in JSON: each `"` and `\\` takes two bytes there."""
    return f"{number:06}" + '"' * (length - 6)


def meta(number: int) -> str:
    """Return a text in which all is quotes and backslashes, so that it doubles in JSON."""
    head = f'{{"m":"{number:06}'
    return head + '\\"' * ((META_TEXT_MAX_BYTES - len(head) - 2) // 2) + '"}'


def profile(number: int) -> Profile:
    return Profile("dnd", meta(number), meta(number), LoginFacts(ADDRESS, '"' * CLASS_MAX_BYTES))


@contextmanager
def filled(sessions: int, users: int, *, device_events: bool) -> Iterator[tuple[Any, Hand, list[Any]]]:
    """Start a Redis with users who have so many sessions; return its client, a node and their names."""
    with LocalRedis() as redis:
        shape = Shape(
            Keys(),
            maxlen=1_000_000,
            seen_retention_ms=10**13,
            max_sessions=sessions,
            device_events=device_events,
        )
        store = RedisStore(redis.url, shape)
        hand, numbers = Hand(store, NODE), count()
        assert hand.open().status is ReplyStatus.OK
        names = [
            (padded(user, UID_MAX_BYTES), f"{SESSION}{user}-{device}", padded(device, DEVICE_MAX_BYTES))
            for device in range(sessions)
            for user in range(users)
        ]
        shown = names if not device_events else names[: MAX_SHOWN * users]
        for name in names:
            each = profile(next(numbers))
            hand.apply(login(*name, profile=each if name in shown else each._replace(meta="")))
        yield redis.client, hand, names
        store.close()


class Entries(NamedTuple):
    """A case of the largest entries of a stream."""

    sessions: int
    device_events: bool
    limit_bytes: int  # of an entry, in the memory of Redis
    figure: str  # as the page has it

    def __str__(self) -> str:
        return f"{self.sessions} sessions, device events {'on' if self.device_events else 'off'}"


ENTRIES: Final = (
    Entries(8, False, 1700, "1.7 KB"),
    Entries(MAX_SESSIONS, False, 1700, "1.7 KB"),
    Entries(8, True, 9000, "9 KB"),
    Entries(MAX_SESSIONS, True, 25_000, "25 KB"),
)


def cell(what: str) -> str:
    """Return the last cell of a row of the page."""
    (row,) = [line for line in pages()["docs/security.md"].splitlines() if line.startswith(f"| {what} |")]
    return row.rstrip(" |").rpartition(" | ")[2]


@pytest.mark.parametrize("case", ENTRIES, ids=str)
def test_the_largest_entry_has_the_documented_size(case: Entries) -> None:
    with filled(case.sessions, 1, device_events=case.device_events) as (client, hand, names):
        key, latest, other = Keys().events(0), names[0], (padded(9, UID_MAX_BYTES), SESSION, names[0][2])
        invisible = [profile(1000 + number)._replace(status="invisible") for number in range(200)]
        makers = {
            "updates": [[update(*latest, profile=each)] for each in invisible],
            "devices": [
                [end(*names[0], at_ms=NOW_MS + n), login(*names[0], profile=each)]
                for n, each in enumerate(invisible)
            ],
            "users": [
                [login(*other, profile=each), end(*other, at_ms=NOW_MS + n)]
                for n, each in enumerate(invisible)
            ],
        }
        measured = 0.0
        for changes in makers.values():
            client.delete(key)
            for each in changes:
                hand.apply(*each)
            if (entries := client.xlen(key)) >= len(changes):
                measured = max(measured, client.memory_usage(key, samples=0) / entries)
        print(f"{case}: {measured:,.0f} bytes an entry, documented {case.limit_bytes:,}")
        assert measured <= case.limit_bytes
        assert case.figure in cell("in Redis: events")


def test_a_record_has_the_documented_size() -> None:
    users = 20
    with filled(8, users, device_events=False) as (client, _, names):
        keys = Keys()
        kept = sum(client.memory_usage(key, samples=0) for key in (keys.online(0), keys.sessions(0, NODE)))
        measured = kept / len(names)
        print(f"a session on record: {measured:,.0f} bytes, documented 3,500")
        assert measured <= 3500
        assert "3.5 KB per session" in cell("in Redis: users online")


@pytest.mark.parametrize("shards", [1, 16])
def test_a_full_outbox_takes_what_is_documented(shards: int) -> None:
    """Fill it with the longest texts: with one emoji Python takes four bytes for each character."""
    limit = OUTBOX_BYTES_PER_ITEM * OUTBOX_MIN_ITEMS
    filled_shard = 0
    outbox = Outbox(lambda _uid: filled_shard, shards, max_items=OUTBOX_MIN_ITEMS, max_bytes=limit)
    emoji, number = "\N{GRINNING FACE}", 0

    def text(length: int) -> str:
        return emoji + f"{number:06}" + "x" * (length - 10)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        while filled_shard < shards:
            at_ms = 1_700_000_000_000 + number
            facts = LoginFacts(ADDRESS, "c" * 32)
            shown = Profile("dnd", text(META_TEXT_MAX_BYTES), text(META_TEXT_MAX_BYTES), facts)
            outbox.append(
                Change(
                    Op.UPDATE,
                    text(UID_MAX_BYTES),
                    text(DEVICE_MAX_BYTES),
                    f"{SESSION}{number}",
                    5,
                    number + 0.5,
                    at_ms,
                    at_ms + 1,
                    30_000,
                    shown,
                )
            )
            number += 1
            filled_shard += outbox.logs[filled_shard].overflow.is_skipping
        measured = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    documented = 52e6 if shards == 1 else 65e6
    print(f"a full outbox of {shards} shards: {measured / 1e6:.1f} MB, documented {documented / 1e6:.0f}")
    assert measured <= documented
    figure = cell("changes that wait for Redis")
    assert "52 MB" in figure
    assert "65 MB with several shards" in figure


class Block(NamedTuple):
    """A case of the longest call of a batch."""

    op: Op  # of all its changes: each user's first session is updated, or ends
    sessions: int
    device_events: bool
    users: int
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.op.value}, {self.users} users with {self.sessions} sessions"


BLOCKS: Final = (
    Block(Op.UPDATE, 1, False, BATCH_ITEMS, 20.0),
    Block(Op.UPDATE, 8, False, 64, 20.0),
    Block(Op.UPDATE, 8, False, BATCH_ITEMS, 20.0),
    Block(Op.UPDATE, MAX_SESSIONS, True, 1, 50.0),
    Block(Op.UPDATE, MAX_SESSIONS, True, 8, 50.0),
    Block(Op.UPDATE, MAX_SESSIONS, True, 140, 50.0),
    Block(Op.END, 8, False, BATCH_ITEMS, 50.0),
    Block(Op.END, MAX_SESSIONS, True, 140, 50.0),
)


def processor_ms_of(client: Any) -> Callable[[], float]:
    """Return a reader of the processor time of the thread of Redis that runs scripts."""
    pid = client.info("server")["process_id"]
    statistics = Path(f"/proc/{pid}/task/{pid}/schedstat")
    return lambda: int(statistics.read_text("ascii").split()[0]) / 1e6


def changes_of(case: Block, names: list[Any], round: int) -> Iterator[Change]:
    for number in range(BATCH_ITEMS):
        name = names[number % case.users]
        if case.op is Op.UPDATE:
            yield update(*name, profile=profile(1000 * round + number))
        elif number < case.users:
            yield end(*names[case.users * round + number])


@pytest.mark.nightly
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_a_batch_of_users_with_the_largest_records_holds_redis_for_a_few_milliseconds(case: Block) -> None:
    with filled(case.sessions, case.users, device_events=case.device_events) as (client, hand, names):
        spent_ms, longest = processor_ms_of(client), list[float]()
        for round in range(5):
            outbox = Outbox(lambda _uid: 0, 1, max_items=BATCH_ITEMS)
            for change in changes_of(case, names, round):
                outbox.append(change)
            calls, changes = list[float](), list[Change]()
            while changes := changes or outbox.logs[0].take(BATCH_ITEMS):
                before = spent_ms()
                reply = hand.apply(*changes)
                calls.append(spent_ms() - before)
                if reply.status is ReplyStatus.HEAVY:  # as a `ShardWriter` does
                    before = spent_ms()
                    assert hand.apply(*changes[: reply.fitting]).status is ReplyStatus.OK
                    calls.append(spent_ms() - before)
                    changes = changes[reply.fitting :]
                else:
                    assert reply.status is ReplyStatus.OK
                    changes = []
            longest.append(max(calls))
    # A busy machine makes memory slower, not faster: the quietest round counts.
    print(f"{case}: {min(longest):.1f} ms, documented {case.limit_ms:.0f}")
    assert min(longest) <= case.limit_ms
