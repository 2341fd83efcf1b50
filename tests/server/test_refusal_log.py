"""Refused logins in the log: who, from where and why, and no more lines than a reader can use."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from presence import protocol
from presence.core.admission import AdmissionLimits
from presence.protocol import Code
from presence.server import refusal_log
from presence.server.refusal_log import MAX_UID_CHARS, log_refusal
from presence.transports.limits import Limits
from tests.auth.gates import WordAuthenticator
from tests.transports import proxies
from tests.transports.harness import Harness, TransportKind, both, serving


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The log; no line of an earlier test suppresses any."""
    monkeypatch.setattr(refusal_log._log, "_last", {})
    with capture_logs() as found:
        yield found


def logging_refusals(server: Harness) -> None:
    server.engine.on_refusal = log_refusal


def test_each_reason_has_a_line_a_second(lines: list[Any]) -> None:
    for address in ("192.0.2.1", "192.0.2.2"):
        log_refusal(Code.BANNED, address, "ann")
        log_refusal(Code.BUSY, address, None)
    assert [(each["event"], each["reason"], each["address"], each["uid"]) for each in lines] == [
        ("login refused", "banned", "192.0.2.1", "ann"),
        ("login refused", "busy", "192.0.2.1", None),
    ]


def test_a_claimed_uid_is_cut(lines: list[Any]) -> None:
    log_refusal(Code.AUTH_FAILED, "192.0.2.1", "x" * 128)
    assert lines[0]["uid"] == "x" * MAX_UID_CHARS


@both
async def test_a_refused_login_has_its_address_and_the_claimed_uid(
    kind: TransportKind, lines: list[Any]
) -> None:
    async with serving(kind, authenticator=lambda _: WordAuthenticator()) as server:
        logging_refusals(server)
        client = await server.connect()
        await client.send(protocol.login("ann", token="wrong"))
        await client.rest()
    assert [(each["reason"], each["address"], each["uid"]) for each in lines] == [
        ("auth_failed", "127.0.0.1", "ann")
    ]


@both
async def test_a_client_that_never_logs_in_has_its_address(kind: TransportKind, lines: list[Any]) -> None:
    async with serving(kind, Limits(login_timeout=0.1)) as server:
        logging_refusals(server)
        await (await server.connect()).rest()
    assert [(each["reason"], each["address"], each["uid"]) for each in lines] == [
        ("login_timeout", "127.0.0.1", None)
    ]


@both
async def test_a_connection_beyond_a_limit_has_its_address(kind: TransportKind, lines: list[Any]) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=1)) as server:
        logging_refusals(server)
        await server.logged_in()
        await (await server.connect()).rest()
    assert [(each["reason"], each["address"], each["uid"]) for each in lines] == [
        ("rate_limited", "127.0.0.1", None)
    ]


async def test_behind_a_proxy_it_is_the_client_whose_address_is_logged(lines: list[Any]) -> None:
    async with serving("epoll", authenticator=lambda _: WordAuthenticator(), proxies="127.0.0.0/8") as server:
        logging_refusals(server)
        client = await server.connect(header=proxies.of_client("192.0.2.7"))
        await client.send(protocol.login("ann", token="wrong"))
        await client.rest()
    assert lines[0]["address"] == "192.0.2.7"
