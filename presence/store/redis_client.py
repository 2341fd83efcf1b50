"""One way to open a connection to Redis, for the server, the readers and the commands alike."""

import contextlib
import os
import socket
from functools import cache
from typing import Any, Final
from weakref import WeakSet

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from presence.common.redis_url import parse
from presence.store.loop_socket import LoopConnect
from presence.store.redis_tls import TlsConnection
from presence.store.sentinels import SentinelConnect, Sentinels

# For all that call Redis by this client, so that few modules import redis-py.
Redis = redis.Redis
RedisError = redis.RedisError
ResponseError = redis.ResponseError
TimedOut = redis.TimeoutError

CONNECT_TIMEOUT_S = 2.0  # a LAN answers in milliseconds; several attempts must fit into 10 s at the start
CALL_TIMEOUT_S = 2.0  # far above any script of ours, far below what an outage may delay
SENTINEL_TIMEOUT_S: Final = 0.5  # they answer from memory; one that hangs delays the question to the next

# Nothing is sent on a quiet channel, so only the kernel can detect a lost peer: within 30 s.
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3


def _ignore_push(_push: object) -> None:
    """Take a push of RESP3, which no server sends over RESP2."""


class _FreedAtOnce:
    """Goes before a connection class of redis-py, so that the last reference to a connection frees it.

    redis-py's parser refers to itself by its handler of pushes, and so would keep its buffer of 64 KiB until
    garbage is collected. That is rare in servers, because it walks all sessions.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._parser: Any
        self._parser.set_pubsub_push_handler(_ignore_push)


class _TcpConnection(_FreedAtOnce, LoopConnect, redis.Connection):
    pass


class _UnixConnection(_FreedAtOnce, LoopConnect, redis.UnixDomainSocketConnection):
    pass


class _TlsConnection(_FreedAtOnce, LoopConnect, TlsConnection):
    pass


class _PrimaryTcpConnection(_FreedAtOnce, LoopConnect, SentinelConnect, redis.Connection):
    pass


class _PrimaryTlsConnection(_FreedAtOnce, LoopConnect, SentinelConnect, TlsConnection):
    pass


class CommandPacker:
    """Packs commands as redis-py does, but hands hiredis no numbers.

    hiredis makes text of a number by a call of Python, which raises what the handler of a signal raises, and
    then reads text that is not there: Ctrl-C at that moment was a segmentation fault.
    """

    def pack(self, *words: Any) -> list[bytes]:
        """Return one command; its first word may be several, such as "CONFIG GET".

        Raises:
            redis.DataError: a word is no text, bytes or number.
        """
        name = words[0].encode() if isinstance(words[0], str) else words[0]
        rest = [
            word if type(word) in (bytes, str) else str(word) if type(word) is int else _as_text(word)
            for word in words[1:]
        ]
        return [hiredis.pack_command((*name.split(), *rest))]


def _as_text(word: Any) -> Any:
    if isinstance(word, bytearray | memoryview):
        return bytes(word)
    if isinstance(word, int | float) and not isinstance(word, bool):
        return str(word)
    if isinstance(word, str | bytes):
        return word
    raise redis.DataError(f"a word of a command cannot be {type(word).__name__}")


_PACKER: Final = CommandPacker()
_DRIVER: Final = DriverInfo()  # once: finding the version reads and parses the package's metadata
_CONNECTIONS: Final = {
    "redis": _TcpConnection,
    "rediss": _TlsConnection,
    "unix": _UnixConnection,
    "redis+sentinel": _PrimaryTcpConnection,
    "rediss+sentinel": _PrimaryTlsConnection,
}


def open_client(
    url: str,
    *,
    call_timeout_s: float | None = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **connection: Any,
) -> "redis.Redis":
    """Return a redis-py client for `url`; nothing is sent yet.

    Retries are off: redis-py would replay a whole pipeline, and only the caller knows what may be sent again.
    Answers are bytes.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``redis+sentinel://``: then each connection is to the
            primary of that moment, see `presence.store.sentinels`.
        call_timeout_s: how long one call may wait for its answer; a blocking read needs more or None.
        connect_timeout_s: how long connecting may take.
        connection: further arguments of redis-py's class for that kind of URL.
    """
    scheme = url.partition(":")[0]
    connection.setdefault("connection_class", _CONNECTIONS[scheme])
    if scheme.endswith("+sentinel"):
        connection["sentinels"] = _sentinels(url)
        url = parse(url).for_server("primary", 0)
    return redis.Redis.from_url(
        url,
        socket_timeout=call_timeout_s,
        socket_connect_timeout=connect_timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
        decode_responses=False,
        driver_info=_DRIVER,
        command_packer=_PACKER,
        **connection,
    )


def open_listener(url: str) -> "redis.Redis":
    """Return a client whose TCP connections use kernel keepalives. A lost connection is not made again."""
    once = ConnectOnce()
    if url.startswith("unix:"):
        return open_client(url, redis_connect_func=once)  # the kernel reports the end of the peer
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # macOS
    wanted = {
        idle: KEEPALIVE_IDLE_S,
        getattr(socket, "TCP_KEEPINTVL", None): KEEPALIVE_INTERVAL_S,
        getattr(socket, "TCP_KEEPCNT", None): KEEPALIVE_PROBES,
    }
    options = {name: value for name, value in wanted.items() if name is not None}
    return open_client(url, redis_connect_func=once, socket_keepalive=True, socket_keepalive_options=options)


@cache
def _sentinels(url: str) -> Sentinels:
    """Return what all connections of a process to one primary share."""
    return Sentinels(parse(url).service, open_sentinels(url))


if hasattr(os, "register_at_fork"):  # a fork may come while another thread holds their lock
    os.register_at_fork(after_in_child=_sentinels.cache_clear)


def open_sentinels(url: str) -> list["redis.Redis"]:
    """Return a client for each Sentinel of a URL, none for another URL; nothing is sent yet."""
    times = {"call_timeout_s": SENTINEL_TIMEOUT_S, "connect_timeout_s": SENTINEL_TIMEOUT_S}
    return [open_client(each, **times) for each in parse(url).sentinels]


def read_arrived(connection: Any, answers: list[Any], most: float) -> None:
    """Append answers that have arrived on a connection until there are `most`; never wait.

    Raises `RedisError` or `OSError` if it is lost; the answers before that are there.
    """
    with contextlib.suppress(redis.TimeoutError):  # nothing more has arrived
        while len(answers) < most:
            answers.append(connection.read_response(timeout=0, disconnect_on_error=False))


class ConnectOnce:
    """Lets a client make each of its connections once; the `redis_connect_func` of one client.

    redis-py checks whether a connection was closed before it sends a call over it, and reconnects silently.
    The server that answers then may be another one, or the same one without its last writes.
    """

    def __init__(self) -> None:
        self._made: WeakSet[Any] = WeakSet()

    def __call__(self, connection: Any) -> None:
        """Greet the server, as redis-py does by itself."""
        if connection in self._made:
            raise redis.ConnectionError("the connection was lost")
        connection.on_connect()
        self._made.add(connection)
