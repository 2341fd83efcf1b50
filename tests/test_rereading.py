"""What a server tells of its settings when it is to read its files again."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from presence.config import Loaded, load
from presence.rereading import tell_changes


def told(flags: Mapping[str, object], load_again: Callable[[], Loaded]) -> list[Any]:
    with capture_logs() as lines:
        tell_changes(load(flags, {}).settings, load_again)
    return list(lines)


def test_settings_that_are_as_they_were_are_not_spoken_of() -> None:
    assert told({"tick": "2"}, lambda: load({"tick": "2"}, {})) == []


def test_settings_that_changed_are_named_and_not_shown() -> None:
    secret = "redis://u:s3cret@h"
    (line,) = told({}, lambda: load({"redis": secret, "tick": "2"}, {}))
    assert (line["log_level"], line["settings"]) == ("warning", ["tick", "redis"])
    assert "s3cret" not in str(line)


@pytest.mark.parametrize("bad", [{"tick": "x"}, {"config": "/nowhere"}])
def test_settings_that_became_bad_are_told_and_change_nothing(bad: dict[str, object]) -> None:
    (line,) = told({}, lambda: load(bad, {}))
    assert line["log_level"] == "error"
    assert len(line["problems"]) == 1
