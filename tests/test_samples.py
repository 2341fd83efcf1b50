"""A worker's sample: its shape, and that its figures are those of what happened."""

from collections.abc import Callable
from typing import Any

import msgpack
import trio

import protocol
from presence.clock import Clock
from presence.embedded import EmbeddedRedis
from presence.inquiries import ANSWER_BYTES, line_pair, question
from presence.server import Server
from presence.settings import Settings
from tests.test_server import PATIENCE_S, answer

T, TICK = 1.0, 0.2
WHO = {"v", "worker", "at_ms", "node", "host", "pid", "address", "version", "started_ms", "connections"}
GROUPS = {"core", "admission", "ticker", "outbox", "relay", "cluster", "transport", "messages", "watching"}
OF_OPERATORS = {"readiness", "sessions", "transitions", "wheel", "histograms", "outbox_oldest_s", "process"}


async def test_a_sample_says_who_a_worker_is_and_what_has_happened(redis_server: EmbeddedRedis) -> None:
    asking, answering = line_pair()
    settings = Settings(
        port=0, idle_timeout=T, min_idle_timeout=0.5, tick=TICK, lease=2.0, disconnect_grace=0.3
    )
    server = Server(settings, redis_server.url, 100, Clock(), line=answering, worker=3)
    line = trio.socket.from_stdlib_socket(asking)

    async def until(holds: Callable[[Any], bool]) -> dict[str, Any]:
        """Ask until a sample is as wished; return it."""
        while True:
            await line.send(question(7, "sample", {}))
            number, sample = msgpack.unpackb(await line.recv(ANSWER_BYTES))
            assert number == 7
            if holds(sample):
                return dict(sample)
            await trio.sleep(0.05)

    def noted(sample: Any, name: str) -> int:
        return sum(sample["histograms"][name]["counts"])

    with asking, answering, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.serve)
            sample = await until(lambda _: True)
            assert set(sample) >= WHO | GROUPS | OF_OPERATORS
            assert (sample["v"], sample["worker"], sample["readiness"]) == (1, 3, "ready")
            assert sample["node"] == server.node.relay.node
            assert set(sample["transitions"]) == {"online", "offline", "away", "update", "gap"}
            for histogram in sample["histograms"].values():
                assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
            assert sample["relay"]["away_s"] == 0.0
            assert 0 < sample["cluster"]["lease_left_s"] <= 2.0

            async with await trio.open_tcp_stream(*address) as stream:
                assert await answer(stream, protocol.encode(protocol.login("ann", id=1))) is not None
                sample = await until(lambda sample: noted(sample, "outbox_age") > 0)
                assert noted(sample, "outbox_age") == 1
                assert sample["outbox_oldest_s"] == 0.0
                wheel = sample["wheel"]
                assert sum(wheel["sizes"]) + wheel["later"] == 1
                assert (len(wheel["sizes"]), wheel["slot_s"]) == (13, TICK / 2)
                sample = await until(lambda s: min(noted(s, "loop_lag"), noted(s, "tick_lag")) >= 2)
                assert noted(sample, "redis_call") >= sample["cluster"]["renewals"] > 0
            await server.stop()
    print(f"a sample takes {len(msgpack.packb(sample))} bytes of {ANSWER_BYTES}")
