"""The accept rotation: the kernel gives all new connections to one worker for 0.25 s, then to the next.

Left alone, the kernel gives each connection to a random worker. Then every worker wakes for every few
connections, with cold caches, and sends batches of few changes to Redis: with six workers and 200 visits per
second, a visit costs twice the processor time that it costs one worker alone.

A program of the listeners' group (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.6) returns the index of the listener
that gets a connection. Workers need not talk: their periods follow the clock that all processes of a machine
share, and at the start of its own period a worker attaches its own number. The listener of that index may be
another worker's, but each index has its periods. A worker that hangs attaches nothing, and gets the
connections of one period in n, as many as without a rotation.

An index that no listener has lets the kernel choose as before. So it is while workers start, and when a crowd
arrives: a worker that finds many connections waiting attaches such an index until the next period begins.
"""

import math
import socket
import struct
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from presence.common.clock import Clock
from presence.common.runtime import TrioRuntime, run_in_thread
from presence.common.scarcity import scarcity

PERIOD_S: Final = 0.25  # at most; less with more than eight workers: a burst should not fill one of them
ROUND_S: Final = 2.0  # at most, in which each worker has its period
CROWD: Final = 64  # connections that waited for one accept: a worker that keeps up finds a few
_ANY: Final = 0xFFFF  # the index of no listener
_SO_ATTACH_REUSEPORT_CBPF: Final = 51  # asm-generic/socket.h
_RETURN: Final = 0x06  # linux/bpf_common.h: BPF_RET | BPF_K
_INSTRUCTION: Final = struct.Struct("=HBBI")  # linux/filter.h, struct sock_filter
_PROGRAM: Final = struct.Struct("HP")  # linux/filter.h, struct sock_fprog

log = structlog.get_logger("presence.transport")


class AcceptRotation:
    """One worker's part in the rotation.

    Args:
        listeners: its listening sockets.
        number: the worker's, from 0.
        workers: their number.
        clock: monotonic time, the same in all workers.
    """

    def __init__(self, listeners: Sequence[socket.socket], number: int, workers: int, clock: Clock) -> None:
        self._listeners = listeners
        self._number = number
        self._workers = workers
        self._period_s = min(PERIOD_S, ROUND_S / workers)
        self._clock = clock
        self._crowd_came = TrioRuntime().wake_event()

    async def run(self) -> None:
        """Attach this worker's index in each of its periods, until cancelled or the listeners are closed."""
        while True:
            is_crowd = await self._crowd_came.wait(self.next_period_s())
            index = _ANY if is_crowd else self._number
            try:
                await run_in_thread(partial(self._attach, index))  # the kernel waits there for milliseconds
            except OSError as error:  # closed, or a system without such programs
                if scarcity(error):  # of threads or of memory: the others' indexes hold meanwhile
                    continue
                log.debug("accept rotation ended", error=error.strerror)
                return

    def note_accepted(self, connections: int) -> None:
        """Learn how many connections one accept found waiting."""
        if connections >= CROWD:
            self._crowd_came.set()

    def next_period_s(self) -> float:
        """Return the seconds until this worker's next period begins."""
        now = self._clock.now()
        period = math.floor(now / self._period_s) + 1
        period += (self._number - period) % self._workers
        return period * self._period_s - now

    def _attach(self, index: int) -> None:
        for listener in self._listeners:
            attach(listener, index)


def attach(listener: socket.socket, index: int) -> None:
    """Let the listener of that index in the group of this one get all new connections.

    Raises:
        OSError: the socket is closed or shares its address with none, or the system has no such programs.
    """
    instruction = array("B", _INSTRUCTION.pack(_RETURN, 0, 0, index))
    address, _ = instruction.buffer_info()
    program = _PROGRAM.pack(1, address)
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)
