"""All phones of one setting, in one process: each that dies is followed by another."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import anyio

from benchmarks.networks.java_phone import JavaDevices, JavaPhone
from benchmarks.networks.lossy_link import NETWORKS
from benchmarks.networks.phone import Phone, PhoneRecord
from presence.loadtest.server_address import raise_file_limit

LIVES_S = 300.0  # on average
ARRIVAL_S = 10.0  # in which the first phones come


def play(address: tuple[str, int], phones: int, seconds: float, seed: str, client: str) -> list[PhoneRecord]:
    """Let so many phones on each network live for some seconds; return what became of each.

    Args:
        client: "python" or "java", which must have been built.
    """
    raise_file_limit()
    with ExitStack() as stack:
        make: Callable[..., Phone] = Phone
        if client == "java":
            make = partial(JavaPhone, devices=stack.enter_context(JavaDevices()))
        return anyio.run(_play, partial(make, address), phones, seconds, seed)


async def _play(make: Callable[..., Phone], phones: int, seconds: float, seed: str) -> list[PhoneRecord]:
    records: list[PhoneRecord] = []
    async with anyio.create_task_group() as tasks:
        for network in NETWORKS:
            for number in range(phones):
                uid = f"{network.name}-{number}".replace(" ", "-")
                chance = random.Random(f"{seed} {uid}")
                born = partial(make, network=network, chance=chance, tasks=tasks)
                tasks.start_soon(_live_in_turn, born, uid, chance, records)
        await anyio.sleep(seconds)
        now = anyio.current_time()
        for record in records:
            record.ended_at = min(record.ended_at, now)
        tasks.cancel_scope.cancel()
    return records


async def _live_in_turn(
    born: Callable[..., Phone], uid: str, chance: random.Random, records: list[PhoneRecord]
) -> None:
    await anyio.sleep(chance.uniform(0, ARRIVAL_S))
    generation = 0
    while True:
        generation += 1
        phone = born(uid=f"{uid}-{generation}")
        records.append(phone.record)
        await phone.run(chance.expovariate(1 / LIVES_S))
