"""What `presence client` prints about other users, and where its token comes from."""

import os
from pathlib import Path

import pytest

from presence.cli import client as command
from presence.cli.client import push_lines, state_line
from presence.client import Delivered, Dropped, RoomChanged, RoomState, UserState, WatchEnded
from presence.config.loader import load

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (UserState("offline"), "bob is offline, never seen or long ago"),
        (UserState("unknown", 1_700_000_000_123), "bob is unknown"),
        (UserState("online", 10**30), f"bob is online since {10**30} ms"),
        (
            UserState("online", meta={"status": "at\nlunch", "app": 2}),
            "bob is online, status: at lunch, app: 2",
        ),
    ],
)
def test_a_state_is_one_line(state: UserState, line: str) -> None:
    assert state_line("bob", state) == line


def test_the_end_of_a_watch_names_the_users_and_the_reason() -> None:
    push = WatchEnded(("ann", "bob"), 315, "too_large", "too many watches")
    assert push_lines(push) == ["watch ended: ann bob: too_large (315) too many watches"]


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (RoomState(0, frozenset()), "lobby has 0 members"),
        (RoomState(1), "lobby has 1 member"),
        (RoomState(3, frozenset({"cy", "ann"})), "lobby has 3 members: ann cy"),
        (None, "watch of lobby ended"),
    ],
)
def test_a_room_is_one_line(state: RoomState | None, line: str) -> None:
    assert push_lines(RoomChanged("lobby", state, frozenset(), frozenset())) == [line]


def test_dropped_pushes_are_shown() -> None:
    assert push_lines(Dropped("messages", 3)) == [
        "dropped, because they were not read in time: 3 of messages"
    ]


def test_control_characters_from_other_users_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for text in push_lines(Delivered("bob\x1b[2J", "one\r\x07\ntwo\x9b", 1)):
        command._print_line(text)
    lines = [each[10:] for each in capsys.readouterr().out.splitlines()]
    assert lines == [r"bob\u{1b}[2J: one\u{d}\u{7}", r"bob\u{1b}[2J: two\u{9b}"]


def test_a_token_comes_from_a_file_standard_input_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of a file\n")
    source = command._token(f"@{tmp_path / 'token'}")
    assert callable(source)
    (tmp_path / "token").write_text("of another\n")
    assert source() == "of another", "the file is read whenever a token is needed"
    reading, writing = os.pipe()
    monkeypatch.setattr(command, "STDIN", reading)
    os.write(writing, b"of input\n/quit\n")
    assert command._token("-") == "of input"
    assert os.read(reading, 100) == b"/quit\n"
    os.close(reading)
    os.close(writing)
    assert command._token(None) is None
    monkeypatch.setenv("PRESENCE_TOKEN", "of a variable")
    assert command._token(None) == "of a variable"
    assert load({}).settings == load({}, {}).settings, "the variable is not a setting"
