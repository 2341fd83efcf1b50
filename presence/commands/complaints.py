"""What libraries log, as complaints of a command."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from presence.commands.outcome import complain


class _Complaints(logging.Handler):
    """Says on standard error what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


@contextmanager
def subscriber_complains() -> Iterator[None]:
    """Say on standard error what the subscriber logs as a warning or worse."""
    log, handler = logging.getLogger("presence.subscriber"), _Complaints(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
