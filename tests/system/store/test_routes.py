"""Which server a key is on, on a real cluster."""

import socket
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ResponseError

from presence.common.errors import StoreUnavailable
from presence.store.cluster_routes import Routes
from presence.store.error_classes import CallInterrupted
from presence.store.keys import Keys
from presence.store.redis_client import CALL_TIMEOUT_S
from presence.store.script_runner import Scripting
from tests.store.servers import Server
from tests.support.redis_cluster import Cluster

KEYS = Keys(shards=16)
STREAMS = [KEYS.events(shard) for shard in range(16)]


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(3, 1) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """The same cluster for all tests, restored after each."""
    started.wait_until_ok()
    return started


@pytest.fixture
def routes(cluster: Cluster) -> Iterator[Routes]:
    routes = Routes(cluster.url)
    yield routes
    routes.close()


def test_each_key_is_where_its_slot_is_served(cluster: Cluster, routes: Routes) -> None:
    for stream in STREAMS:
        routes.client(stream).xlen(stream)  # raises MOVED elsewhere
    groups = routes.groups(STREAMS)
    assert len(groups) == len(routes.primaries()) == 3
    assert sorted(place for _, places in groups for place in places) == [*range(16)]


def test_the_map_is_read_from_whoever_is_there(cluster: Cluster) -> None:
    routes = Routes(f"redis+cluster://127.0.0.1:1,{cluster.url.removeprefix('redis+cluster://')}")
    assert len(routes.primaries()) == 3
    routes.close()


def test_nobody_there_is_a_lost_connection() -> None:
    with pytest.raises(RedisConnectionError, match="no server of the cluster"):
        Routes("redis+cluster://127.0.0.1:1").client("k")


def test_a_server_that_is_in_no_cluster_says_so(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.client.config_set("port", port)
    routes = Routes(f"redis+cluster://127.0.0.1:{port}")
    with pytest.raises(ResponseError, match="cluster support disabled"):
        routes.client("k")


@pytest.mark.parametrize("map_is_stale", [False, True])
def test_a_call_that_was_sent_to_the_wrong_server_is_sent_to_the_right_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, map_is_stale: bool
) -> None:
    scripting = Scripting(cluster.url)
    key = KEYS.events(0)
    scripting.commands(key, [("XLEN", key)])
    stale = scripting._routes._known_map()
    if map_is_stale:
        monkeypatch.setattr(Routes, "_read_map", lambda _: stale)  # from servers that have not heard yet
    before = cluster.primary_of(key)
    to = next(member for member in cluster.primaries() if member is not before)
    cluster.move(key, to).run()
    with pytest.raises(StoreUnavailable, match="Moved"):
        scripting.commands(key, [("XLEN", key)])  # plain commands are the caller's to repeat
    assert scripting.commands(key, [("XLEN", key)]) == [0]
    cluster.move(key, before).run()
    scripting.close()


@pytest.mark.parametrize("named", ["another", "nobody", ""])
def test_what_was_learned_holds_until_that_server_fails_or_says_otherwise(
    cluster: Cluster, named: str
) -> None:
    scripting = Scripting(cluster.url)
    key = KEYS.events(0)
    wrong = next(member for member in cluster.primaries() if member is not cluster.primary_of(key))
    address = {"another": f"127.0.0.1:{wrong.port}", "nobody": "127.0.0.1:1", "": ":1"}[named]
    scripting._routes.note_redirect(MovedError(f"{cluster.slot_of(key)} {address}"))
    if named:
        with pytest.raises(StoreUnavailable):
            scripting.commands(key, [("XLEN", key)])
    assert scripting.commands(key, [("XLEN", key)]) == [0], "a host that is not named tells nothing"
    scripting.close()
    assert scripting.commands(key, [("XLEN", key)]) == [0], "after a close it opens anew"
    scripting.close()


def test_the_new_primary_is_found_after_a_failover(cluster: Cluster) -> None:
    routes = Routes(cluster.url)
    key = KEYS.events(1)
    routes.client(key).ping()
    lost = cluster.primary_of(key)
    promoted = cluster.fail_over(lost)
    with pytest.raises(RedisConnectionError):
        routes.client(key).xlen(key)
    routes.invalidate(routes.client(key))
    assert routes.client(key).xlen(key) == 0
    assert routes.client(key).connection_pool.connection_kwargs["port"] == promoted.port
    cluster.start(lost)
    routes.close()


def test_servers_that_hang_hold_up_a_call_for_no_longer_than_one(cluster: Cluster) -> None:
    scripting = Scripting(cluster.url)
    scripting._exchange(STREAMS, [("XLEN", stream) for stream in STREAMS])
    hanging = cluster.primaries()[:2]
    for member in hanging:
        member.freeze()
    started = time.monotonic()
    answers = scripting._exchange(STREAMS, [("XLEN", stream) for stream in STREAMS])
    took_s = time.monotonic() - started
    for member in hanging:
        member.thaw()
    assert took_s < 1.5 * CALL_TIMEOUT_S
    assert {type(answer) for answer in answers} == {int, CallInterrupted}
    scripting.close()
