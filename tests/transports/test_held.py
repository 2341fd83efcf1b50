"""Refusals that are held: told late, to nobody's cost, and before the server has gone."""

import trio

import protocol
from protocol import Code, Packet
from tests.auth.gates import WordGate
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, every_kind, serving

BAD_LOGIN = protocol.login("eve", token="guessed")


def held_for(seconds: float) -> WordGate:
    gate = WordGate()
    gate.hold_s = seconds
    return gate


async def turned_away(server: Harness) -> Client:
    """Return a client whose login was read and refused, and who does not know yet."""
    client = await server.connect()
    await client.send(BAD_LOGIN)
    await server.until(lambda: server.core.statistics().refused)
    return client


def is_refusal(packets: list[Packet]) -> bool:
    return [each.payload.get("code") for each in packets] == [Code.AUTH_FAILED]


@every_kind
async def test_a_held_refusal_is_told_when_its_time_has_come(kind: TransportKind) -> None:
    async with serving(kind, gate=lambda _: held_for(0.4)) as server:
        began = trio.current_time()
        client = await turned_away(server)
        await client.send(protocol.keepalive(1))  # nobody listens any more
        assert is_refusal(await client.rest())
        assert trio.current_time() - began >= 0.4


@every_kind
async def test_who_stops_tells_held_refusals_first(kind: TransportKind) -> None:
    async with serving(kind, gate=lambda _: held_for(600.0)) as server:
        client = await turned_away(server)
        with trio.move_on_after(0.1) as waiting:
            await client.receive()
        assert waiting.cancelled_caught
        await server.transport.stop_accepting()
        assert is_refusal(await client.rest())
        await server.until(lambda: not server.transport.statistics().connections)


@every_kind
async def test_who_left_while_his_refusal_was_held_harms_nobody(kind: TransportKind) -> None:
    async with serving(kind, gate=lambda _: held_for(0.2)) as server:
        client = await turned_away(server)
        client.reset()
        with trio.fail_after(PATIENCE_S):
            await server.until(lambda: not server.transport.statistics().connections)
        other = await server.connect()
        await other.send(protocol.login("ann", token="ann:60"))
        answer = await other.receive()
        assert answer is not None
        assert answer.kind == protocol.Kind.OK
