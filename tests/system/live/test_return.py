"""500 clients of the library lose their server, notice, and come back; nobody is told of it."""

import signal
import time

import pytest
import trio

from presence.client import Connected, Disconnected, connect
from presence.embedded import EmbeddedRedis
from tests.live.events import assert_alternation, of_type, read_events
from tests.live.server_process import ServerProcess
from tests.waiting import until

CLIENTS = 500
T = 2.0
BEAT_S = 0.4 * T
SLACK = 0.35  # intervals, 0.28 s: 500 clients in one process on a busy machine
FLAGS = ("--idle-timeout", str(T), "--tick", "0.5")


class Member:
    """One client: how often it came online, and when and why it noticed a loss."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.logins = 0
        self.lost: list[tuple[float, str]] = []

    async def live(self, address: tuple[str, int]) -> None:
        host, port = address
        async with connect(host, port, uid=self.uid, wait=False) as client:
            async for push in client:
                if isinstance(push, Connected):
                    self.logins += 1
                elif isinstance(push, Disconnected) and len(self.lost) < self.logins:
                    self.lost.append((time.monotonic(), push.reason))


@pytest.mark.alone
async def test_a_stopped_server_is_noticed_and_its_clients_come_back(redis_server: EmbeddedRedis) -> None:
    server = await trio.to_thread.run_sync(ServerProcess, "--redis", redis_server.url, *FLAGS)
    crowd = [Member(f"user-{number}") for number in range(CLIENTS)]
    try:
        async with trio.open_nursery() as nursery:
            for member in crowd:
                nursery.start_soon(member.live, server.address)
            await until(lambda: all(member.logins for member in crowd), 60, look_s=0.05)
            await trio.sleep(2 * BEAT_S)
            server.process.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            await until(lambda: all(member.lost for member in crowd), 60, look_s=0.05)
            server.process.send_signal(signal.SIGCONT)
            await until(lambda: all(member.logins > 1 for member in crowd), 60, look_s=0.05)
            await trio.sleep(T + 1)
            events = await trio.to_thread.run_sync(read_events, redis_server.url)
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(server.stop)
    assert {member.lost[0][1] for member in crowd} == {"dead_server"}
    assert max(member.lost[0][0] - stopped_at for member in crowd) <= (2 + SLACK) * BEAT_S
    assert_alternation(events)
    assert len(of_type(events, "online")) == CLIENTS
    assert not of_type(events, "offline")
