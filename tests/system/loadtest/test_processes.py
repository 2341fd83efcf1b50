"""Locust that fails or does not end."""

from pathlib import Path

import pytest

from loadtest import processes
from loadtest.processes import LocustFailed, LocustRun


def test_locust_without_a_report_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    with (
        LocustRun("127.0.0.1:1", "", "--no-events", users=1, seconds=1, locustfile=broken) as run,
        pytest.raises(LocustFailed, match="ended with status 1 and left no report"),
    ):
        run.report()


def test_locust_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_TIMEOUT_S", 0.0)
    endless = tmp_path / "endless.py"
    endless.write_text("import time\ntime.sleep(600)\n")
    with LocustRun("127.0.0.1:1", "", users=1, seconds=0.1, locustfile=endless) as run:
        with pytest.raises(LocustFailed, match="does not end"):
            run.report()
        assert not run.has_ended
    assert run.has_ended
