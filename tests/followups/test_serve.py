"""Follow-ups inside ``presence serve``: a server with rules runs the scheduler and reports what it did."""

import socket
from pathlib import Path

from presence import protocol
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.followups.shards import Shard
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

DEADLINE_S = 40.0


def test_a_server_with_rules_delivers_a_follow_up_and_reports_it(
    module_redis: EmbeddedRedis, client: Redis, tmp_path: Path
) -> None:
    config = tmp_path / "presence.toml"
    config.write_text('[[followups]]\nname = "bye"\nafter = 0.2\nreasons = ["logout"]\n')
    state, shard = "presence:{0}:followup:state", Shard(client, module_redis.url)
    with running_server("--redis", module_redis.url, "--config", str(config)) as server:
        wait_for(lambda: client.exists(state), DEADLINE_S)  # events before the first run are ignored
        with socket.create_connection(server.address) as ann:
            ann.sendall(protocol.encode(protocol.login("ann")))
            assert ann.recv(4096)
            ann.sendall(protocol.encode(protocol.logout()))
            ann.recv(4096)  # until the server hangs up
        wait_for(shard.delivered, DEADLINE_S)
        ran_until_ms = client.hget(state, "until_ms")
        wait_for(
            lambda: client.hget(state, "until_ms") != ran_until_ms, DEADLINE_S
        )  # the script's answer came before
    (followup,) = shard.delivered()
    assert (followup["name"], followup["uid"], followup["reason"]) == ("bye", "ann", "logout")
    assert int(followup["at_ms"]) >= int(followup["due_ms"]) == int(followup["offline_at_ms"]) + 200
    report = server.report["followups"]
    assert (report["planned"], report["delivered"]) == (1, 1)
