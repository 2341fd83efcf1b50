"""How a client uses its connection: one validated object for `connect` and `connect_blocking`.

Tests: `tests/client/test_argument_checks.py`.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from anyio.abc import ByteStream

from presence.client.argument_checks import seconds, whole
from presence.client.session import ASK_EVERY

REQUEST_TIMEOUT_S = 10.0
MAX_MESSAGES = 1000  # that wait for the program
MAX_CHANGES = 1000
OpenStream = Callable[[], Awaitable[ByteStream]]


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client uses its connection; the same object serves any number of clients.

    Attributes:
        tls: for a server behind TLS: True for the system's authorities, or a context of your own; both check
            that the certificate names the host. A client that returns resumes its TLS session.
        request_timeout: how long a request waits for its answer, seconds or a timedelta; a cancel scope can
            shorten it.
        ask_every: every n-th keepalive asks for an answer: a dead server is noticed within ``ask_every + 1``
            intervals. 3 spares the server two of three answers.
        max_messages: messages that wait for the program; beyond it the oldest are dropped, and a `Dropped` is
            in their place.
        max_changes: the same for changes of presence; one for which a later one of the same user waits goes
            first, without a `Dropped`.
        open_stream: opens the connection instead of host and port (for tunnels, proxies, tests): an
            `anyio.abc.ByteStream`. It may raise OSError, and is cancelled at a time-out.

    Raises:
        ValueError, TypeError: a value is out of its range, or of another type.
    """

    tls: bool | ssl.SSLContext = False
    request_timeout: float | timedelta = REQUEST_TIMEOUT_S
    ask_every: int = ASK_EVERY
    max_messages: int = MAX_MESSAGES
    max_changes: int = MAX_CHANGES
    open_stream: OpenStream | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise TypeError(f"tls must be a bool or an ssl.SSLContext, not {type(self.tls).__name__}")
        if isinstance(self.tls, ssl.SSLContext) and self.tls.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("tls must be a context for clients")
        if self.open_stream is not None and not callable(self.open_stream):
            raise TypeError("open_stream must be a function")
        seconds("request_timeout", self.request_timeout)
        for name in ("ask_every", "max_messages", "max_changes"):
            whole(name, getattr(self, name))

    @property
    def request_timeout_s(self) -> float:
        """How long a request waits for its answer, seconds."""
        return seconds("request_timeout", self.request_timeout)

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context to connect with, one for all clients of these options; None: no TLS."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


DEFAULTS = ClientOptions()
