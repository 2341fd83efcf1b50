"""The blocking client against a real server: the same verbs, a thread that leaves nothing behind."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import anyio
import pytest

from loadtest.usage import Stolen
from presence.client import (
    BlockingClient,
    Connected,
    Delivered,
    Disconnected,
    Ended,
    NotConnected,
    Replaced,
    State,
    Unreachable,
    UserState,
    connect,
    connect_blocking,
)
from presence.protocol import Packet, deliver, encode
from tests.client.machine_driver import login_ok
from tests.client.quick_server import QuickServer, T, quick_server
from tests.support.backends import BACKENDS, on_both_backends
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[QuickServer]:
    with quick_server() as server:
        yield server


@pytest.fixture
def uid(request: pytest.FixtureRequest) -> str:
    """A user of this test alone."""
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def scripted() -> Iterator[Callable[..., tuple[str, int]]]:
    """Start a server that accepts one connection, sends the given bytes, and answers nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(*packets: Packet) -> tuple[str, int]:
        def serve() -> None:
            sock, _ = listener.accept()
            accepted.append(sock)
            sock.recv(4096)
            sock.sendall(b"".join(map(encode, packets)))

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        host, port = listener.getsockname()
        return host, port

    yield start
    for thread in threads:
        thread.join(5)
    for sock in (*accepted, listener):
        sock.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_inside_the_block_the_user_is_online_and_afterwards_not(server: QuickServer, uid: str) -> None:
    with connect_blocking(*server.address, uid=uid) as client:
        time.sleep(2 * T)
        assert client.statistics().logins == 1
        assert client.statistics().keepalives >= 4
    assert server.told(uid) == ["online login", "offline logout"]


def test_no_thread_and_no_socket_is_left_behind(server: QuickServer, uid: str) -> None:
    with connect_blocking(*server.address, uid=uid):
        pass
    threads, files = set(threading.enumerate()), open_files()
    for number in range(20):
        with connect_blocking(*server.address, uid=uid, wait=bool(number % 2)):
            pass
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files  # fewer, if those of an earlier test are collected meanwhile


def test_an_exception_leaves_without_a_logout(server: QuickServer, uid: str) -> None:
    with pytest.raises(KeyError):
        with connect_blocking(*server.address, uid=uid):
            raise KeyError
    assert server.told(uid) == ["online login", "offline closed"]


@pytest.mark.alone
def test_a_stopped_server_is_noticed_and_come_back_to(server: QuickServer, uid: str) -> None:
    with connect_blocking(*server.address, uid=uid) as client, Stolen(pids=(os.getpid(),)) as stolen:
        assert isinstance(client.receive(5), Connected)
        time.sleep(T)
        server.process.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        lost = client.receive(5)
        noticed_s = time.monotonic() - stopped_at
        with pytest.raises(NotConnected):
            client.send_message("bob", "hi")
        server.process.process.send_signal(signal.SIGCONT)
        client.wait_online(10)
    print(f"blocking client: SIGSTOP noticed after {noticed_s / (0.4 * T):.2f} beat intervals")
    assert isinstance(lost, Disconnected)
    assert noticed_s <= 2 * 0.4 * T + 0.2 + stolen.worst_s


@pytest.mark.alone
@on_both_backends()
async def test_a_pause_of_the_program_is_not_taken_for_the_servers_death(
    server: QuickServer, uid: str
) -> None:
    """The program can hold up the loop: what came meanwhile is read before time is judged."""
    async with connect(*server.address, uid=uid, idle_timeout=2 * T) as client:
        for _ in range(3):
            sent = client.statistics().keepalives
            while client.statistics().keepalives == sent:  # noqa: ASYNC110 - it does not say
                await anyio.sleep(0.001)
            await anyio.sleep(0.001)  # it is written
            # The fault: an answer has come, but is not read before another keepalive is due. It is half of
            # the idle time-out, so that a machine which does something else does not end the session.
            time.sleep(T)  # noqa: ASYNC251
        assert (client.statistics().logins, client.statistics().losses) == (1, 0)


def test_a_take_over_ends_the_iteration_with_its_error(server: QuickServer, uid: str) -> None:
    with connect_blocking(*server.address, uid=uid) as first:
        with connect_blocking(*server.address, uid=uid):
            with pytest.raises(Replaced):
                for _ in first:
                    pass
            with pytest.raises(Replaced):
                first.query(["bob"])
    assert first.state is State.ENDED


def test_a_logout_ends_the_iteration(server: QuickServer, uid: str) -> None:
    with connect_blocking(*server.address, uid=uid) as client:
        client.logout("background")
        assert [type(push) for push in client] == [Connected]
        with pytest.raises(Ended):
            client.receive()
    assert server.told(uid) == ["online login", "offline background"]


