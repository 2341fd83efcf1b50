"""The client for scripts, with a block and without: every thread and socket is gone afterwards."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from presence.client import (
    BlockingClient,
    ClientOptions,
    Connected,
    Ended,
    State,
    Unreachable,
    Unsupported,
    WatchEnded,
    connect_blocking,
)
from presence.protocol import Kind
from tests.client.granting_server import PATIENCE_S, GrantingServer


@pytest.fixture
def server() -> Iterator[GrantingServer]:
    server = GrantingServer()
    yield server
    server.close()


@pytest.fixture
def client(server: GrantingServer) -> Iterator[BlockingClient]:
    client = connect_blocking(*server.address, uid="ann")
    yield client
    client.close()


def kinds(server: GrantingServer) -> list[int]:
    return [packet.kind for packet in server.received if packet.kind != Kind.KEEPALIVE]


def test_without_a_block_it_is_online_until_it_is_closed(server: GrantingServer) -> None:
    threads = set(threading.enumerate())
    client = connect_blocking(*server.address, uid="ann", token=lambda: "token")
    assert isinstance(client.receive(PATIENCE_S), Connected)
    assert client.state is State.ONLINE
    client.close()
    assert kinds(server) == [Kind.LOGIN, Kind.LOGOUT]
    assert set(threading.enumerate()) <= threads


def test_it_may_be_closed_again_and_by_several_threads(
    server: GrantingServer, client: BlockingClient
) -> None:
    threads = [threading.Thread(target=client.close) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    client.close()
    assert kinds(server) == [Kind.LOGIN, Kind.LOGOUT]


def test_a_close_ends_a_loop_in_another_thread(client: BlockingClient) -> None:
    pushes: list[object] = []
    reader = threading.Thread(target=lambda: pushes.extend(client))
    reader.start()
    client.close()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert [type(push) for push in pushes] == [Connected]


def test_after_the_end_each_request_raises_ended(client: BlockingClient) -> None:
    client.close()
    with pytest.raises(Ended):
        client.watch_nowait(["bob"])
    with pytest.raises(Ended):
        client.query(["bob"])
    with pytest.raises(Ended):
        client.set_idle_timeout(60)
    assert (client.watched, client.server_time().year) == ({}, 2023)


def test_iterators_of_one_kind_end_with_the_client(client: BlockingClient) -> None:
    messages, changes = client.messages(), client.presence_changes()
    client.close()
    assert (list(messages), list(changes)) == ([], [])
    assert [type(push) for push in client.connection_changes()] == [Connected]


def test_an_exception_leaves_the_block_without_a_logout(server: GrantingServer) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(KeyError):
        with connect_blocking(*server.address, uid="ann") as client:
            raise KeyError
    assert (kinds(server), client.state) == ([Kind.LOGIN], State.ENDED)
    assert set(threading.enumerate()) <= threads


def test_a_failed_attempt_leaves_no_thread() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(Unreachable):
        connect_blocking("127.0.0.1", 1, uid="ann", token=lambda: "token")
    assert set(threading.enumerate()) <= threads


def test_a_wait_may_be_a_duration(client: BlockingClient) -> None:
    assert isinstance(client.receive(timedelta(seconds=PATIENCE_S)), Connected)
    with pytest.raises(TimeoutError):
        client.receive(timedelta(milliseconds=1))


def test_the_options_are_those_of_the_other_face(server: GrantingServer) -> None:
    options = ClientOptions(ask_every=3, request_timeout=timedelta(seconds=5))
    with connect_blocking(*server.address, uid="ann", options=options) as client:
        client.disconnect()
    assert kinds(server) == [Kind.LOGIN]


def test_an_older_server_has_no_roster(client: BlockingClient) -> None:
    with pytest.raises(Unsupported):
        client.watch_roster()
    client.watch_roster_nowait()
    ended = client.receive(PATIENCE_S, "presence")
    assert isinstance(ended, WatchEnded)
    assert (ended.uids, ended.reason) == ((), "unsupported")
    client.unwatch_roster()
