"""Clients with certificates, while the files that verify them and the server's certificate are replaced."""

import os
import signal
import ssl
from pathlib import Path

import pytest
import trio

from presence.client import Client, ClientOptions, Unreachable, connect
from presence.store.embedded import EmbeddedRedis
from tests.support.server_process import running_server
from tests.support.waiting import until
from tests.transports import certificates
from tests.transports.issuer import Issuer, common_names

CLIENTS = 200
RELOADS = 20
WORKERS = 2
GATHER_S = 2.5  # more than a keepalive interval: each connection proves that it works
T = 5.0


def context_of(cert: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.authority().configure_trust(context)
    context.load_cert_chain(cert)
    return context


@pytest.mark.alone
async def test_reloads_drop_no_client(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    issuer, other = Issuer(tmp_path), Issuer(tmp_path)
    cert, key = certificates.write(tmp_path)
    ca = tmp_path / "authorities.pem"
    ca.write_bytes(issuer.ca.read_bytes())
    users = {f"user-{number}": issuer.issue(common_names(f"user-{number}")) for number in range(CLIENTS)}
    files = {"cert": cert, "key": key, "client-ca": ca, "client-crl": issuer.write_crl()}
    flags = [word for name, path in files.items() for word in (f"--tls-{name}", str(path))]
    flags += ["--workers", str(WORKERS), "--tls-only", "--redis", redis_server.url]
    with running_server(*flags) as server:
        clients: list[Client] = []

        async def stay(uid: str) -> None:
            tls = context_of(users[uid])
            async with connect(
                "localhost", server.address[1], uid=uid, idle_timeout=T, options=ClientOptions(tls=tls)
            ) as client:
                clients.append(client)
                await trio.sleep_forever()

        revoked: list[Path] = []
        async with trio.open_nursery() as nursery:
            for number in range(RELOADS):
                for uid in list(users)[number::RELOADS]:
                    nursery.start_soon(stay, uid)
                certificates.write(tmp_path, number)
                ca.write_bytes(issuer.ca.read_bytes() + other.ca.read_bytes() * (number % 2))
                revoked.append(issuer.issue())
                issuer.write_crl(*revoked)
                os.kill(server.process.pid, signal.SIGHUP)
                done = WORKERS * (number + 1)
                await until(lambda done=done: len(server.logged("certificate renewed")) == done)  # type: ignore[misc]
            await until(lambda: len(clients) == CLIENTS)
            await trio.sleep(GATHER_S)
            for client in clients:
                assert (await client.query(["user-0"]))["user-0"].status == "online"
            assert [client.statistics().logins for client in clients] == [1] * CLIENTS
            nursery.cancel_scope.cancel()
        with pytest.raises(Unreachable):
            async with connect(
                "localhost", server.address[1], uid="ann", options=ClientOptions(tls=context_of(revoked[-1]))
            ):
                pass
