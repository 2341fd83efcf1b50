"""Answers about several users: the data of one user never spoils the others."""

import json

from presence.protocol import SERVER_FRAME_LIMIT_BYTES, Decoder, Packet
from presence.watching.answers import states_packet
from presence.watching.user_states import WatchedState
from tests.watching.fakes import entry

ANN = entry("ann", 1).state


def told(states: dict[str, WatchedState]) -> Packet:
    decoder = Decoder(SERVER_FRAME_LIMIT_BYTES)
    decoder.feed(states_packet(7, states))
    packet = decoder.next()
    assert packet is not None
    assert packet.id == 7
    return packet


def test_states_are_told_with_what_clients_say() -> None:
    assert told({"ann": ANN._replace(meta='{"a":1}'), "bob": WatchedState("offline")}).payload[
        "presence"
    ] == {
        "ann": {**ANN.shown(), "meta": {"a": 1}},
        "bob": {"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None},
    }


def test_what_is_too_deep_for_an_answer_is_left_out() -> None:
    for depth in (1, 3, 30):
        deep = '{"a":' * depth + "1" + "}" * depth
        states = told({"ann": ANN._replace(meta=deep), "bob": ANN}).payload["presence"]
        assert states["bob"] == ANN.shown()
        assert states["ann"]["id"] == ANN.id
        assert ("meta" in states["ann"]) == (depth < 30)


def test_a_damaged_state_is_unknown() -> None:
    states = told({"ann": ANN._replace(since_ms=-1), "bob": ANN}).payload["presence"]
    assert [states[uid]["status"] for uid in ("ann", "bob")] == ["unknown", "online"]


def test_an_answer_holds_as_much_as_anybody_can_ask_for() -> None:
    said = json.dumps({"a": "x" * 240})
    uids = [f"{number:03}".rjust(128, "u") for number in range(500)]
    states = told({uid: ANN._replace(meta=said) for uid in uids}).payload["presence"]
    assert all("meta" in states[uid] for uid in uids)
