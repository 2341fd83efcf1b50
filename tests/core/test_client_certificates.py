"""Certificates of clients: the user of a login, beside tokens or without, and expiry."""

import pytest

from presence import protocol
from presence.core.authenticator import AuthResult, Granted, Refusal
from presence.core.slots import SLOTS_PER_TICK
from presence.protocol import Code, Kind
from tests.auth.gates import WordAuthenticator
from tests.support.state_table import brief
from tests.support.worlds import LOGIN, TICK, World

SLOT_S = TICK / SLOTS_PER_TICK
OK = (Kind.OK, None, None)
REFUSED = (Kind.ERROR, None, Code.AUTH_FAILED)


class WordCertificates:
    """The certificate ``uid:seconds`` is valid for that long from the start of the world."""

    def __init__(self) -> None:
        self.started: float | None = None

    def login(self, certificate: bytes, uid: str | None, now: float) -> AuthResult:
        self.started = now if self.started is None else self.started
        named, _, seconds = certificate.decode().partition(":")
        if uid not in (None, named):
            return Refusal(Code.AUTH_FAILED, "another's")
        return Granted(named, self.started + float(seconds))


@pytest.fixture
def alone() -> World:
    return World(certificates=WordCertificates())


@pytest.fixture
def with_tokens() -> World:
    return World(certificates=WordCertificates(), authenticator=WordAuthenticator())


def login(world: World, certificate: bytes | None, uid: str | None, token: str | None = None) -> int:
    """Connect with a certificate, and log in; return the connection."""
    handle = world.sockets.connect()
    if certificate is not None:
        world.sockets.certificates[handle] = certificate
    world.sockets.feed(handle, protocol.encode(protocol.login(uid, token=token)))
    return handle


def lasts(world: World, handle: int, seconds: float) -> bool:
    """Whether a live session loses its connection at that time, as after the expiry of a token."""
    world.sockets.answers(handle)
    world.keep_alive(handle, seconds - SLOT_S)
    if world.is_disconnected(handle):
        return False
    world.keep_alive(handle, 3 * SLOT_S)
    return world.received(handle) == [(Kind.GOODBYE, None, Code.AUTH_EXPIRED)]


@pytest.mark.parametrize(
    ("certificate", "uid", "answer"),
    [(b"ada:60", "ada", OK), (b"bob:60", "ada", REFUSED), (None, "ada", REFUSED)],
)
def test_without_tokens_the_user_is_that_of_the_certificate(
    alone: World, certificate: bytes | None, uid: str, answer: object
) -> None:
    handle = login(alone, certificate, uid)
    assert alone.received(handle) == [answer]
    assert alone.is_disconnected(handle) is (answer is REFUSED)
    assert alone.history() == ([LOGIN] if answer is OK else [])


@pytest.mark.parametrize(
    ("certificate", "uid", "token", "answer"),
    [
        (b"ada:60", "ada", None, OK),
        (b"ada:60", None, "ada:60", OK),
        (None, None, "ada:60", OK),
        (None, "ada", None, REFUSED),
        (b"ada:60", None, "bob:60", REFUSED),
        (b"bob:60", None, "ada:60", REFUSED),
        (b"bob:60", "ada", "ada:60", REFUSED),
        (b"ada:60", "ada", "nonsense", REFUSED),
    ],
)
def test_certificate_and_token_must_name_the_same_user(
    with_tokens: World, certificate: bytes | None, uid: str | None, token: str | None, answer: object
) -> None:
    assert with_tokens.received(login(with_tokens, certificate, uid, token)) == [answer]
    assert with_tokens.history() == ([LOGIN] if answer is OK else [])


def test_a_session_ends_with_its_certificate(alone: World) -> None:
    assert lasts(alone, login(alone, b"ada:60", "ada"), 60)


@pytest.mark.parametrize(("certificate", "token"), [(b"ada:20", "ada:60"), (b"ada:60", "ada:20")])
def test_the_first_of_certificate_and_token_to_expire_ends_the_session(
    with_tokens: World, certificate: bytes, token: str
) -> None:
    assert lasts(with_tokens, login(with_tokens, certificate, None, token), 20)


def test_a_new_token_extends_no_session_beyond_its_certificate(with_tokens: World) -> None:
    handle = login(with_tokens, b"ada:40", None, "ada:20")
    with_tokens.sockets.answers(handle)
    with_tokens.sockets.feed(handle, protocol.encode(protocol.update(id=7, token="ada:1000")))
    assert [brief(each) for each in with_tokens.sockets.answers(handle)] == [(Kind.OK, 7, None)]
    assert lasts(with_tokens, handle, 40)
