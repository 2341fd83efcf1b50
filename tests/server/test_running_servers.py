"""How commands find a server: its announcement never ends the server."""

import errno
import os

import pytest
from structlog.testing import capture_logs

from presence.config.settings import Settings
from presence.server import running_servers
from presence.server.running_servers import Announcement


@pytest.mark.parametrize("lack", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), MemoryError()], ids=repr)
def test_a_server_that_cannot_be_announced_goes_on(monkeypatch: pytest.MonkeyPatch, lack: Exception) -> None:
    def refuse() -> None:
        raise lack

    monkeypatch.setattr(running_servers, "RuntimeDirectory", refuse)
    announcement = Announcement(Settings(), "redis://127.0.0.1:1", None)
    with capture_logs() as lines:
        announcement("127.0.0.1", 1)
        announcement.withdraw()
    assert [line["event"] for line in lines] == ["commands cannot find this server"]
