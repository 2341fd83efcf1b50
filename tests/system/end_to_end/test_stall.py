"""A process that was stopped does not end sessions whose clients kept sending keepalives."""

import threading
import time

from loadtest.servers import PresenceServer
from loadtest.unguarded import WITHOUT_STALL_GUARD
from presence.store.embedded import EmbeddedRedis
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm, SwarmClient

FLAGS = ("--idle-timeout", "3", "--tick", "0.5")


def beat_through_pauses(server: PresenceServer, swarm: Swarm, pauses: list[float]) -> list[SwarmClient]:
    """Stop and continue the server under 400 live clients and 20 silent ones; return the silent."""
    swarm.log_in(f"beating-{n}" for n in range(400))
    swarm.run(5, until=swarm.logged_in)
    silent = swarm.log_in((f"silent-{n}" for n in range(20)), beating=False)
    swarm.run(5, until=swarm.logged_in)
    assert swarm.logged_in()
    for seconds in pauses:
        pause = threading.Thread(target=server.pause, args=(seconds,))
        pause.start()
        swarm.run(seconds + 1.0)
        pause.join()
    return silent


def test_nobody_who_beats_is_ended_by_a_stop(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *FLAGS) as server:
        with Swarm(server.address, beat_s=1.2) as swarm:
            silent = beat_through_pauses(server, swarm, [4.0])
            swarm.run(3 + 3 + 0.5 + 0.5)  # T, a credit of at most T, a tick
            events = read_events(redis_server.url)
    offline = of_type(events, "offline")
    assert set(offline) == {client.uid for client in silent}
    assert_alternation(events)
    assert server.report["ticker"]["stall_credit_s"] > 0, "a fault was injected"


def test_without_the_guard_clients_who_beat_are_ended(redis_server: EmbeddedRedis) -> None:
    """The negative control: which of tick and reads comes first is chance, so it is tried several times."""
    false: list[str] = []
    with running_server("--redis", redis_server.url, *FLAGS, program=WITHOUT_STALL_GUARD) as server:
        with Swarm(server.address, beat_s=1.2) as swarm:
            beat_through_pauses(server, swarm, [])
            give_up = time.monotonic() + 60
            while not false and time.monotonic() < give_up:
                pause = threading.Thread(target=server.pause, args=(3.5,))
                pause.start()
                swarm.run(4.0)
                pause.join()
                offline = of_type(read_events(redis_server.url), "offline")
                false = [uid for uid in offline if uid.startswith("beating")]
    assert false
