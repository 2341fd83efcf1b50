"""Keys of an identity provider: which are used, and what its failures, its rotations and floods cost."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jwt
import pytest
import trio
import trio.lowlevel
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from trio.testing import MockClock

from presence.auth import key_url
from presence.auth.key_file import MAX_FILE_BYTES
from presence.auth.key_rotation import KeyRotation
from presence.auth.key_url import RETRY_S, KeyUrl
from presence.auth.signing_keys import Keyring, KeySetError
from presence.auth.token_signer import Signer, key_set, make_key, public_entry
from presence.common.faults import Faults
from presence.core.authenticator import Granted, Refusal
from presence.protocol import Code
from tests.auth.gates import AUDIENCE, BEGUN, WALL, TimedAuthenticator, entry, keyring
from tests.auth.mutations import _encoded, _hmac, _packed

URL = "https://login.example.com/keys"
REFRESH_S = 300.0
FLOOD = 10_000
PUBLIC = ("RS256", "ES256", "EdDSA")


def published(*entries: dict[str, Any]) -> bytes:
    return key_set([*entries]).encode()


@cache
def signer(alg: str, kid: str) -> Signer:
    return Signer(entry(alg, kid))


def signed(alg: str, kid: str = "", *, issued: float = WALL, **claims: Any) -> str:
    return signer(alg, kid).token("ann", audience=AUDIENCE, now=issued, ttl_s=3600, **claims)


class Provider(KeyUrl):
    """A provider in virtual time: `content` is its answer, None: it is down; it answers after `delay_s`."""

    def __init__(self, content: bytes | None) -> None:
        super().__init__(URL, REFRESH_S)
        self.content = content
        self.delay_s = 0.0
        self.requests = 0

    async def _request(self) -> bytes:
        self.requests += 1
        await trio.sleep(self.delay_s)
        if self.content is None:
            raise OSError("down")
        return self.content


class Scene:
    """An authenticator with the keys of a provider; `clock` moves the time of both."""

    def __init__(self, clock: MockClock, content: bytes | None) -> None:
        self.provider = Provider(content)
        self.timed = TimedAuthenticator(ring=Keyring(()))
        self.timed.authenticator.keyring = Keyring(())
        self.rotation = KeyRotation(self.timed.authenticator, self.provider)
        self.timed.authenticator.request_keys = self.rotation.request
        self._clock = clock

    async def advance(self, seconds: float) -> None:
        """Let time pass, and the reads that are due end."""
        self._clock.jump(seconds)
        self.timed.now += seconds
        await trio.testing.wait_all_tasks_blocked()
        while self.rotation._thread._thread.borrowed_tokens:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    def code(self, text: str) -> Code | None:
        """Return the code of a refused login; None: it is granted."""
        result = self.timed.login(text)
        return None if isinstance(result, Granted) else result.code

    def fresh(self, alg: str, kid: str = "") -> str:
        """Return a token that is issued now."""
        return signed(alg, kid, issued=WALL + self.timed.now - BEGUN)


async def test_a_new_key_is_used_by_the_first_retry_and_a_removed_one_is_refused(
    mock_clock: MockClock,
) -> None:
    old, new = (public_entry(entry("ES256", kid)) for kid in ("old", "new"))
    scene = Scene(mock_clock, published(old))
    await scene.rotation.poll()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.rotation.run, Faults())
        await scene.advance(RETRY_S)
        scene.provider.content = published(old, new)
        result = scene.timed.login(scene.fresh("ES256", "new"))
        assert isinstance(result, Refusal)
        assert result.code is Code.BUSY
        assert result.retry_after is not None
        assert 1.0 <= result.retry_after <= 2.0
        await scene.advance(1.0)
        granted = [scene.code(scene.fresh("ES256", kid)) for kid in ("old", "new")]
        assert granted == [None, None]
        assert scene.provider.requests == 2
        scene.provider.content = published(new)
        await scene.advance(RETRY_S)
        await scene.advance(REFRESH_S)
        gone = scene.fresh("ES256", "old")
        assert scene.code(gone) is Code.BUSY, "it may be newer than the keys"
        await scene.advance(RETRY_S + 1)
        assert scene.code(gone) is Code.AUTH_FAILED
        assert scene.code(scene.fresh("ES256", "new")) is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failure", ["down", "slow", "rubbish", "no keys", "secrets only"])
async def test_a_failing_provider_delays_and_refuses_no_login_with_a_known_key(
    mock_clock: MockClock, failure: str
) -> None:
    scene = Scene(mock_clock, published(public_entry(entry("RS256"))))
    await scene.rotation.poll()
    answers = {"down": None, "rubbish": b"<html>", "no keys": b'{"keys": []}'}
    answers["secrets only"] = published(entry("HS256"), entry("RS256"))
    scene.provider.content = answers.get(failure, scene.provider.content)
    scene.provider.delay_s = 10.0 if failure == "slow" else 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.rotation.run, Faults())
        for _ in range(4):
            await scene.advance(REFRESH_S)
            assert [scene.code(scene.fresh("RS256")) for _ in range(25)] == [None] * 25
            await scene.advance(key_url.TIMEOUT_S)
        assert scene.provider.requests > 1
        statistics = scene.rotation.statistics()
        assert (statistics.failed, statistics.is_current) == (1, False)
        nursery.cancel_scope.cancel()


async def test_without_keys_logins_are_refused_until_the_provider_answers(mock_clock: MockClock) -> None:
    scene = Scene(mock_clock, None)
    await scene.rotation.poll()
    old = signed("EdDSA", issued=WALL - 1000)
    assert scene.code(old) is Code.BUSY
    scene.provider.content = published(public_entry(entry("EdDSA")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.rotation.run, Faults())
        await scene.advance(RETRY_S)
        assert scene.code(old) is None
        nursery.cancel_scope.cancel()


async def test_a_flood_of_unknown_keys_is_bounded_in_requests_and_memory(mock_clock: MockClock) -> None:
    scene = Scene(mock_clock, published(public_entry(entry("ES256"))))
    await scene.rotation.poll()
    text = signed("HS256")
    _, payload, signature = text.split(".")
    tries = [
        f"{_packed({'alg': 'ES256', 'kid': f'unknown-{number}'})}.{payload}.{signature}"
        for number in range(FLOOD)
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.rotation.run, Faults())
        await trio.testing.wait_all_tasks_blocked()
        tracemalloc.start()
        before, accepted = tracemalloc.get_traced_memory()[0], 0
        for number, each in enumerate(tries):
            accepted += scene.code(each) is None
            if number % 100 == 99:  # 10,000 in 100 seconds
                await scene.advance(1.0)
                assert scene.code(scene.fresh("ES256")) is None
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert accepted == 0
    assert scene.provider.requests <= 1 + 100 / RETRY_S
    assert grown < 500_000, grown


async def test_no_key_is_used_for_another_algorithm(mock_clock: MockClock) -> None:
    scene = Scene(mock_clock, published(*(public_entry(entry(alg)) for alg in PUBLIC)))
    await scene.rotation.poll()
    payload = signed("RS256").split(".")[1]
    accepted = tries = 0
    for kid in (f"key-{alg}" for alg in PUBLIC):
        public = public_entry(entry(kid.removeprefix("key-")))
        secrets = [json.dumps(public).encode(), *(str(value).encode() for value in public.values())]
        signers: list[tuple[str, Callable[[bytes], bytes]]] = [
            (alg, Signer(entry(alg, f"other-{alg}")).sign) for alg in PUBLIC
        ]
        signers += [(alg, _hmac(secret, "HS256")) for secret in secrets for alg in ("HS256", *PUBLIC)]
        signers += [(alg, Signer(entry(other)).sign) for alg in PUBLIC for other in PUBLIC if alg != other]
        signers += [(alg, lambda _: b"") for alg in ("none", "", *PUBLIC)]
        for alg, sign in signers:
            signing = f"{_packed({'alg': alg, 'kid': kid})}.{payload}"
            accepted += scene.code(f"{signing}.{_encoded(sign(signing.encode()))}") is None
            tries += 1
    assert (accepted, tries > 100) == (0, True)
    assert [scene.code(signed(alg)) for alg in PUBLIC] == [None] * 3


def test_keys_for_other_purposes_are_ignored_and_counted() -> None:
    public = {alg: public_entry(entry(alg)) for alg in PUBLIC}
    p384 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
    rsa4096 = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 4096).public_key(), as_dict=True)
    ignored = [
        {**public["RS256"], "kid": "encryption", "use": "enc"},
        {**public["RS256"], "kid": "wrapping", "key_ops": ["wrapKey"]},
        *({**public["RS256"], "kid": alg, "alg": alg} for alg in ("RS512", "PS256", "RSA-OAEP", "HS256")),
        {**p384, "kid": "p384"},
        {**rsa4096, "kid": "large"},
        {**public["ES256"], "kid": None},
        {**public["ES256"], "kty": ["EC"], "kid": "odd"},
        {**public["ES256"], "kid": "odd", "key_ops": 7},
        {**entry("ES256", "private")},
        {**entry("HS256")},
        {"kty": "oct", "k": entry("HS256")["k"], "kid": "secret"},
        7,
    ]
    used = [{name: value for name, value in each.items() if name != "alg"} for each in public.values()]
    ring = KeyUrl(URL, REFRESH_S).parse(key_set([*ignored, *used, *used[:1]]).encode())
    assert ring.kids == {f"key-{alg}" for alg in PUBLIC}
    assert all(ring.find(f"key-{alg}", alg) for alg in PUBLIC)
    assert (len(ring), ring.ignored) == (3, len(ignored) + 1)


@contextmanager
def serving(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer for every path; give the URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=partial(server.serve_forever, 0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/keys", asked
        finally:
            server.shutdown()
            thread.join()


async def test_a_key_set_is_read_over_http() -> None:
    made = make_key("a", "ES256")
    with serving(200, published(public_entry(made))) as (url, _):
        source = KeyUrl(url, REFRESH_S)
        key = source.parse(await source.read()).find("a", "ES256")
    assert key is not None
    assert key.verify(jwt.encode({}, jwt.PyJWK(made).key, "ES256", headers={"kid": "a"})) == b"{}"
    assert keyring(made).kids == {"a"}


@pytest.mark.parametrize(
    ("status", "size", "problem"),
    [(302, 2, "status 302"), (500, 2, "status 500"), (200, MAX_FILE_BYTES + 1, "larger than")],
)
async def test_a_redirect_an_error_and_too_much_are_refused(status: int, size: int, problem: str) -> None:
    with serving(status, b" " * size, Location="/other") as (url, asked):
        with pytest.raises(KeySetError, match=f"{url}: .*{problem}"):
            await KeyUrl(url, REFRESH_S).read()
    assert asked == ["/keys"]
    with pytest.raises(KeySetError, match="cannot be read"):  # nothing listens there any more
        await KeyUrl(url, REFRESH_S).read()
