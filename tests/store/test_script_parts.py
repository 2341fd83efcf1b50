"""The shared parts of scripts say which names they take from others, and which they give."""

import re

import pytest

from presence.store import script_runner
from tests.support.lua_names import declares, free_names

TEXTS = script_runner._TEXTS
PARTS = sorted(name for name in TEXTS if name.startswith("lib/") or name.endswith("/prelude"))


def provided(name: str) -> list[str]:
    return " ".join(re.findall(r"^-- provides: (.*)$", TEXTS[name], re.MULTILINE)).split()


def required(name: str) -> list[str]:
    found = re.match(r"-- requires: (.*)\n", TEXTS[name])
    return [f"lib/{part}" for part in found[1].split()] if found else []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_each_name_that_a_script_uses_is_its_own_or_provided_by_what_it_requires(name: str) -> None:
    sources = required(name) or script_runner.parts_before(name)
    assert free_names(TEXTS[name]) <= {each for part in sources for each in provided(part)}


@pytest.mark.parametrize("name", PARTS)
def test_each_provided_name_is_a_local_that_others_use(name: str) -> None:
    users = [TEXTS[other] for other in TEXTS if name in script_runner.parts_before(other)]
    used = set().union(*map(free_names, users))
    assert [each for each in provided(name) if not declares(TEXTS[name], each) or each not in used] == []


@pytest.mark.parametrize("name", [name for name in sorted(TEXTS) if required(name)])
def test_each_required_part_is_used(name: str) -> None:
    names = free_names(TEXTS[name])
    assert [part for part in required(name) if names.isdisjoint(provided(part))] == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_each_argument_becomes_a_local_where_it_is_read(name: str) -> None:
    lines = [line for line in TEXTS[name].splitlines() if re.search(r"\bARGV\b", line.partition("--")[0])]
    assert [line for line in lines if not line.startswith("local ") or "redis." in line] == []


@pytest.mark.parametrize(
    "name", [name for name in sorted(TEXTS) if re.search("^-- from ", TEXTS[name], re.MULTILINE)]
)
def test_a_head_that_lists_names_by_part_lists_those_that_the_script_uses(name: str) -> None:
    listed: dict[str, list[str]] = {}
    for part, names in re.findall(r"^-- from (\w+): (.*)$", TEXTS[name], re.MULTILINE):
        listed.setdefault(f"lib/{part}", []).extend(names.split())
    names = free_names(TEXTS[name])
    assert {part: set(each) for part, each in listed.items()} == {
        part: names.intersection(provided(part)) for part in required(name)
    }
