"""Workers side by side build a folder once; one that fails leaves it to the next."""

import os
from pathlib import Path

import pytest

from tests.support.built_once import built_once


def test_others_get_what_the_first_has_built(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"built-{os.getpid()}"
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")

    def build(root: Path) -> Path:
        (root / "made").write_text("once")
        return root / "made"

    def fails(root: Path) -> Path:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError):
        built_once(tmp_path_factory, name, fails)
    made = built_once(tmp_path_factory, name, build)
    assert made.read_text() == "once"
    assert built_once(tmp_path_factory, name, fails) == made
