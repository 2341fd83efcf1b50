"""Follow-ups inside ``presence serve``: a server with rules turns the wheel, and says what it did."""

import socket
from pathlib import Path

from presence import protocol
from presence.store.client import Redis
from presence.store.embedded import EmbeddedRedis
from tests.followups.shards import Shard
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

DEADLINE_S = 40.0


def test_a_server_with_rules_tells_what_follows_a_logout_and_reports_it(
    module_redis: EmbeddedRedis, client: Redis, tmp_path: Path
) -> None:
    config = tmp_path / "presence.toml"
    config.write_text('[[followups]]\nname = "bye"\nafter = 0.2\nreasons = ["logout"]\n')
    state, shard = "presence:{0}:followup:state", Shard(client, module_redis.url)
    with running_server("--redis", module_redis.url, "--config", str(config)) as server:
        wait_for(lambda: client.exists(state), DEADLINE_S)  # what went before the first turn is history
        with socket.create_connection(server.address) as ann:
            ann.sendall(protocol.encode(protocol.login("ann")))
            assert ann.recv(4096)
            ann.sendall(protocol.encode(protocol.logout()))
            ann.recv(4096)  # the server hangs up
        wait_for(shard.told, DEADLINE_S)
        turned = client.hget(state, "until_ms")
        wait_for(lambda: client.hget(state, "until_ms") != turned, DEADLINE_S)  # the answer was read before
    (told,) = shard.told()
    assert (told["name"], told["uid"], told["reason"]) == ("bye", "ann", "logout")
    assert int(told["at_ms"]) >= int(told["due_ms"]) == int(told["offline_at_ms"]) + 200
    report = server.report["followups"]
    assert (report["planned"], report["told"]) == (1, 1)
