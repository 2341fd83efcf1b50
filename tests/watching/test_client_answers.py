"""Answers about several users: the data of one user never affect the others."""

import json

from presence.protocol import SERVER_FRAME_LIMIT_BYTES, Decoder, Packet
from presence.watching.client_answers import states_packet
from presence.watching.user_states import WatchedState
from tests.watching.fakes import entry

ANN = entry("ann", 1).state


def answer(states: dict[str, WatchedState]) -> Packet:
    decoder = Decoder(SERVER_FRAME_LIMIT_BYTES)
    decoder.feed(states_packet(7, states))
    packet = decoder.next()
    assert packet is not None
    assert packet.id == 7
    return packet


def test_states_include_what_clients_set() -> None:
    assert answer({"ann": ANN._replace(meta='{"a":1}'), "bob": WatchedState("offline")}).payload[
        "presence"
    ] == {
        "ann": {**ANN.shown(), "meta": {"a": 1}},
        "bob": {"status": "offline", "since_ms": None, "last_seen_ms": None, "id": None},
    }


def test_meta_too_deep_for_an_answer_are_left_out() -> None:
    for depth in (1, 3, 30):
        deep = '{"a":' * depth + "1" + "}" * depth
        states = answer({"ann": ANN._replace(meta=deep), "bob": ANN}).payload["presence"]
        assert states["bob"] == ANN.shown()
        assert states["ann"]["id"] == ANN.id
        assert ("meta" in states["ann"]) == (depth < 30)


def test_a_damaged_state_is_unknown() -> None:
    states = answer({"ann": ANN._replace(since_ms=-1), "bob": ANN}).payload["presence"]
    assert [states[uid]["status"] for uid in ("ann", "bob")] == ["unknown", "online"]


def test_an_answer_has_room_for_the_largest_request() -> None:
    meta = json.dumps({"a": "x" * 240})
    uids = [f"{number:03}".rjust(128, "u") for number in range(500)]
    states = answer({uid: ANN._replace(meta=meta) for uid in uids}).payload["presence"]
    assert all("meta" in states[uid] for uid in uids)
