"""The processes that serve operators, in their worst days: users notice none of them."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.admin.http import CONNECTIONS_MAX
from presence.admin.startup import NICENESS
from presence.admin.streaming import VIEWERS_MAX
from presence.embedded import EmbeddedRedis, embedded_redis
from tests.admin.processes import (
    ADMIN,
    admin_of,
    answers,
    children,
    command,
    descriptors,
    found,
    is_gone,
    logged,
    sampled,
    url_of,
)
from tests.live.server_process import ServerProcess, pids, running_server
from tests.live.swarm import Swarm
from tests.live.test_serve import failed_start

WORKERS = pytest.mark.parametrize("workers", ["1", "2"])
PATIENCE_S = 20.0
END_S = 5.0  # promised are 2, of a machine that has nothing else to do


def greets(server: ServerProcess) -> bool:
    """Whether somebody can log in."""
    with Swarm(server.address, beat_s=1) as swarm:
        swarm.log_in(["ann"])
        swarm.run(5, until=swarm.logged_in)
        return swarm.logged_in()


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[ServerProcess]:
    """A server with two workers to which nothing happens."""
    with embedded_redis() as redis, running_server("--redis", redis.url, "--workers", "2", *ADMIN) as server:
        found(lambda: answers(url_of(server)))
        yield server


def test_operators_are_served_where_the_log_says(undisturbed: ServerProcess) -> None:
    assert url_of(undisturbed).startswith("http://127.0.0.1:")
    assert answers(url_of(undisturbed))


def test_the_address_is_told_before_the_server_is_ready(undisturbed: ServerProcess) -> None:
    told = [line["event"] for line in list(undisturbed.lines)]
    assert "operators" in told[: told.index("serving")]


def test_workers_share_nothing_with_who_serves_operators(undisturbed: ServerProcess) -> None:
    theirs = descriptors(admin_of(undisturbed))
    for pid in pids(undisturbed).values():
        assert not descriptors(pid) & theirs


def test_users_come_before_operators(undisturbed: ServerProcess) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, undisturbed.process.pid)
    theirs = os.getpriority(os.PRIO_PROCESS, admin_of(undisturbed))
    assert theirs == min(ours + NICENESS, 19)


def test_a_supervisor_has_one_thread(undisturbed: ServerProcess) -> None:
    assert len(list(Path(f"/proc/{undisturbed.process.pid}/task").iterdir())) == 1


def test_nothing_secret_is_in_arguments_or_environment(undisturbed: ServerProcess) -> None:
    pid = admin_of(undisturbed)
    assert "redis.sock" not in command(pid) + Path(f"/proc/{pid}/environ").read_text()


def test_an_ipv6_address_is_served(redis_server: EmbeddedRedis) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running_server("--redis", redis_server.url, "--admin", "[::1]:0") as server:
        assert url_of(server).startswith("http://[::1]:")
        assert found(lambda: answers(url_of(server)))


def test_without_operators_nothing_is_started(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--no-admin") as server:
        assert children(server.process.pid) == []


def test_a_process_that_is_killed_is_back_soon_at_the_same_address(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server:
        url = url_of(server)
        found(lambda: answers(url))
        first = admin_of(server)
        os.kill(first, signal.SIGKILL)
        begun = time.monotonic()
        found(lambda: answers(url) and is_gone(first))
        print(f"back after {time.monotonic() - begun:.2f} s")
        assert admin_of(server) != first


@pytest.mark.parametrize("end", [signal.SIGUSR2, signal.SIGKILL], ids=["renewed", "killed"])
def test_the_successors_of_workers_answer_too(redis_server: EmbeddedRedis, end: signal.Signals) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        url, before = url_of(server), pids(server)
        found(lambda: answers(url))
        assert found(lambda: sampled(url) == before)
        for pid in [server.process.pid] if end == signal.SIGUSR2 else before.values():
            os.kill(pid, end)
        found(lambda: not set(pids(server).values()) & set(before.values()))
        assert found(lambda: sampled(url) == pids(server))


def test_a_process_that_is_new_hears_from_the_workers(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--workers", "2", *ADMIN) as server:
        url = url_of(server)
        found(lambda: answers(url) and sampled(url))
        os.kill(admin_of(server), signal.SIGKILL)
        found(lambda: answers(url))
        assert found(lambda: sampled(url) == pids(server))


def test_who_is_watched_by_is_no_reason_to_wait_at_the_end(redis_server: EmbeddedRedis) -> None:
    server = ServerProcess("--redis", redis_server.url, *ADMIN)
    url = url_of(server)
    found(lambda: answers(url))
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(urllib.request.urlopen(f"{url}v1/live", timeout=PATIENCE_S)).readline()
        begun = time.monotonic()
        server.process.terminate()
        assert server.process.wait(10) == 0
        print(f"stopped after {time.monotonic() - begun:.2f} s")
        assert time.monotonic() - begun < END_S
    server.stop()
    assert not [line for line in server.lines if line["level"] == "error"]


def test_tokens_are_read_again_at_sighup(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    tokens = tmp_path / "operators"
    write_tokens(tokens, "read old sixteen-and-more-characters\n")
    with running_server("--redis", redis_server.url, *ADMIN, "--admin-tokens", str(tokens)) as server:
        url = url_of(server)
        found(lambda: answers(url))
        asked = urllib.request.Request(
            f"{url}v1/nodes", headers={"Authorization": "Bearer seventeen-and-more-chars"}
        )
        assert status(asked) == 401
        write_tokens(tokens, "read new seventeen-and-more-chars\n")
        server.process.send_signal(signal.SIGHUP)
        assert found(lambda: status(asked) == 200)


def test_a_successor_that_finds_a_bad_file_serves_health_and_lets_nobody_in(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    tokens = tmp_path / "operators"
    write_tokens(tokens, "read old sixteen-and-more-characters\n")
    with running_server("--redis", redis_server.url, *ADMIN, "--admin-tokens", str(tokens)) as server:
        url = url_of(server)
        found(lambda: answers(url))
        write_tokens(tokens, "read old short\n")
        os.kill(admin_of(server), signal.SIGKILL)
        assert found(lambda: answers(url) and status(urllib.request.Request(f"{url}healthz")) == 200)
        asked = urllib.request.Request(
            f"{url}v1/nodes", headers={"Authorization": "Bearer sixteen-and-more-characters"}
        )
        assert status(asked) == 503
        (line,) = found(lambda: logged(server, "tokens of operators cannot be read"))
        assert (line["level"], line["kept"]) == ("error", 0)
        assert "line 1" in line["error"]
        write_tokens(tokens, "read old sixteen-and-more-characters\n")
        server.process.send_signal(signal.SIGHUP)
        assert found(lambda: status(asked) == 200)


def write_tokens(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def status(asked: urllib.request.Request) -> int:
    """Return the status of the answer."""
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@WORKERS
def test_a_process_that_replaced_another_ends_with_the_server(
    redis_server: EmbeddedRedis, workers: str
) -> None:
    server = ServerProcess("--redis", redis_server.url, "--workers", workers, *ADMIN)
    first = admin_of(server)
    os.kill(first, signal.SIGKILL)
    second = admin_of(server, not_this=first)
    begun = time.monotonic()
    server.process.terminate()
    assert server.process.wait(10) == 0
    assert time.monotonic() - begun < END_S
    assert is_gone(second)
    server.stop()


@WORKERS
def test_nobody_outlives_a_server_that_is_killed(redis_server: EmbeddedRedis, workers: str) -> None:
    server = ServerProcess("--redis", redis_server.url, "--workers", workers, *ADMIN)
    found(lambda: answers(url_of(server)))
    kept = admin_of(server)
    server.process.kill()
    begun = time.monotonic()
    found(lambda: is_gone(kept), END_S)
    print(f"gone after {time.monotonic() - begun:.2f} s")
    server.stop()


@pytest.mark.parametrize(("order", "workers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "2")])
def test_a_stop_is_quick_and_says_nothing_that_is_no_line_of_log(
    redis_server: EmbeddedRedis, workers: str, order: signal.Signals
) -> None:
    server = ServerProcess("--redis", redis_server.url, "--workers", workers, *ADMIN)
    url = url_of(server)
    found(lambda: answers(url))
    kept = admin_of(server)
    begun = time.monotonic()
    with socket.create_connection(address_of(url)):  # somebody who asks nothing
        server.process.send_signal(order)
        assert server.process.wait(10) == 0
    print(f"stopped after {time.monotonic() - begun:.2f} s")
    assert is_gone(kept)
    server.stop()
    assert [line for line in server.lines if "timestamp" not in line] == []
    assert not [line for line in server.lines if line["level"] == "error"]


def test_a_signal_to_everybody_is_one_order(redis_server: EmbeddedRedis) -> None:
    server = ServerProcess("--redis", redis_server.url, "--workers", "2", *ADMIN)
    found(lambda: answers(url_of(server)))
    kept = admin_of(server)
    for pid in (kept, *pids(server).values(), server.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert is_gone(kept)
    server.stop()
    assert not [line for line in server.lines if line["level"] == "error"]


def test_ctrl_c_on_a_terminal_is_a_clean_stop(redis_server: EmbeddedRedis) -> None:
    ours, theirs = pty.openpty()
    serve = [sys.executable, "-m", "presence", "serve", "--port", "0", "--redis", redis_server.url, *ADMIN]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *serve], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = ""

    def read() -> None:
        nonlocal said
        with contextlib.suppress(OSError):  # so a terminal ends
            while piece := os.read(ours, 4096):
                said += piece.decode("utf-8", "replace")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        found(lambda: "operators are served" in said)
        os.write(ours, b"\x03")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        os.close(ours)
    assert "Traceback" not in said
    assert "stopped" in said


def test_a_process_that_is_stopped_delays_nobody(redis_server: EmbeddedRedis) -> None:
    server = ServerProcess("--redis", redis_server.url, *ADMIN)
    found(lambda: answers(url_of(server)))
    kept = admin_of(server)
    os.kill(kept, signal.SIGSTOP)
    assert greets(server)
    begun = time.monotonic()
    server.process.terminate()
    assert server.process.wait(10) == 0
    took_s = time.monotonic() - begun
    print(f"stopped after {took_s:.2f} s")
    assert took_s < END_S
    assert is_gone(kept)
    server.stop()


def test_a_process_that_is_stopped_does_not_outlive_a_server_that_is_killed(
    redis_server: EmbeddedRedis,
) -> None:
    server = ServerProcess("--redis", redis_server.url, *ADMIN)
    found(lambda: answers(url_of(server)))
    kept = admin_of(server)
    os.kill(kept, signal.SIGSTOP)
    server.process.kill()
    found(lambda: is_gone(kept), END_S)
    server.stop()


def test_a_port_that_nobody_asked_for_yields_to_its_owner(redis_server: EmbeddedRedis) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else has it already
            stack.enter_context(socket.create_server(("127.0.0.1", 7480)))
        server = UnaskedFor("--redis", redis_server.url)
        try:
            (warning,) = found(lambda: logged(server, "operators are served at another port"))
            assert (warning["level"], warning["address"]) == ("warning", "127.0.0.1:7480")
            assert not url_of(server).endswith(":7480/")
            assert found(lambda: answers(url_of(server)))
        finally:
            assert server.stop() == 0


class UnaskedFor(ServerProcess):
    """A server whose command line says nothing of operators."""

    operators = ()


@WORKERS
def test_a_port_that_was_asked_for_and_is_taken_refuses_the_start(
    redis_server: EmbeddedRedis, workers: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        address = f"127.0.0.1:{owner.getsockname()[1]}"
        flags = ("--redis", redis_server.url, "--workers", workers, "--admin", address)
        status, said, _ = failed_start(*flags)
    assert status == 1
    assert "cannot listen" in said
    assert address in said
    assert "\nready" not in said


def test_a_bad_file_of_tokens_refuses_the_start(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    tokens = tmp_path / "operators"
    tokens.write_text("read grafana sixteen-and-more-characters\nread short secret\n")
    tokens.chmod(0o600)
    flags = ("--redis", redis_server.url, *ADMIN, "--admin-tokens", str(tokens))
    status, said, _ = failed_start(*flags)
    assert status == 2
    assert "admin_tokens" in said
    assert "line 2" in said


def test_workers_that_hang_keep_nobody_alive_for_whom_there_is_no_server(redis_server: EmbeddedRedis) -> None:
    server = ServerProcess("--redis", redis_server.url, "--workers", "2", *ADMIN)
    kept = admin_of(server)
    for pid in pids(server).values():
        os.kill(pid, signal.SIGSTOP)
    server.process.kill()
    try:
        found(lambda: is_gone(kept), END_S)
    finally:
        for pid in pids(server).values():
            os.kill(pid, signal.SIGKILL)
        server.stop()


def test_redis_holds_nothing_of_the_operators() -> None:
    with running_server(*ADMIN) as server:
        kept = admin_of(server)
        (redis,) = [each for each in children(server.process.pid) if each != kept]
        found(lambda: answers(url_of(server)))
        assert not descriptors(redis) & descriptors(kept)


def test_redis_ends_last() -> None:
    server = ServerProcess(*ADMIN)
    kept = admin_of(server)
    (redis,) = [each for each in children(server.process.pid) if each != kept]
    found(lambda: answers(url_of(server)))
    os.kill(kept, signal.SIGSTOP)  # so that its end takes a while
    server.process.terminate()
    while not is_gone(kept):
        was_there = not is_gone(redis)
        time.sleep(0.005)
    assert was_there
    assert server.stop() == 0


def test_six_hundred_connections_at_once_cost_nobody_a_place_for_long(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server, contextlib.ExitStack() as stack:
        url = url_of(server)
        found(lambda: answers(url))
        crowd = [
            stack.enter_context(socket.create_connection(address_of(url), PATIENCE_S))
            for _ in range(CONNECTIONS_MAX + 88)
        ]
        kept = admin_of(server)
        found(lambda: len(descriptors(kept)) > CONNECTIONS_MAX)
        assert len(descriptors(kept)) < CONNECTIONS_MAX + 40
        assert greets(server)
        begun = time.monotonic()
        assert found(lambda: answers(url))
        print(f"served again after {time.monotonic() - begun:.1f} s beside {len(crowd)} who ask nothing")


def test_viewers_who_read_nothing_are_no_more_than_others(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *ADMIN) as server, contextlib.ExitStack() as stack:
        host, port = address_of(url_of(server))
        found(lambda: answers(url_of(server)))
        heads = []
        for _ in range(VIEWERS_MAX + 44):
            viewer = stack.enter_context(socket.create_connection((host, port), PATIENCE_S))
            viewer.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            heads.append(viewer.recv(12))  # and not a byte more
        assert heads == [b"HTTP/1.1 200"] * VIEWERS_MAX + [b"HTTP/1.1 503"] * 44
        assert greets(server)
        assert answers(url_of(server))


def address_of(url: str) -> tuple[str, int]:
    """Return the address in a URL."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)
