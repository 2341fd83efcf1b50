"""TLS to Redis: what works, and what each thing that is wrong is called when a server starts."""

import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import which

import pytest
import trustme

from loadtest.ports import free_port
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.client import open_client
from presence.store.control_channel import ControlChannel
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.routes import Connect
from presence.store.watch_channel import WatchChannel
from presence.watching.channel import Confirmed, Heard, Pong
from tests.store.servers import Server

pytestmark = pytest.mark.needs("redis-server")  # the wheel's has no TLS

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class TlsServer:
    """A server that speaks TLS on a port; what it shows and wants can be changed while it runs.

    Attributes:
        folder: has the authority's ``ca``, another's ``stranger-ca``, and ``NAME.crt`` and ``NAME.key``.
    """

    def __init__(self, folder: Path, *extra: str) -> None:
        self.folder = folder
        authority, stranger = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca")
        stranger.cert_pem.write_to_path(folder / "stranger-ca")
        self._keep("good", authority.issue_cert("localhost"))
        self._keep("misnamed", authority.issue_cert("elsewhere.example"))
        old = authority.issue_cert("localhost", not_before=YESTERDAY - timedelta(days=9), not_after=YESTERDAY)
        self._keep("expired", old)
        self._keep("client", authority.issue_cert("presence@nodes.example"))
        self._keep("stranger", stranger.issue_cert("presence@nodes.example"))
        self.port = free_port()
        binary = which("redis-server")
        assert binary
        files = ("--tls-cert-file", "good.crt", "--tls-key-file", "good.key", "--tls-ca-cert-file", "ca")
        self.server = Server(binary, folder, extra=("--tls-port", str(self.port), *files, *extra))
        self.ask("no")

    def _keep(self, name: str, certificate: trustme.LeafCert) -> None:
        certificate.cert_chain_pems[0].write_to_path(self.folder / f"{name}.crt")
        certificate.private_key_pem.write_to_path(self.folder / f"{name}.key")

    def show(self, name: str) -> None:
        """Show another certificate from now on."""
        self._set("tls-cert-file", f"{name}.crt", "tls-key-file", f"{name}.key")

    def ask(self, wants: str) -> None:
        """Ask clients for a certificate from now on, or do not."""
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
    """The server, which shows the good certificate and asks for none."""
    yield shared
    shared.show("good")
    shared.ask("no")


def contact(url: str, connect: Connect = open_client) -> None:
    """Make the first contact of a server that starts."""
    store = RedisStore(url, Shape(Keys(), maxlen=1000, seen_retention_ms=10**13), connect)
    try:
        store.check_meta()
    finally:
        store.close()


def refusal(url: str) -> str:
    """Return what the first contact is refused with: at once, and not as something that passes."""
    with pytest.raises(StoreError) as caught:
        contact(url)
    return str(caught.value)


def test_a_certificate_of_a_known_authority_is_taken(tls: TlsServer) -> None:
    contact(tls.url())


def test_a_client_shows_its_certificate(tls: TlsServer) -> None:
    tls.ask("yes")
    contact(tls.url(client="client"))


def test_an_unknown_authority_is_named(tls: TlsServer) -> None:
    assert "its certificate is refused: self-signed certificate in" in refusal(tls.url("stranger-ca"))


def test_a_certificate_of_another_host_is_named(tls: TlsServer) -> None:
    tls.show("misnamed")
    assert "Hostname mismatch, certificate is not valid for 'localhost'" in refusal(tls.url())


def test_an_expired_certificate_is_named(tls: TlsServer) -> None:
    tls.show("expired")
    assert "certificate has expired" in refusal(tls.url())


@pytest.mark.parametrize("client", ["", "stranger"])
def test_a_missing_client_certificate_is_named_whoever_is_quicker(tls: TlsServer, client: str) -> None:
    tls.ask("yes")
    for _ in range(5):  # the server hangs up before or after the client's first word
        assert "alert" in (said := refusal(tls.url(client=client)))
        assert "it wants a client certificate that it trusts: ssl_certfile, ssl_keyfile" in said


def test_a_file_that_is_not_there_is_named(tls: TlsServer) -> None:
    assert f"No such file or directory, of ssl_ca_certs={tls.folder}/nothing" in refusal(tls.url("nothing"))


def test_a_key_of_another_certificate_is_named(tls: TlsServer) -> None:
    (tls.folder / "mixed.crt").write_bytes((tls.folder / "client.crt").read_bytes())
    (tls.folder / "mixed.key").write_bytes((tls.folder / "stranger.key").read_bytes())
    assert "key values mismatch" in refusal(tls.url(client="mixed"))


def test_a_server_without_tls_passes_and_the_reason_is_guessed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(StoreUnavailable, match="does it speak TLS at this port"):
            contact(f"rediss://127.0.0.1:{silent.getsockname()[1]}", partial(open_client, call_timeout_s=0.2))


def test_a_certificate_that_was_renewed_is_taken_without_a_restart(tls: TlsServer) -> None:
    tls.show("expired")
    store = RedisStore(tls.url(), Shape(Keys(), maxlen=1000, seen_retention_ms=10**13))
    with pytest.raises(StoreError):
        store.check_meta()
    tls.show("good")
    store.check_meta()
    store.close()


def listening(url: str) -> tuple[Callable[[], object], Callable[[], None]]:
    channel = ControlChannel(url, Keys())
    channel.subscribe("a")
    return channel.next, channel.close


def hearing(url: str) -> tuple[Callable[[], object], Callable[[], None]]:
    channel = WatchChannel(url, Keys(), 0)
    channel.open()

    def hear() -> None:
        channel.order(["ann"], ["bob"])
        channel.hear()

    return hear, channel.close


def looking(url: str) -> tuple[Callable[[], object], Callable[[], None]]:
    channel = WatchChannel(url, Keys(), 0)
    channel.open()
    return partial(channel.snapshot, ["ann"]), channel.close


def until_it_fails(use: Callable[[], object], failures: list[Exception]) -> None:
    while not failures:
        try:
            use()
        except Exception as error:
            failures.append(error)


@pytest.mark.parametrize("using", [listening, hearing, looking])
def test_a_channel_can_be_closed_from_another_thread_at_any_moment(
    tls: TlsServer, using: Callable[[str], tuple[Callable[[], object], Callable[[], None]]]
) -> None:
    chance = random.Random(1)
    for _ in range(25):
        use, close = using(tls.url())
        failures: list[Exception] = []
        thread = threading.Thread(target=until_it_fails, args=(use, failures))
        thread.start()
        time.sleep(chance.uniform(0, 0.004))  # real time: the call has to be under way
        close()
        thread.join(2)
        assert [type(error) for error in failures] == [StoreUnavailable]


def test_all_is_heard_over_tls(tls: TlsServer) -> None:
    """What was read from the socket may wait in the library, where no poll sees it."""
    uids = [f"user-{number}" for number in range(2_000)]
    with closing(WatchChannel(tls.url(), Keys(), 0)) as channel:
        channel.open()
        channel.order(uids, [])
        channel.ping(channel.check())
        heard: list[Heard] = []
        while len(heard) <= len(uids):
            heard += channel.hear()
        assert heard == [*map(Confirmed, uids), Pong((0, 0))]
        assert channel.snapshot(["ann"]).as_of == (0, 0)
