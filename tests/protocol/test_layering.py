"""The protocol knows bytes and packets, and nothing of the server around it."""

import ast
import sys
from pathlib import Path

import pytest

import protocol

SOURCES = sorted(Path(protocol.__file__).parent.glob("*.py"))
IO_MODULES = {
    "socket",
    "select",
    "selectors",
    "ssl",
    "asyncio",
    "threading",
    "time",
    "datetime",
    "os",
    "logging",
}


def _imported(source: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_imports_only_the_standard_library_and_msgpack(source: Path) -> None:
    assert _imported(source) <= {*sys.stdlib_module_names, "msgpack", "protocol"} - IO_MODULES


def test_something_was_looked_at() -> None:
    assert "msgpack" in set().union(*map(_imported, SOURCES))
