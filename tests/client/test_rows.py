"""Rows and the older form of states are the same to a program, in answers and in changes, even mixed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence import protocol
from presence.client import PresenceChanged, UserState
from presence.client.pushes import presence_changes, user_states
from presence.protocol import HEADER_BYTES, Kind, Packet, to_row
from tests.client.machine_driver import Driven
from tests.protocol.test_rows import STATES as ANY_STATES

NUMBERS = st.integers(0, 2**53)
IDS = st.none() | st.builds("{}-{}".format, NUMBERS, NUMBERS)
STATES = st.builds(lambda state, id: {**state, "id": id}, ANY_STATES, IDS)
REASONS = st.sampled_from(["login", "logout", "meanwhile", "watched"])


def received(packet: Packet) -> Packet:
    return protocol.decode(protocol.encode(packet)[HEADER_BYTES:])


@given(st.dictionaries(st.sampled_from(["ann", "bob", "eve"]), STATES))
def test_answers_are_the_same_in_both_forms(states: dict[str, Any]) -> None:
    rows = [to_row(uid, state) for uid, state in states.items()]
    newer = received(protocol.ok(1, states=rows)).payload
    assert user_states(newer) == user_states(received(protocol.ok(1, presence=states)).payload)


@given(STATES, REASONS)
def test_changes_are_the_same_in_both_forms(state: dict[str, Any], reason: str) -> None:
    newer = received(protocol.changes([to_row("bob", {**state, "reason": reason})]))
    assert presence_changes(newer) == presence_changes(received(protocol.presence("bob", state, reason)))


def test_the_changes_of_a_packet_are_reported_in_order() -> None:
    driven = Driven()
    driven.log_in()
    driven.receive(protocol.ok(driven.ask(protocol.watch(["ann", "bob"])), states=["ann", "bob"]))
    driven.receive(
        protocol.changes([["bob", "away", 3, 1, 0], ["ann", "online", 1, 2, 0], ["bob", None, 201, 3, 0]])
    )
    assert driven.pushes[1:] == [
        PresenceChanged("bob", UserState("away", id="1-0"), "away"),
        PresenceChanged("ann", UserState("online", id="2-0"), "login"),
        PresenceChanged("bob", UserState("offline", id="3-0", reason="idle_timeout"), "idle_timeout"),
    ]
    driven.receive(protocol.presence("ann", {"status": "away", "id": "4-0"}, "away"))
    assert driven.changes()[-1] == ("ann", "away", "4-0", "away"), "a server may mix them"


@pytest.mark.parametrize(("meta_bytes", "batch"), [(223, True), (224, None), (230, None)])
def test_a_login_says_batch_if_that_leaves_nothing_else_out(meta_bytes: int, batch: bool | None) -> None:
    driven = Driven()
    driven.machine.persistent_state.log_in_with(token="t" * 740, meta={"n": "m" * meta_bytes})
    driven.log_in()
    (login,) = (each for each in driven.sent if each.kind == Kind.LOGIN)
    assert login.payload.get("batch") == batch
    assert "meta" in login.payload
