"""What the rooms of the operators' process are given: whom they serve, where, and whom they may ask."""

import socket
from dataclasses import dataclass, field

from presence.admin.http_figures import HttpFigures
from presence.settings import Settings


@dataclass(frozen=True, slots=True)
class Context:
    """What the process was started with.

    Attributes:
        settings: checked settings; ports may be zeros.
        redis_url: where Redis is; `settings.redis`, or the embedded server's.
        lines: the asking ends, see `presence.inquiries`: of the workers 1, 2, …, or of the one that is alone.
        host: where HTTP is served.
        port: its port.
        url: the same, for people: ``http://127.0.0.1:7480/``.
        http: what is counted of connections and requests.
    """

    settings: Settings
    redis_url: str
    lines: tuple[socket.socket, ...]
    host: str
    port: int
    url: str
    http: HttpFigures = field(default_factory=HttpFigures)

    @property
    def first_number(self) -> int:
        """The number of the worker at the other end of the first line; 0 of one without a supervisor."""
        return 0 if len(self.lines) == 1 else 1
