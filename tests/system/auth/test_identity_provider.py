"""A real server whose keys come from a real HTTPS server, with a certificate of a private authority."""

import ssl
import time
from contextlib import ExitStack, closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

from presence.auth.token_signer import key_set, make_key, make_token, public_entry
from presence.protocol import Code, Kind, Packet
from presence.store.embedded import EmbeddedRedis
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

ISSUER = "https://login.example.com/"


class Provider:
    """An identity provider on a free port."""

    def __init__(self, stack: ExitStack, authority: trustme.CA) -> None:
        self.entries: list[dict[str, Any]] = []
        self.requests = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(key_set([public_entry(each) for each in provider.entries]).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=partial(server.serve_forever, 0.05))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        self.url = f"https://localhost:{server.server_address[1]}/keys"


def token(entry: dict[str, Any], issuer: str = ISSUER, audience: str = "web") -> str:
    return make_token(entry, "ann", audience=audience, now=time.time(), ttl_s=3600, iss=issuer)


def answered(address: tuple[str, int], shown: str) -> int:
    """Return the kind of the answer to a login, or the code of the error."""
    with closing(Phone(address)) as phone:
        answer = phone.ask(Packet(Kind.LOGIN, 1, {"token": shown}))
    return answer.payload["code"] if answer.kind == Kind.ERROR else answer.kind


@pytest.mark.parametrize("is_trusted", [True, False])
def test_keys_of_a_provider_with_a_private_authority(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    authority = trustme.CA()
    (authority if is_trusted else trustme.CA()).cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    old, new = make_key("old", "RS256"), make_key("new", "ES256")
    with ExitStack() as stack:
        provider = Provider(stack, authority)
        provider.entries = [old]
        flags = ("--token-keys", provider.url, "--token-issuer", ISSUER, "--token-audience", "app,web")
        server = stack.enter_context(
            running_server("--redis", redis_server.url, "--workers", "2", "--no-admin", *flags)
        )
        if not is_trusted:
            assert answered(server.address, token(old)) == Code.BUSY
            assert len(server.logged("token keys rejected")) >= 2
            assert provider.requests == 0
            return
        assert provider.requests == 2, "each worker has read the keys before it is ready"
        assert [answered(server.address, token(old)) for _ in range(10)] == [Kind.OK] * 10
        for wrong in (token(old, issuer="https://other/"), token(old, audience="other")):
            assert answered(server.address, wrong) == Code.AUTH_FAILED
        provider.entries = [old, new]
        assert answered(server.address, token(new)) == Code.BUSY
        wait_for(lambda: answered(server.address, token(new)) == Kind.OK)
