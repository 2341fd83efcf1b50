"""Limits by address, user and connection: who is over one is told so, and nobody else pays for it."""

import pytest

import protocol
from presence.admission import AdmissionLimits, PacketRate
from presence.transports.limits import Limits
from protocol import Code, Kind, Packet
from tests.transports.harness import TransportKind, both, every_kind, serving

OTHER = "127.0.0.2"


def assert_limited(answer: Packet | None) -> None:
    assert answer is not None
    assert (answer.kind, answer.payload["code"]) == (Kind.ERROR, Code.RATE_LIMITED)
    assert answer.payload["retry_after"] >= 1


@both
async def test_an_address_has_so_many_connections_and_others_have_theirs(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=3)) as server:
        clients = [await server.connect() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.login(f"user-{number}")
        refused = await server.connect()
        (refusal,) = await refused.rest()
        assert_limited(refusal)
        other = await server.connect(source=OTHER)
        assert (await other.login("other")).kind == Kind.OK
        for client in clients:
            await client.beat()
        assert server.core.statistics().refused == {"rate_limited": 1}


@every_kind
async def test_the_place_of_a_connection_is_free_when_it_has_gone(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=2)) as server:
        for number in range(10):
            client = await server.connect()
            assert (await client.login(f"user-{number}")).kind == Kind.OK
            client.close()
            await server.until(lambda: server.transport.statistics().connections == 0)
        assert server.admission.statistics().address_connections_kept == 0


async def test_a_refused_connection_takes_nobodys_place() -> None:
    async with serving("epoll", admission=AdmissionLimits(address_connections=1)) as server:
        first = await server.connect()
        await first.login("ada")
        refused = [await server.connect() for _ in range(20)]  # none of them closes, nor reads
        first.close()
        await server.until(lambda: not server.admission.statistics().address_connections_kept)
        assert (await (await server.connect()).login("bob")).kind == Kind.OK
        for client in refused:
            client.close()


async def test_a_silent_connection_gives_its_place_back_when_its_time_is_up() -> None:
    admission = AdmissionLimits(address_connections=1)
    async with serving("epoll", Limits(login_timeout=0.2), admission=admission) as server:
        silent = await server.dial()
        assert [each.payload["code"] for each in await silent.rest()] == [Code.LOGIN_TIMEOUT]
        silent.close()
        await server.until(lambda: not server.admission.statistics().address_connections_kept)


@every_kind
@pytest.mark.parametrize("whose", ["address", "uid"])
async def test_logins_beyond_a_limit_are_told_when_to_come_back(kind: TransportKind, whose: str) -> None:
    limits = (
        AdmissionLimits(address_login_rate=0.01, address_login_burst=3)
        if whose == "address"
        else AdmissionLimits(uid_login_rate=0.01, uid_login_burst=3)
    )
    async with serving(kind, admission=limits) as server:
        answers = [await (await server.connect()).login("ada", device=f"d{number}") for number in range(5)]
        assert [each.kind for each in answers] == [Kind.OK] * 3 + [Kind.ERROR] * 2
        for answer in answers[3:]:
            assert_limited(answer)
        other = await server.connect(source=OTHER)
        assert (await other.login("bob")).kind == Kind.OK


@every_kind
async def test_a_flooder_reads_why_it_is_closed_and_his_neighbour_stays(kind: TransportKind) -> None:
    async with serving(kind, packet_rate=PacketRate(rate=10, burst=100)) as server:
        neighbour, flooder = await server.connect(), await server.connect()
        await neighbour.login("bob")
        await flooder.login("ada")
        await flooder.stream.send_all(protocol.encode(protocol.keepalive(1)) * 500)
        *answers, goodbye = await flooder.rest()
        assert {each.kind for each in answers} <= {Kind.OK}
        assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.RATE_LIMITED)
        assert goodbye.payload["retry_after"] >= 1
        await neighbour.beat()
        assert server.core.statistics().packet_floods == 1
