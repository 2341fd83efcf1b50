"""Two real servers on one Redis without a control channel."""

import pytest
import structlog

from presence.common.errors import StoreUnavailable
from presence.store.control_channel import ControlChannel
from presence.store.embedded import EmbeddedRedis
from tests.server.test_control_listener import serving

INBOX_S = 2.5 + 0.5  # a probe's interval, and what a busy machine takes


async def test_without_a_channel_the_inbox_tells(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ControlChannel, node: str) -> None:
        raise StoreUnavailable("broken by the test")

    monkeypatch.setattr(ControlChannel, "subscribe", fail)
    with structlog.testing.capture_logs() as logs:
        async with serving(redis_server) as pair:
            seconds = await pair.displace(await pair.log_in(0))
    print(f"the same by the inbox alone: {seconds:.2f} s")
    assert seconds < INBOX_S
    lost = [line for line in logs if line["event"] == "control channel lost"]
    assert len(lost) == 2, "each server says so once, however often it tries"
