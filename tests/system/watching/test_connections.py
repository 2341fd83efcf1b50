"""What watching costs a worker, whatever the number of shards: connections and threads."""

import pytest

from loadtest.servers import LocalRedis
from presence import protocol
from presence.protocol import Kind
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.process_figures import Figures, figures
from tests.support.waiting import wait_for

IDLE_CONNECTIONS = 4  # docs/redis.md: per worker
WATCHING_CONNECTIONS = IDLE_CONNECTIONS + 2  # docs/redis.md: while its clients watch
ASKING_CONNECTIONS = IDLE_CONNECTIONS + 2  # docs/redis.md: once they have sent a query and a message
MOST_THREADS = 6  # docs/architecture.md says which
USERS = 500
LINGER_S = 1.0
PROGRAM = (
    "-c",
    f"from presence.watching import shard_watch as watch; watch.LINGER_S = {LINGER_S}\n"
    "import sys; from presence.__main__ import main; sys.exit(main())",
)


def settled(pid: int, redis: LocalRedis, most: int) -> Figures:
    """Return the figures once the process has at most so many connections."""

    def look() -> Figures | None:
        found = figures(pid, redis.client)
        return found if found.clients <= most else None

    return wait_for(look)


@pytest.mark.parametrize("shards", [1, 16, 128])
def test_one_subscription_and_no_thread_serve_the_watches_of_all_shards(shards: int) -> None:
    with LocalRedis() as redis:
        flags = ("--redis", redis.url, "--shards", str(shards), "--max-watches", "1000")
        with PreloadedServer(*flags, program=PROGRAM) as server:
            pid = server.process.pid
            idle = settled(pid, redis, IDLE_CONNECTIONS)
            line = Line(server.address, protocol.login("watcher"))
            uids = [f"user-{number}" for number in range(USERS)]
            assert line.ask(protocol.watch(uids)).kind == Kind.OK
            watching = settled(pid, redis, WATCHING_CONNECTIONS)
            others = [Line(server.address, protocol.login(uid)) for uid in uids[:20]]
            assert sorted(uid for uid, _, _ in line.pushes()) == sorted(uids[:20])
            for other in others:
                other.close()
            assert line.ask(protocol.unwatch(uids)).kind == Kind.OK
            after = settled(pid, redis, IDLE_CONNECTIONS)
            assert line.ask(protocol.query(uids)).kind == Kind.OK
            assert line.ask(protocol.message("absent", "hello")).kind == Kind.ERROR
            asking = figures(pid, redis.client)
            line.close()
            print(f"{shards} shards: idle {idle}, watching {watching}, after {after}, asking {asking}")
            assert max(each.threads for each in (idle, watching, after, asking)) <= MOST_THREADS
            assert asking.clients <= ASKING_CONNECTIONS
            assert watching.clients <= WATCHING_CONNECTIONS
            # An idle worker may not have opened all its connections yet when it is looked at.
            assert watching.descriptors - watching.clients <= idle.descriptors - idle.clients + 2
            assert not server.failures()
