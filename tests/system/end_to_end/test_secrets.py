"""Canaries: passwords, tokens and keys that nothing may ever print, keep or show, whatever goes wrong."""

import base64
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.cli.main import main
from presence.protocol import Code, Kind, Packet
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from tests.docs.roles import ask, permissions
from tests.server.test_tokens import answered, login
from tests.support.credentials import token, write_keys
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.transports import certificates

PASSWORD = "canary-password-of-redis"
SECRET = b"canary-secret-that-signs-tokens!"
KEY = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
OPAQUE = "canary-token-of-no-known-form"


def look_for(canaries: Sequence[str], where: str, text: str) -> None:
    """Assert that none of the secrets is there."""
    for canary in canaries:
        assert canary not in text, (where, text[: text.index(canary)][-200:])


@pytest.fixture
def admin(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    client = open_client(redis_server.url)
    ask(client, "ACL", "SETUSER", "presence-server", *permissions("server"), f">{PASSWORD}")
    yield client
    client.close()


def url_of(server: EmbeddedRedis, password: str = PASSWORD) -> str:
    return server.url.replace("unix://", f"unix://presence-server:{password}@")


def broken_key(folder: Path) -> Path:
    """Return a file with a certificate, and a key that is invalid."""
    cert, _ = certificates.write(folder)
    with cert.open("a") as file:
        file.write(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
    return cert


def bad_days(server: PresenceServer, admin: Redis, keys: Path, good: str) -> None:
    """Make everything fail that handles secrets."""
    forged = f"{good[:-8]}AAAAAAAA"

    def told(event: str, times: int) -> None:
        wait_for(lambda: len(server.logged(event)) >= times)

    with closing(Phone(server.address)) as ann:
        assert ann.ask(login("ann", good)).kind == Kind.OK
        for proof in (forged, OPAQUE, None):
            assert answered(server.address, "bob", proof) == Code.AUTH_FAILED
        assert ann.ask(Packet(Kind.UPDATE, 3, {"token": forged})).payload["code"] == Code.AUTH_FAILED
        assert ann.ask(Packet(Kind.MESSAGE, 4, {"to": "bob", "body": good})).kind == Kind.ERROR
        ask(admin, "ACL", "SETUSER", "presence-server", "off")
        ask(admin, "CLIENT", "KILL", "USER", "presence-server")
        told("Redis refused", 2)
        ask(admin, "ACL", "SETUSER", "presence-server", "on")
        told("control channel restored", 2)
        cut_off, misplaced = f'{{"keys": [{{"k": "{KEY}"', f'{{"keys": [{{"kid": "a", "alg": "{KEY}"}}]}}'
        for times, content in ((2, cut_off), (4, misplaced)):  # by each of two workers
            keys.write_text(content)
            server.process.send_signal(signal.SIGHUP)
            told("token keys rejected", times)
        assert ann.send_keepalive().kind == Kind.OK


@pytest.mark.usefixtures("clean_environment")
def test_no_secret_is_seen_whatever_goes_wrong(
    redis_server: EmbeddedRedis, admin: Redis, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    good = token("ann", secret=SECRET)
    canaries = (PASSWORD, SECRET.decode(), KEY, OPAQUE, good.rpartition(".")[2][:16])
    url = url_of(redis_server)
    flags = ("--redis", url, "--token-keys", str(keys), "--workers", "2", "--log-level", "debug")
    with running_server(*flags) as server:
        bad_days(server, admin, keys, good)
    look_for(canaries, "the log", "\n".join(map(str, server.lines)))
    wrong = url_of(redis_server, f"{PASSWORD}-wrong")
    nowhere = f"redis://u:{PASSWORD}@127.0.0.1:1"
    for words, status in [
        (["serve", "--no-admin", "--redis", wrong], 1),
        (["serve", "--redis", url, "--token-keys", str(keys)], 2),
        (["serve", "--redis", f"redis:/u:{PASSWORD}@h"], 2),
        (["config", "show", "--redis", url], 0),
        (["config", "check", "--token-keys", str(keys)], 2),
        (["config", "check", "--tls-cert", str(broken_key(tmp_path))], 2),
        (["status", "--redis", nowhere, "ann"], 1),
        (["nodes", "--redis", wrong], 1),
        (["token", "verify", "--token-keys", str(keys), good], 2),
    ]:
        assert main(words) == status, words
    look_for(canaries, "what commands print", "".join(capfd.readouterr()))
    look_for(canaries, "Redis", "".join(repr(admin.dump(key)) + repr(key) for key in admin.scan_iter()))


@pytest.mark.usefixtures("clean_environment")
def test_with_redaction_off_the_canary_is_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash(url: str, *_: object, **__: object) -> int:
        raise RuntimeError(f"cannot go on with {url}")

    monkeypatch.setattr("presence.cli.nodes.run", crash)
    words = ["nodes", "--redis", f"redis://u:{PASSWORD}@h"]
    assert main(words) == 1
    look_for([PASSWORD], "a crash", "".join(capfd.readouterr()))
    monkeypatch.setattr("presence.cli.errors.redact_text", str)
    assert main(words) == 1
    with pytest.raises(AssertionError, match="a crash"):
        look_for([PASSWORD], "a crash", "".join(capfd.readouterr()))
