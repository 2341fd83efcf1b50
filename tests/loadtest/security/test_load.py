"""Load against a server that does what a test says; and what the load's issuers sign, at the real gate."""

import socket
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import protocol
from loadtest.security.credentials import Issuer, spoilt, write_certificate, write_keys
from loadtest.security.load import (
    GRANTED,
    LOST,
    Attempt,
    Habit,
    Logins,
    Strangers,
    flood,
    log_in,
    logins,
    strangers,
)
from presence.auth.gate import from_settings
from presence.auth.verdicts import Granted
from presence.clock import Clock
from presence.settings import Settings
from presence.transports.tls import Certificate
from protocol import Code

Answer = Callable[[int, socket.socket], object]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, int]]:
    """Accept, and let `answer` do with each connection what it likes, in a thread of its own."""
    with ThreadPoolExecutor(100) as pool, socket.create_server(("127.0.0.1", 0), backlog=100) as listener:

        def serve() -> None:
            number = 0
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                pool.submit(closed, number, client)
                number += 1

        def closed(number: int, client: socket.socket) -> None:
            with client:
                answer(number, client)

        pool.submit(serve)
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def grant_or_refuse(number: int, client: socket.socket) -> None:
    client.recv(1000)
    if number % 3 == 0:
        client.sendall(protocol.encode(protocol.ok(1)))
    elif number % 3 == 1:
        client.sendall(protocol.encode(protocol.error(1, Code.BUSY, "later", retry_after=2.5)))


def test_each_attempt_is_due_in_its_time_and_told_with_what_came_of_it() -> None:
    with answering(grant_or_refuse) as address:
        ended = logins(Logins(address, "ann", 30, 300.0, sources=["127.0.0.1"]))
    assert sorted(each.code for each in ended) == [LOST] * 10 + [GRANTED] * 10 + [Code.BUSY] * 10
    assert {each.retry_after for each in ended if each.code == Code.BUSY} == {2.5}
    due = sorted(each.due for each in ended)
    assert due[-1] - due[0] == pytest.approx(29 / 300)
    assert all(0 < each.took_s < 60 for each in ended)


def test_attempts_come_from_many_addresses() -> None:
    addresses = set()
    with answering(lambda _, client: addresses.add(client.getpeername()[0])) as address:
        logins(Logins(address, "many", 64, 2000.0))
    assert len(addresses) == 64


def test_what_was_put_off_is_not_late() -> None:
    looks = iter([False] * 30 + [True] * 10)
    ended: list[Attempt] = []
    with answering(grant_or_refuse) as address:
        log_in(Logins(address, "ann", 32, 10_000.0), ended.append, lambda: next(looks))
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
        client.recv(10)  # of the third: it goes first

    with answering(close_late) as address:
        habits = [Habit(), Habit(b"a", b"bcdef"), Habit()]
        seen = strangers(Strangers(address, habits, 3, 1000.0, 1.0, every_s=0.05))
    gone, there = sorted(seen)[:2], sorted(seen)[2]
    assert all(b"abcdef".startswith(each) for each in came)
    assert gone[0].sent + gone[1].sent >= 3
    assert [each.code for each in gone] == [Code.LOGIN_TIMEOUT] * 2
    assert there == (float("inf"), 0, 0)


def test_a_flooder_that_is_cut_off_comes_back_and_floods_on() -> None:
    got: list[int] = []

    def cut_off(number: int, client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(protocol.encode(protocol.ok(1)))
        size = 0
        while size < 200_000:
            size += len(client.recv(65_536))
        got.append(size)
        if number % 2:
            client.sendall(protocol.encode(protocol.goodbye(Code.RATE_LIMITED, retry_after=1.0)))
            client.recv(1)

    with answering(cut_off) as address:
        found = flood(address, protocol.KEEPALIVE, time.monotonic(), 0.5)
    assert found.cut_off > 0
    assert found.otherwise > 0
    assert found.packets * len(protocol.KEEPALIVE) >= sum(got) / 2


@pytest.mark.parametrize("alg", ["HS256", "RS256", "EdDSA"])
def test_a_token_is_good_until_it_is_spoilt(tmp_path: Path, alg: str) -> None:
    issuer, path, clock = Issuer.fresh("key", alg), tmp_path / "keys.json", Clock()
    write_keys(path, [issuer])
    gate = from_settings(Settings(token_keys=path), clock, time.time)
    assert gate is not None
    token = issuer.token("ann")
    assert isinstance(gate.login(token, "ann", "127.0.0.1", clock.now()), Granted)
    assert not isinstance(gate.login(spoilt(token), "ann", "127.0.0.1", clock.now()), Granted)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_certificate_is_one_that_a_server_takes(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "one")
    first = cert.read_bytes()
    assert Certificate(cert, key).context
    write_certificate(tmp_path, "two")
    assert cert.read_bytes() != first
