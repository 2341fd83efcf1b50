"""The process that serves operators; `presence.admin.keeper` starts it, and nobody else."""

import os
import pickle
import signal
import socket

from presence.admin import frames
from presence.admin.keeper import IGNORED
from presence.admin.start import Start
from presence.embedded import die_with_parent
from presence.logs import configure


def main() -> int:
    """Serve until standard input ends; return the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)  # whoever starts and ends the server decides of us, too
    if (ask_kernel := die_with_parent(signal.SIGKILL)) is not None:
        ask_kernel()  # also while we are stopped, and could not notice
    line = socket.socket(fileno=0)
    message = frames.read(line)
    if message is None:
        return 0
    start: Start = pickle.loads(message)  # noqa: S301 - whoever can write there is who started us
    with configure(start.settings.log_format, start.settings.log_level):
        import structlog  # noqa: PLC0415 - after `configure`, which loads it without rich

        try:
            from presence.admin.process import run  # noqa: PLC0415 - as above; what fails is told in the log

            run(start, line)
        except Exception:  # the keeper starts another
            structlog.get_logger().exception("operators are not served any more")
            return 1
    return 0


if __name__ == "__main__":
    os._exit(main())  # the log is written; nothing waits for a thread whose call hangs
