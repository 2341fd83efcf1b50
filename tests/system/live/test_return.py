"""500 clients of the library lose their server, notice, and come back; nobody is told of it."""

import signal
import time
from collections import Counter

import pytest
import trio

from loadtest.ports import free_port
from presence.embedded import EmbeddedRedis
from tests.client.crowd import Crowd, histogram
from tests.live.events import assert_alternation, of_type, read_events
from tests.live.server_process import ServerProcess
from tests.live.swarm import percentiles

CLIENTS = 500
T = 2.0
BEAT_S = 0.4 * T
DEAD_S = 10.0 + T - 1.0  # lease + T after a kill, less what the last renewal was old
SLACK = 0.35  # intervals, 0.28 s: 500 clients in one process on a busy machine
FLAGS = ("--idle-timeout", str(T), "--tick", "0.5")


async def watched(crowd: Crowd, url: str, begun: float) -> tuple[list[float], list[str]]:
    """Wait until all are back and their events would have come: when was each, and who went offline?"""
    await crowd.until_online(2)
    back = crowd.returned_after(begun)
    await trio.sleep(T + 1)
    events = await trio.to_thread.run_sync(read_events, url)
    assert_alternation(events)
    assert len(of_type(events, "online")) == CLIENTS
    return back, list(of_type(events, "offline"))


@pytest.mark.alone
async def test_a_stopped_server_is_noticed_and_its_clients_come_back(redis_server: EmbeddedRedis) -> None:
    server = await trio.to_thread.run_sync(ServerProcess, "--redis", redis_server.url, *FLAGS)
    try:
        crowd = Crowd(server.address, CLIENTS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.live)
            await crowd.until_online(1)
            await trio.sleep(2 * BEAT_S)
            server.process.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            await crowd.until_lost(1)
            server.process.send_signal(signal.SIGCONT)
            back, offline = await watched(crowd, redis_server.url, time.monotonic())
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(server.stop)
    noticed = [(member.lost[0][0] - stopped_at) / BEAT_S for member in crowd.members]
    print(
        f"SIGSTOP: noticed by {len(noticed)} of {CLIENTS} within "
        f"{max(noticed):.2f} beat intervals (median {sorted(noticed)[CLIENTS // 2]:.2f}); "
        f"after SIGCONT {len(back)} back, {percentiles(back)}; offline events {len(offline)}; "
        f"{histogram(back)}"
    )
    assert {member.lost[0][1] for member in crowd.members} == {"dead_server"}
    assert max(noticed) <= 2 + SLACK
    assert offline == []


@pytest.mark.alone
async def test_a_restarted_server_has_all_clients_back_spread_over_time(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS, "--port", str(free_port()))
    server = await trio.to_thread.run_sync(ServerProcess, *flags)
    try:
        crowd = Crowd(server.address, CLIENTS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.live)
            await crowd.until_online(1)
            server.process.kill()
            await trio.to_thread.run_sync(server.stop)
            killed_at = time.monotonic()
            await crowd.until_lost(1)
            server = await trio.to_thread.run_sync(ServerProcess, *flags)
            up_s = time.monotonic() - killed_at
            back, offline = await watched(crowd, redis_server.url, killed_at)
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(server.stop)
    slices = Counter(int(seconds / 0.25) for seconds in back)
    print(
        f"kill -9, up again after {up_s:.2f} s: {len(back)} of {CLIENTS} back, {percentiles(back)} after the "
        f"kill; most in a quarter of a second {max(slices.values())}; offline events {len(offline)}; "
        f"{histogram(back)}"
    )
    assert {member.lost[0][1] for member in crowd.members} == {"closed"}
    assert len(slices) >= 4, "spread"
    # The pauses of one with bad luck add up to more than a server may be gone for.
    back_at = dict(zip((member.uid for member in crowd.members), back, strict=True))
    assert [uid for uid in offline if back_at[uid] <= DEAD_S] == []
