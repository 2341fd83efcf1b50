"""The states of a consumer's entries: each method moves an entry as the table of the module says."""

import re
from collections import defaultdict
from collections.abc import Callable

import pytest

from presence.subscriber import group_entries
from presence.subscriber.events import Entry, Gap
from presence.subscriber.group_entries import EntryState, GroupEntries, Listed

SHARD = 3
KEY = (SHARD, "5-0")
ENTRY = Entry(*KEY, {})
LISTED = Listed(*KEY, 1000)
LATER = Entry(SHARD, "6-0", {})
MOST = 5  # deliveries
Move = Callable[[GroupEntries], object]


def take_back(entries: GroupEntries) -> None:
    entries.take_back(MOST)


def hand_out(entries: GroupEntries, entry: Entry = ENTRY) -> None:
    entries.add([entry], 0.0)
    entries.take({SHARD})
    entries.hand_out()


def refused(until: float | None, entry: Entry = ENTRY) -> Move:
    def refuse(entries: GroupEntries) -> None:
        hand_out(entries, entry)
        entries.refuse(KEY, until, None)

    return refuse


def taken(entries: GroupEntries) -> None:
    entries.add([ENTRY], 0.0)
    entries.take({SHARD})


def overdue(entries: GroupEntries) -> None:
    hand_out(entries)
    entries.found([LISTED])


def delayed(entries: GroupEntries) -> None:
    refused(60.0)(entries)
    take_back(entries)


# The ways into each state
WAYS: dict[EntryState | None, list[Move]] = {
    None: [lambda _: None],
    EntryState.LISTED: [lambda entries: entries.found([LISTED])],
    EntryState.AHEAD: [lambda entries: entries.add([ENTRY], 0.0)],
    EntryState.TAKEN: [taken],
    EntryState.HANDED_OUT: [hand_out],
    EntryState.OVERDUE: [overdue],
    EntryState.REFUSED: [refused(None), refused(60.0), refused(None, ENTRY._replace(deliveries=MOST))],
    EntryState.DELAYED: [delayed],
}
MOVES: list[tuple[str, Move]] = [
    ("found", lambda entries: entries.found([LISTED])),
    ("claimed", lambda entries: entries.claimed([LISTED], [ENTRY], 0.0)),
    ("claimed", lambda entries: entries.claimed([LISTED], [], 0.0)),
    ("take", lambda entries: entries.take({SHARD})),
    ("take", lambda entries: entries.take({SHARD + 1})),
    ("hand_out", lambda entries: entries.hand_out()),
    ("put_back", lambda entries: entries.put_back([KEY])),
    ("settle", lambda entries: entries.settle(KEY)),
    ("refuse", lambda entries: entries.refuse(KEY, None, "why")),
    ("take_back", take_back),
    ("end_delays", lambda entries: entries.end_delays(60.0)),
    ("end_delays", lambda entries: entries.end_delays(59.0)),
    ("keep", lambda entries: entries.keep({KEY}, 0.0)),
    ("keep", lambda entries: entries.keep({}, 0.0)),
]
# What cannot be called in every state: a new entry is unknown, and what is skipped was taken.
ADD: list[tuple[str, Move]] = [("add", lambda entries: entries.add([ENTRY], 0.0))]
SKIP: list[tuple[str, Move]] = [("skip", lambda entries: entries.skip(ENTRY))]


def table() -> dict[tuple[str, str], set[str]]:
    """Return the table of the module: to which states a method moves an entry from a state."""
    found: dict[tuple[str, str], set[str]] = {}
    state = ""
    for row in re.findall(r"^\|(.*)\|$", group_entries.__doc__ or "", re.MULTILINE)[2:]:
        name, _, method, to = (cell.strip() for cell in row.split("|"))
        state = name or state
        found[state, method.strip("`")] = set(re.findall(r"\b[A-Z]{3,}_?[A-Z]+\b|unknown", to.split(":")[0]))
    return found


def name_of(state: EntryState | None) -> str:
    return state.name if state else "unknown"


def test_each_method_moves_an_entry_as_the_table_says() -> None:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for state, ways in WAYS.items():
        for way in ways:
            for method, move in MOVES + ADD * (state is None) + SKIP * (state is EntryState.TAKEN):
                entries = GroupEntries()
                way(entries)
                assert entries.states().get(KEY) is state
                move(entries)
                if (to := entries.states().get(KEY)) is not state:
                    found[name_of(state), method].add(name_of(to))
    assert found == table()


@pytest.mark.parametrize(
    ("way", "kept"),
    [(ways[0], state) for state, ways in WAYS.items()],
    ids=[name_of(state) for state in WAYS],
)
def test_a_stop_keeps_what_the_program_has_if_it_may_still_settle_it(
    way: Move, kept: EntryState | None
) -> None:
    entries = GroupEntries()
    way(entries)
    entries.put_back()
    entries.clear(keeps_handed_out=True)
    has_it = kept in {EntryState.HANDED_OUT, EntryState.OVERDUE}
    assert (entries.settle(KEY) is not None) is has_it
    way(entries)
    entries.clear(keeps_handed_out=False)
    assert entries.settle(KEY) is None


