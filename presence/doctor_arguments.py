"""What may be said after ``presence doctor``."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from presence.argument_types import AddSettings
from presence.doctor.findings import CHECKS
from presence.settings import SPECS

if TYPE_CHECKING:
    from presence.config import Loaded

_DOCTOR = (
    "Says what a server of these settings would miss, as need against have, and the line that mends it. "
    "Takes what serve takes, reads the same variables and file, works beside a server that runs and without "
    "one, and changes nothing: it asks. In Redis it looks at rights by queueing commands in a transaction "
    "that it drops, which leaves lines in ACL LOG. What it may not ask is told as not tried. Exit status: 0 "
    "when nothing fails, 1 when something does, 2 when the command line is wrong."
)


def add_doctor(commands: Any, add_settings: AddSettings) -> None:
    """Add the command.

    Args:
        commands: the subparsers of the command line.
        add_settings: adds flags for settings to a parser.
    """
    doctor = commands.add_parser(
        "doctor",
        help="say what a server would miss here, and what mends it",
        description=_DOCTOR,
        epilog="\n".join(["looks at:", *(f"  {name:<20}  {about}" for name, about in CHECKS.items())]),
        formatter_class=_Columns,
    )
    doctor.add_argument("--all", action="store_true", dest="show_all", help="print what is well, too")
    doctor.add_argument("--json", action="store_true", help="one JSON object: status and checks")
    doctor.add_argument(
        "--handler",
        dest="handlers",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="import this function for follow-ups, too; may be given again",
    )
    add_settings(doctor, tuple(SPECS))


class _Columns(argparse.HelpFormatter):
    """Leaves the lines of what is looked at as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def run_doctor(args: argparse.Namespace, load: "Callable[[], Loaded]") -> int:
    """Run what was said; return the exit status."""
    # Help must not wait for redis-py and trio.
    from presence.commands import doctor  # noqa: PLC0415
    from presence.doctor.examination import Patient  # noqa: PLC0415

    return doctor.run(Patient(load, args.handlers), as_json=args.json, show_all=args.show_all)
