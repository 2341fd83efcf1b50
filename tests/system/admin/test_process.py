"""The process that serves operators, in its worst days: users notice none of them."""

import contextlib
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.admin.start_message import NICENESS
from presence.store.embedded import EmbeddedRedis
from tests.admin.processes import (
    ADMIN,
    admin_of,
    answers,
    children,
    command,
    is_gone,
    logged,
    sampled,
    sockets,
    url_of,
)
from tests.server.test_serve import failed_start
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for

WORKERS = pytest.mark.parametrize("workers", ["1", "2"])
PATIENCE_S = 20.0
END_S = 5.0  # promised are 2, of a machine that has nothing else to do


def greets(server: PresenceServer) -> bool:
    """Whether a client can log in."""
    with Swarm(server.address, beat_s=1) as swarm:
        swarm.log_in(["ann"])
        swarm.run(5, until=swarm.logged_in)
        return swarm.logged_in()


@contextlib.contextmanager
def ended_by_the_test(*flags: str) -> Iterator[PresenceServer]:
    """A server with an admin process; the block ends it, by `end` or otherwise."""
    server = PresenceServer(*flags, *ADMIN)
    try:
        wait_for(lambda: answers(url_of(server)))
        yield server
    finally:
        server.stop()


def end(server: PresenceServer, order: signal.Signals = signal.SIGTERM, *, errors: int = 0) -> None:
    """End a server; it exits soon, leaves no admin process, and logs no more errors."""
    kept = admin_of(server)
    started = time.monotonic()
    server.process.send_signal(order)
    status, took_s = server.process.wait(10), time.monotonic() - started
    server.stop()  # reads the rest of its log
    assert status == 0, server.lines[-5:]
    assert took_s < END_S
    assert is_gone(kept)
    wrong = [line for line in server.lines if "timestamp" not in line or line["level"] == "error"]
    assert len(wrong) == errors, wrong


def test_the_process_is_where_the_log_says_and_shares_nothing_with_workers(
    redis_server: EmbeddedRedis,
) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        assert url_of(server).startswith("http://127.0.0.1:")
        wait_for(lambda: answers(url_of(server)))

        def events() -> list[str]:
            return [line["event"] for line in list(server.lines)]

        wait_for(lambda: "serving" in events())  # a worker's log may follow its readiness
        before = events()[: events().index("serving")]
        assert "admin HTTP server starting" in before, "the address is logged before it is ready"
        kept = admin_of(server)
        for pid in server.workers().values():
            assert not sockets(pid) & sockets(kept)
        ours = os.getpriority(os.PRIO_PROCESS, server.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, kept) == min(ours + NICENESS, 19), "users come first"
        assert len(list(Path(f"/proc/{server.process.pid}/task").iterdir())) == 1, "safe to fork"
        secret = redis_server.url.partition("://")[2]
        assert secret not in str(command(kept)) + Path(f"/proc/{kept}/environ").read_text()


def test_an_ipv6_address_is_served(redis_server: EmbeddedRedis) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running_server("--redis", redis_server.url, "--admin", "[::1]:0") as server:
        assert url_of(server).startswith("http://[::1]:")
        assert wait_for(lambda: answers(url_of(server)))


def test_without_operators_nothing_is_started(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--no-admin") as server:
        assert children(server.process.pid) == []


@WORKERS
def test_a_process_that_is_killed_is_back_soon_at_the_same_address_and_ends_with_the_server(
    redis_server: EmbeddedRedis, workers: str
) -> None:
    with ended_by_the_test("--redis", redis_server.url, "--workers", workers) as server:
        url = url_of(server)
        before = wait_for(lambda: sampled(url))
        first = admin_of(server)
        os.kill(first, signal.SIGKILL)
        assert greets(server)
        wait_for(lambda: is_gone(first) and answers(url))
        assert wait_for(lambda: sampled(url) == before), "the new one hears from the workers"
        assert admin_of(server) != first
        (line,) = logged(server, "admin process exited, restarting")
        assert (line["level"], line["status"]) == ("error", -signal.SIGKILL)
        end(server, errors=1)


@pytest.mark.parametrize("order", [signal.SIGUSR2, signal.SIGKILL], ids=["renewed", "killed"])
def test_the_successors_of_workers_answer_too(redis_server: EmbeddedRedis, order: signal.Signals) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        url, before = url_of(server), server.workers()
        wait_for(lambda: answers(url))
        assert wait_for(lambda: sampled(url) == before)
        for pid in [server.process.pid] if order == signal.SIGUSR2 else before.values():
            os.kill(pid, order)
        wait_for(lambda: not set(server.workers().values()) & set(before.values()))
        assert wait_for(lambda: sampled(url) == server.workers())


def test_tokens_are_read_again_at_sighup_and_a_successor_that_finds_bad_ones_lets_nobody_in(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    tokens = tmp_path / "operators"
    tokens.touch(mode=0o600)
    tokens.write_text("read old sixteen-and-more-characters\n")
    with running_server("--redis", redis_server.url, *ADMIN, "--admin-tokens", str(tokens)) as server:
        url = url_of(server)
        wait_for(lambda: answers(url))
        bearer = {"Authorization": "Bearer seventeen-and-more-chars"}
        asked = urllib.request.Request(f"{url}v1/nodes", headers=bearer)
        assert status(asked) == 401
        tokens.write_text("read new seventeen-and-more-chars\n")
        server.process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: status(asked) == 200)

        tokens.write_text("read old short\n")
        first = admin_of(server)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: is_gone(first) and answers(url))
        assert status(urllib.request.Request(f"{url}healthz")) == 200
        assert status(asked) == 503
        (line,) = wait_for(lambda: logged(server, "operator token file rejected"))
        assert (line["level"], line["kept"]) == ("error", 0)
        tokens.write_text("read new seventeen-and-more-chars\n")
        server.process.send_signal(signal.SIGHUP)
        assert wait_for(lambda: status(asked) == 200)


