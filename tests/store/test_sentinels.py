"""The watch over connections to a primary that Sentinels name; tests/system/store/ has real Sentinels."""

import socket

import pytest

from presence.common.threads import NoThread
from presence.store.sentinels import Sentinels
from tests.support.no_threads import forbid_threads


def test_a_connection_that_no_thread_can_watch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinels = Sentinels("primary", [])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with monkeypatch.context() as context:
            forbid_threads(context)
            with pytest.raises(NoThread):
                sentinels.watch(ours, ("127.0.0.1", 1))
        sentinels.watch(ours, ("127.0.0.1", 1))
