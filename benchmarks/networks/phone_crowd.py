"""All phones of one setting, in one process: each that dies is followed by another."""

import random

import anyio
from anyio.abc import TaskGroup

from benchmarks.networks.lossy_link import NETWORKS, Network
from benchmarks.networks.phone import Phone, PhoneRecord
from presence.loadtest.server_address import raise_file_limit

LIVES_S = 300.0  # on average
ARRIVAL_S = 10.0  # in which the first phones come


def play(address: tuple[str, int], phones: int, seconds: float, seed: str) -> list[PhoneRecord]:
    """Let so many phones on each network live for some seconds; return what became of each."""
    raise_file_limit()
    return anyio.run(_play, address, phones, seconds, seed)


async def _play(address: tuple[str, int], phones: int, seconds: float, seed: str) -> list[PhoneRecord]:
    records: list[PhoneRecord] = []
    async with anyio.create_task_group() as tasks:
        for network in NETWORKS:
            for number in range(phones):
                uid = f"{network.name}-{number}".replace(" ", "-")
                tasks.start_soon(
                    _live_in_turn, address, uid, network, random.Random(f"{seed} {uid}"), tasks, records
                )
        await anyio.sleep(seconds)
        now = anyio.current_time()
        for record in records:
            record.ended_at = min(record.ended_at, now)
        tasks.cancel_scope.cancel()
    return records


async def _live_in_turn(
    address: tuple[str, int],
    uid: str,
    network: Network,
    chance: random.Random,
    tasks: TaskGroup,
    records: list[PhoneRecord],
) -> None:
    await anyio.sleep(chance.uniform(0, ARRIVAL_S))
    generation = 0
    while True:
        generation += 1
        phone = Phone(address, f"{uid}-{generation}", network, chance, tasks)
        records.append(phone.record)
        await phone.run(chance.expovariate(1 / LIVES_S))
