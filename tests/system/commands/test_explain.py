"""``presence explain`` on a Redis Cluster."""

import trio

from loadtest.redis_cluster import Cluster
from tests.commands.test_explain import explained, serving
from tests.transports.harness import Client


async def test_in_a_cluster(redis_cluster: Cluster) -> None:
    async with serving(redis_cluster.url, 2) as servers:
        clients = [Client(await trio.open_tcp_stream(host, port)) for _, host, port in servers]
        for number, client in enumerate(clients):
            await client.login(f"user-{number}")
        for number, (server, _, _) in enumerate(servers):
            told = await explained(
                redis_cluster.url,
                f"user-{number}",
                lambda told: [each["on_record"] for each in told["sessions"]] == [True],
            )
            assert told["sessions"][0]["node"] == server.node.relay.node
            assert [each["answer"] for each in told["nodes"]] == ["answered"] * 2
            assert told["event"]["type"] == "online"
        for client in clients:
            await client.stream.aclose()
