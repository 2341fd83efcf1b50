"""Loading of script sources."""

from pathlib import Path

import pytest

from presence.store import script_runner

FOLDER = Path(script_runner.__file__).parent / "scripts"


def test_scripts_are_read_on_import_and_not_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("an upgrade may have changed the files since")

    shard, records, forget, lease = (
        (FOLDER / f"{name}.lua").read_text() for name in ("lib/shard", "lib/record_cache", "forget", "lease")
    )
    monkeypatch.setattr(Path, "read_text", refuse)
    assert script_runner.source.__wrapped__("forget") == shard + records + forget
    assert script_runner.source.__wrapped__("lease") == lease