def test_many_threads_may_ask_at_once(server: QuickServer, uid: str) -> None:
    answers: list[UserState] = []

    def ask(client: BlockingClient) -> None:
        answers.extend(client.query(["bob"])["bob"] for _ in range(50))

    with connect_blocking(*server.address, uid=uid) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len(answers) == 400
    assert {state.status for state in answers} == {"offline"}


def test_no_server_is_raised() -> None:
    with pytest.raises(Unreachable, match="Connection refused"):
        with connect_blocking("127.0.0.1", 1, uid="ann"):
            pytest.fail("there is no server")


def test_a_push_is_waited_for_as_long_as_the_caller_says(scripted: Callable[..., tuple[str, int]]) -> None:
    address = scripted(login_ok(), deliver("bob", "hi", 7))
    with connect_blocking(*address, uid="ann") as client:
        assert isinstance(client.receive(5), Connected)
        assert client.receive(5) == Delivered("bob", "hi", 7)
        with pytest.raises(TimeoutError):
            client.receive(0.05)
        client.disconnect()  # this server would not answer a logout


# As at a terminal, whoever runs the tests: what is started in the background of a shell ignores SIGINT.
AT_A_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
CTRL_C = """
import sys
from presence.client import connect_blocking
with connect_blocking(sys.argv[1], int(sys.argv[2]), uid=sys.argv[3]) as client:
    for push in client:
        print(type(push).__name__, flush=True)
"""
ASYNC_CTRL_C = """
import anyio, sys
from presence.client import connect
async def main():
    async with connect(sys.argv[1], int(sys.argv[2]), uid=sys.argv[3]) as client:
        async for push in client:
            print(type(push).__name__, flush=True)
anyio.run(main, backend=sys.argv[4])
"""


@pytest.mark.parametrize("kind", ["blocking", *BACKENDS])
def test_ctrl_c_is_a_keyboard_interrupt_and_nothing_else(server: QuickServer, uid: str, kind: str) -> None:
    host, port = server.address
    script = AT_A_TERMINAL + (CTRL_C if kind == "blocking" else ASYNC_CTRL_C)
    command = [sys.executable, "-c", script, host, str(port), uid, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Connected\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=10)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert complaint.rstrip().endswith("KeyboardInterrupt")
    assert "ExceptionGroup" not in complaint
    assert server.told(uid) == ["online login", "offline closed"]


def test_a_signal_handler_may_close_it_while_it_is_being_closed(
    scripted: Callable[..., tuple[str, int]],
) -> None:
    client = connect_blocking(*scripted(login_ok()), uid="ann")
    former = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    try:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        client.close()  # nobody answers the logout, so it takes longer
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert client.state is State.ENDED


NEVER_CLOSED = """
import sys, threading
from presence.client import connect_blocking
token = (lambda: "a token") if sys.argv[4] == "token" else None
client = connect_blocking("localhost", int(sys.argv[2]), uid=sys.argv[3], token=token)
client.query([sys.argv[3]])
if sys.argv[4] == "reader":
    threading.Thread(target=list, args=[client], daemon=True).start()
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["plain", "token", "reader"])
def test_a_program_that_closes_nothing_ends_and_its_connection_is_lost(
    server: QuickServer, uid: str, kind: str
) -> None:
    host, port = server.address
    command = [sys.executable, "-X", "dev", "-c", NEVER_CLOSED, host, str(port), uid, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert server.told(uid) == ["online login", "offline closed"]


FORKED = """
import os, signal, sys
from presence.client import connect_blocking
client = connect_blocking("localhost", int(sys.argv[1]), uid=sys.argv[2])
if os.fork() == 0:
    signal.alarm(10)
    sys.exit(3)
_, status = os.wait()
client.query([sys.argv[2]])
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_ends_and_the_client_stays_with_its_parent(server: QuickServer, uid: str) -> None:
    command = [sys.executable, "-c", FORKED, str(server.address[1]), uid]
    assert subprocess.run(command, timeout=30, check=False).returncode == 3
    assert server.told(uid) == ["online login", "offline logout"]


def test_after_the_block_what_was_received_is_still_there_and_then_the_end(
    server: QuickServer, uid: str
) -> None:
    with connect_blocking(*server.address, uid=uid) as client:
        with connect_blocking(*server.address, uid=f"{uid}-friend") as friend:
            for number in range(3):
                friend.send_message(uid, number)
        wait_for(lambda: client.statistics().pushes_waiting == 4)
    assert isinstance(client.receive(timeout=1), Connected)
    assert [push.body for push in client if isinstance(push, Delivered)] == [0, 1, 2]
    requests = (partial(client.query, ["bob"]), partial(client.watch_nowait, ["bob"]))
    for ended in (*requests, partial(client.wait_online, 0), client.receive):
        with pytest.raises(Ended):
            ended()
    assert client.watched == {}
    client.close()
