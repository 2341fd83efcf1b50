"""``python -m presence.loadtest``: locust, with all its options and the locustfile beside this module."""

import sys
from pathlib import Path

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main() -> None:
    try:
        from locust.main import main as run_locust  # noqa: PLC0415 - an extra installs it
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install 'presence-server[loadtest]'")
    sys.argv[1:1] = ["--locustfile", str(LOCUSTFILE)]  # one that the user names comes later, and counts
    run_locust()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
