"""A process in which no thread can be started, as at a limit of processes."""

from typing import NoReturn

import pytest
import trio

MESSAGE = "can't start new thread"


def forbid_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each start of a thread fail until `monkeypatch` is undone; trio's idle ones are not used either."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(MESSAGE)

    monkeypatch.setattr("threading.Thread.start", refuse)
    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
