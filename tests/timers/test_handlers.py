"""Handlers by name: a callable is found, and other names are refused before anything starts."""

import functools
import math
from pathlib import Path

import pytest

from presence.timers.handlers import HandlerError, RetryLater, handler, load
from presence.timers.interface import Due, TimerError

DUE = Due("e", b"payload", 0, 0, 1)

MODULE = """
seen = []
class Shop:
    @staticmethod
    def lapse(due): seen.append(due.id)
    async def __call__(self, due): seen.append("called")
shop = Shop()
async def later(due): seen.append("later")
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
    found = load("orders_here:Shop.lapse")
    found.call(DUE)
    assert found.function.__globals__["seen"][-1] == "e"
    assert not found.is_async


@pytest.mark.parametrize("name", ["later", "shop"])
def test_an_async_handler_is_recognised(name: str) -> None:
    assert load(f"orders_here:{name}").is_async


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("orders_here", "must be module:function"),
        (":later", "must be module:function"),
        ("not_there:later", "No module named 'not_there'"),
        ("orders_here:sooner", "has no attribute 'sooner'"),
        ("orders_here:number", "is a int, and no function"),
        ("orders_here:two", "cannot be called with an event alone"),
        ("orders_here:nothing", "cannot be called with an event alone"),
        ("broken_here:later", "No module named 'nothing_of_this_name'"),
        ("raising_here:later", "ZeroDivisionError"),
    ],
)
def test_names_that_cannot_be_called_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(HandlerError) as refused:
        load(name)
    assert complaint in str(refused.value)


def test_a_plain_function_that_returns_an_awaitable_is_an_error() -> None:
    async def later(_due: Due) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="async def"):
        handler(lambda due: later(due), "later").call(DUE)  # noqa: PLW0108 - it hides the awaitable


def test_a_partial_of_an_async_function_is_async() -> None:
    async def later(_shop: str, _due: Due) -> None:
        return

    assert handler(functools.partial(later, "shop")).is_async


@pytest.mark.parametrize("delay_s", [1e9, -1.0, math.inf, math.nan])
def test_a_retry_with_an_invalid_delay_is_a_failure(delay_s: float) -> None:
    with pytest.raises(TimerError, match="delay_s"):
        RetryLater(delay_s)
