"""The command ``presence``, and ``python -m presence``."""

import signal
import sys


def main() -> int:
    """Run the command that was typed; return its exit status."""
    if sys.argv[1:2] == ["serve"]:
        # It takes a while to load. A service manager that has files read again until then must not end it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from presence.cli import main  # noqa: PLC0415 - see above

    return main.main()


if __name__ == "__main__":
    sys.exit(main())
