"""Servers that listen on IPv6, alone or together with IPv4, through all that a client and a subscriber do."""

import socket

import pytest

from presence.client import Delivered, PresenceChanged, connect_blocking
from presence.subscriber import Offline, Online, subscribe_sync
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

try:
    socket.create_server(("::1", 0), family=socket.AF_INET6).close()
except OSError:
    pytest.skip("this machine has no IPv6", allow_module_level=True)

IPV4, IPV6 = "127.0.0.1", "::1"


@pytest.mark.parametrize(
    ("host", "bobs"), [(IPV6, IPV6), ("::", IPV4), ("::", "::ffff:127.0.0.1"), ("::", "localhost")]
)
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_clients_of_both_families_reach_each_other(host: str, bobs: str, workers: str) -> None:
    flags = ("--insecure", "--workers", workers, "--event-address", "--disconnect-grace", "0")
    with PreloadedServer("--host", host, *flags) as server:
        port = server.address[1]
        assert server.address[0].strip("[]") == host
        with (
            connect_blocking(IPV6, port, uid="ann") as ann,
            connect_blocking(bobs, port, uid="bob") as bob,
        ):
            wait_for(lambda: ann.query(["bob"])["bob"].status == "online")
            ann.watch(["bob"])
            assert bob.send_message("ann", "hello") == 1
            push = ann.receive(5)
            while not isinstance(push, Delivered):
                push = ann.receive(5)
            assert (push.sender, push.body) == ("bob", "hello")
            bob.logout()
            while not isinstance(push, PresenceChanged):
                push = ann.receive(5)
            assert (push.uid, push.state.status) == ("bob", "offline")
        with subscribe_sync(server.redis_url, after="0") as events:
            seen = [each for each in iter(events.poll, None) if isinstance(each, Online | Offline)]
        addresses = {(each.uid, type(each).__name__): each.address for each in seen}
        of_bob = {IPV4, "::/64"} if bobs == "localhost" else {"::/64" if bobs == IPV6 else IPV4}
        assert addresses["ann", "Online"] == addresses["ann", "Offline"] == "::/64"
        assert {addresses["bob", "Online"], addresses["bob", "Offline"]} <= of_bob


def test_an_address_of_ipv4_alone_is_not_reached_over_ipv6() -> None:
    with PreloadedServer("--host", "0.0.0.0", "--insecure") as server:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((IPV6, server.address[1]))
