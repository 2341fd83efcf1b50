"""The verdict of `loadtest.check` on a run."""

from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from loadtest import check
from loadtest.processes import LocustReport, LocustRow

SILENCES = {("event", "offline idle_timeout"): LocustRow(requests=100)}
ARGUMENTS = Namespace(users=100, seconds=10.0, idle_timeout=10.0, workers=1, processes=1)


@pytest.mark.parametrize(
    ("rows", "status", "errors", "passes"),
    [
        (SILENCES, 0, [], True),
        (SILENCES, 1, [], False),
        ({}, 0, [], False),  # no silence was found
        (SILENCES, 0, ["KeyError: 'ann'"], False),
    ],
)
def test_a_run_passes_without_failures_and_errors_and_with_silences(
    monkeypatch: pytest.MonkeyPatch,
    rows: dict[tuple[str, str], LocustRow],
    status: int,
    errors: list[str],
    passes: bool,
) -> None:
    server = SimpleNamespace(host="127.0.0.1:1", redis_url="", failures=lambda: errors)
    monkeypatch.setattr(check, "PresenceServer", lambda *_, **__: nullcontext(server))
    monkeypatch.setattr(check, "run_locust", lambda *_, **__: LocustReport(status, rows, [], []))
    assert check.check_run(ARGUMENTS) is passes
