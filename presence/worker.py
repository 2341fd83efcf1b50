"""A worker's side of the supervisor: a server whose orders come over a line, see `presence.orders`."""

import socket

import structlog

from presence import logs, process
from presence.orders import Orders
from presence.settings import Settings


class Supervised(Orders):
    """The supervisor as a `Conductor`."""

    def ready(self, host: str, port: int) -> None:
        """See `Conductor`."""
        self.say_ready()


def run(
    settings: Settings,
    redis_url: str,
    number: int,
    family: str,
    line: socket.socket,
    *,
    operators: socket.socket | None = None,
) -> int:
    """Be worker `number`; return the exit status.

    Args:
        settings: checked settings; `port` is the one that all workers share.
        redis_url: where Redis is.
        number: from 1, for the log.
        family: what the node ids of all workers begin with.
        line: the worker's end of the socket pair.
        operators: its end of the line to whoever serves operators.
    """
    conductor = Supervised(line, hang_timeout_s=settings.hang_timeout)
    with logs.configure(settings.log_format, settings.log_level):
        structlog.contextvars.bind_contextvars(worker=number)
        try:
            return process.run(settings, redis_url, conductor, family=family, line=operators, worker=number)
        except Exception:
            structlog.get_logger().exception("server failed")
            return process.FAILED
