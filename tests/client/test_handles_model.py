"""Many tasks use, cancel and close one client at random, on a network that breaks: nothing is left behind."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from presence import protocol
from presence.client import Client, ClientOptions, PresenceError, State, connect
from presence.protocol import Code
from tests.client.scripted_server import ScriptedServer
from tests.support.backends import living_tasks, on_both_backends

STEPS = 150
SEEDS = 4
FRIENDS = ("bob", "eve")


class Crowd:
    """Tasks of a program around one client, and a server that answers or does not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.script = ScriptedServer()
        self.pushes = 0

    async def live(self) -> None:
        options = ClientOptions(open_stream=self.script.open, request_timeout=5, max_messages=3)
        client = await connect("nowhere", 1, uid="ann", wait=False, options=options)
        async with anyio.create_task_group() as tasks:
            for _ in range(STEPS):
                tasks.start_soon(self._use, client, self.random.choice(self._uses(client)))
                await self._disturb()
                await anyio.sleep(self.random.choice((0.0, 0.0, 0.1, 2.0)))
            for _ in range(2):
                tasks.start_soon(client.aclose)
        assert client.state is State.ENDED

    def _uses(self, client: Client) -> list[Callable[[], Awaitable[object]]]:
        async def watch_soon() -> None:
            await checkpoint()
            client.watch_nowait(FRIENDS)

        async def read() -> None:
            async for _ in self.random.choice((client, client.messages(), client.presence_changes())):
                self.pushes += 1

        return [
            lambda: client.send_message("bob", "hi"),
            lambda: client.query(FRIENDS),
            lambda: client.watch(FRIENDS),
            client.unwatch,
            lambda: client.update(status="away"),
            client.wait_online,
            watch_soon,
            read,
        ]

    async def _use(self, client: Client, use: Callable[[], Awaitable[object]]) -> None:
        with anyio.move_on_after(self.random.choice((0.0, 0.01, 1.0, 30.0))):
            with suppress(PresenceError):
                await use()

    async def _disturb(self) -> None:
        luck = self.random.random()
        self.script.answers = luck < 0.8
        if self.script.connections == len(self.script.ends):
            return
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # by the client, meanwhile
            if luck < 0.05:
                await self.script.hang_up()
            elif luck < 0.07:
                await self.script.send(protocol.goodbye(Code.SERVER_RESTART))
            elif luck < 0.3:
                await self.script.send(protocol.deliver("bob", "hi", 1))


@pytest.mark.parametrize("seed", range(SEEDS))
@on_both_backends(autojump=True)
async def test_a_client_that_many_tasks_use_leaves_nothing_behind(seed: int) -> None:
    before = living_tasks()
    crowd = Crowd(seed)
    with anyio.fail_after(100_000):
        await crowd.live()
    assert living_tasks() == before
    assert len(crowd.script.ends) == crowd.script.connections
    assert crowd.script.connections > 1
    assert crowd.pushes > 0


@pytest.mark.parametrize("seed", range(SEEDS))
@on_both_backends(autojump=True)
async def test_a_client_cancelled_at_any_moment_leaves_nothing_behind(seed: int) -> None:
    before = living_tasks()
    for number in range(30):
        crowd = Crowd(seed * 1000 + number)
        with anyio.move_on_after(crowd.random.uniform(0.0, 20.0)):
            options = ClientOptions(open_stream=crowd.script.open)
            async with connect("nowhere", 1, uid="ann", options=options) as client:
                for use in crowd._uses(client):
                    await crowd._use(client, use)
                    await crowd._disturb()
        assert living_tasks() == before
        assert len(crowd.script.ends) == crowd.script.connections
