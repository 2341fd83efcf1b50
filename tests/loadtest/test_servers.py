"""What the load tests read of a server's log."""

import pytest

from loadtest.servers import read_entry


def test_an_entry_is_read() -> None:
    assert read_entry('{"event":"stopped","level":"info"}\n') == {"event": "stopped", "level": "info"}


@pytest.mark.parametrize("line", ['{"event":"stopped","le', "Traceback (most recent call last):"])
def test_what_is_no_entry_is_an_error(line: str) -> None:
    assert read_entry(f"{line}\n") == {"event": line, "level": "error"}
