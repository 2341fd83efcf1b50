"""What a server of these settings needs: connections, files, memory, ports. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from presence import files
from presence.node import OUTBOX_BYTES_AN_ITEM, OUTBOX_MIN_ITEMS
from presence.settings import Settings

# Measured, see the README and loadtest: 125 MB for a supervisor and six workers before the first connection,
# 59 MB for one process; of each connection 600 bytes of the process, with TLS 16.3 KB, 4 KiB of the kernel.
FIRST_PROCESS_BYTES: Final = 60_000_000
FURTHER_PROCESS_BYTES: Final = 15_000_000
OPERATORS_BYTES: Final = 80_000_000  # the process for HTTP, and its keeper
SESSION_BYTES: Final = 600 + 4096
TLS_SESSION_BYTES: Final = 16_300 + 4096
FEWEST_CONNECTIONS: Final = 1_000  # that are worth a server
FEW_CONNECTIONS: Final = 10_000  # of a worker: fewer are more likely a forgotten limit than meant


class Wanted(NamedTuple):
    """Connections that a server is to hold.

    Attributes:
        per_worker: of each worker.
        total: of all.
        is_asked: whether `max_connections` says so; else it is what the file limit lets it.
    """

    per_worker: int
    total: int
    is_asked: bool


class Port(NamedTuple):
    """Where a server listens, and the setting that says so."""

    setting: str
    host: str
    port: int


class Memory(NamedTuple):
    """Bytes that a server takes, and those that its outbox takes at most while Redis is away."""

    sessions: int
    outbox: int


def wanted(settings: Settings, file_limit: int) -> Wanted:
    """Return how many connections are wanted."""
    per_worker = settings.max_connections or max(0, files.fitting(file_limit))
    return Wanted(per_worker, per_worker * settings.workers, settings.max_connections > 0)


def wanted_ports(settings: Settings) -> list[Port]:
    """Return where a server listens: for clients first, for operators last."""
    ports = []
    if settings.tls_cert is None or not settings.tls_only:
        ports.append(Port("port", settings.host, settings.port))
    if settings.tls_cert is not None:
        ports.append(
            Port("tls_port", settings.host, settings.port if settings.tls_only else settings.tls_port)
        )
    if not settings.no_admin:
        host, _, port = settings.admin.rpartition(":")
        ports.append(Port("admin", host.strip("[]"), int(port)))
    return ports


def memory(settings: Settings, connections: Wanted) -> Memory:
    """Return what a server takes with all its connections."""
    processes = FIRST_PROCESS_BYTES
    if settings.workers > 1:
        processes += FURTHER_PROCESS_BYTES * settings.workers
    if not settings.no_admin:
        processes += OPERATORS_BYTES
    items = settings.outbox_items or max(OUTBOX_MIN_ITEMS, 2 * connections.per_worker)
    outbox = settings.outbox_bytes or OUTBOX_BYTES_AN_ITEM * items
    return Memory(processes + connections.total * session_bytes(settings), outbox * settings.workers)


def session_bytes(settings: Settings) -> int:
    """Return what a connection takes."""
    return SESSION_BYTES if settings.tls_cert is None else TLS_SESSION_BYTES


def count(number: int) -> str:
    """Return a number as people read it."""
    return f"{number:,}"


def megabytes(number: int) -> str:
    """Return bytes as people read them."""
    return f"{number / 1_000_000:,.0f} MB"


def number(sysctls: Mapping[str, str], name: str) -> int | None:
    """Return a setting of the kernel that is one number; None: it is not there."""
    text = sysctls.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
