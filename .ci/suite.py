"""Run the README's line of tests; what fails beside others gets one more chance, alone, and is named.

Tests here keep time while others run beside them, on machines that are shared. As CPython's own test runner
does with `--rerun`, a few failures are tried once more, with nothing beside them: who fails again has failed.
More than a few are no bad luck, and are not tried again.
"""

import json
import subprocess
import sys
from pathlib import Path

SECOND_CHANCES_MAX = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(test_line: str) -> int:
    """Return the exit status of the suite."""
    status = subprocess.run(["bash", "-c", test_line], check=False).returncode
    if status != 1 or not FAILED.exists():  # 1: tests ran, and some failed
        return status
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8")))
    if not 0 < len(failed) <= SECOND_CHANCES_MAX:
        return status
    print("== failed beside others, and tried once more alone:", *failed, sep="\n   ", flush=True)
    return subprocess.run([".venv/bin/python", "-m", "pytest", "-n0", *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
