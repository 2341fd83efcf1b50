"""What the comparison reads from records."""

import json

import pytest

from presence.rooms.comparison import is_in, rooms_in


def record(**sessions: dict[str, object]) -> bytes:
    full = {device: {"session": "s", "node": "n", "login_ms": 1, **each} for device, each in sessions.items()}
    return json.dumps({"id": "1-0", "since_ms": 1, "sessions": full}, separators=(",", ":")).encode()


@pytest.mark.parametrize("room", ["lobby", "lob", 'a"b', "a\\b", "a/b", "größe", "rooms"])
def test_a_room_is_found_whatever_its_name(room: str) -> None:
    found = record(phone={"rooms": f"game {room} yard"}, tablet={"meta": '{"rooms":"other"}'})
    assert is_in(found, room.encode())
    assert not is_in(found, b"other")
    assert not is_in(found, b"obby")
    assert room.encode() in rooms_in(found)[1]


def test_the_rooms_of_all_sessions_count_once() -> None:
    found = record(phone={"rooms": "game lobby"}, tablet={"rooms": "lobby yard", "status": "busy"})
    assert rooms_in(found) == (b"b", [b"game", b"lobby", b"yard"])
    assert is_in(found, b"yard")


def test_a_record_that_is_damaged_has_no_rooms() -> None:
    assert rooms_in(b"{") == (b"-", [])
    assert not is_in(b"", b"lobby")
