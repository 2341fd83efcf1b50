"""What a reader expects to find where: the tests of each module, and one meaning for each class name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("presence", "protocol", "benchmarks", "loadtest")
TESTED = ("presence", "protocol")  # what users run; benchmarks and load tests are tools of their own
CLASS = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)
ALIKE = frozenset({"_Pushes"})  # the same thing, with and without waiting
"""Class names that two modules share."""


def modules(*packages: str) -> Iterator[Path]:
    """Return the modules of packages from the top, without the packages' own files."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.startswith("__") and "presence/protocol" not in str(path):
                yield path.relative_to(ROOT)


def named_tests(module: Path) -> list[str]:
    """Return the files that the last paragraph of a module's docstring names as its tests."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text("utf-8"))) or ""
    found = re.search(r"^Tests: ([^\n]+(?:\n[^\n]+)*)\Z", text, re.MULTILINE)
    return re.findall(r"`([^`]+)`", found[1]) if found else []


def place_of_tests(module: Path) -> Path:
    """Return where one looks first for the tests of a module."""
    inside = module.relative_to("presence") if module.parts[0] == "presence" else module
    return Path("tests") / inside.parent / f"test_{inside.name}"


@pytest.mark.parametrize("package", sorted({str(path.parent) for path in modules(*TESTED)}))
def test_each_module_has_a_test_file_of_its_name_or_says_where_its_tests_are(package: str) -> None:
    lost = []
    for module in modules(*TESTED):
        if str(module.parent) == package and not (ROOT / place_of_tests(module)).is_file():
            places = named_tests(module)
            lost += [str(module)] * (not places or not all((ROOT / place).is_file() for place in places))
    assert lost == []


def test_each_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for module in modules(*PACKAGES):
        for name in CLASS.findall((ROOT / module).read_text("utf-8")):
            if name not in ALIKE:
                places[name].append(str(module))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
