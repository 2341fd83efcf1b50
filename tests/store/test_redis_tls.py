"""TLS to Redis: what works, and the error for each misconfiguration when a server starts."""

import random
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import which

import pytest
import trio
import trustme

from loadtest.servers import free_port
from presence.common.errors import StoreError, StoreUnavailable
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.watching.channel import Pong, Subscribed
from tests.store.servers import Server
from tests.support.shard_channel import ShardChannel

pytestmark = pytest.mark.needs("redis-server")  # the bundled server has no TLS

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class TlsServer:
    """A server that speaks TLS on a port; its certificate and its requirements can change while it runs.

    Attributes:
        folder: has the authority's ``ca``, another's ``stranger-ca``, and ``NAME.crt`` and ``NAME.key``.
    """

    def __init__(self, folder: Path, *extra: str) -> None:
        self.folder = folder
        authority, stranger = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca")
        stranger.cert_pem.write_to_path(folder / "stranger-ca")
        begin = YESTERDAY - timedelta(days=9)
        issued = {
            "good": authority.issue_cert("localhost"),
            "misnamed": authority.issue_cert("elsewhere.example"),
            "expired": authority.issue_cert("localhost", not_before=begin, not_after=YESTERDAY),
            "client": authority.issue_cert("presence@nodes.example"),
            "stranger": stranger.issue_cert("presence@nodes.example"),
        }
        for name, certificate in issued.items():
            certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
            certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / "mixed.crt").write_bytes((folder / "client.crt").read_bytes())
        (folder / "mixed.key").write_bytes((folder / "stranger.key").read_bytes())
        self.port = free_port()
        binary = which("redis-server")
        assert binary
        files = ("--tls-cert-file", "good.crt", "--tls-key-file", "good.key", "--tls-ca-cert-file", "ca")
        self.server = Server(binary, folder, extra=("--tls-port", str(self.port), *files, *extra))
        self.ask("no")

    def show(self, name: str) -> None:
        """Present another certificate from now on."""
        self._set("tls-cert-file", f"{name}.crt", "tls-key-file", f"{name}.key")

    def ask(self, wants: str) -> None:
        """Request client certificates from now on, or stop."""
        self._set("tls-auth-clients", wants)

    def _set(self, *words: str) -> None:
        self.server.client.execute_command("CONFIG", "SET", *words)  # type: ignore[no-untyped-call]

    def url(self, ca: str = "ca", *, client: str = "", host: str = "localhost") -> str:
        options = [f"ssl_ca_certs={self.folder / ca}"]
        if client:
            options += [f"ssl_certfile={self.folder / client}.crt", f"ssl_keyfile={self.folder / client}.key"]
        return f"rediss://{host}:{self.port}?{'&'.join(options)}"


@pytest.fixture(scope="module")
def shared() -> Iterator[TlsServer]:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        tls = TlsServer(Path(folder))
        yield tls
        tls.server.close()


@pytest.fixture
def tls(shared: TlsServer) -> Iterator[TlsServer]:
    """The server, which presents the good certificate and requests none."""
    yield shared
    shared.show("good")
    shared.ask("no")


def contact(url: str, connect: Connect = open_client) -> None:
    """Make the first contact of a starting server."""
    store = RedisStore(url, Shape(Keys(), maxlen=1000, seen_retention_ms=10**13), connect)
    try:
        store.check_meta()
    finally:
        store.close()


def refusal(url: str) -> str:
    """Return the error of the first contact, which must come immediately and not as a temporary one."""
    with pytest.raises(StoreError) as caught:
        contact(url)
    return str(caught.value)


# The server's certificate, whether it requests one; the client's authority and certificate; the error.
REFUSALS = {
    "an unknown authority": (
        "good",
        "no",
        "stranger-ca",
        "",
        "its certificate is refused: self-signed certificate in",
    ),
    "another host": ("misnamed", "no", "ca", "", "certificate is not valid for 'localhost'"),
    "too old": ("expired", "no", "ca", "", "certificate has expired"),
    "a missing certificate": (
        "good",
        "yes",
        "ca",
        "",
        "it wants a client certificate that it trusts: ssl_certfile",
    ),
    "a stranger's": (
        "good",
        "yes",
        "ca",
        "stranger",
        "it wants a client certificate that it trusts: ssl_certfile",
    ),
    "a missing file": ("good", "no", "nothing", "", "No such file or directory, of ssl_ca_certs="),
    "a key of another certificate": ("good", "no", "ca", "mixed", "key values mismatch"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_misconfiguration_is_named_and_its_fix_needs_no_restart(tls: TlsServer, name: str) -> None:
    shows, wants, ca, client, error = REFUSALS[name]
    tls.show(shows)
    tls.ask(wants)
    for _ in range(5):  # a server hangs up before or after the client's first packet
        assert error in refusal(tls.url(ca, client=client))
    tls.show("good")
    contact(tls.url(client="client"))


def test_a_server_without_tls_is_temporary_and_the_reason_is_guessed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(StoreUnavailable, match="does it speak TLS at this port"):
            contact(f"rediss://127.0.0.1:{silent.getsockname()[1]}", partial(open_client, call_timeout_s=0.2))


async def repeat(use: Callable[[], Awaitable[object]]) -> None:
    while True:
        await use()


async def test_a_channel_can_be_closed_at_any_time(tls: TlsServer) -> None:
    chance = random.Random(1)
    for _ in range(8):
        channel = ShardChannel(tls.url(), Keys())
        await channel.open()
        channel.channel.update_subscriptions(["ann"], ["bob"])
        with trio.move_on_after(chance.uniform(0, 0.004)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat, channel.receive)
                nursery.start_soon(repeat, channel.check)
        channel.close()


async def test_all_messages_are_received_over_tls(tls: TlsServer) -> None:
    """Data read from the socket may be buffered in the library, where the loop does not see them."""
    uids = [f"user-{number}" for number in range(2_000)]
    channel = ShardChannel(tls.url(), Keys())
    await channel.open()
    channel.channel.update_subscriptions(uids, [])
    channel.channel.ping(1)
    assert await channel.hear(len(uids) + 1) == [*map(Subscribed, uids), Pong(1)]
    assert (await channel.snapshot(["ann"])).as_of == (0, 0)
    channel.close()
