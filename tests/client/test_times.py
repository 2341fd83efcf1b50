"""Times as the program has them: durations and times with their zone go in and come out."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from presence import protocol
from presence.client import ClientOptions, Delivered, DeviceState, NotConnected, UserState, connect
from presence.protocol import Kind
from tests.client.machine_driver import SERVER_TIME_S
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import on_both_backends

LOGIN = datetime.fromtimestamp(SERVER_TIME_S, UTC)


def test_the_times_of_pushes_are_in_utc() -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC)
    ms = 1_700_000_000_005
    state = UserState("offline", ms, ms)
    assert (state.since, state.last_seen) == (at, at)
    assert (Delivered("bob", "hi", ms).at, DeviceState("desk", "online", ms).since) == (at, at)


def test_a_time_that_is_not_known_is_none() -> None:
    assert (UserState("unknown").since, UserState("unknown").last_seen) == (None, None)


@on_both_backends(autojump=True)
async def test_the_servers_clock_goes_on_after_the_login() -> None:
    script = ScriptedServer()
    client = await connect("-", 1, uid="ann", wait=False, options=ClientOptions(open_stream=script.open))
    with pytest.raises(RuntimeError, match="before the first login"):
        client.server_time()
    with pytest.raises(RuntimeError, match="before the first login"):
        client.log_in_with(status="busy", until=timedelta(hours=1))
    with pytest.raises(NotConnected):
        await client.update(status="busy", until=timedelta(hours=1))
    await client.wait_online()
    await anyio.sleep(60)
    assert client.server_time() == LOGIN + timedelta(minutes=1)
    client.disconnect()
    await anyio.sleep(60)
    assert client.server_time() == LOGIN + timedelta(minutes=2), "also after the end"
    await client.aclose()


@pytest.mark.parametrize(
    "until", [timedelta(minutes=30), LOGIN + timedelta(minutes=31)], ids=["for", "until"]
)
@on_both_backends(autojump=True)
async def test_a_status_ends_by_the_servers_clock(until: datetime | timedelta) -> None:
    script = ScriptedServer()
    async with connect("-", 1, uid="ann", options=ClientOptions(open_stream=script.open)) as client:
        await anyio.sleep(60)
        await client.update(status="busy", until=until)
    (update,) = (packet for packet in script.received if packet.kind == Kind.UPDATE)
    assert update.payload == {"status": "busy", "until_ms": (SERVER_TIME_S + 31 * 60) * 1000}


@on_both_backends(autojump=True)
async def test_an_idle_timeout_may_be_a_duration() -> None:
    script = ScriptedServer()
    options = ClientOptions(open_stream=script.open, request_timeout=timedelta(seconds=3))
    async with connect("-", 1, uid="ann", idle_timeout=timedelta(minutes=2), options=options) as client:
        script.answer = {"idle_timeout": 240.0, "keepalive": 96.0}
        assert await client.set_idle_timeout(timedelta(minutes=5)) == 240.0
        script.answers = False
        began = anyio.current_time()
        with pytest.raises(TimeoutError):
            await client.query(["bob"])
        assert anyio.current_time() - began == pytest.approx(3.0)
    assert script.received[0].payload["idle_timeout"] == 120.0
    assert protocol.update(idle_timeout=300.0).payload in [packet.payload for packet in script.received]
