"""A worker's sample: its shape, and that its figures are those of what happened."""

from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
import trio

import protocol
from presence.clock import Clock
from presence.embedded import EmbeddedRedis
from presence.inquiries import ANSWER_BYTES, line_pair, question
from presence.server import Server
from presence.settings import Settings
from tests.test_server import PATIENCE_S, answer

T, TICK = 1.0, 0.2
WHO = {
    "v",
    "worker",
    "at_ms",
    "node",
    "host",
    "pid",
    "address",
    "version",
    "started_ms",
    "connections",
    "readiness",
    "sessions",
}
GROUPS = {"core", "admission", "ticker", "outbox", "relay", "cluster", "transport", "messages", "watching"}
OF_OPERATORS = {"transitions", "wheel", "histograms", "outbox_oldest_s", "process", "inquiries"}
DELAYS = {"detection_delay", "tick_lag", "loop_lag", "redis_call", "outbox_age"}


class Served:
    """A server in this process, and what asks it as the process for operators does."""

    def __init__(self, redis_url: str) -> None:
        self._asking, self._line = line_pair()
        settings = Settings(
            port=0, idle_timeout=T, min_idle_timeout=0.5, tick=TICK, lease=2.0, disconnect_grace=0.3
        )
        self.server = Server(settings, redis_url, 100, Clock(), line=self._line, worker=3)
        self.address = ("", 0)
        self._streams: list[trio.SocketStream] = []
        self._number = 0

    async def sample(self) -> dict[str, Any]:
        line = trio.socket.from_stdlib_socket(self._asking)
        self._number += 1
        await line.send(question(self._number, "sample", {}))
        number, sample = msgpack.unpackb(await line.recv(ANSWER_BYTES))
        assert number == self._number
        assert isinstance(sample, dict)
        return sample

    async def until(self, condition: Any) -> dict[str, Any]:
        """Ask until a sample is as wished; return it."""
        while not condition(sample := await self.sample()):  # noqa: ASYNC110 - it has to be asked
            await trio.sleep(0.05)
        return sample

    async def log_in(self, uid: str) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*self.address)
        self._streams.append(stream)
        assert await answer(stream, protocol.encode(protocol.login(uid, id=1))) is not None
        return stream

    def close(self) -> None:
        self._asking.close()
        self._line.close()
        for stream in self._streams:
            stream.socket.close()


@pytest.fixture
async def served(redis_server: EmbeddedRedis) -> AsyncIterator[Served]:
    served = Served(redis_server.url)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            served.address = await nursery.start(served.server.serve)
            yield served
            await served.server.stop()
    served.close()


async def test_its_shape_is_what_consumers_build_on(served: Served) -> None:
    sample = await served.sample()
    assert set(sample) >= WHO | GROUPS | OF_OPERATORS
    assert (sample["v"], sample["worker"], sample["readiness"]) == (1, 3, "ready")
    assert sample["node"] == served.server.node.relay.node
    assert set(sample["transitions"]) == {"online", "offline", "away", "update", "gap"}
    assert set(sample["wheel"]) == {"slot_s", "next_s", "sizes", "later"}
    assert set(sample["histograms"]) == DELAYS
    for histogram in sample["histograms"].values():
        assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    assert set(sample["inquiries"]) == {"asked", "dropped"}
    print(f"a sample takes {len(msgpack.packb(sample))} bytes of {ANSWER_BYTES}")


async def test_changes_are_counted_with_their_age_when_redis_has_them(served: Served) -> None:
    await served.log_in("ann")
    sample = await served.until(lambda sample: sum(sample["histograms"]["outbox_age"]["counts"]))
    assert sum(sample["histograms"]["outbox_age"]["counts"]) == 1
    assert sample["outbox_oldest_s"] == 0.0


async def test_who_waits_in_the_wheel_is_in_the_sample(served: Served) -> None:
    await served.log_in("ann")
    wheel = (await served.sample())["wheel"]
    assert sum(wheel["sizes"]) + wheel["later"] == 1
    assert len(wheel["sizes"]) == 13
    assert wheel["slot_s"] == TICK / 2


async def test_calls_of_redis_and_the_loop_are_measured(served: Served) -> None:
    sample = await served.until(lambda sample: sum(sample["histograms"]["loop_lag"]["counts"]) >= 2)
    assert sum(sample["histograms"]["redis_call"]["counts"]) >= sample["cluster"]["renewals"] > 0
    assert sum(sample["histograms"]["tick_lag"]["counts"]) >= 2


async def test_how_things_stand_with_redis_is_told_in_seconds(served: Served) -> None:
    sample = await served.sample()
    assert sample["relay"]["away_s"] == 0.0
    assert 0 < sample["cluster"]["lease_left_s"] <= 2.0
