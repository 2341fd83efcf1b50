"""Connections are derived from the file limit; a limit that is too low is named."""

import resource

import pytest

from presence import files


class FakeLimit:
    """What the process may open, soft and hard."""

    def __init__(self, soft: int, hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda _which, both: setattr(self, "now", both))


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = FakeLimit(1024, 20_000, monkeypatch)
    files.claim(0)
    assert limit.now == (20_000, 20_000)


@pytest.mark.parametrize(("hard", "fit"), [(20_000, 19_000), (1_048_576, 1_047_576), (1024, 960)])
def test_connections_are_the_limit_less_a_reserve(
    hard: int, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLimit(hard, hard, monkeypatch)
    assert files.claim(0) == (hard, fit)
    assert files.claim(500) == (hard, 500)


def test_a_larger_wish_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(1024, 1024, monkeypatch)
    with pytest.raises(files.FileLimitError, match="max_connections: 1000 do not fit"):
        files.claim(1000)


def test_a_limit_with_no_room_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(64, 64, monkeypatch)
    with pytest.raises(files.FileLimitError, match="too low"):
        files.claim(0)
