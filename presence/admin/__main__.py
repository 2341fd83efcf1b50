"""The admin process; `presence.admin.launcher` starts and watches it."""

import contextlib
import os
import signal
import socket
from typing import Final

from presence.admin import start_message
from presence.common.logs import configure
from presence.common.scarcity import fault_fields
from presence.store.embedded import die_with_parent

# The server that started us decides when to stop.
IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Serve until standard input ends; return the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a preference; the shipped unit for systemd does not allow it
        os.nice(start_message.NICENESS)
    if (ask_kernel := die_with_parent(signal.SIGKILL)) is not None:
        ask_kernel()  # also works while we are stopped or hang
    line = socket.socket(fileno=0)
    start = start_message.read(line)
    if start is None:
        return 0
    with configure(start.settings.log_format, start.settings.log_level):
        import structlog  # noqa: PLC0415 - after `configure`, which loads it without rich

        try:
            from presence.admin.app import run  # noqa: PLC0415 - as above; failures are logged

            run(start, line)
        except Exception as error:  # the server starts another
            structlog.get_logger().error("admin process failed", **fault_fields(error))
            return 1
    return 0


if __name__ == "__main__":
    os._exit(main())  # the log is written; do not wait for threads with hanging calls
