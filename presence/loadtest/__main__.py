"""``python -m presence.loadtest``: locust, with all its options and the locustfile beside this module.

``--help`` prints this package's own options, and then locust's.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from presence.loadtest.options import add_options

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main() -> None:
    try:
        from locust.main import main as run_locust  # noqa: PLC0415 - an extra installs it
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install 'presence-server[loadtest]'")
    if {"-h", "--help"} & {*sys.argv[1:]}:  # locust prints its own before it reads the locustfile
        _print_options()
    sys.argv[1:1] = ["--locustfile", str(LOCUSTFILE)]  # one that the user names comes later, and counts
    run_locust()  # type: ignore[no-untyped-call]


def _print_options() -> None:
    from locust.argument_parser import LocustArgumentParser  # noqa: PLC0415 - an extra installs it

    parser: Any = LocustArgumentParser(
        usage=argparse.SUPPRESS,
        add_help=False,
        add_env_var_help=False,
        description="Options of presence.loadtest; locust's own follow.",
    )
    add_options(parser)
    parser.print_help()
    print(flush=True)


if __name__ == "__main__":
    main()
