"""Checks of the code besides its tests; that of its types is in tests/system, with all that it needs."""

import graphlib
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["lint-imports", "--no-cache"],
    ],
    ids=["lint", "format", "layers"],
)
def test_check_passes(command: list[str]) -> None:
    program = Path(sys.executable).with_name(command[0])
    run = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_import_graph_has_no_cycles() -> None:
    graph = grimp.build_graph("presence", "benchmarks", "loadtest", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert "presence.server.node_assembly" in imports["presence.server.server"]
    graphlib.TopologicalSorter(imports).prepare()  # raises with the cycle, if there is one


def test_an_import_against_the_layers_is_found(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "presence", tmp_path / "presence", ignore=shutil.ignore_patterns("clients", "page")
    )
    for package in ("benchmarks", "loadtest", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "presence" / "core" / "wheel.py").open("a") as planted:
        planted.write("\nfrom presence.store import keys\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--contract", "packages"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "presence.core.wheel -> presence.store.keys" in run.stdout
