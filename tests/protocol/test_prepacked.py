"""Answers put together of packed states are those that `encode` makes."""

import pytest

import protocol
from protocol import EncodeError
from protocol.prepacked import pack_state, states_answer

ONLINE = {"status": "online", "since_ms": 5, "last_seen_ms": None, "id": "5-0", "meta": {"a": b"\x00"}}
OFFLINE = {"status": "offline", "since_ms": None, "last_seen_ms": 7, "id": None}


@pytest.mark.parametrize("count", [0, 1, 15, 16, 500])
@pytest.mark.parametrize("id", [None, 0, 300])
def test_an_answer_is_the_same_packed_beforehand(count: int, id: int | None) -> None:
    states = {f"user-{number}": ONLINE if number % 3 else OFFLINE for number in range(count)}
    packed = {uid: pack_state(state) for uid, state in states.items()}
    assert states_answer(id, packed) == protocol.encode(protocol.ok(id, presence=states))


@pytest.mark.parametrize("wrong", [{"since_ms": -1}, {"meta": {"a": "x" * 300}}, {"id": 5}, {"status": None}])
def test_a_state_that_no_answer_may_hold_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        pack_state({**ONLINE, **wrong})


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(EncodeError):
        states_answer(1, {f"user-{number}": b"\xc0" * 1000 for number in range(500)})
