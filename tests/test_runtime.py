"""Calls that hang are abandoned, keep nobody from ending, and have no second one beside them."""

import threading
from collections.abc import Iterator

import pytest
import trio

from presence import runtime
from presence.runtime import Aside, Hanging

PATIENCE_S = 30.0


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make patience short; what waits for the event hangs until it is set, at the latest by the end."""
    monkeypatch.setattr(runtime, "CALL_PATIENCE_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


async def test_while_a_call_hangs_no_other_is_made(stuck: threading.Event) -> None:
    where, made = Aside(), []
    with pytest.raises(Hanging):
        await where.call(stuck.wait)
    with pytest.raises(Hanging):
        await where.call(lambda: made.append(1))
    assert made == []
    stuck.set()
    with trio.fail_after(PATIENCE_S):
        while not made:
            try:
                await where.call(lambda: made.append(1))
            except Hanging:
                await trio.sleep(0.01)


async def test_whoever_waits_for_a_call_that_hangs_can_be_cancelled(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CALL_PATIENCE_S", 1000.0)
    with trio.move_on_after(0.05) as scope:
        await Aside().call(lambda: stuck.wait(PATIENCE_S))
    assert scope.cancelled_caught
    assert not stuck.is_set()
