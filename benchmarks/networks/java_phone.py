"""Phones with the Java client: all of a process in one JVM, each behind a relay of its own with the link."""

import subprocess
import threading
from contextlib import suppress
from random import Random
from typing import Self

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup

from benchmarks.java_clients import java_command
from benchmarks.networks.lossy_link import Network
from benchmarks.networks.phone import READ_BYTES, Phone, PhoneRecord

LOOPBACK = "127.0.0.1"
_ENDS = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class JavaDevices:
    """The devices of one JVM, from `Phones.java`; counts the logins of each in its record.

    Leaving raises ChildProcessError if the JVM has ended before.
    """

    def __init__(self) -> None:
        command = java_command("Phones")
        self._records: dict[str, PhoneRecord] = {}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        status = self._process.poll()
        self._process.kill()
        self._reader.join()
        with suppress(BrokenPipeError), self._process:
            pass
        if status is not None:
            raise ChildProcessError(f"the JVM of the phones has ended with status {status}")

    def begin(self, record: PhoneRecord, port: int) -> None:
        """Start a device that connects to this port."""
        self._records[record.uid] = record
        self._write(f"{record.uid} {port}")

    def end(self, record: PhoneRecord) -> None:
        """End it, without a logout."""
        self._write(record.uid)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._records[line.strip()].logins += 1


class JavaPhone(Phone):
    """As `Phone`; nothing but the relay is between the client and the link.

    A connection is made for the client at once, and for the link when the network lets it through; not at all
    if the client has given up by then. So the client's time for the login covers both.
    """

    def __init__(
        self,
        address: tuple[str, int],
        uid: str,
        network: Network,
        chance: Random,
        tasks: TaskGroup,
        *,
        devices: JavaDevices,
    ) -> None:
        super().__init__(address, uid, network, chance, tasks)
        self._devices = devices

    async def _be_online(self) -> None:
        async with await anyio.create_tcp_listener(local_host=LOOPBACK) as listener:
            self._devices.begin(self.record, listener.extra(SocketAttribute.local_port))
            try:
                await listener.serve(self._relay)
            finally:
                self._devices.end(self.record)

    async def _relay(self, client: SocketStream) -> None:
        async with client:
            waiting, network = await self._open_while_wanted(client)
            if network is None:
                return
            async with network, anyio.create_task_group() as ways:

                async def send_up() -> None:
                    try:
                        for data in waiting:
                            await network.send(data)
                        while True:
                            await network.send(await client.receive(READ_BYTES))
                    except _ENDS:
                        ways.cancel_scope.cancel()

                ways.start_soon(send_up)
                try:
                    while True:
                        await client.send(await network.receive(READ_BYTES))
                except _ENDS:
                    ways.cancel_scope.cancel()

    async def _open_while_wanted(self, client: SocketStream) -> tuple[list[bytes], ByteStream | None]:
        """Return what the client has sent meanwhile, and the stream; None: the client has given up."""
        waiting: list[bytes] = []
        network: ByteStream | None = None
        async with anyio.create_task_group() as opening:

            async def read() -> None:
                try:
                    while True:
                        waiting.append(await client.receive(READ_BYTES))
                except _ENDS:
                    opening.cancel_scope.cancel()

            opening.start_soon(read)
            network = await self._open_stream()
            opening.cancel_scope.cancel()
        return waiting, network
