"""A short run of the fuzzing of WebSocket; and mistakes planted in the server, which it must find."""

from collections.abc import Callable

import pytest

from presence.transports.websocket import WebSocket
from tests.fuzz.websocket import Finding, fuzz

Plant = Callable[[pytest.MonkeyPatch], None]


async def test_nothing_breaks_the_listener() -> None:
    found = await fuzz(2000, seed=7)
    assert found.inputs >= 2000
    assert {101, 400} <= set(found.statuses)
    assert {1000, 1002, 4310} <= set(found.close_codes)


def an_error(patch: pytest.MonkeyPatch) -> None:
    def fail(self: WebSocket, close_code: int, problem: str) -> None:
        raise RuntimeError("a mistake of ours")

    patch.setattr(WebSocket, "_fail", fail)


def packets_behind_the_close_frame(patch: pytest.MonkeyPatch) -> None:
    encode = WebSocket.encode
    patch.setattr(WebSocket, "encode", lambda self, frames: self.end() + encode(self, frames))


def frames_without_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WebSocket, "encode", lambda _self, frames: bytes(frames))


async def finds() -> bool:
    found = True
    try:
        await fuzz(500, seed=7)
        found = False
    except* Finding:
        pass
    return found


@pytest.mark.parametrize("plant", [an_error, packets_behind_the_close_frame, frames_without_messages])
async def test_a_planted_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert await finds()
