"""Handlers by name: a callable is found, and other names are refused before anything starts."""

import sys
from pathlib import Path

import pytest

from presence.followups.handler_loader import HandlerError, load

MODULE = """
import functools
seen = []
class Shop:
    @staticmethod
    def lapse(followup): seen.append(followup)
    async def __call__(self, followup): pass
shop = Shop()
async def later(followup): pass
async def in_shop(shop, followup): pass
partly = functools.partial(in_shop, "a shop")
def two(a, b): pass
def nothing(): pass
number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders_here.py").write_text(MODULE)
    (tmp_path / "broken_here.py").write_text("import nothing_of_this_name")
    (tmp_path / "raising_here.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])


def test_a_function_in_the_working_directory_is_found_and_called() -> None:
    load("orders_here:Shop.lapse")("a follow-up")
    assert sys.modules["orders_here"].seen == ["a follow-up"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("orders_here", "must be module:function"),
        (":later", "must be module:function"),
        ("not_there:later", "No module named 'not_there'"),
        ("orders_here:sooner", "has no attribute 'sooner'"),
        ("orders_here:number", "is a int, and no function"),
        ("orders_here:two", "cannot be called with a follow-up alone"),
        ("orders_here:nothing", "cannot be called with a follow-up alone"),
        ("orders_here:later", "must be a plain function"),
        ("orders_here:shop", "must be a plain function"),
        ("orders_here:partly", "must be a plain function"),
        ("broken_here:later", "No module named 'nothing_of_this_name'"),
        ("raising_here:later", "ZeroDivisionError"),
    ],
)
def test_names_that_cannot_be_called_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(HandlerError) as refused:
        load(name)
    assert complaint in str(refused.value)