def status(asked: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@WORKERS
@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "is stopped"])
def test_nobody_outlives_a_server_that_is_killed(
    redis_server: EmbeddedRedis, workers: str, *, stopped: bool
) -> None:
    with ended_by_the_test("--redis", redis_server.url, "--workers", workers) as server:
        kept = admin_of(server)
        started = list(server.workers().values()) if workers == "2" else []
        for pid in [kept, *started] if stopped else []:
            os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        try:
            wait_for(lambda: is_gone(kept), END_S)
        finally:
            for pid in started if stopped else []:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("order", "workers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "2")])
def test_a_stop_is_quick_and_clean_whoever_is_connected(
    redis_server: EmbeddedRedis, workers: str, order: signal.Signals
) -> None:
    with (
        ended_by_the_test("--redis", redis_server.url, "--workers", workers) as server,
        contextlib.ExitStack() as stack,
    ):
        url = url_of(server)
        stack.enter_context(socket.create_connection(address_of(url)))  # somebody who asks nothing
        for _ in range(5):
            stack.enter_context(urllib.request.urlopen(f"{url}v1/live", timeout=PATIENCE_S)).readline()
        end(server, order)


def test_a_signal_to_everybody_is_one_order(redis_server: EmbeddedRedis) -> None:
    with ended_by_the_test("--redis", redis_server.url, "--workers", "2") as server:
        for pid in (admin_of(server), *server.workers().values()):
            os.kill(pid, signal.SIGTERM)
        end(server)


def test_a_process_that_is_stopped_delays_nobody_and_redis_ends_last() -> None:
    with ended_by_the_test() as server:
        kept = admin_of(server)
        (redis,) = [each for each in children(server.process.pid) if each != kept]
        assert not sockets(redis) & sockets(kept)
        os.kill(kept, signal.SIGSTOP)  # so that its end takes a while
        assert greets(server)
        started = time.monotonic()
        server.process.terminate()
        was_there = False
        while not is_gone(kept):
            was_there = not is_gone(redis)
            time.sleep(0.005)
        status, took_s = server.process.wait(10), time.monotonic() - started
        assert was_there
        assert status == 0, server.lines[-5:]
        assert took_s < END_S


def test_a_port_that_nobody_asked_for_yields_to_its_owner(redis_server: EmbeddedRedis) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else has it already
            stack.enter_context(socket.create_server(("127.0.0.1", 7480)))
        server = UnaskedFor("--redis", redis_server.url)
        try:
            (warning,) = wait_for(lambda: logged(server, "admin port in use, using another"))
            assert (warning["level"], warning["address"]) == ("warning", "127.0.0.1:7480")
            assert not url_of(server).endswith(":7480/")
            assert wait_for(lambda: answers(url_of(server)))
        finally:
            assert server.stop() == 0


class UnaskedFor(PresenceServer):
    """A server whose command line does not mention the admin process."""

    admin_flags = ()


@WORKERS
def test_a_port_that_was_asked_for_and_is_taken_refuses_the_start(
    redis_server: EmbeddedRedis, workers: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        address = f"127.0.0.1:{owner.getsockname()[1]}"
        flags = ("--redis", redis_server.url, "--workers", workers, "--admin", address)
        status, output, _ = failed_start(*flags)
    assert status == 1
    assert address in output
    assert "\nready" not in output


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)
