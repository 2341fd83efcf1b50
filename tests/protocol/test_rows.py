"""Rows: the vectors, and a row holds exactly the state that it was made of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.protocol import Code, decode, encode, from_row, ok, to_row
from tests.protocol.test_round_trip import META, UIDS, UINTS
from tests.protocol.vectors import ROWS, StateOfRow

TIMES = st.none() | st.integers(0, 2**53)
STATES = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["online", "away", "offline", "unknown", "asleep"]),
        "since_ms": TIMES,
        "last_seen_ms": TIMES,
        # With a larger first number the times, which are counted from it, would not fit into 64 bits.
        "id": st.none() | st.builds("{}-{}".format, st.integers(0, 2**63 - 1), UINTS),
    },
    optional={
        "reason": st.sampled_from([code.reason for code in Code]) | st.just("teleported"),
        "meta": META,
        "devices": st.lists(st.builds(lambda at: {"device": "a", "status": "dnd", "since_ms": at}, UINTS)),
    },
)


def through_a_packet(row: Any) -> Any:
    return decode(encode(ok(None, states=[row]))[4:]).payload["states"][0]


@pytest.mark.parametrize("vector", ROWS, ids=lambda vector: vector.name)
def test_a_row_of_the_vectors_gives_its_state(vector: StateOfRow) -> None:
    assert from_row(through_a_packet(vector.row)) == (vector.uid, vector.state)


@given(UIDS, STATES)
def test_a_row_holds_the_state_that_it_was_made_of(uid: str, state: dict[str, Any]) -> None:
    assert from_row(through_a_packet(to_row(uid, state))) == (uid, state)


@pytest.mark.parametrize(
    ("state", "row"),
    [
        ({"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None}, "ann"),
        ({"status": "not_allowed"}, ["ann", "not_allowed"]),
        ({"status": "online", "since_ms": 7, "id": "9-0"}, ["ann", "online", None, 9, 0, -2]),
        ({"status": "online", "id": "9"}, ["ann", "online"]),
        ({"status": "offline", "reason": "idle_timeout"}, ["ann", None, 201]),
    ],
)
def test_the_shortest_row_of_a_state(state: dict[str, Any], row: Any) -> None:
    assert to_row("ann", state) == row
