"""The epoll transport with many connections, and without descriptors."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import structlog
import trio

import protocol
from tests.transports.harness import serving
from tests.transports.test_epoll import errors_of, many


async def test_a_window_longer_than_t_ends_nobody_who_beats() -> None:
    async with serving("epoll", idle_timeout=0.5, window_s=1.2) as server:
        (client,) = await many(server, 1)
        for _ in range(20):
            await client.stream.send_all(protocol.KEEPALIVE)
            await trio.sleep(0.1)
        assert server.ends() == []
        assert server.core.statistics().saved_by_a_last_look > 0


@contextmanager
def no_descriptor_left() -> Iterator[list[int]]:
    """Use up what a lowered limit leaves; closing what is yielded frees it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


async def test_without_descriptors_connections_live_on_and_accepting_resumes() -> None:
    async with serving("epoll") as server:
        established = await many(server, 20)
        late = socket.socket()
        with structlog.testing.capture_logs() as logs, no_descriptor_left() as taken:
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                socket.socket()
            began = trio.current_time()
            late.connect(server.address)
            late.sendall(protocol.encode(protocol.login("late")))
            while trio.current_time() - began < 2.5:
                for client in established:
                    await client.beat()
                await trio.sleep(0.05)
            errors = errors_of(server)
            assert len(server.registry) == 20
            while taken:
                os.close(taken.pop())
            freed = trio.current_time()
            await server.until(lambda: len(server.registry) == 21)
            again = trio.current_time() - freed
        print(
            "test_without_descriptors_connections_live_on_and_accepting_resumes: "
            f"lost 0 of 20, {errors} failed accepts, {len(logs)} log lines in 2.5 s, "
            f"accepts again after {again:.2f} s"
        )
        assert 2 <= errors <= 15, "it rests between two attempts"
        assert [each["event"] for each in logs] == ["accept_failed"] * len(logs)
        assert 1 <= len(logs) <= 3
        assert again < 1.0
        for client in established:
            await client.beat()
        late.close()
