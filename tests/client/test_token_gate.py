"""The client on trio and a server that checks tokens, in virtual time; the server's Unix time starts at 0."""

from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
import trio
from trio.testing import MockClock

from presence.auth.token_authenticator import TokenAuthenticator
from presence.client import ClientOptions, Connected, Disconnected, Goodbye, TokenSource, connect
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.protocol import Code
from presence.server import credentials
from tests.client.network import Network
from tests.support.credentials import AUDIENCE, SECRET, write_keys
from tests.transports.harness import Harness, serving

LIFE_S = 600.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    settings = Settings(token_keys=str(write_keys(tmp_path / "keys.json", {"a": SECRET})))
    async with serving("stream", listen=False, authenticator=lambda clock: made(settings, clock)) as harness:
        yield harness


def made(settings: Settings, clock: Clock) -> TokenAuthenticator:
    found = credentials.load_authenticator(settings, clock, lambda: clock.seen_ms(clock.now()) / 1000)
    assert found is not None
    return found


class Issuer:
    """Makes tokens by the server's clock.

    Attributes:
        made: number of tokens made.
        stopped: whether the last one is returned again.
    """

    def __init__(self, server: Harness) -> None:
        self.made = 0
        self.stopped = False
        self._server = server
        self._token = ""

    async def later(self) -> str:
        await trio.sleep(0.5)
        return self.now()

    def now(self) -> str:
        if not self.stopped:
            clock = self._server.clock
            now = clock.seen_ms(clock.now()) / 1000
            self.made += 1
            claims = {"sub": "ann", "aud": AUDIENCE, "exp": now + LIFE_S, "jti": str(self.made)}
            self._token = jwt.encode(claims, SECRET, "HS256", headers={"kid": "a"})
        return self._token


@pytest.fixture
def network(server: Harness) -> Network:
    return Network(server)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_client_stays_online_far_longer_than_a_tokens_lifetime(
    autojump_clock: MockClock, server: Harness, network: Network, kind: str
) -> None:
    issuer = Issuer(server)
    source: TokenSource = issuer.now if kind == "plain" else issuer.later
    async with connect("nowhere", 1, token=source, options=ClientOptions(open_stream=network.open)) as client:
        await trio.sleep(5 * LIFE_S)
        assert (client.statistics().logins, client.statistics().losses) == (1, 0)
    assert 7 <= issuer.made <= 9  # 70 to 80 % of its lifetime each
    assert server.history() == [("login", "ann", "login"), ("end", "ann", "logout")]


async def test_without_a_fresh_token_in_time_it_reconnects_with_one_and_stays_online(
    autojump_clock: MockClock, server: Harness, network: Network
) -> None:
    issuer = Issuer(server)
    async with connect(
        "nowhere", 1, token=issuer.later, options=ClientOptions(open_stream=network.open)
    ) as client:
        issuer.stopped = True
        pushes = [await anext(client), await anext(client)]
        issuer.stopped = False
        pushes += [await anext(client), await anext(client)]
        assert [type(push) for push in pushes] == [Connected, Goodbye, Disconnected, Connected]
        assert [getattr(push, "reason", None) for push in pushes[1:3]] == ["auth_expired"] * 2
        assert trio.current_time() >= LIFE_S
    assert server.ends()[0].code == Code.LOGOUT
