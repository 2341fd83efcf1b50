"""How long a connection waits for its turn, by the clock."""

import time

import pytest
import trio

import protocol
from presence.transports.connections import ATTENTIVE, PROMPT
from presence.transports.epoll import ANSWER_WINDOW_S
from protocol import Kind
from tests.transports.harness import serving
from tests.transports.test_paces import logged_in, pace_of


@pytest.mark.alone
async def test_an_answered_keepalive_waits_for_a_short_time_only() -> None:
    async with serving("epoll", window_s=60.0) as server:
        client = await logged_in(server)
        await client.beat()
        assert pace_of(server, "ada") == PROMPT
        waits = []
        for _ in range(20):
            begun = time.perf_counter()
            await client.beat()
            waits.append(time.perf_counter() - begun)
        print(f"test_an_answered_keepalive_waits_for_a_short_time_only: {sorted(waits)[10] * 1000:.1f} ms")
        assert sorted(waits)[10] < 2 * ANSWER_WINDOW_S


@pytest.mark.alone
async def test_who_sends_more_than_keepalives_is_served_at_once() -> None:
    async with serving("epoll", window_s=60.0) as server:
        client = await logged_in(server)
        await client.send(protocol.message("bob", "hello", id=1))
        answer = await client.receive()
        assert answer is not None
        assert answer.kind == Kind.ERROR  # messages are not handled yet, and that is an answer too
        assert pace_of(server, "ada") == ATTENTIVE
        waits = []
        for number in range(20):
            begun = time.perf_counter()
            await client.send(protocol.message("bob", "hello", id=number))
            await client.receive()
            waits.append(time.perf_counter() - begun)
        assert sorted(waits)[10] < ANSWER_WINDOW_S / 2


@pytest.mark.alone
async def test_the_patient_wait_less_while_some_of_them_want_answers() -> None:
    async with serving("epoll", window_s=0.8) as server:
        clients = [await logged_in(server, f"user-{number}") for number in range(12)]
        await clients[0].stream.send_all(protocol.KEEPALIVE)
        await trio.sleep(0.05)  # the first batch is read: from now on the set rests
        waits = []
        for client in clients:
            begun = time.perf_counter()
            await client.beat()  # its first answered one, from the patient set
            waits.append(time.perf_counter() - begun)
        print(f"test_the_patient_wait_less_while_some_of_them_want_answers: {max(waits[1:]) * 1000:.0f} ms")
        assert waits[0] > 0.3
        assert sorted(waits[1:])[5] < 2 * ANSWER_WINDOW_S
