"""Attempts at logins, and strangers who make none, at a server of this test's own."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import protocol
from loadtest.security.attempts import GRANTED, LOST, Attempt, Attempts, Plain, Plan, attempts
from loadtest.security.strangers import Habit, strangers
from loadtest.security.strangers import Plan as Crowd
from protocol import Code

Answer = Callable[[int, socket.socket], None]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, int]]:
    """Accept, and let `answer` do with each connection what it likes, in a thread of its own."""
    threads = []
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:

        def serve() -> None:
            number = 0
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=closed, args=(number, client)))
                threads[-1].start()
                number += 1

        def closed(number: int, client: socket.socket) -> None:
            with client:
                answer(number, client)

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def grant_or_refuse(number: int, client: socket.socket) -> None:
    client.recv(1000)
    if number % 3 == 0:
        client.sendall(protocol.encode(protocol.ok(1)))
    elif number % 3 == 1:
        client.sendall(protocol.encode(protocol.error(1, Code.BUSY, "later", retry_after=2.5)))


def test_each_attempt_is_told_with_what_came_of_it() -> None:
    with answering(grant_or_refuse) as address:
        ended = attempts(Plan(address, Plain("ann"), 30, 1000.0, sources=["127.0.0.1"]))
    assert sorted(each.code for each in ended) == [LOST] * 10 + [GRANTED] * 10 + [Code.BUSY] * 10
    assert {each.retry_after for each in ended if each.code == Code.BUSY} == {2.5}
    assert all(0 < each.took_s < 60 for each in ended)


def test_attempts_come_from_many_addresses() -> None:
    addresses = set()
    with answering(lambda _, client: addresses.add(client.getpeername()[0])) as address:
        attempts(Plan(address, Plain("many"), 64, 2000.0))
    assert len(addresses) == 64


def test_a_plan_says_when_the_attempts_are_due() -> None:
    with answering(grant_or_refuse) as address:
        ended = attempts(Plan(address, Plain("ann"), 21, 100.0))
    due = sorted(each.due for each in ended)
    assert due[-1] - due[0] == pytest.approx(0.2)


def test_what_was_put_off_is_not_late() -> None:
    looks = iter([False] * 30 + [True] * 10)
    ended: list[Attempt] = []
    with answering(grant_or_refuse) as address:
        Attempts(Plan(address, Plain("ann"), 32, 10_000.0), ended.append, lambda: next(looks)).run()
    assert len(ended) == 32
    assert next(looks, None) is not None  # it went on as soon as it might


def test_strangers_are_told_with_what_they_lived_to_see() -> None:
    goodbye = protocol.encode(protocol.goodbye(Code.LOGIN_TIMEOUT))
    came: list[bytes] = []

    def close_late(number: int, client: socket.socket) -> None:
        if number < 2:
            got = b""
            while len(got) < 3 * number:
                got += client.recv(10)
            came.append(got)
            client.sendall(goodbye)
            client.shutdown(socket.SHUT_WR)
            client.recv(10)
        else:
            client.recv(10)  # the stranger goes first

    with answering(close_late) as address:
        habits = [Habit(), Habit(b"a", b"bcdef"), Habit()]
        seen = strangers(Crowd(address, habits, 3, 1000.0, 5.0, every_s=0.05))
    gone, there = sorted(seen)[:2], sorted(seen)[2]
    assert all(b"abcdef".startswith(each) for each in came)
    assert gone[0].sent + gone[1].sent >= 3
    assert [each.code for each in gone] == [Code.LOGIN_TIMEOUT] * 2
    assert there == (float("inf"), 0, 0)
