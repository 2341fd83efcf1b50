"""A kernel that takes no further descriptor into an epoll set: the user's limit of watches is reached."""

import errno
import select
from typing import Any

import protocol
from presence.transports.connections import ATTENTIVE, PATIENT
from presence.transports.epoll import EpollTransport
from tests.transports.harness import Harness, serving


class FullSet:
    """An epoll set that takes nobody in while it is full."""

    def __init__(self, epoll: "select.epoll") -> None:
        self._epoll = epoll
        self.full = True

    def register(self, fd: int, mask: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._epoll.register(fd, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def fill(server: Harness, pace: int) -> FullSet:
    """Let the set of that pace be full."""
    transport = server.transport
    assert isinstance(transport, EpollTransport)
    sets: list[Any] = transport._connections.sets
    full = sets[pace] = FullSet(sets[pace])
    return full


async def test_an_accept_that_cannot_be_watched_is_dropped_and_others_follow() -> None:
    async with serving("epoll") as server:
        full = fill(server, ATTENTIVE)
        refused = await server.connect()
        assert await refused.rest() == []
        full.full = False
        await (await server.connect()).login("next")
        assert server.transport.statistics().connections == 1


async def test_a_login_that_cannot_be_watched_costs_its_own_connection_only() -> None:
    async with serving("epoll") as server:
        other = await server.connect()
        await other.login("other")
        fill(server, PATIENT)
        client = await server.connect()
        await client.send(protocol.login("ada"))
        assert await client.rest() == []
        await other.beat()
        assert server.transport.statistics().connections == 1


async def test_a_session_that_could_not_be_watched_ends_after_its_grace() -> None:
    async with serving("epoll", grace=0.2) as server:
        fill(server, PATIENT)
        client = await server.connect()
        await client.send(protocol.login("ada"))
        await server.until(server.ends)
        assert server.story() == [("login", "ada", "login"), ("end", "ada", "server_error")]