@pytest.mark.parametrize("way", [WAYS[EntryState.LISTED][0], overdue], ids=["listed", "overdue"])
def test_nothing_is_taken_while_an_older_entry_of_the_shard_is_to_be_claimed(way: Move) -> None:
    entries, elsewhere = GroupEntries(), Entry(SHARD + 1, "7-0", {})
    way(entries)
    entries.add([LATER, elsewhere], 0.0)
    assert entries.take({SHARD, SHARD + 1}) == elsewhere
    assert not entries.has_next({SHARD, SHARD + 1})
    entries.claimed(entries.oldest_listed({SHARD}, 10), [ENTRY], 0.0)
    assert [entries.take({SHARD}) for _ in range(3)] == [ENTRY, LATER, None]


@pytest.mark.parametrize("end", ["settle", "refuse"])
def test_the_end_of_a_slow_handler_lets_the_next_entry_be_taken(end: str) -> None:
    entries = GroupEntries()
    overdue(entries)
    entries.add([LATER], 0.0)
    dict(MOVES)[end](entries)
    assert entries.take({SHARD}) == LATER


@pytest.mark.parametrize(("end", "state"), [("settle", None), ("refuse", EntryState.REFUSED)])
def test_what_is_settled_during_the_claim_of_a_slow_handlers_entry_stays_so(
    end: str, state: EntryState | None
) -> None:
    entries = GroupEntries()
    overdue(entries)
    tried = entries.oldest_listed({SHARD}, 10)
    dict(MOVES)[end](entries)
    entries.claimed(tried, [ENTRY], 0.0)
    assert entries.states().get(KEY) is state


def test_a_gap_comes_after_the_entry_with_its_id_and_gaps_of_a_claim_are_one() -> None:
    entries = GroupEntries()
    gaps = [Gap(SHARD, entry_id, "trimmed", dropped=1) for entry_id in ("4-0", "5-0")]
    lost = Gap(SHARD, "6-0", "lost_writes")
    listed = [Listed(SHARD, gap.id) for gap in gaps]
    entries.found(listed)
    entries.claimed(listed, gaps, 0.0)
    entries.add([lost, LATER], 0.0)
    merged = Gap(SHARD, "4-0", "trimmed", dropped=2)
    assert [entries.take({SHARD}) for _ in range(4)] == [merged, LATER, lost, None]


def test_the_oldest_entries_of_some_shards_are_to_be_claimed_first() -> None:
    entries = GroupEntries()
    ids = [(SHARD, "10-0"), (SHARD, "9-1"), (SHARD + 1, "1-0"), (SHARD + 2, "9-0")]
    entries.found([Listed(*each) for each in ids])
    assert entries.oldest_listed({SHARD, SHARD + 2}, 2) == [Listed(SHARD + 2, "9-0"), Listed(SHARD, "9-1")]


@pytest.mark.parametrize(("first", "then", "known"), [(None, 7, 7), (7, None, 7), (7, 8, 7)])
def test_what_was_its_own_may_be_found_again_as_free(first: int | None, then: int | None, known: int) -> None:
    entries = GroupEntries()
    for min_idle_ms in (first, then):
        entries.found([Listed(*KEY, min_idle_ms)])
    assert entries.oldest_listed({SHARD}, 1) == [Listed(*KEY, known)]


@pytest.fixture
def put_back() -> GroupEntries:
    """Return two entries that are AHEAD again: one that was TAKEN, and one that never reached the program."""
    entries = GroupEntries()
    hand_out(entries)
    entries.add([LATER], 0.0)
    entries.take({SHARD})
    entries.put_back([KEY])
    return entries


def test_what_was_put_back_is_perhaps_counted_until_it_is_handed_out(put_back: GroupEntries) -> None:
    assert put_back.perhaps_counted() == {KEY: ENTRY, (SHARD, LATER.id): LATER}
    put_back.take({SHARD})
    put_back.hand_out()
    put_back.found([LISTED])
    put_back.claimed([LISTED], [ENTRY], 0.0)
    assert put_back.states()[KEY] is EntryState.AHEAD
    assert put_back.perhaps_counted() == {(SHARD, LATER.id): LATER}


def test_what_another_consumer_has_taken_over_is_not_perhaps_counted(put_back: GroupEntries) -> None:
    put_back.keep({}, 0.0)
    put_back.add([ENTRY, LATER], 0.0)
    assert put_back.perhaps_counted() == {}


@pytest.mark.parametrize(
    ("way", "renewed_at"),
    [(WAYS[None][0], 9.0), (WAYS[EntryState.AHEAD][0], 1.0), (delayed, 1.0), (hand_out, 9.0)],
    ids=["nothing", "ahead", "delayed", "handed out"],
)
def test_a_read_renews_nothing_that_is_ahead_or_delayed(way: Move, renewed_at: float) -> None:
    entries = GroupEntries()
    way(entries)
    entries.renewed_at = 1.0
    entries.add([LATER], 9.0)
    assert entries.renewed_at == renewed_at


def test_what_was_refused_with_a_delay_is_to_be_renewed_immediately() -> None:
    entries = GroupEntries()
    entries.renewed_at = 5.0
    delayed(entries)
    assert entries.renewed_at < 0
    assert entries.renewable() == [KEY]


def test_more_than_some_delayed_entries_are_left_to_their_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_entries, "MAX_DELAYED", 1)
    entries = GroupEntries()
    delayed(entries)
    hand_out(entries, LATER)
    entries.refuse((SHARD, LATER.id), 60.0, None)
    take_back(entries)
    assert entries.states() == {KEY: EntryState.DELAYED}
